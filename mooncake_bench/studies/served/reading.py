"""Served logs of any known format, recognised by their content, gzip and zstd included."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mooncake_bench.errors import TraceError
from mooncake_bench.studies.served import mapped
from mooncake_bench.studies.served.log import Row, build
from mooncake_bench.trace.pieces import HashedFile, pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mooncake_bench.studies.served.log import ServedLog

PARQUET_MAGIC = b"PAR1"
KNOWN = "vLLM's `bench serve --save-result --save-detailed` JSON, aiperf's profile_export.jsonl, LLMServingSim's JSONL"
_PER_MS = {"ns": 1e6, "us": 1e3, "ms": 1.0, "s": 1e-3, "sec": 1e-3}  # units in a ms


def read(path: str | Path, columns: str | None = None) -> ServedLog:
    """The log in a file. ``columns`` maps those of a CSV, JSONL or parquet file; see :mod:`.mapped`.

    Raises TraceError, one line, for a file or row that cannot be read as it stands, and for columns that have no
    effect; NothingToConclude for too few requests.
    """
    label = str(path)
    file = HashedFile(Path(path), label)
    try:
        if file.start.startswith(PARQUET_MAGIC):
            return mapped.read_parquet(Path(path), label, _needed(columns, label, "a parquet file"))
        text = b"".join(piece.text for piece in pieces(file))
    finally:
        file.close()
    if not text:
        raise TraceError(f"{label}: the file is empty; expected {KNOWN}, or --columns for another")
    reader = _recognised(text)
    if reader is None:
        return mapped.read_text(text, label, _needed(columns, label, "a file of no known format"))
    if columns is not None:
        raise TraceError(f"--columns: no effect on {label}, whose format is known; leave it out")
    return reader(text, label)


def _needed(columns: str | None, label: str, what: str) -> str:
    if columns is None:
        raise TraceError(f"{label}: {what} (known: {KNOWN}); say which columns are which: --columns {mapped.EXAMPLE}")
    return columns


def _recognised(text: bytes) -> Callable[[bytes, str], ServedLog] | None:
    first = _object(text[: text.find(b"\n")] if b"\n" in text else text)
    if first is not None:
        if isinstance(first.get("metadata"), dict) and "request_start_ns" in first["metadata"]:
            return _read_aiperf
        if {"input_toks", "output_toks", "first_token_ts"} <= first.keys():
            return _read_llmservingsim
    if text.lstrip().startswith(b"{") and (b'"input_lens"' in text or b'"request_throughput"' in text):
        return _read_vllm
    return None


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _lines(text: bytes, label: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(text.split(b"\n"), start=1):
        if line.strip():
            found = _object(line)
            if found is None:
                raise TraceError(f"{label}, line {number}: expected a JSON object of one request, found other text")
            yield f"{label}, line {number}", found


def number(value: Any, where: str, name: str) -> float:
    """A number. Raises TraceError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        found = "nothing" if value is None else f"{str(value)[:40]!r}"
        raise TraceError(f"{where}: field {name!r}: expected a number, found {found}")
    return float(value)


# ---- vLLM


