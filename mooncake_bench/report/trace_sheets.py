"""What is in a trace, as small tables: the facts of :func:`mooncake_bench.trace.info`, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.report.sheets import Report, Sheet
from mooncake_bench.results.words import DASH, counted, decimal, duration, integer, share, significant
from mooncake_bench.trace.published import DEFINITIONS, NO_DEFINITION, hit_ratio

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Facts = dict[str, Any]

DISTRIBUTION = ("mean", "min", "p50", "p90", "p99", "max")
# Definition of the hit ratio -> what is counted above and below the line, as keys of ``infinite_cache``
FRACTIONS = {
    "hit_ratio_tokens": ("hit_tokens", None),
    "hit_ratio_blocks": ("hit_blocks", None),
    "hit_ratio_full_blocks": ("hit_full_blocks", "full_blocks"),
    "hit_blocks_over_full_blocks": ("hit_blocks", "full_blocks"),
}
UNITS_OF_TIME = ((3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms"))


def trace_report(facts: Facts) -> Report:
    """The report of one trace; what its source does not tell is said, not shown as zero."""
    sheets = [_distributions(facts), _arrivals(facts["arrivals"])]
    if facts["sharing"] is not None:
        sheets += [_infinite_cache(facts), _sharing(facts), _fan_out(facts["sharing"]), _working_set(facts)]
    sheets += _turns(facts)
    notices = (facts["no_prefix_ids"],) if facts["no_prefix_ids"] else ()
    return Report(tuple(_head(facts)), tuple(sheets), notices)


# ---- the head


def _head(facts: Facts) -> Iterator[str]:
    rate = facts["arrivals"]["request_rate_rps"]
    pace = "" if rate is None else f", {significant(rate)} a second"
    yield (
        f"trace {facts['name']} (content sha256 {facts['sha256'][:12]}): {counted(facts['requests'], 'request')} in "
        f"{span(facts['span_ms'])}{pace}, blocks of {counted(facts['block_tokens'], 'token')}"
    )
    known = facts["published"]
    if known is not None:
        yield (
            f"by its content {known['name']}: {known['source']}, says {counted(known['requests'], 'request')}, "
            f"{integer(known['input_tokens_mean'])} tokens in and {integer(known['output_tokens_mean'])} out on "
            f"average, cache ratio {known['hit_ratio']:.0%}"
        )
    told = [f"{key} {facts['metadata'][key]}" for key in ("format", "licence") if key in facts["metadata"]]
    if told:
        yield ", ".join(told)


def span(ms: float) -> str:
    """A stretch of time with four digits that count."""
    return f"{ms / 1000:,.0f} s" if ms >= 100_000 else f"{ms / 1000:.4g} s" if ms >= 1000 else f"{ms:.4g} ms"


# ---- distributions and arrivals


def _distributions(facts: Facts) -> Sheet:
    lines: list[tuple[str, Facts, float]] = [
        ("input tokens", facts["input_tokens"], 1),
        ("output tokens", facts["output_tokens"], 1),
    ]
    if facts["sharing"] is not None:
        shared = facts["sharing"]
        lines += [
            ("blocks of a request", shared["blocks_per_request"], 1),
            ("leading blocks seen before", shared["shared_prefix_blocks"], 1),
            ("depth of a distinct block", shared["block_depth"], 1),
            ("time since a block's last use [s]", shared["reuse_gap_ms"], 1000),
        ]
    if facts["sessions"] is not None:
        lines.append(("requests of a session", facts["sessions"]["turns"], 1))
    return Sheet("Distributions", ("", *DISTRIBUTION), tuple(_distribution(*line) for line in lines))


def _distribution(name: str, values: Facts, scale: float) -> tuple[str, ...]:
    return (name, *(_plain(values[word] / scale) if word in values else DASH for word in DISTRIBUTION))


def _plain(value: float) -> str:
    """Whole numbers as such, others with so many digits that three count."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"


def _arrivals(facts: Facts) -> Sheet:
    rows = tuple(
        (duration(row["window_ms"]), integer(row["windows"]), integer(row["max_requests"]), decimal(row["index"]))
        for row in facts["dispersion"]
    )
    return Sheet(
        "Arrivals", ("window", "windows", "most requests", "index of dispersion"), rows, tuple(_of_arrivals(facts))
    )


def _of_arrivals(facts: Facts) -> Iterator[str]:
    yield "index of dispersion: variance over mean of the requests in a window; 1: Poisson, more: bursts"
    gaps = f"coefficient of variation of the gaps: {decimal(facts['gap_cv'])}"
    yield f"{gaps}; at most {facts['max_at_one_time']:,} at one time"
    if facts["grid_ms"] is not None:
        yield (
            f"coarse grid: only {facts['distinct_times']:,} distinct times, about {duration(facts['grid_ms'])} apart; "
            "what happens within a step is not in the trace"
        )


# ---- sharing


