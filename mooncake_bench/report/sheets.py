"""What a report shows, as small tables of text: the same content for terminal, Markdown and LaTeX.

Accounts come before latencies, and the reference policy first; ``×`` is a policy's value over the reference's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mooncake_bench.report.notices import fold
from mooncake_bench.results.coupled import is_coupled
from mooncake_bench.results.headline import headline
from mooncake_bench.results.split import split
from mooncake_bench.results.words import DASH, alike, decimal, factor, integer, ms, rate, share, significant, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mooncake_bench.results.compare import Comparison, Difference, Pairing
    from mooncake_bench.results.metrics import Value
    from mooncake_bench.results.run import Run
    from mooncake_bench.results.uncertainty import Interval


@dataclass(frozen=True)
class Sheet:
    """One table: the first column is text, the others are numbers as people read them."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """Everything to be shown about some runs."""

    head: tuple[str, ...]
    sheets: tuple[Sheet, ...]
    notices: tuple[str, ...]


@dataclass(frozen=True)
class Column:
    """A column: its header, and either a metric to format or ``ratio_of`` one over the reference's."""

    header: str
    metric: str
    show: Callable[[float | None], str] = ms
    ratio: bool = False
    samples: bool = False  # show how many samples the metric rests on instead of its value


def report(comparison: Comparison, by: str | None = None) -> Report:
    """The report of one or several runs; ``by`` adds a table split by ``input_tokens``, ``session`` or ``priority``."""
    order = _reference_first(comparison)
    sheets = [_sheet(comparison, order, *content) for content in SHEETS]
    sheets[REQUESTS_AT] = _with_reasons(sheets[REQUESTS_AT], comparison, order)
    sheets[TOKENS_AT] = _with_first_gap(sheets[TOKENS_AT], comparison, order)
    if any(is_coupled(run.manifest["setup"]) for run in comparison.runs):
        sheets[POOLS_AT] = replace(sheets[POOLS_AT], notes=(*sheets[POOLS_AT].notes, BUSY_COUPLED))
    if len(order) > 1:
        sheets += [_goodput(comparison, order), _paired(comparison, order)]
    if by is not None:
        sheets += [_split(comparison, i, by) for i in order]
    seen = [(comparison.labels[i], text) for i in order for text in _notices(comparison, i)]
    head = headline(comparison.runs[comparison.reference])
    return Report(tuple(head), tuple(sheets), tuple(dict.fromkeys([*comparison.notices, *fold(seen)])))


def _notices(comparison: Comparison, run: int) -> Iterator[str]:
    """A run's notices without the label, which may not tell it from another, and without what was said already."""
    for notice in comparison.runs[run].notices:
        text = notice.removeprefix(f"{comparison.runs[run].label}: ")
        head, _, detail = text.partition("; ")
        yield head if detail and any(line.endswith(f"; {detail}") for line in comparison.notices) else text


def _reference_first(comparison: Comparison) -> list[int]:
    others = [i for i in range(len(comparison.runs)) if i != comparison.reference]
    return [comparison.reference, *others]


