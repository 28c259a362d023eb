"""Several traces as one: requests interleaved by arrival, what belongs to each kept apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.errors import TraceError
from mooncake_bench.trace.model import NO_SESSION, Trace
from mooncake_bench.trace.rows import about_arrivals, by_time, numbered, remade, taken
from mooncake_bench.trace.schema import MAX_SPAN_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_bench.trace.model import Floats, Ints


def merge(
    traces: Sequence[Trace],
    offsets_ms: Sequence[float] | None = None,
    share_blocks: bool = False,
    name: str = "merged",
) -> Trace:
    """All requests of ``traces`` by arrival, each trace begun ``offsets_ms`` later; equal times in order of traces.

    Block and session ids are numbered anew, so that no two traces share any. ``share_blocks`` keeps block ids: the
    caller says that they come from one id space; nothing checks it. A column that only some traces have is filled (no
    session, priority 0, delay not known) and a notice says so. Request ids get their trace's number in front where two
    traces use the same one or one has none. Raises TraceError for fewer than two traces, differing block sizes, and
    offsets that do not fit.
    """
    starts = _starts(traces, offsets_ms)
    _check_blocks_alike(traces)
    _check_span(traces, starts)
    notices: list[str] = []
    whole = Trace(
        name=name,
        arrival_ms=np.concatenate([trace.arrival_ms + start for trace, start in zip(traces, starts, strict=True)]),
        input_tokens=np.concatenate([trace.input_tokens for trace in traces]),
        output_tokens=np.concatenate([trace.output_tokens for trace in traces]),
        block_offsets=_joined_offsets(traces),
        block_ids=_blocks(traces, share_blocks),
        block_tokens=traces[0].block_tokens,
        request_id=_request_ids(traces, notices),
        session_id=_filled(traces, "session_id", "no session", notices, _sessions),
        priority=_filled(traces, "priority", "priority 0", notices, _priorities),
        delay_ms=_filled(traces, "delay_ms", "no known delay", notices, _delays),
        metadata=_facts(traces, notices),
        notices=tuple(notice for trace in traces for notice in named_notices(trace)),
    )
    columns = taken(whole, by_time(whole.arrival_ms)) | {"source_row": None}
    apart = (
        "block ids kept, taken to mean the same blocks in all, as told"
        if share_blocks
        else "block and session ids kept apart"
    )
    shown = ", ".join(f"{trace.name} at {start:g} ms" for trace, start in zip(traces, starts, strict=True))
    return remade(whole, f"merged from {shown}; {apart}", notices, **columns)


def named_notices(trace: Trace) -> list[str]:
    """A trace's notices under its name; those on its arrivals are not true of a merged trace."""
    about = about_arrivals(trace.arrival_ms)
    return [f"{trace.name}: {notice}" for notice in trace.notices if notice not in about]


def _starts(traces: Sequence[Trace], offsets_ms: Sequence[float] | None) -> list[float]:
    starts = list(offsets_ms) if offsets_ms else [0.0] * len(traces)
    check_offsets(len(traces), starts)
    return starts


def check_offsets(traces: int, offsets_ms: Sequence[float]) -> None:
    """Raises TraceError for fewer than two traces, and for offsets that fit none; no offsets are fine."""
    if traces < 2:
        raise TraceError(f"merge: found {traces} trace; expected at least two")
    if offsets_ms and len(offsets_ms) != traces:
        found = f"{len(offsets_ms)} offset{'s' * (len(offsets_ms) != 1)}"
        raise TraceError(f"merge: found {found} for {traces} traces; expected one for each")
    odd = next((start for start in offsets_ms if not 0 <= start <= MAX_SPAN_MS), None)
    if odd is not None:
        raise TraceError(f"merge: an offset is {odd:g} ms; expected times from 0 to {MAX_SPAN_MS:g} ms")


def _check_span(traces: Sequence[Trace], starts: Sequence[float]) -> None:
    span_ms = max(trace.span_ms + start for trace, start in zip(traces, starts, strict=True)) - min(starts)
    if span_ms > MAX_SPAN_MS:
        raise TraceError(f"merge: the offsets give a span of {span_ms:g} ms; expected at most {MAX_SPAN_MS:g} ms")


