"""A device without torch: kernels whose times are straight lines that can be worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

from mooncake_bench.live.bench import Bench, LiveSettings

NODE = """
description = "one GPU, for tests"
gpus = {gpus}
pool_tokens = 1_000_000
pool_source = "made up"
nic_gbytes_per_s = 2.0
nic_status = "assumed"
nic_source = "made up"
[costs]
"""


@dataclass(frozen=True)
class FakeTiming:
    median_ms: float
    spread: float = 0.01
    samples: int = 5
    noisy: bool = False
    depth_error: float | None = 2.0
    notice: str = ""


@dataclass
class FakeKernels:
    """Prefill: 10 + 0.1 n + 0.002 n p ms. Decode: 4 + B + 0.001 T ms. Every run is noted."""

    ran: list[tuple[str, int, int]] = field(default_factory=list)
    noisy: bool = False
    notice: str = ""
    fail: Exception | None = None

    def prefill_ms(self, computed: int, prefix: int, mode: str) -> FakeTiming:
        assert mode == "layerwise"
        return self._timing("prefill", computed, prefix, 10 + 0.1 * computed + 0.002 * computed * prefix)

    def decode_ms(self, batch: int, contexts: int) -> FakeTiming:
        return self._timing("decode", batch, contexts, 4 + batch + 0.001 * batch * contexts)

    def _timing(self, phase: str, first: int, second: int, ms: float) -> FakeTiming:
        if self.fail is not None:
            raise self.fail
        self.ran.append((phase, first, second))
        return FakeTiming(ms, noisy=self.noisy, notice=self.notice)


class FakeBench(Bench):
    """A GPU of 10 GB whose kernels are fake; ``made`` has one entry for each time that kernels were built."""

    def __init__(self, settings: LiveSettings, kernels: FakeKernels | None = None, name: str = "fake GPU") -> None:
        self.facts = {"device": name, "driver": "1", "torch": "9.9", "dtype": "float32", "threads": "0"}
        self.memory_bytes = 10 * 10**9
        self.is_gpu = True
        self.value_bytes = 4
        self.one = kernels or FakeKernels()
        self.made: list[int] = []

    def kernels(self, shape: object, tensor_parallel: int) -> FakeKernels:
        self.made.append(tensor_parallel)
        return self.one
