"""The analytic cost model: closed forms fitted to public measurements of kernels.

With n computed tokens, p cached ones, S = n p + n^2/2, a batch of B sequences and T context tokens in all:

(E1) prefill   E(n, S) = sqrt(m^2 + (b n)^2) + o + c S + h n^2 / (n^2 + w^2)
                         a floor that turns into a slope, attention, and what comes once a batch is large (all-reduce
                         leaving its one-shot kernel, matrix products filling one more wave of tiles); h may be 0
(E2) decode    f(B) + c_d T,  f(B) = (m^4 + (k B)^4)^(1/4) + e B + g sqrt(B)
                         a weight-read floor that turns into a slope, experts woken by more sequences (MoE; g is 0
                         for a dense model), KV reads
(E3) engine    + o_pre a prefill, + o_dec a decode step           CPU launch and sampling: of the engine, not the GPU
(E4) transfer  bytes / bandwidth                                  the start-up latency is 0
(E6) a coupled step of n tokens of k prompts that start, S of their attention, beside B sequences that decode
     B = 0     E(n, S) + k o_pre
     else      max(E(n + B, S), f(B) + c S) + c_d T + o_dec + k o_pre
                         one matrix product takes all n + B tokens and reads the weights once; o_pre is work done for a
                         prompt (k = 0 for a later chunk of one), o_dec for a step of the batch. The form under which
                         `calibrate fit --served` finds the overheads of an engine

Only + - * / and sqrt are used: other roots and powers differ between mathematical libraries in the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.hardware.cost import PS_PER_MS, CostModel, float_column, int_column, to_ps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.hardware.cost import Column, FloatColumn


@dataclass(frozen=True)
class Coefficients:
    """E1 and E2 of one model on one node, without engine overhead. Times in ms."""

    prefill_floor_ms: float
    """m of E1: a short prefill reads all weights."""
    prefill_token_ms: float
    """b of E1 [ms per computed token]."""
    prefill_constant_ms: float
    """o of E1."""
    prefill_token2_ms: float
    """c of E1: attention [ms per token^2]."""
    decode_floor_ms: float
    """m of E2: a small batch reads all weights."""
    decode_roof_ms: float
    """k of E2 [ms per sequence]: the slope that takes over from the floor."""
    decode_sequence_ms: float
    """e of E2 [ms per sequence]."""
    decode_token_ms: float
    """c_d of E2: reading the KVCache [ms per context token]."""
    prefill_late_ms: float = 0.0
    """h of E1: what a large prefill pays once, on top."""
    prefill_late_tokens: float = 1.0
    """w of E1 [tokens]: where half of it is paid."""
    decode_root_ms: float = 0.0
    """g of E2 [ms per square root of a sequence]: the experts that a batch wakes."""


@dataclass(frozen=True)
class EngineOverhead:
    """E3: what the serving engine adds to each prefill and to each decode step."""

    prefill_ms: float = 0.0
    decode_ms: float = 0.0


class AnalyticCost(CostModel):
    """E1 to E4, one set of coefficients an instance."""

    def __init__(
        self,
        coefficients: Sequence[Coefficients],
        overhead: EngineOverhead,
        *,
        name: str,
        version: str,
        error: str,
        error_short: str = "",
        layers: int,
        kv_bytes_per_token: int,
        nic_bytes_per_s: float | Sequence[float],
        vram_tokens: int | Sequence[int],
    ) -> None:
        """``coefficients``: one an instance. NIC [bytes/s] and VRAM [tokens]: one value for all or one an instance."""
        instances = len(coefficients)
        super().__init__(
            name=name,
            version=version,
            error=error,
            error_short=error_short,
            layers=layers,
            kv_bytes_per_token=kv_bytes_per_token,
            nic_bytes_per_s=float_column(nic_bytes_per_s, instances),
            vram_tokens=int_column(vram_tokens, instances),
        )
        self.coefficients = tuple(coefficients)
        self.overhead = overhead
        self._set_prefill()
        self._set_decode()

    def _set_prefill(self) -> None:
        """Squares and sums that never change, as tuples for the scalar form and as columns for the array form."""
        extra = self.overhead.prefill_ms
        self._prefill: list[tuple[float, ...]] = [
            (c.prefill_floor_ms * c.prefill_floor_ms, c.prefill_token_ms * c.prefill_token_ms,
             c.prefill_constant_ms + extra, c.prefill_token2_ms,
             c.prefill_late_ms, c.prefill_late_tokens * c.prefill_late_tokens)
            for c in self.coefficients
        ]  # fmt: skip
        self._m2, b2, self._o, c, self._h, w2 = _columns(self._prefill)
        self._bw2 = b2 * w2
        self._half_c = c * 0.5
        self._b = np.array([c.prefill_token_ms for c in self.coefficients])
        self._late = bool(self._h.any())
        columns = (self._b, self._bw2, self._h, self._m2, self._half_c, self._o)
        self._scalars: list[tuple[float, ...]] = list(zip(*(column.tolist() for column in columns), strict=True))
        self._attend: dict[tuple[float, int], int] = {}

    def _set_decode(self) -> None:
        extra = self.overhead.decode_ms
        self._decode: list[tuple[float, ...]] = [
            (_fourth_power(c.decode_floor_ms), c.decode_roof_ms, c.decode_sequence_ms, extra, c.decode_root_ms)
            for c in self.coefficients
        ]  # fmt: skip
        # The clock counts whole picoseconds a token, so the array form prices a token the same.
        self._token_ps = [to_ps(c.decode_token_ms) for c in self.coefficients]
        self._m4, self._k, self._e, self._o_dec, self._g = _columns(self._decode)
        self._rooted = bool(self._g.any())
        self._c_d = np.array(self._token_ps, dtype=np.float64) / PS_PER_MS
        shared: dict[tuple[float, ...], dict[int, int]] = {}  # equal instances share one memo
        self._memo = [shared.setdefault(key, {}) for key in self._decode]

    def prefill_ps(self, instance: int, computed: int, prefix: int) -> int:
        """E of E1 + o_pre [ps]; ``prefix`` cached tokens are attended to, not computed."""
        m2, b2, o, c, h, w2 = self._prefill[instance]
        n2 = float(computed * computed)
        return round((sqrt(m2 + b2 * n2) + o + c * (computed * prefix + 0.5 * n2) + h * n2 / (n2 + w2)) * 1e9)

    def prefill_ms(self, computed: Column, prefix: Column) -> FloatColumn:
        """(N,) E of E1 + o_pre [ms]."""
        time: FloatColumn = computed * self._b
        time *= time
        late = None
        if self._late:  # n^2 / (n^2 + w^2) = (b n)^2 / ((b n)^2 + (b w)^2)
            late = time + self._bw2
            np.divide(time, late, late)
            late *= self._h
        time += self._m2
        np.sqrt(time, time)
        attention = computed * self._half_c
        attention *= computed + (prefix + prefix)
        time += attention
        time += self._o
        if late is not None:
            time += late
        return time

    def behind_ps(self, instance: int, computed: int, prefixes: Sequence[int]) -> list[int]:
        """E of E1 + o_pre, one of each prefix [ps]."""
        m2, b2, o, c, h, w2 = self._prefill[instance]
        n2 = float(computed * computed)
        products, own, late = sqrt(m2 + b2 * n2) + o, 0.5 * n2, h * n2 / (n2 + w2)
        return [round((products + c * (computed * prefix + own) + late) * 1e9) for prefix in prefixes]

    def behind_ms(self, instance: int, computed: float, prefixes: Sequence[float]) -> list[float]:
        """As the column, to the last bit [ms]."""
        b, bw2, h, m2, half_c, o = self._scalars[instance]
        slope = computed * b
        slope *= slope
        products, attend = sqrt(slope + m2), computed * half_c
        late = slope / (slope + bw2) * h if self._late else 0.0
        return [products + attend * (computed + (prefix + prefix)) + o + late for prefix in prefixes]

    @property
    def alike(self) -> Sequence[int]:
        """Instances with the same coefficients and NIC are."""
        first: dict[tuple[float, ...], int] = {}
        rows = zip(self._prefill, self.nic_bytes_per_s.tolist(), strict=True)
        return [first.setdefault((*row, nic), i) for i, (row, nic) in enumerate(rows)]

    def prefill_overhead_ps(self, instance: int) -> int:
        """o_pre [ps]."""
        return to_ps(self.overhead.prefill_ms)

    def prefills_ps(self, instance: int, parts: Sequence[tuple[int, int]]) -> int:
        """E of E1 over all parts + o_pre for each [ps]."""
        if len(parts) == 1:
            return self.prefill_ps(instance, *parts[0])
        attended = sum(n * p + 0.5 * (n * n) for n, p in parts)
        time = self._products_ms(instance, sum(n for n, _ in parts)) + self._prefill[instance][3] * attended
        return to_ps(time + len(parts) * self.overhead.prefill_ms)

    def chunks_ps(self, instance: int, batch: int, chunks: Sequence[int], starting: int) -> int:
        """E6 but for T and what attention reads of earlier chunks [ps]."""
        time = self._products_ms(instance, sum(chunks) + batch)
        if batch:
            time = max(time + self.overhead.decode_ms, self.decode_ps(instance, batch) / PS_PER_MS)
        attended = sum(0.5 * (n * n) for n in chunks)
        return to_ps(time + self._prefill[instance][3] * attended + starting * self.overhead.prefill_ms)

    def attend_ps(self, instance: int, chunk: int) -> int:
        """c times the chunk: what each earlier token adds [ps]."""
        key = (self._prefill[instance][3], chunk)
        found = self._attend.get(key)
        if found is None:
            found = self._attend[key] = to_ps(key[0] * chunk)
        return found

    def _products_ms(self, instance: int, tokens: int) -> float:
        """E of E1 without attention and o_pre [ms]."""
        m2, b2, o, _, h, w2 = self._prefill[instance]
        n2 = float(tokens * tokens)
        return sqrt(m2 + b2 * n2) + (o - self.overhead.prefill_ms) + h * n2 / (n2 + w2)

    def decode_ps(self, instance: int, batch: int) -> int:
        """f(B) of E2 + o_dec [ps]."""
        memo = self._memo[instance]
        known = memo.get(batch)
        if known is None:
            m4, k, e, o, g = self._decode[instance]
            roof = sqrt(sqrt(m4 + _fourth_power(k * batch)))
            known = memo[batch] = to_ps(roof + e * batch + o + g * sqrt(batch))
        return known

    def token_ps(self, instance: int) -> int:
        """c_d of E2 [ps per context token]."""
        return self._token_ps[instance]

    def step_ms(self, batch: Column, tokens: Column) -> FloatColumn:
        """(N,) f(B) + o_dec + c_d T [ms]."""
        time: FloatColumn = batch * self._k
        time *= time
        time *= time
        time += self._m4
        np.sqrt(time, time)
        np.sqrt(time, time)
        time += batch * self._e
        time += tokens * self._c_d
        time += self._o_dec
        if self._rooted:
            time += self._g * np.sqrt(batch)
        return time


def _fourth_power(x: float) -> float:
    square = x * x
    return square * square


def _columns(rows: list[tuple[float, ...]]) -> tuple[FloatColumn, ...]:
    return tuple(np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