def _check_blocks_alike(traces: Sequence[Trace]) -> None:
    first = traces[0]
    other = next((trace for trace in traces if trace.block_tokens != first.block_tokens), None)
    if other is not None:
        sizes = f"{first.block_tokens} tokens in {first.name!r}, {other.block_tokens} in {other.name!r}"
        hint = f"convert one with --reblock {max(first.block_tokens, other.block_tokens)}"
        raise TraceError(f"merge: blocks have {sizes}; expected one block size: {hint}")


def _joined_offsets(traces: Sequence[Trace]) -> Ints:
    counts = np.concatenate([np.diff(trace.block_offsets) for trace in traces])
    return np.concatenate(([0], np.cumsum(counts)))


def _blocks(traces: Sequence[Trace], share_blocks: bool) -> Ints:
    return np.concatenate([trace.block_ids for trace in traces]) if share_blocks else _apart(_all(traces, "block_ids"))


def _all(traces: Sequence[Trace], column: str) -> list[Ints]:
    return [getattr(trace, column) for trace in traces]


def _apart(columns: Sequence[Ints]) -> Ints:
    """Ids of several spaces as ids of one: each column numbered by first appearance, after the one before it."""
    parts, first = [], 0
    for column in columns:
        parts.append(numbered(column) + first)
        first = int(parts[-1].max(initial=first - 1)) + 1
    return np.concatenate(parts)


def _filled(
    traces: Sequence[Trace], column: str, filler: str, notices: list[str], join: Callable[[Sequence[Trace]], Any]
) -> Any:
    """An optional column of all traces: None when no trace has it, else what ``join`` makes of it."""
    lacking = [trace for trace in traces if getattr(trace, column) is None]
    if len(lacking) == len(traces):
        return None
    notices += [f"{trace.name} has no {column}: its {_requests(trace)} {filler}" for trace in lacking]
    return join(traces)


def _requests(trace: Trace) -> str:
    return "1 request gets" if len(trace) == 1 else f"{len(trace):,} requests get"


def _sessions(traces: Sequence[Trace]) -> Ints:
    columns = [np.full(len(trace), NO_SESSION) if trace.session_id is None else trace.session_id for trace in traces]
    known = np.concatenate(columns) != NO_SESSION
    joined = np.full(len(known), NO_SESSION, np.int64)
    joined[known] = _apart([column[column != NO_SESSION] for column in columns])
    return joined


def _priorities(traces: Sequence[Trace]) -> Ints:
    zeros = (np.zeros(len(trace), np.int64) for trace in traces)
    return np.concatenate(
        [zero if trace.priority is None else trace.priority for trace, zero in zip(traces, zeros, strict=True)]
    )


def _delays(traces: Sequence[Trace]) -> Floats:
    unknown = (np.full(len(trace), np.nan) for trace in traces)
    return np.concatenate(
        [none if trace.delay_ms is None else trace.delay_ms for trace, none in zip(traces, unknown, strict=True)]
    )


def _request_ids(traces: Sequence[Trace], notices: list[str]) -> tuple[str, ...] | None:
    if all(trace.request_id is None for trace in traces):
        return None
    plain = [name for trace in traces for name in trace.request_ids()]
    if all(trace.request_id is not None for trace in traces) and len(set(plain)) == len(plain):
        return tuple(plain)
    notices.append("request ids begin with the number of their trace (from 0): some were used twice, or missing")
    return tuple(f"{number}:{name}" for number, trace in enumerate(traces) for name in trace.request_ids())


def _facts(traces: Sequence[Trace], notices: list[str]) -> dict[str, str]:
    """What is true of every trace, and the sources of all."""
    common = dict(traces[0].metadata)
    for trace in traces[1:]:
        common = {key: value for key, value in common.items() if trace.metadata.get(key) == value}
    for key in ("source", "licence"):
        named = [f"{trace.name}: {trace.metadata[key]}" for trace in traces if key in trace.metadata]
        if named:
            common[key] = "; ".join(named) if key not in common else common[key]
    without = [trace for trace in traces if not trace.has_prefix_ids]
    if without and len(without) < len(traces):
        requests = sum(map(len, without))
        notices.append(
            f"{', '.join(trace.name for trace in without)}: the source has no prefix ids, so {requests:,} of "
            f"{sum(map(len, traces)):,} requests share nothing"
        )
    return common
