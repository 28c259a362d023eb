"""Kernels timed: warmed up and repeated, the whole model, or where that is deeper three depths of it, scaled with the
error that this makes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from time import get_clock_info, monotonic, perf_counter_ns, process_time_ns
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mooncake_bench.errors import SetupError
from mooncake_bench.live.dense import DEPTHS, depths_run
from mooncake_bench.live.device import import_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mooncake_bench.hardware.architecture import Architecture
    from mooncake_bench.live.device import Device

Mode = Literal["layerwise", "serialised"]

Array = np.ndarray[Any, np.dtype[np.float64]]

NOISY = 0.10
"""A spread above this is called noisy: the middle half of the rounds then spans more than 10 % of the median."""
WARM_UP = 2
"""Runs of each shape before any is timed: allocations, choice of kernels, clocks."""
WARM_S = 0.5
"""A first round this long counts as one: what there is to warm up is little of it."""
ENOUGH_S = 1.0
"""Once a shape has run this long, ``FEWEST`` rounds do: ten requests ask for thirty shapes, and a person waits."""
FEWEST = 3
"""Rounds that tell a spread."""
LONG_S = 2.0
"""A first round this long is the only one: on a CPU three of each such shape would make ten long prompts take minutes.
"""
TRIES = 3
"""Times that a run on a CPU is tried to get through undisturbed."""
RETRIED_S = 0.1
"""A run this long is not tried again: a slice of a scheduler's, 4 ms, is little of it."""
UNDISTURBED = 0.05
"""A run on a CPU counts at once when the system took no more than this share of its time for something else."""
BUSY_IS_KNOWN = get_clock_info("process_time").resolution <= 1e-6
"""Whether the system's clock of the time that a process has had a CPU is fine enough (it is not on Windows)."""
EAGER = "decode steps could not be captured in a CUDA graph and include the CPU's launches"


@dataclass(frozen=True)
class Timing:
    """One duration, measured in several rounds."""

    median_ms: float
    """Of the model's whole depth."""
    spread: float
    """Distance between the quartiles of the rounds, over the median; NaN for fewer than three rounds."""
    samples: int
    """Rounds."""
    noisy: bool
    """The spread or what was lost is above ``NOISY``, or the spread is not known (fewer than three rounds)."""
    depth_error: float | None
    """Scaling error in %: each of the two deeper depths predicted by the line through the other two, the worse one;
    None where the whole depth was run."""
    lost: float
    """Share of a run in which the system ran something else on the CPU: the median of the worst depth; 0 on a GPU."""
    rounds_ms: tuple[float, ...]
    """The scaled duration of each round, in the order they ran."""
    notice: str = ""
    """What a reader of this time must know; mostly nothing."""


class Kernels:
    """A rank's shard of a model on one device, and how long its steps take.

    Communication between ranks is not measured (one process has no peers): :mod:`communication` has it from datasheets.
    """

    def __init__(
        self,
        architecture: Architecture,
        tensor_parallel: int,
        device: Device,
        repeat: int = 5,
        seed: int = 0,
        layers: Sequence[int] = DEPTHS,
    ) -> None:
        """Make random weights for the deepest of ``layers`` (three or more rising depths), or for the whole model where
        it is not deeper: then all of it is run, and nothing scaled.

        ``repeat``: the most timed rounds of a shape; one that takes long gets fewer (``ENOUGH_S``, ``LONG_S``).
        ``SetupError`` for a model whose shape is not run (experts, latent attention), ranks that it does not split
        over, no rounds, and memory that does not suffice.
        """
        from mooncake_bench.live.shard import Shard  # imports torch, which ``device`` shows to be there

        if repeat < 1:
            raise SetupError(f"live repeat {repeat}: expected 1 or more rounds; 5 or more tell a noisy measurement")
        if len(layers) < 3 or sorted(set(layers)) != list(layers) or layers[0] < 1:
            raise SetupError(f"live layers {tuple(layers)}: expected three or more rising depths, as 1, 2, 4")
        self.architecture = architecture
        self.tensor_parallel = tensor_parallel
        self.device = device
        self.repeat = repeat
        self.layers = depths_run(architecture.layers, layers)
        self._shard = Shard(architecture, tensor_parallel, self.layers[-1], device, seed)

    def notices(self) -> list[str]:
        """What a reader of these timings must know, a line each."""
        model, device = self.architecture, self.device
        lines = []
        if self.tensor_parallel > 1:
            lines.append(
                f"one rank of TP{self.tensor_parallel} is measured; its all-reduces are not (one process has no peers)"
            )
        for what, value_bytes in (("weights", model.weight_bytes), ("KV", model.kv_value_bytes)):
            if value_bytes != device.value_bytes:
                lines.append(
                    f"{what} run in {device.dtype} ({device.value_bytes} bytes a value), but {model.name} has "
                    f"{value_bytes:g}: times are of the former"
                )
        return lines

    def prefill_ms(self, computed: int, prefix: int, mode: Mode = "layerwise") -> Timing:
        """A prefill of ``computed`` tokens after ``prefix`` cached ones, until the last KV is in host memory."""
        from mooncake_bench.live.prefill import Prefill

        made = Prefill(self._shard, computed, prefix)
        return self._scaled({depth: partial(made.run, mode, depth) for depth in self.layers})

    def decode_ms(self, batch: int, contexts: int | Sequence[int]) -> Timing:
        """A decode step of ``batch`` sequences; ``contexts`` in tokens, the new one included, of all or of each."""
        from mooncake_bench.live.decode import Decode, require_fit

        if isinstance(contexts, int):
            require_fit(self._shard, batch, batch * contexts)  # before a list as long as the batch is made
        each = [contexts] * batch if isinstance(contexts, int) else list(contexts)
        if len(each) != batch:
            raise ValueError(f"a batch of {batch} needs as many contexts, not {len(each)}")
        made = Decode(self._shard, each)
        graphs = {depth: made.graph(depth) if self.device.cuda else None for depth in self.layers}
        eager = self.device.cuda and None in graphs.values()
        timing = self._scaled({depth: graph or partial(made.run, depth) for depth, graph in graphs.items()})
        return replace(timing, notice=EAGER) if eager else timing

    def _scaled(self, work: Mapping[int, Callable[[], object]]) -> Timing:
        """The duration at the model's own depth: measured, or by the line through the depths that are run.

        In each round the depths take turns, so that a slow moment does not bend the line.
        """
        timed = _on_gpu if self.device.cuda else _on_cpu
        samples = np.array(rounds(lambda: [timed(run) for run in work.values()], self.repeat))
        return _timing(np.array(self.layers, dtype=float), samples[..., 0], samples[..., 1], self.architecture.layers)


