"""The device that real kernels run on: chosen and tried once, with one clear line when it cannot be used."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import SetupError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one value of each type that the kernels run in."""


class OutOfMemory(SetupError):  # noqa: N818 - it says what happened, as NothingToConclude does
    """Memory does not suffice for one shape; a smaller one may fit."""


@dataclass(frozen=True)
class Device:
    """A torch device and a type that its kernels have been seen to run in."""

    torch: Any
    """The ``torch.device``."""
    dtype: str
    name: str
    """The GPU's own name, or ``cpu: <model>``."""
    driver: str
    torch_version: str
    threads: int
    """Threads of one kernel on a CPU; 0 on a GPU."""
    memory_bytes: int

    @property
    def cuda(self) -> bool:
        """Whether it is a GPU, with streams and events."""
        return str(self.torch.type) == "cuda"

    @property
    def value_bytes(self) -> int:
        """Bytes of one weight or cached value."""
        return DTYPES[self.dtype]

    @property
    def torch_dtype(self) -> Any:
        """The ``torch.dtype``."""
        return getattr(import_torch(), self.dtype)

    def describe(self) -> dict[str, str]:
        """What a measurement depends on besides its shape: the parts of a cache key."""
        return {
            "device": self.name,
            "driver": self.driver,
            "torch": self.torch_version,
            "dtype": self.dtype,
            "threads": str(self.threads),
        }

    def free_bytes(self) -> int:
        """Bytes that can still be allocated on the device."""
        if not self.cuda:
            return host_free_bytes()
        cuda = import_torch().cuda
        kept = cuda.memory_reserved(self.torch) - cuda.memory_allocated(self.torch)  # torch's own, ready for reuse
        return int(cuda.mem_get_info(self.torch)[0] + kept)


def import_torch() -> Any:
    """torch itself; ``SetupError`` with what to install when it is not there.

    Its threads on a CPU wait asleep unless OMP_WAIT_POLICY says otherwise: where other programs run, threads that wait
    spinning for one that has no core take ten times as long. OpenMP reads this once, when torch is first imported.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        import torch
    except ImportError as error:
        raise SetupError(
            f"live kernels need torch, which cannot be imported ({error}); pip install 'mooncake-bench[live]', "
            "or use --cost analytic"
        ) from error
    return torch


def choose_device(name: str = "auto", dtype: str = "auto") -> Device:
    """The device ``name`` (auto, cpu, cuda, cuda:N) in ``dtype`` (auto, float32, bfloat16, float16), tried once.

    ``auto`` is the first GPU, else the CPU; its type is bfloat16 on a GPU that has it, float16 on an older one and
    float32 on a CPU. ``SetupError`` for no torch, no such device, or a type that its kernels do not run in.
    """
    torch = import_torch()
    if dtype not in ("auto", *DTYPES):
        known = "auto, " + ", ".join(DTYPES)
        hint = nearest(dtype, DTYPES)
        raise SetupError(f"live dtype {dtype!r} is not one that the kernels run in; expected {known}{hint}")
    chosen = _resolve(torch, name)
    device = _on_gpu(torch, chosen, dtype) if chosen.type == "cuda" else _on_cpu(torch, chosen, dtype)
    _try(torch, device)
    return device


def host_free_bytes() -> int:
    """Bytes of main memory that can still be allocated: the system's count, or less under a container's limit."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 62
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    limit = "".join(_lines("/sys/fs/cgroup/memory.max")).strip()
    used = "".join(_lines("/sys/fs/cgroup/memory.current")).strip()
    return min(free, int(limit) - int(used)) if limit.isdigit() and used.isdigit() else free


def without_exhaustion(work: Callable[[], Any], what: str) -> Any:
    """The result of ``work``; ``OutOfMemory`` in one line when memory runs out in the middle of ``what``."""
    torch = import_torch()
    try:
        return work()
    except (torch.cuda.OutOfMemoryError, MemoryError) as error:
        raise OutOfMemory(out_of_memory(what)) from error
    except RuntimeError as error:
        if "can't allocate memory" in str(error) or "out of memory" in str(error):
            raise OutOfMemory(out_of_memory(what)) from error
        raise


