"""Cost models for the reference: the analytic one (E1, E2 with engine overheads) and a countable one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MS = 1e9  # picoseconds in a millisecond


@dataclass
class AnalyticCost:
    """Llama-3-70B on 8xA800 by default; the same node everywhere."""

    instances: int = 16
    m: float = 5.50
    b: float = 0.1089
    o: float = 13.05
    c: float = 1.849e-6
    o_pre: float = 80.0
    dm: float = 18.82
    dk: float = 0.112
    de: float = 0.0449
    o_dec: float = 7.8
    c_d: float = 2.688e-5
    nic: float = 87e9
    vram: int = 1_457_000
    kv_bytes_per_token: int = 327_680
    layers: int = 80

    def __post_init__(self) -> None:
        self.nic_bytes_per_s = np.full(self.instances, self.nic)
        self.vram_tokens = np.full(self.instances, self.vram, dtype=np.int64)

    def _prefill(self, n, p):
        S = n * p + n * n / 2
        return np.sqrt(self.m * self.m + (self.b * n) * (self.b * n)) + self.o + self.c * S + self.o_pre

    def _f(self, B):
        m2, k2 = self.dm * self.dm, (self.dk * B) * (self.dk * B)
        return np.sqrt(np.sqrt(m2 * m2 + k2 * k2)) + self.de * B + self.o_dec

    def prefill_ps(self, instance: int, computed: int, prefix: int) -> int:
        return round(float(self._prefill(float(computed), float(prefix))) * MS)

    def prefill_ms(self, computed, prefix):
        return self._prefill(np.asarray(computed, dtype=float), np.asarray(prefix, dtype=float))

    def decode_ps(self, instance: int, batch: int) -> int:
        return round(float(self._f(float(batch))) * MS)

    def token_ps(self, instance: int) -> int:
        return round(self.c_d * MS)

    def step_ms(self, batch, tokens):
        return self._f(np.asarray(batch, dtype=float)) + self.c_d * np.asarray(tokens, dtype=float)


@dataclass
class CountableCost:
    """1 ms a computed token, a decode step of 10 ms + 1 ms a request + 0.001 ms a context token, by default."""

    instances: int
    token_ms: float = 1.0
    prefix_token_ms: float = 0.0
    prefill_base_ms: float = 0.0
    step_base_ms: float = 10.0
    step_request_ms: float = 1.0
    step_token_ms: float = 0.001
    nic: float = 1e6
    vram: int = 10_000
    kv_bytes_per_token: int = 1
    layers: int = 1

    def __post_init__(self) -> None:
        self.nic_bytes_per_s = np.full(self.instances, float(self.nic))
        self.vram_tokens = np.full(self.instances, self.vram, dtype=np.int64)

    def prefill_ms(self, computed, prefix):
        return (
            self.prefill_base_ms
            + self.token_ms * np.asarray(computed, dtype=float)
            + self.prefix_token_ms * np.asarray(prefix, dtype=float)
        )

    def prefill_ps(self, instance: int, computed: int, prefix: int) -> int:
        return round(float(self.prefill_ms(computed, prefix)) * MS)

    def decode_ps(self, instance: int, batch: int) -> int:
        return round((self.step_base_ms + self.step_request_ms * batch) * MS)

    def token_ps(self, instance: int) -> int:
        return round(self.step_token_ms * MS)

    def step_ms(self, batch, tokens):
        return (
            self.step_base_ms
            + self.step_request_ms * np.asarray(batch, dtype=float)
            + self.step_token_ms * np.asarray(tokens, dtype=float)
        )
