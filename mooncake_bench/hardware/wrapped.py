"""A cost model that changes how another one's prefills run, and leaves the rest as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.hardware.cost import CostModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.hardware.cost import Column, FloatColumn, IntColumn


def plain(cost: CostModel) -> CostModel:
    """The cost model underneath: one node's own, whole prompts at once."""
    while isinstance(cost, WrappedCost) and cost.mechanism:
        cost = cost.base
    return cost


class WrappedCost(CostModel):
    """All of ``base``; what it is and how far it is off are asked of it each time, for live costs learn as they go.

    A child says what differs, in :attr:`how` too.
    """

    mechanism = True  # how prefills run; False: what they cost is another

    def __init__(self, base: CostModel, how: str) -> None:
        """``how``: what differs, in a few words that go behind the base's name and tell its version apart."""
        self.base = base
        self.how = how

    @property
    def name(self) -> str:
        return f"{self.base.name}, {self.how}"

    @property
    def version(self) -> str:
        return self.base.version

    @property
    def error(self) -> str:
        return f"{self.base.error} {self.how[:1].upper()}{self.how[1:]}: composed from these, not measured."

    @property
    def error_short(self) -> str:
        return f"{self.base.error_short}; {self.how}: composed, not measured"

    @property
    def layers(self) -> int:
        return self.base.layers

    @property
    def kv_bytes_per_token(self) -> int:
        return self.base.kv_bytes_per_token

    @property
    def nic_bytes_per_s(self) -> FloatColumn:
        return self.base.nic_bytes_per_s

    @property
    def vram_tokens(self) -> IntColumn:
        return self.base.vram_tokens

    def prefill_overhead_ps(self, instance: int) -> int:
        return self.base.prefill_overhead_ps(instance)

    def prefill_ps(self, instance: int, computed: int, prefix: int) -> int:
        return self.base.prefill_ps(instance, computed, prefix)

    def prefill_ms(self, computed: Column, prefix: Column) -> FloatColumn:
        return self.base.prefill_ms(computed, prefix)

    def decode_ps(self, instance: int, batch: int) -> int:
        return self.base.decode_ps(instance, batch)

    def token_ps(self, instance: int) -> int:
        return self.base.token_ps(instance)

    def step_ms(self, batch: Column, tokens: Column) -> FloatColumn:
        return self.base.step_ms(batch, tokens)

    def prefills_ps(self, instance: int, parts: Sequence[tuple[int, int]]) -> int:
        return self.base.prefills_ps(instance, parts)

    def chunks_ps(self, instance: int, batch: int, chunks: Sequence[int], starting: int) -> int:
        return self.base.chunks_ps(instance, batch, chunks, starting)

    def attend_ps(self, instance: int, chunk: int) -> int:
        return self.base.attend_ps(instance, chunk)
