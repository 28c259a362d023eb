"""arXiv 2407.00079 (v3), figure 2: how prefill grows with the prompt, and a decode step with its batch."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mooncake_bench.report import plots
from mooncake_bench.studies.reproduce.outcome import Claim, Result, Row
from mooncake_bench.studies.validate.fig14 import ENGINE, KERNELS, NODE, cost, k
from mooncake_bench.studies.validate.v3_fig2 import CONTEXT_TOKENS, MODEL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mooncake_bench.studies.reproduce.sources import Traces

ID = "v3-F2"
TITLE = "prefill against prompt length and decode steps against batch, normalised"
SOURCE = "arXiv 2407.00079v3, figure 2, digitised"

LENGTHS = tuple(range(8192, 131_073, 8192))  # tokens
BATCHES = tuple(range(1, 17))  # sequences of 8k tokens
# Over the largest of each curve
PREFILL = (
    0.0336, 0.0711, 0.1125, 0.1579, 0.2067, 0.2587, 0.3145, 0.3729, 0.4373, 0.5050, 0.5768, 0.6532, 0.7337, 0.8196,
    0.9081, 1.0,
)  # fmt: skip
DECODE = (
    0.8015, 0.8016, 0.8018, 0.8260, 0.8322, 0.8404, 0.8612, 0.8763, 0.8905, 0.9183, 0.9358, 0.9378, 0.9597, 1.0, 0.9919,
    0.9945,
)  # fmt: skip
READING_ERROR = 0.005  # of the axis
ENGINES = (KERNELS, ENGINE)  # judged by the first

Curves = dict[str, list[float]]  # by engine, over their own largest


def run(traces: Traces) -> Result:
    """Both panels by the cost model of the paper's node; needs no trace."""
    prefill = {engine: normalised([_prefill_ps(engine, tokens) for tokens in LENGTHS]) for engine in ENGINES}
    decode = {engine: normalised([_step_ps(engine, batch) for batch in BATCHES]) for engine in ENGINES}
    return Result(
        rows=tuple(_rows(prefill[KERNELS], decode[KERNELS])),
        claims=tuple(_claims(prefill, decode)),
        used=(),
        parameters=tuple(_parameters()),
        notes=tuple(_notes(prefill, decode)),
        draw=lambda: _draw(prefill, decode),
        measured=tuple(_values(prefill, decode)),
    )


def _prefill_ps(engine: str, tokens: int) -> float:
    return float(cost(engine, NODE, MODEL).prefill_ps(0, tokens, 0))


def _step_ps(engine: str, batch: int) -> float:
    the_cost = cost(engine, NODE, MODEL)
    return float(the_cost.decode_ps(0, batch) + the_cost.token_ps(0) * batch * CONTEXT_TOKENS)


def normalised(values: Sequence[float]) -> list[float]:
    """Values over their largest."""
    return [value / max(values) for value in values]


# ---- what to say


def _rows(prefill: Sequence[float], decode: Sequence[float]) -> Iterator[Row]:
    for tokens, published, ours in zip(LENGTHS, PREFILL, prefill, strict=True):
        yield Row("prefill", k(tokens), published, ours, reading_error=READING_ERROR)
    for batch, published, ours in zip(BATCHES, DECODE, decode, strict=True):
        yield Row("decode step", f"batch {batch}", published, ours, reading_error=READING_ERROR)


def furthest(ours: Sequence[float], published: Sequence[float]) -> float:
    """The largest distance between two curves, of the axis."""
    return max(abs(a - b) for a, b in zip(ours, published, strict=True))


def grows_faster(values: Sequence[float]) -> bool:
    """Whether each step of a curve over even places is larger than the one before."""
    return all(b - a < c - b for a, b, c in zip(values, values[1:], values[2:], strict=False))


def _claims(prefill: Curves, decode: Curves) -> Iterator[Claim]:
    own = prefill[KERNELS]
    yield Claim(
        "prefill grows faster than the prompt",
        grows_faster(prefill[KERNELS]),
        f"sixteen times the prompt takes {own[-1] / own[0]:.1f} times as long (published: "
        f"{PREFILL[-1] / PREFILL[0]:.1f})",
    )
    one = DECODE[-1] / DECODE[0]
    sixteen = {engine: each[-1] / each[0] for engine, each in decode.items()}
    yield Claim(
        "a decode step grows far less than its batch",
        all(ratio < 2 for ratio in sixteen.values()),
        f"sixteen sequences take {_named(sixteen)} times as long as one (published: {one:.2f})",
    )


def _named(values: Mapping[str, float]) -> str:
    return ", ".join(f"{value:.3g} (engine {engine})" for engine, value in values.items())


def _parameters() -> Iterator[str]:
    yield (
        f"engine time: none; also tried: {ENGINE} ({cost(ENGINE).overhead.prefill_ms:g} ms a prefill, "
        f"{cost(ENGINE).overhead.decode_ms:g} ms a step), with which both claims hold as well"
    )
    yield f"node {NODE}, model {MODEL}: kernel sums of an A100 with a guessed all-reduce"


def _notes(prefill: Curves, decode: Curves) -> Iterator[str]:
    yield "no trace is needed; nothing of the cost model was fitted to this figure"
    for what, curves, published in (("prefill", prefill, PREFILL), ("decode", decode, DECODE)):
        away = {engine: furthest(each, published) for engine, each in curves.items()}
        yield f"{what}: the curves are furthest apart by {_named(away)} of the axis"
    yield (
        f"the {cost(ENGINE).overhead.decode_ms:g} ms a step that F25-F14 needs put the decode curve further away: the "
        "two papers' figures disagree on what a step costs besides its kernels"
    )
    drop = max(low - high for low, high in pairwise(DECODE))
    yield f"the published decode curve is no smooth one: it falls by {drop:.3f} from batch 14 to 15"


def _values(prefill: Curves, decode: Curves) -> Iterator[dict[str, Any]]:
    for panel, places, published, curves in (
        ("prefill, tokens", LENGTHS, PREFILL, prefill),
        ("decode step, batch", BATCHES, DECODE, decode),
    ):
        for engine, each in curves.items():
            for place, theirs, ours in zip(places, published, each, strict=True):
                yield {"panel": panel, "engine": engine, "x": place, "published": theirs, "ours": ours}


# ---- the figure


def _draw(prefill: Curves, decode: Curves) -> Any:
    figure, panels = plots.figure(columns=2)
    for axes, places, published, curves, label in (
        (panels[0], LENGTHS, PREFILL, prefill, "tokens of the prompt"),
        (panels[1], BATCHES, DECODE, decode, "sequences of 8k tokens in a batch"),
    ):
        for i, (engine, each) in enumerate(curves.items()):
            axes.plot(places, each, label=f"ours, engine {engine}", **plots.series(i))
        axes.plot(places, published, color=plots.BOUND, linestyle="", marker="x", label="published")
        axes.set_xlabel(label)
        axes.set_ylim(0, 1.05)
    panels[0].set_ylabel("prefill time, of the largest")
    panels[0].set_xticks([8192, 32_768, 65_536, 98_304, 131_072], ["8k", "32k", "64k", "96k", "128k"])
    panels[1].set_ylabel("step time, of the largest")
    panels[1].set_xticks(BATCHES[::3])
    panels[1].legend(loc="lower right")
    return figure
