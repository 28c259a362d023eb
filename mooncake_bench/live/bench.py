"""A device that kernels can be made on, and how they are run there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mooncake_bench.live.dense import DEPTHS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mooncake_bench.hardware.architecture import Architecture
    from mooncake_bench.live.cache import Kernels


@dataclass(frozen=True)
class LiveSettings:
    """How live kernels are run."""

    repeat: int = 5
    """The most timed rounds of each shape; one that takes seconds gets fewer."""
    device: str = "auto"
    dtype: str = "auto"
    layers: tuple[int, ...] | None = None
    """Three or more rising depths that are run; None: the kernels' own choice."""
    cache: str | None = None
    """Folder of what was measured; None: in the user's cache folder."""


class Bench:
    """A device that kernels can be made on."""

    facts: Mapping[str, str]
    """Device, driver, versions, type of value: what times depend on besides the model."""
    memory_bytes: int
    """Of the whole device."""
    is_gpu: bool
    value_bytes: int
    """Of one weight or cached value."""

    def kernels(self, shape: Architecture, tensor_parallel: int) -> Kernels:
        """One rank's shard."""
        raise NotImplementedError


class TorchBench(Bench):
    """The device of the settings, by torch. Raises SetupError where there is none, or no torch."""

    def __init__(self, settings: LiveSettings) -> None:
        from mooncake_bench.live.device import choose_device

        self._settings = settings
        self._device = choose_device(settings.device, settings.dtype)
        self.facts = self._device.describe()
        self.memory_bytes = self._device.memory_bytes
        self.is_gpu = self._device.cuda
        self.value_bytes = self._device.value_bytes

    def kernels(self, shape: Architecture, tensor_parallel: int) -> Kernels:
        from mooncake_bench.live.timing import Kernels as TorchKernels

        layers = self._settings.layers or DEPTHS
        return TorchKernels(shape, tensor_parallel, self._device, repeat=self._settings.repeat, layers=layers)


def place(facts: Mapping[str, str]) -> str:
    """A device and what runs on it, in words."""
    return f"{facts['device']} in {facts['dtype']} (driver {facts['driver']}, torch {facts['torch']})"
