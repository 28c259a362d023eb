"""Costs that are wrong by so much: what a study assumes to see whether its conclusion hangs on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.hardware.wrapped import WrappedCost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.hardware.cost import Column, CostModel, FloatColumn


class ScaledCost(WrappedCost):
    """Every prefill takes ``prefill`` times as long, every decode step ``decode`` times. A mixed step is a prefill."""

    mechanism = False

    def __init__(self, base: CostModel, *, prefill: float = 1.0, decode: float = 1.0) -> None:
        super().__init__(base, f"prefill times {prefill:g}, decode times {decode:g}")
        self.prefill, self.decode = prefill, decode

    @property
    def version(self) -> str:
        return f"{self.base.version}+scaled{self.prefill:g},{self.decode:g}"

    def prefill_overhead_ps(self, instance: int) -> int:
        return round(self.prefill * self.base.prefill_overhead_ps(instance))

    def prefill_ps(self, instance: int, computed: int, prefix: int) -> int:
        return round(self.prefill * self.base.prefill_ps(instance, computed, prefix))

    def prefill_ms(self, computed: Column, prefix: Column) -> FloatColumn:
        return self.prefill * self.base.prefill_ms(computed, prefix)

    def prefills_ps(self, instance: int, parts: Sequence[tuple[int, int]]) -> int:
        return round(self.prefill * self.base.prefills_ps(instance, parts))

    def chunks_ps(self, instance: int, batch: int, chunks: Sequence[int], starting: int) -> int:
        return round(self.prefill * self.base.chunks_ps(instance, batch, chunks, starting))

    def attend_ps(self, instance: int, chunk: int) -> int:
        return round(self.prefill * self.base.attend_ps(instance, chunk))

    def decode_ps(self, instance: int, batch: int) -> int:
        return round(self.decode * self.base.decode_ps(instance, batch))

    def token_ps(self, instance: int) -> int:
        return round(self.decode * self.base.token_ps(instance))

    def step_ms(self, batch: Column, tokens: Column) -> FloatColumn:
        return self.decode * self.base.step_ms(batch, tokens)