def _read_vllm(text: bytes, label: str) -> ServedLog:
    """``vllm bench serve``: one JSON object, a list a column; seconds. ``errors`` tells who failed."""
    whole = _object(text)
    if whole is None:
        raise TraceError(f"{label}: not one JSON object: it is damaged, or holds several runs; give a file of one run")
    columns = {name: _column(whole, name, label) for name in ("start_times", "input_lens", "output_lens", "ttfts")}
    gaps = _column(whole, "itls", label)
    errors = whole.get("errors") or [""] * len(gaps)
    lengths = {name: len(column) for name, column in {**columns, "itls": gaps, "errors": errors}.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {count}" for name, count in lengths.items())
        raise TraceError(f"{label}: its lists are not of one length ({found}); it is damaged, save it again")
    rows, failed, coarse = [], 0, 0
    for i in range(len(gaps)):
        where = f"{label}, request {i}"
        start, tokens, output, ttft = (number(column[i], where, name) for name, column in columns.items())
        if errors[i] or not output or not ttft:
            failed += 1
            continue
        if not isinstance(gaps[i], list):
            raise TraceError(f"{where}: field 'itls': expected a list of seconds, found {str(gaps[i])[:40]!r}")
        between = [1e3 * number(gap, where, "itls") for gap in gaps[i]]
        coarse += len(between) != output - 1
        rows.append(Row(where, 1e3 * start, tokens, output, 1e3 * ttft, sum(between), gaps_ms=between))
    return build(label, "vLLM bench serve", rows, failed, _coarse(label, coarse))


def _column(whole: dict[str, Any], name: str, label: str) -> list[Any]:
    column = whole.get(name)
    if isinstance(column, list):
        return column
    remedy = {
        "start_times": "an older vLLM does not save when requests were sent; serve with a newer one",
    }.get(name, "save it with --save-result --save-detailed")
    raise TraceError(f"{label}: no list {name!r}; {remedy}")


def _coarse(label: str, requests: int) -> list[str]:
    if not requests:
        return []
    return [f"{label}: {requests} requests got several tokens at once: their TBT is of gaps between chunks, not tokens"]


# ---- aiperf


def _read_aiperf(text: bytes, label: str) -> ServedLog:
    """``profile_export.jsonl``: a record a request, each metric with its unit."""
    rows, failed, coarse = [], 0, 0
    for where, record in _lines(text, label):
        meta, metrics = record.get("metadata"), record.get("metrics")
        if not isinstance(meta, dict) or not isinstance(metrics, dict):
            raise TraceError(f"{where}: expected an aiperf record with 'metadata' and 'metrics'")
        if record.get("error") or meta.get("was_cancelled"):
            failed += 1
            continue
        arrival = number(meta.get("request_start_ns"), where, "metadata.request_start_ns")
        ttft = _metric_ms(metrics, "time_to_first_token", where)
        rest = _metric_ms(metrics, "request_latency", where) - ttft
        tokens, output = (_metric(metrics, f"{part}_sequence_length", where)[0] for part in ("input", "output"))
        between = _gaps(metrics, where)
        coarse += between is not None and len(between) != output - 1
        tokens, output = number(tokens, where, "input_sequence_length"), number(output, where, "output_sequence_length")
        rows.append(Row(where, arrival / 1e6, tokens, output, ttft, rest, gaps_ms=between))
    return build(label, "aiperf", rows, failed, _coarse(label, coarse))


def _gaps(metrics: dict[str, Any], where: str) -> list[float] | None:
    """The gaps [ms] where the record holds them."""
    name = "inter_chunk_latency"
    if name not in metrics:
        return None
    gaps, unit = _metric(metrics, name, where)
    if not isinstance(gaps, list):
        raise TraceError(f"{where}: metric {name!r}: expected a list of times, found {str(gaps)[:40]!r}")
    return [number(gap, where, name) / _per_ms(unit, where) for gap in gaps]


def _metric(metrics: dict[str, Any], name: str, where: str) -> tuple[Any, str]:
    metric = metrics.get(name)
    if not isinstance(metric, dict) or "value" not in metric:
        hint = "; profile with --streaming" if name == "time_to_first_token" else ""
        raise TraceError(f"{where}: no metric {name!r} with a value{hint}")
    return metric["value"], str(metric.get("unit", ""))


def _metric_ms(metrics: dict[str, Any], name: str, where: str) -> float:
    value, unit = _metric(metrics, name, where)
    return number(value, where, name) / _per_ms(unit, where)


def _per_ms(unit: str, where: str) -> float:
    if unit not in _PER_MS:
        raise TraceError(f"{where}: unit {unit!r} of a time: expected one of {', '.join(_PER_MS)}")
    return _PER_MS[unit]


# ---- LLMServingSim


def _read_llmservingsim(text: bytes, label: str) -> ServedLog:
    """Requests as LLMServingSim records them in vLLM; arrival by the wall clock, the rest by the engine's clock.

    The two clocks are set so that the quickest of all hand-overs to the engine took no time.
    """
    found: list[tuple[str, list[float]]] = []
    failed = 0
    for where, record in _lines(text, label):
        if record.get("first_token_ts") is None or record.get("last_token_ts") is None:
            failed += 1
            continue
        names = ("arrival_time", "queued_ts", "input_toks", "output_toks", "first_token_ts", "last_token_ts")
        found.append((where, [number(record.get(name), where, name) for name in names]))
    shift = min((queued - arrival for _, (arrival, queued, *_) in found), default=0.0)
    rows = [
        Row(where, 1e3 * (arrival + shift), tokens, output, 1e3 * (first - arrival - shift), 1e3 * (last - first))
        for where, (arrival, _, tokens, output, first, last) in found
    ]
    note = f"{label}: arrivals are by another clock than tokens: set so that the quickest hand-over took no time"
    return build(label, "LLMServingSim", rows, failed, [note])
