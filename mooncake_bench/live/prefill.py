"""A prefill, layer by layer: KV stored and prefix KV loaded beside the computing, or before and after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from mooncake_bench.live.device import host_free_bytes, require_memory, without_exhaustion
from mooncake_bench.live.layer import attend_causally, finish, logits, project
from mooncake_bench.live.store import host_empty, make_lane

if TYPE_CHECKING:
    from mooncake_bench.live.shard import Shard

Mode = Literal["layerwise", "serialised"]


@dataclass(frozen=True)
class Written:
    """What a prefill leaves behind; all but ``kv`` is on the device."""

    hidden: Any
    """After the last layer: (computed, hidden)."""
    logits: Any
    """Of the last token: (1, this rank's vocabulary)."""
    kv: Any
    """The computed tokens' K and V in host memory: (layers, computed, 2, kv_heads, head_dim)."""
    attention: tuple[Any, ...]
    """Each layer's attention before the output projection, (computed, heads x head_dim), when it was asked for."""


class Prefill:
    """A prefill of one shape, its buffers allocated and its prefix in host memory, to run as often as wanted."""

    def __init__(self, shard: Shard, computed: int, prefix: int, inputs: Any = None, prefix_kv: Any = None) -> None:
        """Allocate for all layers of ``shard``; ``computed`` (1 or more) and ``prefix`` (0 or more) are tokens.

        ``inputs`` (computed, hidden) and ``prefix_kv`` (layers, prefix, 2, kv_heads, head_dim) are random by default.
        ``SetupError`` when the shape does not fit in memory.
        """
        if computed < 1 or prefix < 0:
            raise ValueError(
                f"expected 1 computed token or more and a prefix of 0 or more, not {computed} and {prefix}"
            )
        self._shard, self._computed, self._prefix = shard, computed, prefix
        what = f"a prefill of {computed:,} tokens after a prefix of {prefix:,}"
        on_device, on_host = shard.prefill_bytes(computed, prefix)
        if shard.device.cuda:
            require_memory(on_host, host_free_bytes(), what, "host memory")
        else:
            on_device += on_host  # one memory for both
        require_memory(on_device, shard.device.free_bytes(), what, shard.device.name)
        self._what = what
        without_exhaustion(lambda: self._allocate(inputs, prefix_kv), what)

    def run(self, mode: Mode = "layerwise", layers: int | None = None, trace: bool = False) -> Written:
        """One prefill of the first ``layers`` layers (all by default) until the last KV is stored.

        On a GPU this only fills the streams; the computing stream is done when the last copy is.
        """
        depth = self._shard.layers_run if layers is None else layers

        def work() -> Written:
            with torch.inference_mode():
                return self._run(mode == "layerwise", depth, trace)

        written: Written = without_exhaustion(work, self._what)
        return written

    def _run(self, layerwise: bool, layers: int, trace: bool) -> Written:
        """Layer-wise, layer l computes while the prefix of l + 1 is loaded and the KV of l, then its own, is stored."""
        shard, hidden, attentions = self._shard, self._inputs, []
        loads = [self._load(number) for number in range(1 if layerwise else layers)]
        if not layerwise:
            self._wait(self._loading, loads)
        stores = []
        for number, weights in enumerate(shard.layers[:layers]):
            if layerwise and number + 1 < layers:
                loads.append(self._load(number + 1))
            query, new = project(shard, weights, hidden, self._rotation)
            kv = self._kv[number]
            kv[self._prefix :] = new
            if layerwise:
                stores.append(self._store(number))
                self._wait(self._loading, loads[number : number + 1])
            attention = attend_causally(shard, query, kv)
            hidden = finish(shard, weights, hidden, attention)
            attentions += [attention] if trace else []
        last = logits(shard, hidden[-1:])
        if not layerwise:
            stores = [self._store(number) for number in range(layers)]
        self._wait(self._storing, stores)
        return Written(hidden, last, self._stored[:layers], tuple(attentions))

    def _allocate(self, inputs: Any, prefix_kv: Any) -> None:
        """Buffers on the device and the host, and the lanes between them."""
        shard, device = self._shard, self._shard.device
        layers, token = shard.layers_run, (2, shard.kv_heads, shard.head_dim)
        with torch.inference_mode():
            self._inputs = shard.inputs(self._computed) if inputs is None else inputs
            self._rotation = shard.rotation(torch.arange(self._prefix, self._prefix + self._computed))
            self._kv = torch.empty(
                (layers, self._prefix + self._computed, *token), device=device.torch, dtype=device.torch_dtype
            )
            self._stored = host_empty(device, (layers, self._computed, *token))
            self._held = host_empty(device, (layers, self._prefix, *token))
            self._held.copy_(shard.history(layers, self._prefix) if prefix_kv is None else prefix_kv)
        self._loading, self._storing = make_lane(device), make_lane(device)

    def _load(self, number: int) -> Any:
        """Start loading a layer's prefix; the mark to wait for, none without a prefix."""
        if not self._prefix:
            return None
        return self._loading.copy(self._kv[number, : self._prefix], self._held[number])

    def _store(self, number: int) -> Any:
        """Start storing a layer's new KV, which the computing stream has been given."""
        return self._storing.copy(self._stored[number], self._kv[number, self._prefix :])

    @staticmethod
    def _wait(lane: Any, marks: list[Any]) -> None:
        for mark in marks:
            if mark is not None:
                lane.wait(mark)


def prefill(shard: Shard, computed: int, prefix: int, mode: Mode = "layerwise", **given: Any) -> Written:
    """One prefill in buffers of its own, done when this returns, with every layer's attention kept.

    ``given``: ``inputs`` and ``prefix_kv`` of :class:`Prefill`.
    """
    written = Prefill(shard, computed, prefix, **given).run(mode, trace=True)
    if shard.device.cuda:
        torch.cuda.synchronize()
    return written
