"""A model, a node, an engine or a link as small tables: the facts of :mod:`mooncake_bench.hardware.describe`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.report.sheets import Report, Sheet
from mooncake_bench.results.words import counted, decimal, integer, ms, size

if TYPE_CHECKING:
    from collections.abc import Iterator

Facts = dict[str, Any]

# Coefficient -> its letter in the forms, its unit
LETTERS = {
    "prefill_floor_ms": ("m", "ms"),
    "prefill_token_ms": ("b", "ms per computed token"),
    "prefill_constant_ms": ("o", "ms"),
    "prefill_token2_ms": ("c", "ms per token squared"),
    "prefill_late_ms": ("h", "ms"),
    "prefill_late_tokens": ("w", "tokens"),
    "decode_floor_ms": ("m", "ms"),
    "decode_roof_ms": ("k", "ms per sequence"),
    "decode_sequence_ms": ("e", "ms per sequence"),
    "decode_root_ms": ("g", "ms per root of a sequence"),
    "decode_token_ms": ("c_d", "ms per context token"),
}
# A term that is not there is not shown: coefficient -> the one that says whether it is
OPTIONAL = {
    "prefill_late_ms": "prefill_late_ms",
    "prefill_late_tokens": "prefill_late_ms",
    "decode_root_ms": "decode_root_ms",
}
FORMS = (
    "prefill of n new tokens after p cached ones: sqrt(m^2 + (b n)^2) + o + c S + h n^2 / (n^2 + w^2), S = n p + n^2/2",
    "decode step of B sequences, T context tokens in all: (m^4 + (k B)^4)^(1/4) + e B + g sqrt(B) + c_d T",
)


def hardware_report(facts: Facts) -> Report:
    """The report of one preset."""
    if facts["kind"] == "node":
        return _node(facts)
    if facts["kind"] == "link":
        return _link(facts)
    left_out = ("kind", "name", "shape", "overhead")
    head = [f"{facts['kind']} {facts['name']}"]
    head += [
        f"{key.replace('_', ' ')}: {_plain(value)}" for key, value in facts.items() if key not in left_out and value
    ]
    head += [
        f"{part} {key.replace('_', ' ')}: {_plain(value)}" for part in left_out for key, value in _inner(facts, part)
    ]
    return Report(tuple(head), (), ())


def _inner(facts: Facts, part: str) -> Iterator[tuple[str, Any]]:
    inner = facts.get(part)
    if isinstance(inner, dict):
        yield from ((key, value) for key, value in inner.items() if value not in (None, (), []) and key != "name")


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_plain(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    return integer(value) if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _link(facts: Facts) -> Report:
    latency = facts["latency_ms"]
    head = (
        f"link {facts['name']}: {facts['description']} ({facts['medium']}), {facts['status']}",
        f"{facts['gbytes_per_s']:g} GB/s one way, latency {'not known' if latency is None else f'{latency:g} ms'}",
        f"source: {facts['source']}",
        f"error: {facts['error']}",
    )
    rows = tuple((size(row["bytes"]), _fine_ms(row["ms"])) for row in facts["times"])
    note = "latency + bytes / bandwidth, uncontended" + ("; the latency, not known, counts as 0" * (latency is None))
    return Report(head, (Sheet("One transfer", ("bytes", "ms"), rows, (note,)),), ())


def _fine_ms(value: float) -> str:
    return f"{value:.3g}" if value < 1 else ms(value)


def _node(facts: Facts) -> Report:
    head = [
        f"node {facts['name']}: {facts['description']}; one instance is {counted(facts['gpus'], 'GPU')}",
        f"network {facts['nic_gbytes_per_s']:g} GB/s each way ({facts['nic_status']}): {facts['nic_source']}",
        f"pool {integer(facts['pool_tokens'])} tokens of DRAM: {facts['pool_source']}",
    ]
    sheets = [sheet for costs in facts["costs"] for sheet in _costs(costs)]
    if not facts["costs"]:
        head.append("no model's costs were fitted on it; give --model to predict some")
    engine = "no engine's time in them"
    if facts["engine"] != "none":
        added = f"{facts['engine_prefill_ms']:g} ms a prefill and {facts['engine_decode_ms']:g} ms a decode step"
        engine = f"the coefficients' and {added} of engine {facts['engine']}"
    notices = tuple(dict.fromkeys(costs["error"] for costs in facts["costs"]))
    if sheets:
        head.append(f"times: {engine}")
    return Report(tuple(head), tuple(sheets), notices)


def _costs(costs: Facts) -> Iterator[Sheet]:
    model = costs["model"]
    rows = [
        (name.replace("_", " ").removesuffix(" ms"), letter, f"{costs['coefficients'][name]:.6g}", unit)
        for name, (letter, unit) in LETTERS.items()
        if name not in OPTIONAL or costs["coefficients"][OPTIONAL[name]]
    ]
    yield Sheet(f"{model}: coefficients", ("what", "letter", "value", "unit"), tuple(rows), FORMS)
    yield Sheet(f"{model}: prefill, ms", ("tokens", "none cached", "90 % cached"), tuple(_prefill(costs)))
    note = f"{integer(costs['decode'][0]['context_tokens'])} tokens of context a sequence; " if costs["decode"] else ""
    steps = tuple((integer(row["batch"]), ms(row["ms"])) for row in costs["decode"])
    fits = f"{note}{integer(costs['vram_tokens'])} tokens fit in GPU memory"
    yield Sheet(f"{model}: decode step, ms", ("batch", "step"), steps, (fits,))
    errors = tuple(_errors(costs))
    if errors:
        headers = ("of", "rows", "median", "p90", "worst", "left-out median", "left-out p90")
        note = "random halves; left-out: each length or batch predicted without its own rows"
        yield Sheet(f"{model}: error of the fit on rows it did not see, %", headers, errors, (note,))


def _prefill(costs: Facts) -> Iterator[tuple[str, ...]]:
    times = costs["prefill"]
    for tokens in dict.fromkeys(row["tokens"] for row in times):
        yield (integer(tokens), *(ms(row["ms"]) for row in times if row["tokens"] == tokens))


def _errors(costs: Facts) -> Iterator[tuple[str, ...]]:
    for what in ("prefill", "decode"):
        heldout = costs[f"{what}_heldout"]
        if heldout:
            numbers = [
                decimal(heldout[key], 1) for key in ("median", "p90", "worst", "left_out_median", "left_out_p90")
            ]
            yield (what, integer(heldout["rows"]), *numbers)
