"""FAST'25 figure 14: where the time of a single request goes, without a cache and with 95 % of its prompt cached."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.hardware.links import load_link
from mooncake_bench.report import plots
from mooncake_bench.report.sheets import Sheet
from mooncake_bench.sim.costs import cost_of
from mooncake_bench.sim.setup import Setup
from mooncake_bench.studies import replays
from mooncake_bench.studies.reproduce.outcome import CLOSE, Claim, Result, Row
from mooncake_bench.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mooncake_bench.studies.reproduce.sources import Traces

ID = "F25-F14"
TITLE = "where the time of one request goes, 0 % and 95 % cached"
SOURCE = "FAST'25, figure 14, digitised"

LENGTHS = (8192, 16_384, 32_768, 65_536, 131_072)  # tokens of the prompt
STEPS = 128  # decoded
# Percent of the prompt that is cached: seconds of each part, by length
PUBLISHED: dict[int, dict[str, tuple[float, ...]]] = {
    0: {
        "schedule": (0.0512, 0.0493, 0.0551, 0.0396, 0.0415),
        "prefill": (1.0019, 2.0551, 4.4783, 10.5865, 27.5135),
        "transfer": (0.0304, 0.0623, 0.1246, 0.2493, 0.4947),
        "load": (0.0280, 0.0546, 0.1077, 0.2130, 0.4208),
        "decode": (3.3947, 3.4324, 3.5213, 3.6589, 3.9401),
    },
    95: {
        "schedule": (0.0604, 0.0777, 0.0861, 0.0292, 0.0609),
        "prefill": (0.1351, 0.2263, 0.4066, 0.8811, 2.3286),
        "transfer": (0.0299, 0.0607, 0.1237, 0.2487, 0.4944),
        "load": (0.0292, 0.0558, 0.1081, 0.2137, 0.4210),
        "decode": (3.4010, 3.4398, 3.5230, 3.6598, 3.9470),
    },
}
CUTS = {"prefill": 0.92, "time to first token": 0.86}  # what caching saves at the longest prompt, says the text
CUT_ERROR = 0.03  # of a cut that still counts as the published one
ENGINE, KERNELS = "mooncake-a800", "none"
BLOCK_TOKENS = 32  # small, so that the cached part is 95 % of the prompt to 0.1 %
PAUSE_MS = 1e6  # after which the warming request has long ended
NETWORK, TO_GPU = "fast25-4x200", "a800-h2d"  # links


class Timing(NamedTuple):
    """One request through the simulated cluster, alone."""

    tokens: int
    percent: int
    engine: str
    hit_tokens: int
    prefill_ms: float
    rest_ms: float  # of its KVCache's transfer, after the prefill
    decode_ms: float


Timings = dict[tuple[str, int, int], Timing]  # by engine, percent and tokens


def run(traces: Traces) -> Result:
    """Ten prompts, each after one that leaves the cached part in the node's pool; needs no published trace."""
    timings = {key: timing for engine in (ENGINE, KERNELS) for key, timing in _measure(engine).items()}
    return Result(
        rows=tuple(_rows(timings)),
        claims=tuple(_claims(timings)),
        used=(),
        parameters=tuple(_parameters(timings)),
        notes=tuple(_notes(timings)),
        sheets=(_sheet(timings),),
        draw=lambda: _draw(timings),
        measured=tuple(timing._asdict() for timing in timings.values()),
    )


# ---- measuring


def requests(cases: Sequence[tuple[int, int]]) -> Trace:
    """Two requests a case of percent and tokens: one that leaves so much of a prompt in the pool, and the prompt.

    Each is alone. Where nothing is cached the first is of another prompt.
    """
    rows: list[tuple[float, int, int, range]] = []
    taken = 0
    for percent, tokens in cases:
        blocks = tokens // BLOCK_TOKENS
        prompt, other = range(taken, taken + blocks), range(taken + blocks, taken + 2 * blocks)
        before = prompt[: round(blocks * percent / 100)] or other
        taken += 2 * blocks
        rows.append((PAUSE_MS * len(rows), len(before) * BLOCK_TOKENS, 1, before))
        rows.append((PAUSE_MS * len(rows), tokens, STEPS + 1, prompt))
    return Trace.of(rows, BLOCK_TOKENS, "one request at a time")


def _measure(engine: str) -> Timings:
    cases = [(percent, tokens) for percent in PUBLISHED for tokens in LENGTHS]
    replay = replays.whole(requests(cases), Setup(cluster="1P+1D", engine=engine))
    names = ("start_ps", "first_token_ps", "kv_arrival_ps", "end_ps")
    found = {}
    for row, (percent, tokens) in zip(range(1, 2 * len(cases), 2), cases, strict=True):
        start, first, arrived, end = (float(replay.columns[name][row]) / 1e9 for name in names)
        hit = int(replay.columns["hit_tokens"][row])
        times = (first - start, arrived - first, end - arrived)
        found[engine, percent, tokens] = Timing(tokens, percent, engine, hit, *times)
    return found