def require_memory(needed_bytes: int, free_bytes: int, what: str, where: str) -> None:
    """``OutOfMemory`` before anything is allocated when ``needed_bytes`` are more than ``free_bytes``."""
    if needed_bytes > free_bytes:
        raise OutOfMemory(
            f"{out_of_memory(what)} (needs about {needed_bytes / 1e9:,.2f} GB of {where}, "
            f"{max(free_bytes, 0) / 1e9:,.2f} GB are free)"
        )


def out_of_memory(what: str) -> str:
    """The line for memory that does not suffice."""
    return (
        f"not enough memory for {what}: run fewer layers (--live-layers), a smaller model or shape, "
        "or a type of 2 bytes (--live-dtype)"
    )


def _resolve(torch: Any, name: str) -> Any:
    """The torch device of a name."""
    kind, _, number = name.partition(":")
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    if kind not in ("cpu", "cuda") or (number and not (number.isdecimal() and kind == "cuda")):
        raise SetupError(f"live device {name!r} is not known; expected auto, cpu, cuda or cuda:N (as cuda:0)")
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        build = "its build is for the CPU" if torch.version.cuda is None and torch.version.hip is None else "no driver"
        raise SetupError(
            f"live device {name!r}: torch {torch.__version__} sees no GPU ({build}); use --live-device cpu with a "
            "small model, or install a driver and a CUDA build of torch"
        )
    index, count = int(number or 0), torch.cuda.device_count()
    if index >= count:
        raise SetupError(f"live device {name!r}: torch sees {count} GPU(s); expected cuda:0 to cuda:{count - 1}")
    return torch.device("cuda", index)


def _on_gpu(torch: Any, chosen: Any, dtype: str) -> Device:
    """A GPU; bfloat16 in emulation (before compute capability 8.0) is refused: its times would mean nothing."""
    torch.cuda.set_device(chosen)  # streams, events and graphs are then its own
    facts = torch.cuda.get_device_properties(chosen)
    real_bfloat16 = torch.version.hip is not None or facts.major >= 8
    if dtype == "bfloat16" and not real_bfloat16:
        raise SetupError(
            f"live dtype 'bfloat16': {facts.name} (compute capability {facts.major}.{facts.minor}) has none, "
            "8.0 or more is needed; use --live-dtype float16"
        )
    picked = ("bfloat16" if real_bfloat16 else "float16") if dtype == "auto" else dtype
    return Device(chosen, picked, facts.name, _driver(torch), torch.__version__, 0, facts.total_memory)


def _on_cpu(torch: Any, chosen: Any, dtype: str) -> Device:
    """The CPU, with as many threads as torch was given."""
    named = (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name"))
    model = next(named, "") or platform.processor() or platform.machine()
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    threads = torch.get_num_threads()
    picked = "float32" if dtype == "auto" else dtype
    return Device(chosen, picked, f"cpu: {model}", platform.release(), torch.__version__, threads, total)


def _driver(torch: Any) -> str:
    """The GPU driver's version as its kernel module states it, else the runtime's."""
    for line in _lines("/proc/driver/nvidia/version"):
        words = [word for word in line.split() if word[0].isdigit() and "." in word]
        if line.startswith("NVRM") and words:
            return words[0]
    return f"unknown (runtime {torch.version.cuda or torch.version.hip})"


def _try(torch: Any, device: Device) -> None:
    """One small product and one attention; ``SetupError`` when the device does not run them in this type."""
    try:
        with torch.inference_mode():
            one = torch.ones(1, 2, 16, 64, device=device.torch, dtype=device.torch_dtype)
            torch.nn.functional.scaled_dot_product_attention(one @ one.transpose(2, 3) @ one, one, one)
        if device.cuda:
            from torch.nn.attention import bias  # noqa: F401 - takes seconds, which no timed run shall pay

            torch.cuda.synchronize(device.torch)
    except (RuntimeError, NotImplementedError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SetupError(
            f"live dtype {device.dtype!r} does not run on {device.name} ({first}); try another --live-dtype of "
            + ", ".join(DTYPES)
        ) from error


def _lines(path: str) -> list[str]:
    """The lines of a small system file; none where it is absent."""
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
