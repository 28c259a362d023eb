"""Costs one can work out by hand, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.hardware.cost import PS_PER_MS, CostModel, float_column, int_column, to_ps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.hardware.cost import Column, FloatColumn

    PerInstance = float | Sequence[float]


class FakeCost(CostModel):
    """Straight lines: a prefill takes 1 ms a computed token, a step 10 ms + 1 ms a sequence + 1 us a context token.

    Every number is settable, for all instances at once or one by one. Times in ms.
    """

    def __init__(
        self,
        instances: int = 16,
        *,
        prefill_constant_ms: PerInstance = 0.0,
        prefill_overhead_ms: float = 0.0,
        computed_token_ms: PerInstance = 1.0,
        prefix_token_ms: PerInstance = 0.0,
        step_constant_ms: PerInstance = 10.0,
        step_sequence_ms: PerInstance = 1.0,
        step_token_ms: PerInstance = 0.001,
        layers: int = 4,
        kv_bytes_per_token: int = 1000,
        nic_bytes_per_s: PerInstance = 1e9,
        vram_tokens: int | Sequence[int] = 1_000_000,
        name: str = "fake",
        version: str = "1",
        error: str = "invented numbers, for tests",
    ) -> None:
        """By default a token's KVCache is 1000 bytes and the NIC moves 1e9 bytes/s: 1 us a token."""
        super().__init__(
            name=name,
            version=version,
            error=error,
            layers=layers,
            kv_bytes_per_token=kv_bytes_per_token,
            nic_bytes_per_s=float_column(nic_bytes_per_s, instances),
            vram_tokens=int_column(vram_tokens, instances),
        )
        self._overhead_ps = to_ps(prefill_overhead_ms)  # how much of prefill_constant is the engine's
        self._prefill = [float_column(x, instances) for x in (prefill_constant_ms, computed_token_ms, prefix_token_ms)]
        self._step = [float_column(x, instances) for x in (step_constant_ms, step_sequence_ms)]
        self._prefill_rows = list(zip(*(column.tolist() for column in self._prefill), strict=True))
        self._step_rows = list(zip(*(column.tolist() for column in self._step), strict=True))
        self._token_ps = [to_ps(x) for x in float_column(step_token_ms, instances).tolist()]
        self._token = float_column(self._token_ps, instances) / PS_PER_MS

    def prefill_ps(self, instance: int, computed: int, prefix: int) -> int:
        """prefill_constant + computed_token * computed + prefix_token * prefix [ps]."""
        constant, per_computed, per_prefix = self._prefill_rows[instance]
        return to_ps(constant + per_computed * computed + per_prefix * prefix)

    def prefill_ms(self, computed: Column, prefix: Column) -> FloatColumn:
        """(N,) the same [ms]."""
        constant, per_computed, per_prefix = self._prefill
        return constant + per_computed * computed + per_prefix * prefix

    def prefill_overhead_ps(self, instance: int) -> int:
        """prefill_overhead, which prefill_constant holds [ps]."""
        return self._overhead_ps

    def prefills_ps(self, instance: int, parts: Sequence[tuple[int, int]]) -> int:
        """The sum of the prompts' own prefills [ps]."""
        return sum(self.prefill_ps(instance, *part) for part in parts)

    def chunks_ps(self, instance: int, batch: int, chunks: Sequence[int], starting: int) -> int:
        """The batch's step, if any, + computed_token a chunk token + prefill_constant a prompt that starts [ps]."""
        constant, per_computed, _ = self._prefill_rows[instance]
        time = to_ps(per_computed * sum(chunks) + constant * starting)
        return time + self.decode_ps(instance, batch) if batch else time

    def attend_ps(self, instance: int, chunk: int) -> int:
        """prefix_token [ps]."""
        return to_ps(self._prefill_rows[instance][2])

    def decode_ps(self, instance: int, batch: int) -> int:
        """step_constant + step_sequence * batch [ps]."""
        constant, per_sequence = self._step_rows[instance]
        return to_ps(constant + per_sequence * batch)

    def token_ps(self, instance: int) -> int:
        """step_token [ps]."""
        return self._token_ps[instance]

    def step_ms(self, batch: Column, tokens: Column) -> FloatColumn:
        """(N,) step_constant + step_sequence * batch + step_token * tokens [ms]."""
        constant, per_sequence = self._step
        return constant + per_sequence * batch + self._token * tokens
