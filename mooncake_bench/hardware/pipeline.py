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

from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from mooncake_bench.hardware.cost import PS_PER_MS, float_column, int_column
from mooncake_bench.hardware.layerwise import move_ps
from mooncake_bench.hardware.wrapped import WrappedCost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.hardware.cost import Column, CostModel, FloatColumn, IntColumn

Chunks: TypeAlias = "list[tuple[int, int]]"
"""Of each chunk: its work over all stages, and how long its activations take to the next stage [ps]."""
_MEMO_CHUNKS = 1 << 16  # about 10 MB


def pass_through(chunks: Sequence[tuple[int, int]], free_ps: Sequence[int], begin_ps: int) -> list[int]:
    """When each stage is free again, once all chunks went through; the last one's time is the first token's [ps].

    ``free_ps``: when each stage is free of what came before. No chunk enters before ``begin_ps``. Work that does not
    divide into equal stages differs among them by a picosecond, so that none of it is lost.
    """
    if len(free_ps) == 2:
        return _pass_two(chunks, free_ps[0], free_ps[1], begin_ps)
    free = list(free_ps)
    stages, last = len(free), len(free) - 1
    ready = [begin_ps] * len(chunks)
    for stage in range(stages):
        until = free[stage]
        for chunk, (work, hop) in enumerate(chunks):
            begin = ready[chunk] if ready[chunk] > until else until
            until = begin + work * (stage + 1) // stages - work * stage // stages + (hop if stage < last else 0)
            ready[chunk] = until
        free[stage] = until
    return free


def _pass_two(chunks: Sequence[tuple[int, int]], first_ps: int, second_ps: int, begin_ps: int) -> list[int]:
    """The same for two stages, which most groups have."""
    for work, hop in chunks:
        half = work // 2
        first_ps = (begin_ps if begin_ps > first_ps else first_ps) + half + hop
        second_ps = (first_ps if first_ps > second_ps else second_ps) + work - half
    return [first_ps, second_ps]