REQUESTS = (
    Column("offered", "offered_requests", integer),
    Column("completed", "completed_requests", integer),
    Column("rejected", "rejected_requests", integer),
    Column("of tokens", "rejected_tokens_ratio", share),
    Column("failed", "failed_requests", integer),
    Column("unfinished", "unfinished_requests", integer),
)
GOODPUT = (
    Column("requests", "request_goodput_ratio", share),
    Column("×", "request_goodput_ratio", ratio=True),
    Column("tokens", "goodput_tokens_ratio", share),
    Column("req/s", "request_goodput_rps", rate),
    Column("per GPU", "goodput_per_gpu_rps", significant),
    Column("TTFT ok", "slo_ttft_ratio", share),
    Column("TBT ok", "slo_tbt_ratio", share),
    Column("GPU h", "gpu_hours", significant),
)
FIRST_TOKEN = (
    Column("n", "mean_ttft_ms", samples=True),
    Column("mean", "mean_ttft_ms"),
    Column("×", "mean_ttft_ms", ratio=True),
    Column("p50", "p50_ttft_ms"),
    Column("p90", "p90_ttft_ms"),
    Column("p99", "p99_ttft_ms"),
    Column("queue", "mean_queue_ms"),
    Column("e2e", "mean_e2e_ms"),
)
TOKENS = (
    Column("n", "mean_tbt_ms", samples=True),
    Column("mean", "mean_tbt_ms"),
    Column("×", "mean_tbt_ms", ratio=True),
    Column("p50", "p50_tbt_ms"),
    Column("p99", "p99_tbt_ms"),
    Column("TPOT", "mean_tpot_ms"),
    Column("gaps", "mean_itl_ms", samples=True),
    Column("ITL p50", "p50_itl_ms"),
    Column("ITL p99", "p99_itl_ms"),
)
CACHE = (
    Column("hits", "hit_ratio_tokens", share),
    Column("ceiling", "ceiling_ratio_tokens", share),
    Column("prefill ms", "mean_prefill_gpu_ms"),
    Column("×", "mean_prefill_gpu_ms", ratio=True),
    Column("wasted", "wasted_prefill_ratio", share),
    Column("fetched", "fetched_bytes", size),
    Column("streamed", "streamed_bytes", size),
)
POOLS = (
    Column("P busy", "prefill_utilisation_ratio", share),
    Column("load", "mean_prefill_load_ratio", decimal),
    Column("max", "max_prefill_load_ratio", decimal),
    Column("± sd", "std_prefill_load_ratio", decimal),
    Column("D busy", "decode_utilisation_ratio", share),
    Column("load", "mean_decode_load_ratio", decimal),
    Column("max", "max_decode_load_ratio", decimal),
    Column("± sd", "std_decode_load_ratio", decimal),
    Column("corr.", "load_correlation", decimal),
)
SHEETS: tuple[tuple[str, tuple[Column, ...], str], ...] = (
    ("Requests", REQUESTS, "of tokens: share of the offered prompt tokens that was rejected"),
    (
        "Goodput: completed within the SLOs",
        GOODPUT,
        "requests, tokens: of all offered requests and prompt tokens; req/s: over first arrival to last end; TTFT ok: "
        "of completed; TBT ok: of completed with a token gap",
    ),
    (
        "TTFT of completed requests, ms",
        FIRST_TOKEN,
        "TTFT = first token - arrival, queueing included; × = over the first policy",
    ),
    (
        "TBT of completed requests, ms",
        TOKENS,
        "TBT = mean of a request's longest 10 % of token gaps; TPOT = (e2e - TTFT) / (output - 1)",
    ),
    (
        "Cache and prefill",
        CACHE,
        "hits, ceiling (an infinite cache's hits): of prompt tokens whose prefill began; prefill ms: per such request; "
        "wasted: of prefill time",
    ),
    (
        "Pools over time",
        POOLS,
        "busy: of the pool's instances × arrival span; load 1: at its SLO, or full; corr. < 0: both loads swing in "
        "anti-phase",
    ),
)
REQUESTS_AT, TOKENS_AT, POOLS_AT = (
    next(i for i, sheet in enumerate(SHEETS) if sheet[1] is each) for each in (REQUESTS, TOKENS, POOLS)
)
BUSY_COUPLED = "coupled instances: P busy in steps of prompts alone, D busy in steps that decode; together: busy"


def _sheet(comparison: Comparison, order: Sequence[int], title: str, columns: Sequence[Column], note: str) -> Sheet:
    cells = zip(*(_cells(comparison, order, column) for column in columns), strict=True)
    rows = tuple((comparison.labels[i], *row) for i, row in zip(order, cells, strict=True))
    return Sheet(title, ("policy", *(column.header for column in columns)), rows, (note,))


def _cells(comparison: Comparison, order: Sequence[int], column: Column) -> list[str]:
    if column.show is significant:  # how many decimals is the column's matter
        return alike([comparison.metrics[i][column.metric].value for i in order])
    return [_cell(comparison, i, column) for i in order]


def _cell(comparison: Comparison, run: int, column: Column) -> str:
    if column.ratio:
        return factor(comparison.ratio(column.metric, run))
    return _shown(comparison.metrics[run], column)


def _shown(values: Mapping[str, Value], column: Column) -> str:
    value = values[column.metric]
    return integer(value.n) if column.samples else column.show(value.value)


def _with_reasons(sheet: Sheet, comparison: Comparison, order: Sequence[int]) -> Sheet:
    """The accounts, with each policy's rejections by stage and reason below."""
    notes = [line for i in order if (line := _reasons(comparison.labels[i], comparison.runs[i]))]
    return replace(sheet, notes=(*sheet.notes, *notes))


def _with_first_gap(sheet: Sheet, comparison: Comparison, order: Sequence[int]) -> Sheet:
    """The legend of the token gaps: which of them count is a setting, in forced comparisons of each run."""
    without = [i for i in order if comparison.runs[i].manifest["setup"]["slo.first_gap"] == "exclude"]
    text = "ITL = all gaps"
    if without:
        where = "" if len(without) == len(order) else f"of {', '.join(comparison.labels[i] for i in without)}, "
        text = f"ITL = all counted gaps; {where}TBT and ITL leave out each request's first gap, TPOT does not"
    return replace(sheet, notes=(f"{sheet.notes[0]}; {text}", *sheet.notes[1:]))