def _k(tokens: int) -> str:
    return f"{tokens // 1024}k"


# ---- what to say


def _rows(timings: Timings) -> Iterator[Row]:
    for part in ("prefill", "decode"):
        for percent, parts in PUBLISHED.items():
            for tokens, seconds in zip(LENGTHS, parts[part], strict=True):
                ours: float = getattr(timings[ENGINE, percent, tokens], f"{part}_ms")
                what = part if part == "prefill" else f"{STEPS} steps"
                yield Row(f"{percent} % cached", f"{_k(tokens)}, {what}", 1e3 * seconds, ours, "ms")
    cuts = _cuts(timings, ENGINE)
    for name, said in CUTS.items():
        yield Row("caching at 128k", f"cut of the {name}", said, cuts[name])


def _cuts(timings: Timings, engine: str) -> dict[str, float]:
    """What caching saves of the longest prompt: of its prefill, and of all parts before the decoding."""
    without, cached = (timings[engine, percent, LENGTHS[-1]] for percent in PUBLISHED)
    return {
        "prefill": 1 - cached.prefill_ms / without.prefill_ms,
        "time to first token": 1 - _in_turn_ms(cached) / _in_turn_ms(without),
    }


def _in_turn_ms(timing: Timing) -> float:
    """Prefill, then the whole KVCache over the network, then to the GPU: parts in turn, as the figure stacks them."""
    return timing.prefill_ms + sum(_links_ms(timing.tokens).values())


@cache
def _links_ms(tokens: int) -> dict[str, float]:
    size = float(tokens * cost_of(Setup(cluster="1P+1D")).kv_bytes_per_token)
    return {"transfer": load_link(NETWORK).transfer_ms(size), "load": load_link(TO_GPU).transfer_ms(size)}


def _claims(timings: Timings) -> Iterator[Claim]:
    bars = _cuts_of_bars()
    for name, said in CUTS.items():
        by_engine = {engine: _cuts(timings, engine)[name] for engine in (ENGINE, KERNELS)}
        found = ", ".join(f"{cut:.1%} with engine {engine}" for engine, cut in by_engine.items())
        detail = (
            f"{found}; the figure's own bars give {bars[name]:.1%}; judged: within {100 * CUT_ERROR:.0f} points of the "
            "text, of the bars or between them"
        )
        yield Claim(
            f"caching cuts the {name} at 128k by {said:.0%}", says_so(by_engine[ENGINE], said, bars[name]), detail
        )


def says_so(cut: float, text: float, bars: float) -> bool:
    """Whether a cut is what the paper says: its text and its figure need not agree."""
    return min(text, bars) - CUT_ERROR <= cut <= max(text, bars) + CUT_ERROR


def _cuts_of_bars() -> dict[str, float]:
    """The same cuts from the published bars."""
    before = ("schedule", "prefill", "transfer", "load")
    without, cached = (sum(parts[part][-1] for part in before) for parts in PUBLISHED.values())
    alone = [parts["prefill"][-1] for parts in PUBLISHED.values()]
    return {"prefill": 1 - alone[1] / alone[0], "time to first token": 1 - cached / without}


def engine_range(kernels_ms: Sequence[float], published_ms: Sequence[float]) -> tuple[float, float] | None:
    """Least and most engine time a prefill [ms] with which every sum is within 10 % of what was published."""
    least = max(p * (1 - CLOSE) - k for k, p in zip(kernels_ms, published_ms, strict=True))
    most = min(p * (1 + CLOSE) - k for k, p in zip(kernels_ms, published_ms, strict=True))
    return (max(least, 0.0), most) if most >= max(least, 0.0) else None


def _parameters(timings: Timings) -> Iterator[str]:
    chosen = _engine_ms(timings)
    keys = [(percent, tokens) for percent in PUBLISHED for tokens in LENGTHS]
    kernels = [timings[KERNELS, *key].prefill_ms for key in keys]
    published = [1e3 * seconds for parts in PUBLISHED.values() for seconds in parts["prefill"]]
    found = engine_range(kernels, published)
    where = "with none" if found is None else f"from {found[0]:.1f} to {found[1]:.1f} ms"
    yield (
        f"engine time of a prefill: {chosen:.0f} ms ({ENGINE}), chosen to match these very bars; all ten prefills are "
        f"within 10 % {where}"
    )
    yield f"time to first token: prefill, transfer and load in turn, over links {NETWORK} and {TO_GPU}"
    yield (
        f"the cached part is 95 % to the nearest {BLOCK_TOKENS} tokens, in the DRAM of the node that computes the rest"
    )


def _engine_ms(timings: Timings) -> float:
    return timings[ENGINE, 0, LENGTHS[0]].prefill_ms - timings[KERNELS, 0, LENGTHS[0]].prefill_ms