def _infinite_cache(facts: Facts) -> Sheet:
    ideal, known = facts["infinite_cache"], facts["published"]
    below = {"hit_ratio_tokens": facts["input_tokens"]["sum"], "hit_ratio_blocks": facts["sharing"]["blocks"]}
    headers = ("definition", "hits", "of", "ratio", *(("- published",) if known else ()))
    rows = []
    for text, path in DEFINITIONS.items():
        ratio = hit_ratio(ideal, text)
        difference = (_points(ratio, known["hit_ratio"]),) if known else ()
        rows.append((text, *_fraction(ideal, path, below), share(ratio), *difference))
    notes = ["one cache that never evicts, each request served at once, in trace order; hits are leading blocks"]
    if known:
        notes += [f"{known['nearest']}; {NO_DEFINITION}", *([known["remark"]] if known["remark"] else [])]
    return Sheet("What an infinite cache would hit", headers, tuple(rows), tuple(notes))


def _fraction(ideal: Facts, path: Sequence[str], below: Mapping[str, int]) -> tuple[str, str]:
    """What is counted above and below the line, where it is one line."""
    if len(path) > 1 or path[0] not in FRACTIONS:
        return DASH, DASH
    above, under = FRACTIONS[path[0]]
    return integer(ideal[above]), integer(below[path[0]] if under is None else ideal[under])


def _points(ratio: float | None, published: float) -> str:
    return DASH if ratio is None else f"{100 * (ratio - published):+.1f} points"


def _sharing(facts: Facts) -> Sheet:
    shared, requests = facts["sharing"], facts["requests"]
    blocks, unique = shared["blocks"], shared["unique_blocks"]
    reused = blocks - unique
    rows = [
        ("references to blocks", integer(blocks), "", ""),
        ("of them to a block seen before", integer(reused), share(reused / blocks), "references"),
        ("distinct blocks", integer(unique), share(unique / blocks), "references"),
        ("of them seen only once", integer(shared["blocks_seen_once"]), share(shared["seen_once_ratio"]), "blocks"),
        ("first blocks (roots)", integer(shared["root_blocks"]), "", ""),
        (
            "requests that open with the usual one",
            integer(round(shared["top_root_share"] * requests)),
            share(shared["top_root_share"]),
            "requests",
        ),
    ]
    for top in shared["top_shares"]:
        count = top["blocks"]
        name = "references to the most used block" if count == 1 else f"references to the {count:,} most used"
        rows.append(
            (name, integer(round(top["reference_ratio"] * blocks)), share(top["reference_ratio"]), "references")
        )
    notes = []
    if shared["blocks_with_two_parents"]:
        odd = counted(shared["blocks_with_two_parents"], "block")
        notes.append(f"{odd} come after more than one other block: these ids are not prefix-chained hashes")
    return Sheet("Blocks and who shares them", ("", "number", "share", "of all"), tuple(rows), tuple(notes))


def _fan_out(shared: Facts) -> Sheet:
    classes = shared["fan_out"]
    row = ("blocks", *(integer(each["blocks"]) for each in classes), integer(shared["max_children"]))
    headers = ("children in the prefix tree", *(each["children"] for each in classes), "most")
    return Sheet("Fan-out", headers, (row,))


def _working_set(facts: Facts) -> Sheet:
    rows = [
        (
            "the whole trace" if row["window_ms"] is None else clock(row["window_ms"]),
            integer(row["mean_blocks"]),
            integer(row["max_blocks"]),
            integer(row["max_tokens"]),
            share(row["reused_ratio"]),
        )
        for row in facts["working_set"]
    ]
    notes = (
        "reused: references to a block whose last use was at most so long before, of all references",
        "an LRU pool of the most blocks at any time never fetches again what was used within the window",
    )
    return Sheet("Working set", ("used within", "mean blocks", "most blocks", "tokens", "reused"), tuple(rows), notes)


def clock(ms: float) -> str:
    """A window in the largest unit that divides it: 1 h, 10 min, 30 s."""
    unit, word = next((unit, word) for unit, word in UNITS_OF_TIME if ms >= unit or unit == 1)
    return f"{ms / unit:g} {word}"


# ---- turns


def _closed_loop(gap: str | None) -> str:
    return "is possible: every further turn has its delay" if gap is None else f"is not possible: {gap}"


def _turns(facts: Facts) -> list[Sheet]:
    early, sessions = facts["early_turns"], facts["sessions"]
    if early["parents"] is None or not early["turns"]:
        return []
    rows = tuple((f"{row['speedup']:g}×", integer(row["early"]), share(row["early_ratio"])) for row in early["rows"])
    if sessions is not None:
        first = (
            f"{counted(sessions['sessions'], 'session')} in the trace, {sessions['requests_without']:,} requests alone"
        )
    else:
        count = counted(facts["requests"] - early["turns"], "session")
        first = f"sessions are inferred from how prompts grow: {count}"
    notes = (
        f"{first}; {counted(early['turns'], 'request')} with a turn before",
        f"early: before the answer to the turn before, taken to need {duration(early['assumed_ttft_ms'])} and "
        f"{duration(early['assumed_tbt_ms'])} a token",
        "no user could have sent an early turn: replaying faster is not the same as more users",
        f"a closed loop (replay --loop closed) {_closed_loop(facts['closed_loop']['gap'])}",
    )
    return [Sheet("Turns that arrive before the answer they follow", ("replayed at", "early", "of turns"), rows, notes)]
