"""Prefill in chunks, and through a pipeline of nodes (arXiv v3, section 5.1: chunked pipeline parallelism).

The n computed tokens of a prompt with p cached ones are cut into chunks of N; chunk j, of n_j tokens, attends to the
p + N j before it and costs E_j = E(n_j, p + N j), all of E1 but the engine's overhead. A group of X nodes holds 1/X of
the layers each: chunk j takes E_j / X at every stage, and before the next stage can have it, its activations must have
left: n_j x hidden x 2 bytes at the rate of one node's NIC, during which the stage is busy (no stage follows the last
one). Stage s takes chunk j when stage s - 1 is done with it and stage s is done with chunk j - 1.

The engine's overhead o_pre is paid once a request, at the first stage before its first chunk: it stands for receiving,
planning and sampling a prompt, which is done once however it is cut; what a launch of kernels costs each time is in E.

Activations are priced at the NIC's own rate: they do not slow transfers of KVCache, nor these them (a chunk of 8,192
tokens of a 70B model is 134 MB, 1.5 ms at 87 GB/s, against 2.7 GB of KVCache).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from mooncake_bench.hardware.cost import PS_PER_MS, float_column, int_column
from mooncake_bench.hardware.layerwise import move_ps
from mooncake_bench.hardware.wrapped import WrappedCost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.hardware.cost import Column, CostModel, FloatColumn, IntColumn

Chunks: TypeAlias = "list[tuple[int, int]]"
"""Of each chunk: its work over all stages, and how long its activations take to the next stage [ps]."""


def pass_through(chunks: Sequence[tuple[int, int]], free_ps: Sequence[int], begin_ps: int) -> list[int]:
    """When each stage is free again, once all chunks went through; the last one's time is the first token's [ps].

    ``free_ps``: when each stage is free of what came before. No chunk enters before ``begin_ps``. Work that does not
    divide into equal stages differs among them by a picosecond, so that none of it is lost.
    """
    free = list(free_ps)
    stages, last = len(free), len(free) - 1
    for work, hop in chunks:
        ready, done = begin_ps, 0
        for stage in range(stages):
            until = work * (stage + 1) // stages
            begin = max(ready, free[stage])
            free[stage] = ready = begin + until - done + (hop if stage < last else 0)
            done = until
    return free


class PipelinedCost(WrappedCost):
    """A cost model whose prefills run in chunks of at most so many tokens, through groups of so many nodes.

    ``prefill_ps`` is the time through an empty pipeline. An instance that prefills stands for a whole group: each of
    its nodes holds and sends the KVCache of its own layers, so network and KVCache room are ``group`` times a node's.
    """

    def __init__(
        self,
        base: CostModel,
        *,
        group: int = 1,
        chunk_tokens: int | None = None,
        hop_bytes_per_token: int = 0,
        prefill: Sequence[bool] | None = None,
    ) -> None:
        """``base``: the costs of one node of each instance. ``hop_bytes_per_token``: activations between two stages.

        ``prefill``: which instances are groups; all unless told.
        """
        words = [f"prefill groups of {group} nodes"] if group > 1 else []
        words += ["activations sent in no time"] if group > 1 and not hop_bytes_per_token else []
        words += [f"chunks of {chunk_tokens} tokens"] if chunk_tokens else []
        super().__init__(base, ", ".join(words))
        self.group, self.chunk_tokens, self.hop_bytes = group, chunk_tokens, hop_bytes_per_token
        grouped = np.ones(len(base), np.bool_) if prefill is None else np.array(prefill, np.bool_)
        times = np.where(grouped, group, 1)
        self._nic = float_column(base.nic_bytes_per_s * times, len(base))
        self._vram = int_column(base.vram_tokens * times, len(base))
        self._node_nic = [int(rate) for rate in base.nic_bytes_per_s]
        self._hop_ms = 1e3 * hop_bytes_per_token / base.nic_bytes_per_s
        self._overhead = [base.prefill_overhead_ps(i) for i in range(len(base))]
        self._overhead_ms = np.array(self._overhead, np.float64) / PS_PER_MS
        self._empty = [0] * group
        self._last: tuple[tuple[int, int, int], Chunks] | None = None
        self._last_pass: tuple[tuple[int, int, int], list[int]] | None = None

    @property
    def version(self) -> str:
        hop = f"+hop{self.hop_bytes}" if self.group > 1 else ""
        return f"{self.base.version}+x{self.group}+chunk{self.chunk_tokens or 'none'}{hop}"

    @property
    def nic_bytes_per_s(self) -> FloatColumn:
        return self._nic

    @property
    def vram_tokens(self) -> IntColumn:
        return self._vram

    def chunks(self, instance: int, computed: int, prefix: int) -> Chunks:
        """What each chunk of a prefill takes, in order."""
        key = (instance, computed, prefix)
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        price, overhead, rate = self.base.prefill_ps, self._overhead[instance], self._node_nic[instance]
        size = self.chunk_tokens or computed
        made = []
        for first in range(0, computed, size):
            tokens = min(size, computed - first)
            work = price(instance, tokens, prefix + first) - overhead
            made.append((work, move_ps(tokens * self.hop_bytes, rate)))
        self._last = (key, made)
        return made

    def prefill_ps(self, instance: int, computed: int, prefix: int) -> int:
        """Time through an empty pipeline [ps]."""
        if self.group == 1:
            return self._overhead[instance] + sum(work for work, _ in self.chunks(instance, computed, prefix))
        return self._alone(instance, computed, prefix)[-1]

    def turn_ps(self, instance: int, computed: int, prefix: int) -> int:
        """How long a prefill keeps the first stage, and with it the next request [ps]."""
        return self._alone(instance, computed, prefix)[0]

    def _alone(self, instance: int, computed: int, prefix: int) -> list[int]:
        """When each stage has done with a prefill that enters an empty pipeline at 0; the last answer is kept."""
        key = (instance, computed, prefix)
        if self._last_pass is None or self._last_pass[0] != key:
            chunks, begin = self.chunks(instance, computed, prefix), self._overhead[instance]
            self._last_pass = (key, pass_through(chunks, self._empty, begin))
        return self._last_pass[1]

    def node_ps(self, instance: int, computed: int, prefix: int) -> int:
        """How long a prefill keeps nodes busy, all stages together [ps]."""
        chunks = self.chunks(instance, computed, prefix)
        return self._overhead[instance] + sum(work + (self.group - 1) * hop for work, hop in chunks)

    def prefill_ms(self, computed: Column, prefix: Column) -> FloatColumn:
        """(N,) time through an empty pipeline [ms].

        All stages but the last take the same, so chunk j leaves them after the sum of those up to it and (stages - 1)
        times the longest of them; the last stage then takes it and all that follow, unless a later one comes later.
        """
        work, hop = self._chunk_ms(computed, prefix)
        if self.group == 1:
            whole: FloatColumn = work.sum(axis=0) + self._overhead_ms
            return whole
        last = work / self.group
        each = last + hop
        left = np.cumsum(each, axis=0) + (self.group - 2) * np.maximum.accumulate(each, axis=0)
        left += np.cumsum(last[::-1], axis=0)[::-1]
        total: FloatColumn = left.max(axis=0) + self._overhead_ms
        return total

    def _chunk_ms(self, computed: Column, prefix: Column) -> tuple[FloatColumn, FloatColumn]:
        """(chunks, N) work and hop of every chunk, 0 where an instance has fewer [ms]."""
        size = self.chunk_tokens
        if size is None:
            return (self.base.prefill_ms(computed, prefix) - self._overhead_ms)[None], (computed * self._hop_ms)[None]
        before = size * np.arange(-(-int(computed.max()) // size))[:, None]
        tokens = computed - before
        absent = tokens <= 0
        tokens = np.minimum(np.where(absent, computed, tokens), size)  # absent ones are asked as the first is
        prefixes = np.where(absent, prefix, prefix + before)
        if self.base.broadcasts:
            work = self.base.prefill_ms(tokens, prefixes)
        else:
            work = np.stack([self.base.prefill_ms(n, p) for n, p in zip(tokens, prefixes, strict=True)])
        work -= self._overhead_ms
        work[absent] = 0.0
        hop = tokens * self._hop_ms
        hop[absent] = 0.0
        return work, hop
