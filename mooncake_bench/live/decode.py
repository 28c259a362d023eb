"""A decode step: one new token for each sequence of a batch, over preallocated KV."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from mooncake_bench.live.device import require_memory, without_exhaustion
from mooncake_bench.live.layer import attend_once, finish, logits, project

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_bench.live.shard import Shard


class Decode:
    """A step of one batch: sequences of equal contexts attend in one call, the shortest contexts first."""

    def __init__(self, shard: Shard, contexts: Sequence[int], inputs: Any = None, history: Any = None) -> None:
        """Allocate for ``contexts``: tokens that each sequence attends to, its new one included (1 or more).

        ``inputs`` is (batch, hidden), its rows in rising order of context; ``history`` gives KV for (layers, tokens):
        (layers, tokens, 2, kv_heads, head_dim). Both are random by default.
        ``SetupError`` when the batch does not fit in memory.
        """
        if not contexts or min(contexts) < 1:
            raise ValueError("a decode step needs one sequence or more, each with a context of 1 or more")
        self._shard = shard
        self._groups = sorted(Counter(contexts).items())
        self._what = require_fit(shard, len(contexts), sum(contexts))
        without_exhaustion(lambda: self._allocate(inputs, history or shard.history), self._what)

    def run(self, layers: int | None = None) -> Any:
        """Logits (batch, this rank's vocabulary) of one step through the first ``layers`` layers (all by default)."""
        depth = self._shard.layers_run if layers is None else layers

        def work() -> Any:
            with torch.inference_mode():
                return self._run(depth)

        return without_exhaustion(work, self._what)

    def graph(self, layers: int) -> Callable[[], None] | None:
        """The step as a CUDA graph, which engines replay to spare the CPU's launches; ``None`` where it fails."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(aside):  # libraries start up outside of the capture
                for _ in range(3):
                    self._run_aside(layers)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._run_aside(layers)
        except RuntimeError:
            return None
        replay: Callable[[], None] = graph.replay
        return replay

    def _run_aside(self, layers: int) -> None:
        with torch.inference_mode():
            self._run(layers)

    def _run(self, layers: int) -> Any:
        """Every layer, each writing its new KV in the last place of each context."""
        shard, hidden = self._shard, self._inputs
        for number, weights in enumerate(shard.layers[:layers]):
            query, new = project(shard, weights, hidden, self._rotation)
            parts, row = [], 0
            for cache in self._caches:
                kv, end = cache[number], row + cache.shape[1]
                kv[:, -1] = new[row:end]
                parts.append(attend_once(shard, query[row:end], kv[:, :, 0], kv[:, :, 1]))
                row = end
            hidden = finish(shard, weights, hidden, torch.cat(parts) if len(parts) > 1 else parts[0])
        return logits(shard, hidden)

    def _allocate(self, inputs: Any, history: Callable[[int, int], Any]) -> None:
        """Inputs, and a cache for each group: (layers, batch, context, 2, kv_heads, head_dim)."""
        shard = self._shard
        contexts = torch.tensor([context for context, batch in self._groups for _ in range(batch)])
        token = (2, shard.kv_heads, shard.head_dim)
        with torch.inference_mode():
            self._inputs = shard.inputs(len(contexts)) if inputs is None else inputs
            self._rotation = shard.rotation(contexts - 1)
            self._caches = [
                history(shard.layers_run, batch * context).view(shard.layers_run, batch, context, *token)
                for context, batch in self._groups
            ]


def require_fit(shard: Shard, batch: int, tokens: int) -> str:
    """A step of ``batch`` sequences with ``tokens`` of context in all, in words. ``OutOfMemory`` if it does not fit."""
    what = f"a decode step of {batch:,} sequences with {tokens:,} tokens of context"
    require_memory(shard.decode_bytes(batch, tokens), shard.device.free_bytes(), what, shard.device.name)
    return what
