"""Splitwise's serving points: Llama-2-70B on DGX A100 and H100, of an engine of 2023."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.studies.validate.fig14 import KERNELS, cost
from mooncake_bench.studies.validate.linear import left_out
from mooncake_bench.studies.validate.outcome import INDEPENDENT, LEFT_OUT, Limits, Outcome, Point, Row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from mooncake_bench.studies.validate.files import Line, Measurements

ID = "SPLITWISE"
TITLE = "Llama-2-70B served by Splitwise's authors, prefill and decode step"
SOURCE = "Splitwise (splitwise-sim perf_model.csv), an engine of 2023-24"
FILES = ("splitwise/perf_model.csv.gz",)

TABLE_MODEL, MODEL = "llama2-70b", "llama2-70b"
NODES = {"a100-80gb": "a100", "h100-80gb": "h100"}
PRESET_TP = 8  # of the nodes' coefficients
SCALED = "-pcap"  # rows of capped power: scaled copies of the others
NOTES = "the cost model's notes, section 3"
PREFILL_LIMITS = Limits(NOTES, median=15.0, p90=42.0, decimals=0)
DECODE_LIMITS = Limits(NOTES, median=5.9, p90=20.0, decimals=1)


@dataclass(frozen=True)
class Served:
    """One configuration of prompt, batch and answer: the median of its repetitions."""

    prompt: float
    batch: float
    answer: float
    prefill_ms: float
    step_ms: float

    @property
    def label(self) -> str:
        return f"{self.prompt:g} in, {self.answer:g} out, batch {self.batch:g}"

    @property
    def tokens(self) -> float:
        """Context of the batch, halfway through the answer."""
        return self.batch * (self.prompt + self.answer / 2)


def run(measurements: Measurements) -> Outcome:
    """The nodes' presets without engine time, then straight lines through the other points."""
    lines = measurements.lines(FILES[0])
    chosen, excluded = _chosen(lines)
    rows: list[Row] = []
    for (hardware, tp), served in sorted(chosen.items()):
        node = NODES[hardware]
        if tp == PRESET_TP:
            rows += _preset_rows(node, served)
        rows += _line_rows(node, tp, served)
    facts = (
        "presets: kernels alone (engine none); this engine spends tens of ms a step on top, so its points say little "
        "of a modern one",
        "with batches: prefill slowed down with the batch there, which no form in the sum of tokens follows",
        "left out: prefill constant + n + n^2 / 2, decode constant + batch + context, each point from the others; "
        f"limits: the worst of {NOTES}",
        f"each point is the median of its repetitions ({sum(map(len, chosen.values()))} points)",
    )
    return Outcome(tuple(rows), facts, excluded)


def _chosen(lines: Sequence[Line]) -> tuple[dict[tuple[str, int], list[Served]], tuple[str, ...]]:
    """The points by hardware and parallelism, and in words what takes no part."""
    repeated: dict[tuple[str, int], dict[tuple[float, ...], list[Line]]] = defaultdict(lambda: defaultdict(list))
    left: Counter[str] = Counter()
    for line in lines:
        model, hardware = line.text("model"), line.text("hardware")
        if hardware.endswith(SCALED):
            left[f"on *{SCALED}: scaled copies of other rows, not measured"] += 1
        elif model != TABLE_MODEL or hardware not in NODES:
            left[f"of {model} on {hardware}: no preset and no dimensions of it here"] += 1
        else:
            sizes = tuple(line.positive(key) for key in ("prompt_size", "batch_size", "token_size"))
            repeated[hardware, int(line.positive("tensor_parallel"))][sizes].append(line)
    chosen = {key: [_served(sizes, same) for sizes, same in groups.items()] for key, groups in repeated.items()}
    return chosen, tuple(f"{count} rows {why}" for why, count in left.items())


def _served(sizes: tuple[float, ...], same: Sequence[Line]) -> Served:
    prefill, step = (float(np.median([line.positive(key) for line in same])) for key in ("prompt_time", "token_time"))
    prompt, batch, answer = sizes
    return Served(prompt, batch, answer, prefill, step)


def _by_prompt(served: Sequence[Served]) -> list[Served]:
    """One point a batch and prompt length: the first answer length stands for the others."""
    by_prompt: dict[tuple[float, float], Served] = {}
    for each in served:
        by_prompt.setdefault((each.batch, each.prompt), each)
    return list(by_prompt.values())


def _single(served: Sequence[Served]) -> list[Served]:
    """Those of a batch of one."""
    return [each for each in _by_prompt(served) if each.batch == 1]


def _preset_rows(node: str, served: Sequence[Served]) -> Iterator[Row]:
    the_cost = cost(KERNELS, node, MODEL)
    prefill = [the_cost.prefill_ps(0, int(each.prompt), 0) / 1e9 for each in _single(served)]
    steps = [(the_cost.decode_ps(0, int(e.batch)) + the_cost.token_ps(0) * e.tokens) / 1e9 for e in served]
    yield _row(f"{node} TP{PRESET_TP} prefill, preset", INDEPENDENT, node, PRESET_TP, _single(served), prefill, True)
    yield _row(f"{node} TP{PRESET_TP} decode, preset", INDEPENDENT, node, PRESET_TP, served, steps, False)


def _line_rows(node: str, tp: int, served: Sequence[Served]) -> Iterator[Row]:
    """Straight lines; only where enough points are left for their three coefficients."""
    single = _single(served)
    if len(single) > LEAST_POINTS:
        n, ms = _columns([(each.prompt, each.prefill_ms) for each in single])
        ours = left_out(np.stack([np.ones_like(n), n, n * n / 2], axis=1), ms)
        yield _row(f"{node} TP{tp} prefill, line", LEFT_OUT, node, tp, single, ours, True, PREFILL_LIMITS)
    if len(served) > LEAST_POINTS:
        batches = _by_prompt(served)
        size, prompt, ms = _columns([(each.batch, each.prompt, each.prefill_ms) for each in batches])
        ours = left_out(np.stack([np.ones_like(size), size * prompt, size * prompt**2 / 2], axis=1), ms)
        yield _row(f"{node} TP{tp} prefill with batches, line", LEFT_OUT, node, tp, batches, ours, True)
        batch, tokens, ms = _columns([(each.batch, each.tokens, each.step_ms) for each in served])
        ours = left_out(np.stack([np.ones_like(batch), batch, tokens], axis=1), ms)
        yield _row(f"{node} TP{tp} decode, line", LEFT_OUT, node, tp, served, ours, False, DECODE_LIMITS)


LEAST_POINTS = 4


def _columns(values: Sequence[tuple[float, ...]]) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64).T


def _row(
    name: str,
    basis: str,
    node: str,
    tp: int,
    served: Sequence[Served],
    ours: Sequence[float] | NDArray[np.float64],
    prefill: bool,
    limits: Limits | None = None,
) -> Row:
    points = tuple(
        Point(each.label, each.prefill_ms if prefill else each.step_ms, float(own))
        for each, own in zip(served, ours, strict=True)
    )
    engine = KERNELS if basis == INDEPENDENT else ""
    return Row(name, basis, points, node=node, model=MODEL, tp=tp, engine=engine, limits=limits)