class Priced(NamedTuple):
    """What a prefill takes."""

    chunks: Chunks
    alone_ps: list[int]  # when each stage has done with it, if it enters an empty pipeline at 0


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

        ``prefill``: which instances are groups; all unless told. Of several nodes each, no others ever prefill.
        """
        words = [f"prefill groups of {group} nodes"] if group > 1 else []
        words += ["activations sent in no time"] if group > 1 and not hop_bytes_per_token else []
        words += [f"chunks of {chunk_tokens} tokens"] if chunk_tokens else []
        super().__init__(base, ", ".join(words))
        self.group, self.chunk_tokens, self.hop_bytes = group, chunk_tokens, hop_bytes_per_token
        grouped = np.ones(len(base), np.bool_) if prefill is None else np.array(prefill, np.bool_)
        times = np.where(grouped, group, 1)
        self._prefills = [i for i, here in enumerate(grouped) if group == 1 or here]
        self._nic = float_column(base.nic_bytes_per_s * times, len(base))
        self._vram = int_column(base.vram_tokens * times, len(base))
        self._node_nic = [int(rate) for rate in base.nic_bytes_per_s]
        self._hop_ms: list[float] = (1e3 * hop_bytes_per_token / base.nic_bytes_per_s).tolist()
        self._overhead = [base.prefill_overhead_ps(i) for i in range(len(base))]
        self._alike = base.alike
        self._memo: dict[tuple[int, int, int], Priced] = {}
        self._held = 0  # chunks in it

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
        return self.priced(instance, computed, prefix).chunks

    def alone_ps(self, instance: int, computed: int, prefix: int) -> list[int]:
        """When each stage has done with a prefill that enters an empty pipeline at 0 [ps]."""
        return self.priced(instance, computed, prefix).alone_ps

    def priced(self, instance: int, computed: int, prefix: int) -> Priced:
        """A prefill's chunks and times: asked for at its routing, when it begins, and for the records."""
        key = (self._alike[instance], computed, prefix)
        found = self._memo.get(key)
        if found is None:
            chunks = self._cut(instance, computed, prefix)
            found = Priced(chunks, pass_through(chunks, [0] * self.group, self._overhead[instance]))
            self._held += len(chunks)
            if self._held > _MEMO_CHUNKS:
                self._memo.clear()
                self._held = len(chunks)
            self._memo[key] = found
        return found

    def _cut(self, instance: int, computed: int, prefix: int) -> Chunks:
        overhead, rate = self._overhead[instance], self._node_nic[instance]
        made = []
        for tokens, prefixes in self._runs(computed, prefix):
            hop = move_ps(tokens * self.hop_bytes, rate)
            made += [(work - overhead, hop) for work in self.base.behind_ps(instance, tokens, prefixes)]
        return made

    def _runs(self, computed: float, prefix: float) -> list[tuple[Any, list[Any]]]:
        """Tokens of the chunks, and what is before each; the last one may be shorter. Whole numbers stay such."""
        size = self.chunk_tokens
        if size is None or computed <= size:
            return [(computed, [prefix])]
        full, rest = divmod(computed, size)
        runs: list[tuple[Any, list[Any]]] = [(size, [prefix + size * chunk for chunk in range(int(full))])]
        return [*runs, (rest, [prefix + size * full])] if rest else runs

    def prefill_ps(self, instance: int, computed: int, prefix: int) -> int:
        """Time through an empty pipeline [ps]."""
        return self.priced(instance, computed, prefix).alone_ps[-1]

    def turn_ps(self, instance: int, computed: int, prefix: int) -> int:
        """How long a prefill keeps the first stage, and with it the next request [ps]."""
        return self.priced(instance, computed, prefix).alone_ps[0]

    def kept_ps(self, instance: int, computed: int, prefix: int) -> tuple[int, int]:
        """How long a prefill keeps the first stage, and all stages together [ps]."""
        chunks, alone_ps = self.priced(instance, computed, prefix)
        busy, hops = self._overhead[instance], self.group - 1
        for work, hop in chunks:
            busy += work + hops * hop
        return alone_ps[0], busy

    def prefill_ms(self, computed: Column, prefix: Column) -> FloatColumn:
        """(N,) time through an empty pipeline, inf where there is none [ms]; a question is answered once for all."""
        asked = list(zip(self._alike, computed.tolist(), prefix.tolist(), strict=True))
        times, known = [inf] * len(asked), dict[tuple[int, float, float], float]()
        for instance in self._prefills:
            question = asked[instance]
            if question not in known:
                known[question] = self._alone_ms(*question)
            times[instance] = known[question]
        return np.array(times)

    def _alone_ms(self, instance: int, computed: float, prefix: float) -> float:
        """The same at one instance [ms].

        All stages but the last take the same, so chunk j leaves them after the sum of those up to it and (stages - 1)
        times the longest of them; the last stage then takes it and all that follow, unless a later one comes later.
        """
        overhead, group, size = self._overhead[instance] / PS_PER_MS, self.group, self.chunk_tokens
        if size is None or computed <= size:
            work = (self.base.behind_ms(instance, computed, (prefix,))[0] - overhead) / group
            wave = work + computed * self._hop_ms[instance]
            return (wave + (group - 2) * wave + work if group > 1 else work) + overhead
        last: list[float] = []
        each: list[float] = []
        for tokens, prefixes in self._runs(computed, prefix):
            hop = tokens * self._hop_ms[instance]
            works = [(work - overhead) / group for work in self.base.behind_ms(instance, tokens, prefixes)]
            last += works
            each += [work + hop for work in works]
        if group == 1:
            return list(accumulate(last))[-1] + overhead
        left = list(accumulate(reversed(last)))
        total, longest, latest = 0.0, each[0], -inf
        for wave in each:
            total += wave
            longest = wave if wave > longest else longest
            until = total + (group - 2) * longest + left.pop()
            latest = until if until > latest else latest
        return latest + overhead
