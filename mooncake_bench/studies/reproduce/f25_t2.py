"""FAST'25 table 2: how many requests the three traces have, how long they are, and what can be found in a cache."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.report.sheets import Sheet
from mooncake_bench.results.words import DASH
from mooncake_bench.studies.reproduce.outcome import CLOSE, Claim, Result, Row
from mooncake_bench.trace import info

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mooncake_bench.studies.reproduce.outcome import Used
    from mooncake_bench.studies.reproduce.sources import Traces
    from mooncake_bench.trace import Trace

ID = "F25-T2"
TITLE = "what is in the three traces"
SOURCE = "FAST'25, table 2"


class Printed(NamedTuple):
    """A line of the table."""

    requests: int
    input_tokens: int  # mean
    output_tokens: int  # mean
    cache_ratio: float


UNITS = ("requests", "tokens", "tokens", "ratio")
PUBLISHED = {
    "conversation": Printed(12_031, 12_035, 343, 0.40),
    "toolagent": Printed(23_608, 8_596, 182, 0.59),
    "synthetic": Printed(3_993, 15_325, 149, 0.66),
}
# Readings of "cache ratio", none of which the paper names: what each divides.
DEFINITIONS = {
    "tokens": "prefix tokens found / prompt tokens",
    "blocks": "prefix blocks found / blocks",
    "full blocks": "prefix blocks found / full blocks",
    "per request": "mean over requests of tokens found / prompt tokens",
    "second half": "as tokens, the first half of the requests only warms the cache",
}
CHOSEN = "full blocks"


def run(traces: Traces) -> Result:
    """Count the table's columns in each trace at hand; the cache is infinite and serves requests in trace order."""
    found = {name: traces.get(name) for name in PUBLISHED}
    facts = {name: info(trace) for name, (trace, _) in found.items() if trace is not None}
    ratios = {name: _ratios(each["infinite_cache"]) for name, each in facts.items()}
    return Result(
        rows=tuple(row for name in PUBLISHED for row in _rows(name, facts.get(name), found[name][1].stand_in)),
        claims=(_order(ratios, [name for name, (_, used) in found.items() if used.stand_in]),),
        used=tuple(used for _, used in found.values()),
        parameters=(_parameter(ratios),),
        notes=tuple(_notes(found, ratios)),
        sheets=(_sheet(ratios),),
        measured=tuple(
            {"trace": name, "definition": key, "cache_ratio": ratio}
            for name, each in ratios.items()
            for key, ratio in each.items()
        ),
    )


def _ratios(facts: Mapping[str, Any]) -> dict[str, float]:
    return {
        "tokens": facts["hit_ratio_tokens"],
        "blocks": facts["hit_ratio_blocks"],
        "full blocks": facts["hit_blocks_over_full_blocks"],
        "per request": facts["mean_request_hit_ratio_tokens"],
        "second half": facts["second_half"]["hit_ratio_tokens"],
    }


def _rows(name: str, facts: Mapping[str, Any] | None, stand_in: bool) -> list[Row]:
    ours = (None,) * len(Printed._fields) if facts is None else _columns(facts)
    named = zip(("requests", "mean input", "mean output", "cache ratio"), PUBLISHED[name], ours, UNITS, strict=True)
    return [Row(name, what, published, mine, unit, stand_in=stand_in) for what, published, mine, unit in named]


def _columns(facts: Mapping[str, Any]) -> tuple[float, ...]:
    lengths = [facts[side]["mean"] for side in ("input_tokens", "output_tokens")]
    return (facts["requests"], *lengths, _ratios(facts["infinite_cache"])[CHOSEN])


def _order(ratios: Mapping[str, Mapping[str, float]], stand_ins: Sequence[str]) -> Claim:
    text = "cache ratio: conversation < tool&agent < synthetic"
    at_hand = [name for name in PUBLISHED if name in ratios]
    if len(at_hand) < len(PUBLISHED):
        return Claim(text, None, f"only {', '.join(at_hand) or 'no trace'} at hand")
    holding = [key for key in DEFINITIONS if _rising([ratios[name][key] for name in PUBLISHED])]
    detail = f"holds by {', '.join(holding) or 'none'} of: {', '.join(DEFINITIONS)}"
    return Claim(text, CHOSEN in holding, detail + (f"; {', '.join(stand_ins)}: a stand-in" if stand_ins else ""))


def _rising(values: Sequence[float]) -> bool:
    return all(low < high for low, high in pairwise(values))


def _parameter(ratios: Mapping[str, Mapping[str, float]]) -> str:
    near = [
        key
        for key in DEFINITIONS
        if ratios and all(abs(each[key] / PUBLISHED[name].cache_ratio - 1) <= CLOSE for name, each in ratios.items())
    ]
    within = f"; all traces at hand are within 10 % by: {', '.join(near) or 'none'}"
    return f'what "cache ratio" divides, which the paper does not say; judged here: {DEFINITIONS[CHOSEN]}{within}'


def _notes(found: Mapping[str, tuple[Trace | None, Used]], ratios: Mapping[str, Mapping[str, float]]) -> list[str]:
    notes = [
        f"{name}: the stand-in was made to resemble these very numbers, so they say nothing about the published trace"
        for name, (_, used) in found.items()
        if used.stand_in
    ]
    real = {name: each for name, each in ratios.items() if not found[name][1].stand_in}
    exact = [key for key in DEFINITIONS if all(round(real[n][key], 2) == PUBLISHED[n].cache_ratio for n in real)]
    if real and not exact:
        notes.append('no one reading of "cache ratio" gives the printed digits of every trace')
    return notes


def _sheet(ratios: Mapping[str, Mapping[str, float]]) -> Sheet:
    rows = [("published", *(f"{printed.cache_ratio:.2f}" for printed in PUBLISHED.values()))]
    rows += [
        (text, *(f"{ratios[name][key]:.3f}" if name in ratios else DASH for name in PUBLISHED))
        for key, text in DEFINITIONS.items()
    ]
    return Sheet("Cache ratio of an infinite cache, by each reading of the word", ("", *PUBLISHED), tuple(rows))
