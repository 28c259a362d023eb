"""What things cost: the interface that the simulator, the views and the reports share.

Every cost is a column over all instances of a setup: a cluster of unlike nodes costs no more to ask than a uniform one.
Scalars answer the engine's clock (integer picoseconds, rounded once, half to even); arrays answer policies (float ms).
Both say the same thing: at any point they agree to 1e-9 relative.

A transfer takes bytes / bandwidth, with no start-up latency: bandwidths are held here, transfers in the network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    FloatColumn = NDArray[np.float64]
    Column = NDArray[np.float64] | NDArray[np.int64]
    IntColumn = NDArray[np.int64]

PS_PER_MS = 1e9
"""Picoseconds in a millisecond."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CostModel(ABC):
    """Prefill, decode and memory costs of N instances serving one model."""

    name: str
    """Which model, nodes and engine these costs stand for."""
    version: str
    """Changes whenever the formulas or any number in them change."""
    error: str
    """How far the costs are known to be from reality, and why: one sentence, kept with a run."""
    error_short: str = ""
    """The same in a line or two, for the head of a report; ``error`` itself unless given."""
    layers: int
    """Layers of the model; the last layer's KV leaves a prefill last."""
    kv_bytes_per_token: int
    """Bytes of KVCache one token takes, over all layers."""
    nic_bytes_per_s: FloatColumn
    """(N,) usable network bandwidth of each instance, each way [bytes/s]."""
    vram_tokens: IntColumn
    """(N,) tokens of KVCache that fit in each instance's GPU memory."""

    def __post_init__(self) -> None:
        if not self.error_short:
            object.__setattr__(self, "error_short", self.error)

    def __len__(self) -> int:
        """Number of instances N."""
        return len(self.nic_bytes_per_s)

    @abstractmethod
    def prefill_ps(self, instance: int, computed: int, prefix: int) -> int:
        """Time of a prefill of ``computed`` new tokens after ``prefix`` cached ones, engine overhead included [ps]."""

    @abstractmethod
    def prefill_ms(self, computed: Column, prefix: Column) -> FloatColumn:
        """(N,) prefill time at each instance, for its own (N,) computed and prefix tokens [ms]."""

    def behind_ps(self, instance: int, computed: int, prefixes: Sequence[int]) -> list[int]:
        """Prefills of so many new tokens at one instance, one behind each of these prefixes [ps]."""
        return [self.prefill_ps(instance, computed, prefix) for prefix in prefixes]

    def behind_ms(self, instance: int, computed: float, prefixes: Sequence[float]) -> list[float]:
        """The same, to the last bit what the column says [ms]."""
        tokens, alike = np.full(len(self), float(computed)), np.ones(len(self))
        return [float(self.prefill_ms(tokens, prefix * alike)[instance]) for prefix in prefixes]

    @property
    def alike(self) -> Sequence[int]:
        """(N,) for each instance one whose prefills and NIC are the same: itself, unless more is known."""
        return range(len(self))

    @abstractmethod
    def decode_ps(self, instance: int, batch: int) -> int:
        """The part of a decode step that depends on its ``batch`` sequences, engine overhead included [ps]."""

    @abstractmethod
    def token_ps(self, instance: int) -> int:
        """What each context token adds to a decode step [ps]."""

    @abstractmethod
    def step_ms(self, batch: Column, tokens: Column) -> FloatColumn:
        """(N,) decode step time for (N,) sequences with (N,) context tokens in all [ms].

        An empty batch gets the price of an empty step: a caller to whom it means "no step" masks it.
        """

    def prefill_overhead_ps(self, instance: int) -> int:
        """What of every prefill is the engine's own time, whatever its size: 0 where that is not known [ps]."""
        return 0

    # steps of coupled instances; a model that knows its own overheads says more exactly

    def prefills_ps(self, instance: int, parts: Sequence[tuple[int, int]]) -> int:
        """One step of several prompts, each of (computed, prefix) tokens, engine overhead of each included [ps].

        One prompt alone takes :meth:`prefill_ps`; here, several take what one of their tokens and attention would.
        """
        if len(parts) == 1:
            return self.prefill_ps(instance, *parts[0])
        computed = sum(n for n, _ in parts)
        attended = sum(n * p + n * n / 2 for n, p in parts)
        return self.prefill_ps(instance, computed, max(0, round(attended / computed - computed / 2)))

    def chunks_ps(self, instance: int, batch: int, chunks: Sequence[int], starting: int) -> int:
        """A step of chunks of prompts beside ``batch`` decoding sequences, all but what its contexts add [ps].

        ``starting`` of the chunks are the first of their prompts. Add :meth:`attend_ps` times the tokens before each
        chunk, and :meth:`token_ps` times the batch's contexts.
        """
        alone = self.prefill_ps(instance, sum(chunks) + batch, 0)
        return max(alone, self.decode_ps(instance, batch)) if batch else alone

    def attend_ps(self, instance: int, chunk: int) -> int:
        """What each token before a chunk of so many tokens adds to its step [ps]."""
        far = 8192
        more = self.prefill_ps(instance, chunk, far) - self.prefill_ps(instance, chunk, 0)
        return max(0, round(more / far))


def to_ps(ms: float) -> int:
    """A time in the clock's unit, rounded half to even."""
    return round(ms * PS_PER_MS)


def float_column(values: float | Sequence[float] | FloatColumn, instances: int) -> FloatColumn:
    """(N,) read-only floats: one value for all, or one for each instance. Raises ValueError on another length."""
    column = np.broadcast_to(np.asarray(values, dtype=np.float64), (instances,)).copy()
    column.flags.writeable = False
    return column


def int_column(values: int | Sequence[int] | IntColumn, instances: int) -> IntColumn:
    """(N,) read-only integers: one value for all, or one for each instance. Raises ValueError on another length."""
    column = np.broadcast_to(np.asarray(values, dtype=np.int64), (instances,)).copy()
    column.flags.writeable = False
    return column