def _reasons(label: str, run: Run) -> str:
    groups = run.rejections()
    shown = [f"{group.requests:,} at {group.stage} ({group.reason})" for group in groups[:6]]
    if len(groups) > 6:
        shown.append(f"{sum(group.requests for group in groups[6:]):,} for other reasons")
    return f"{label} rejected {', '.join(shown)}" if shown else ""


# ---- pairs


def _goodput(comparison: Comparison, order: Sequence[int]) -> Sheet:
    """Who keeps more requests within their SLOs, and whether that can be told."""
    rows = []
    for i in order:
        pairing = comparison.pairs[i]
        if pairing is not None and pairing.goodput is not None:
            rows.append((comparison.labels[i], *_goodput_cells(pairing.goodput)))
    title = f"Requests within their SLOs against {comparison.labels[comparison.reference]}"
    note = "points: percentage points of the offered requests that both met; interval: by a block bootstrap over time"
    return Sheet(title, ("policy", "change, points", "95 % interval, points", "verdict"), tuple(rows), (note,))


VERDICTS = {1: "more", -1: "fewer", 0: "the same", None: "cannot tell apart"}


def _goodput_cells(found: Interval) -> tuple[str, ...]:
    same = (found.low, found.high) == (0, 0)
    span = DASH if found.low is None or found.high is None else f"{100 * found.low:+.2f} to {100 * found.high:+.2f}"
    return f"{100 * found.mean:+.2f}", DASH if same else span, VERDICTS[0 if same else found.sign]


def _paired(comparison: Comparison, order: Sequence[int]) -> Sheet:
    headers = ("policy", "both", "TTFT", "×", "95 % interval", "TBT", "×")
    rows = []
    for i in order:
        pairing = comparison.pairs[i]
        if pairing is not None:
            rows.append((comparison.labels[i], *_pair_cells(pairing)))
    reference = comparison.labels[comparison.reference]
    title = f"Mean change against {reference}, on requests that both completed, ms"
    note = "95 % interval: of the TTFT change, by a block bootstrap over time"
    return Sheet(title, headers, tuple(rows), (note,))


def _pair_cells(pairing: Pairing) -> tuple[str, ...]:
    ttft, tbt = (pairing.differences.get(name) for name in ("ttft_ms", "tbt_ms"))
    return (integer(pairing.both), *_change(ttft), _interval(ttft), *_change(tbt))


def _interval(difference: Difference | None) -> str:
    if difference is None or difference.low_ms is None or difference.high_ms is None:
        return DASH
    return f"{difference.low_ms:+,.1f} to {difference.high_ms:+,.1f}"


def _change(difference: Difference | None) -> tuple[str, str]:
    return (DASH, DASH) if difference is None else (_signed(difference.mean_ms), factor(difference.ratio))


def _signed(value: float | None) -> str:
    return DASH if value is None else "0" if value == 0 else ("+" if value > 0 else "-") + ms(abs(value))


# ---- groups of requests


GROUP = (
    Column("offered", "offered_requests", integer),
    Column("rejected", "rejected_requests", integer),
    Column("failed", "failed_requests", integer),
    Column("unfinished", "unfinished_requests", integer),
    Column("in SLO", "request_goodput_ratio", share),
    Column("TTFT", "mean_ttft_ms"),
    Column("p99", "p99_ttft_ms"),
    Column("TBT p99", "p99_tbt_ms"),
    Column("hits", "hit_ratio_tokens", share),
)
WHERE_ANY = ("failed_requests", "unfinished_requests")  # rare: shown where a group has some, to fit 80 columns


def _split(comparison: Comparison, run: int, by: str) -> Sheet:
    groups = [(name, comparison.runs[run].metrics(where)) for name, where in split(comparison.runs[run], by)]
    columns = [
        column
        for column in GROUP
        if column.metric not in WHERE_ANY or any(values[column.metric].value for _, values in groups)
    ]
    rows = [(name, *(_shown(values, column) for column in columns)) for name, values in groups]
    headers = (by, *(column.header for column in columns))
    note = "of each group: in SLO: of its offered requests; hits: of its prompt tokens whose prefill began; times in ms"
    return Sheet(f"{comparison.labels[run]} by {by}", headers, tuple(rows), (note,))
