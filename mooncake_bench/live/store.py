"""Host memory for KV, and the lanes that copy to and from it beside the computing: streams, or threads on a CPU."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from mooncake_bench.live.device import Device


def host_empty(device: Device, shape: tuple[int, ...]) -> Any:
    """Host memory for KV: pinned for a GPU, whose copies are asynchronous only then."""
    return torch.empty(shape, dtype=device.torch_dtype, pin_memory=device.cuda and 0 not in shape)


class StreamLane:
    """A CUDA stream of copies; waiting makes the computing stream wait, never the CPU."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()

    def copy(self, target: Any, source: Any) -> Any:
        """Copy once all that the computing stream was given before is done; gives the mark to wait for."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            return self._stream.record_event()

    def wait(self, mark: Any) -> None:
        """What the computing stream is given from now on starts after the copy of ``mark``."""
        torch.cuda.current_stream().wait_event(mark)


class ThreadLane:
    """One thread of plain copies: the CPU's stand-in for a stream, so that the order of the work is the same."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kv-copies")

    def copy(self, target: Any, source: Any) -> Future[None]:
        """Copy beside the computing, which is done when this is called; gives the mark to wait for."""
        return self._thread.submit(host_copy, target, source)

    def wait(self, mark: Future[None]) -> None:
        """Return once the copy of ``mark`` is done."""
        mark.result()


Lane = StreamLane | ThreadLane


def make_lane(device: Device) -> Lane:
    """A lane of copies of the device's kind."""
    return StreamLane() if device.cuda else ThreadLane()


def host_copy(target: Any, source: Any) -> None:
    """Copy one contiguous tensor in main memory to another: by one thread, without torch's own and without its lock."""
    np.copyto(_as_bytes(target), _as_bytes(source))


def _as_bytes(part: Any) -> Any:
    """A tensor's memory as numpy sees it."""
    return part.view(torch.uint8).numpy()
