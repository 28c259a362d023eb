"""What moving KVCache between host and GPU adds to a prefill: layer by layer beside it, or one after the other.

The KVCache of the cached prefix (H bytes) is loaded from the node's DRAM, the new KVCache (K bytes) is stored back. Of
L layers each takes l = H / bandwidth / L to load, c = E / L to compute and s = K / bandwidth / L to store; a node's
host link moves both ways at once. (arXiv v3, section 5.2.)

- overlapped: while a layer computes, the next one is loaded and the one before is stored: three stages in a row,
  through which L equal layers take (L - 1) max(l, c, s) + l + c + s. Where computing is the slowest that is E, the
  first layer's load and the last layer's store; a long prefix takes the time of its load.
- serialised: everything is loaded, then computed, then stored: the same with one layer.

The occupation cost is KVCache bytes x time held in GPU memory. A layer of the prefix is held from the begin of its load
(which is when the layer before begins to compute) to the end of its computing: the DRAM has it already. New KVCache is
held from the begin of its layer's computing to the end of its store. The engine's own time holds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.hardware.cost import PS_PER_MS, float_column
from mooncake_bench.hardware.wrapped import WrappedCost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.hardware.cost import Column, CostModel, FloatColumn

PS_PER_S = 10**12


def move_ps(moved_bytes: int, bytes_per_s: int) -> int:
    """Time of a transfer, rounded up as all transfers are [ps]."""
    return -(-moved_bytes * PS_PER_S // bytes_per_s)


@dataclass(frozen=True)
class Moves:
    """Loading, computing and storing of one prefill, all layers together, in ``layers`` equal parts [ps]."""

    load_ps: int
    compute_ps: int
    store_ps: int
    layers: int
    """1: one after the other."""

    @property
    def total_ps(self) -> int:
        """From the begin of the load to the end of the store, rounded up [ps]."""
        works = (self.load_ps, self.compute_ps, self.store_ps)
        return -(-((self.layers - 1) * max(works) + sum(works)) // self.layers)

    @property
    def storing_ps(self) -> int:
        """How much of it storing adds [ps]."""
        return self.total_ps - Moves(self.load_ps, self.compute_ps, 0, self.layers).total_ps

    def held_byte_s(self, prefix_bytes: int, new_bytes: int) -> float:
        """Bytes x seconds that the KVCache occupies GPU memory."""
        layers = self.layers
        load, compute, store = (work / layers for work in (self.load_ps, self.compute_ps, self.store_ps))
        pace = max(load, compute)
        prefix = (load + compute) + (layers - 1) * (pace + compute)
        new = layers * (compute + store) + max(0.0, store - pace) * (layers * (layers - 1) / 2)
        return (prefix * prefix_bytes + new * new_bytes) / layers / PS_PER_S


class LayeredCost(WrappedCost):
    """A cost model whose prefills load their prefix and store their KVCache."""

    def __init__(self, base: CostModel, bytes_per_s: float | Sequence[float], *, overlapped: bool) -> None:
        """``bytes_per_s``: what each instance's host link moves, each way [bytes/s]."""
        super().__init__(base, f"KVCache loaded and stored {'layer by layer' if overlapped else 'before and after'}")
        self.overlapped = overlapped
        self.parts = base.layers if overlapped else 1
        self.host_bytes_per_s = float_column(bytes_per_s, len(base))
        self._rates = [int(rate) for rate in self.host_bytes_per_s]
        self._overhead = [base.prefill_overhead_ps(i) for i in range(len(base))]
        self._overhead_ms = np.array(self._overhead, np.float64) / PS_PER_MS
        self._token_ms = 1e3 * base.kv_bytes_per_token / self.host_bytes_per_s

    @property
    def version(self) -> str:
        how = "overlapped" if self.overlapped else "serialised"
        rates = ",".join(f"{rate:g}" for rate in sorted({float(rate) / 1e9 for rate in self.host_bytes_per_s}))
        return f"{self.base.version}+{how}@{rates}"

    def moves(self, instance: int, computed: int, prefix: int) -> Moves:
        """What a prefill of ``computed`` tokens behind ``prefix`` cached ones consists of, engine overhead left out."""
        rate, size = self._rates[instance], self.base.kv_bytes_per_token
        compute = self.base.prefill_ps(instance, computed, prefix) - self._overhead[instance]
        return Moves(move_ps(prefix * size, rate), compute, move_ps(computed * size, rate), self.parts)

    def prefill_ps(self, instance: int, computed: int, prefix: int) -> int:
        """Engine overhead, then load, computing and store [ps]."""
        return self._overhead[instance] + self.moves(instance, computed, prefix).total_ps

    def prefill_ms(self, computed: Column, prefix: Column) -> FloatColumn:
        """(N,) the same [ms]."""
        compute = self.base.prefill_ms(computed, prefix) - self._overhead_ms
        load, store = prefix * self._token_ms, computed * self._token_ms
        total: FloatColumn = load + compute
        total += store
        np.maximum(load, store, out=load)
        np.maximum(load, compute, out=load)
        load *= self.parts - 1
        total += load
        total /= self.parts
        total += self._overhead_ms
        return total

    def held_byte_s(self, instance: int, computed: int, prefix: int) -> float:
        """Occupation cost of a prefill's KVCache [bytes x s]."""
        size = self.base.kv_bytes_per_token
        return self.moves(instance, computed, prefix).held_byte_s(prefix * size, computed * size)