def _notes(timings: Timings) -> Iterator[str]:
    yield (
        "no trace is needed. Engine times of a prefill and of a step were fitted to this figure, so that the rows "
        "agree is no evidence for them; the node's coefficients come from A100 kernel tables"
    )
    yield from _first_token_note(timings)
    short = {percent: timings[KERNELS, percent, LENGTHS[0]].prefill_ms for percent in PUBLISHED}
    off = {percent: ms / 1e3 / PUBLISHED[percent]["prefill"][0] - 1 for percent, ms in short.items()}
    yield (
        f"without engine time the 8k prefills are off by {off[0]:+.0%} (0 % cached) and {off[95]:+.0%} (95 % cached): "
        "a constant that only short prefills show"
    )


def _first_token_note(timings: Timings) -> Iterator[str]:
    """What the cut of the TTFT becomes as parts are counted or left out."""
    without, cached = (timings[ENGINE, percent, LENGTHS[-1]] for percent in PUBLISHED)
    bars, said = _cuts_of_bars()["time to first token"], CUTS["time to first token"]
    fetch = _links_ms(cached.hit_tokens)["transfer"]
    yield (
        f"the figure's own bars before decoding give a cut of {bars:.1%}, the text {said:.0%}. Ours: "
        f"{_cuts(timings, ENGINE)['prefill']:.1%} if the prefill alone counts, which is what a replay calls TTFT; "
        f"{_cuts(timings, ENGINE)['time to first token']:.1%} with transfer and load in turn; "
        f"{1 - (_in_turn_ms(cached) + fetch) / _in_turn_ms(without):.1%} if the cached part has to be fetched from "
        "another node first"
    )


def _sheet(timings: Timings) -> Sheet:
    rows = []
    for percent, parts in PUBLISHED.items():
        for part in parts:
            rows.append((f"{percent} %, {part}, published", *(f"{1e3 * seconds:,.0f}" for seconds in parts[part])))
            ours = _ours(timings, percent).get(part)
            if ours is not None:
                rows.append((f"{percent} %, {part}, ours", *(f"{ms:,.0f}" for ms in ours)))
    rest = max(timing.rest_ms for timing in timings.values())
    notes = (
        "transfer and load of ours: link presets, in turn; in a replay the transfer runs beside the prefill, and at "
        f"most {rest:.0f} ms of it are left when the prefill ends",
        "schedule: not simulated, a decision takes no simulated time",
    )
    return Sheet("Milliseconds of each part, by tokens of the prompt", ("", *map(_k, LENGTHS)), tuple(rows), notes)


def _ours(timings: Timings, percent: int) -> dict[str, list[float]]:
    """Milliseconds of each part, by length."""
    mine = [timings[ENGINE, percent, tokens] for tokens in LENGTHS]
    links = [_links_ms(tokens) for tokens in LENGTHS]
    return {
        "prefill": [timing.prefill_ms for timing in mine],
        "transfer": [each["transfer"] for each in links],
        "load": [each["load"] for each in links],
        "decode": [timing.decode_ms for timing in mine],
    }


# ---- the figure


def _draw(timings: Timings) -> Any:
    figure, panels = plots.figure(columns=2, height_in=3.0)
    for axes, (percent, parts) in zip(panels, PUBLISHED.items(), strict=True):
        published = {part: [1e3 * seconds for seconds in values] for part, values in parts.items()}
        _bars(axes, -0.2, published, hatch="//")
        _bars(axes, 0.2, _ours(timings, percent), hatch=None)
        axes.set_xticks(range(len(LENGTHS)), list(map(_k, LENGTHS)))
        axes.set_xlabel("tokens of the prompt")
        axes.set_title(f"{percent} % cached")
        axes.grid(visible=False, axis="x")
    panels[0].set_ylabel("seconds")
    _legend(panels[0])
    return figure


def _bars(axes: Any, shift: float, parts: Mapping[str, Sequence[float]], hatch: str | None) -> None:
    """One stack a length: the parts in turn."""
    bottom = [0.0] * len(LENGTHS)
    for i, part in enumerate(PUBLISHED[0]):
        if part in parts:
            heights = [ms / 1e3 for ms in parts[part]]
            places = [place + shift for place in range(len(LENGTHS))]
            axes.bar(
                places, heights, 0.36, bottom, color=plots.PALETTE[i], hatch=hatch, edgecolor="white", linewidth=0.3
            )
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]


def _legend(axes: Any) -> None:
    from matplotlib.patches import Patch

    parts = [Patch(color=plots.PALETTE[i], label=part) for i, part in enumerate(PUBLISHED[0])]
    sides = [Patch(facecolor=plots.FAINT, edgecolor="white", hatch=hatch, label=label)
             for hatch, label in (("//", "published (left)"), (None, "ours (right)"))]  # fmt: skip
    axes.legend(handles=[*parts, *sides], loc="upper left")