Round = list[tuple[float, float]]
"""(ms, share lost) of each depth."""


def rounds(one: Callable[[], Round], most: int, clock: Callable[[], float] = monotonic) -> list[Round]:
    """Up to ``most`` rounds after a warm-up; fewer of what takes long. ``clock`` counts seconds."""
    start = clock()
    first = one()
    took = clock() - start
    kept = [first] if took >= WARM_S else []
    if took >= LONG_S:
        return kept
    for _ in range(0 if kept else WARM_UP - 1):
        one()
    while len(kept) < most and (len(kept) < FEWEST or clock() - start < ENOUGH_S):
        kept.append(one())
    return kept


def depth_error(depths: Array, measured_ms: Array) -> float:
    """Worst error in % of the two deepest depths, each predicted by the line through all others."""
    errors = []
    for left_out in (len(depths) - 2, len(depths) - 1):
        line = _line(np.delete(depths, left_out), np.delete(measured_ms, left_out))
        errors.append(abs(np.polyval(line, depths[left_out]) / measured_ms[left_out] - 1) * 100)
    return float(max(errors))


def _line(depths: Array, measured_ms: Array) -> tuple[float, float]:
    """Slope and constant that fit the relative differences best."""
    slope, constant = np.polyfit(depths, measured_ms, 1, w=1 / measured_ms)
    return float(slope), float(constant)


def _timing(depths: Array, measured_ms: Array, lost: Array, whole: int) -> Timing:
    """What (rounds, depths) of durations and lost shares say of a model of ``whole`` layers."""
    medians = np.median(measured_ms, axis=0)
    scaled = len(depths) > 1
    median_ms, *rounds_ms = (
        float(np.polyval(_line(depths, times), whole)) if scaled else float(times[0])
        for times in (medians, *measured_ms)
    )
    low, high = np.percentile(rounds_ms, (25, 75))
    spread = float((high - low) / median_ms) if len(rounds_ms) >= 3 else float("nan")
    share = float(np.median(lost, axis=0).max())
    return Timing(
        median_ms=median_ms,
        spread=spread,
        samples=len(rounds_ms),
        noisy=not spread <= NOISY or share > NOISY,
        lost=share,
        depth_error=depth_error(depths, medians) if scaled else None,
        rounds_ms=tuple(rounds_ms),
    )


def _on_gpu(run: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds between what ``run`` gives the computing stream first and last; nothing else runs on the GPU."""
    cuda = import_torch().cuda
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)), 0.0


def _on_cpu(run: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds of a run, and the share of them in which the system ran something else.

    A run of 2 ms that another process interrupts takes a scheduler's slice of 4 ms more, and is a sample of that
    process: such a run is tried again, and the shortest counts where all ``TRIES`` were interrupted. Not so a long one.
    """
    tried = []
    for _ in range(TRIES):
        busy, start = process_time_ns(), perf_counter_ns()
        run()
        took = perf_counter_ns() - start
        idle = max(0.0, 1 - (process_time_ns() - busy) / took) if BUSY_IS_KNOWN else 0.0
        tried.append((took / 1e6, idle))
        if idle <= UNDISTURBED or took >= RETRIED_S * 1e9:
            break
    return tried[-1] if tried[-1][1] <= UNDISTURBED else min(tried)
