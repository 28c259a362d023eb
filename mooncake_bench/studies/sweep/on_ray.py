"""The points of a sweep on a Ray cluster; what a worker or a node that dies had in hand is replayed elsewhere.

Every node needs mooncake-bench, and the policies' files at the same paths. Traces travel: each goes into the cluster's
object store once, and each worker takes it from there once.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import SetupError
from mooncake_bench.studies.sweep.work import TRACES_KEPT, Outcome, Work, attempt, failed
from mooncake_bench.trace import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.studies.sweep.executors import Outcomes
    from mooncake_bench.studies.sweep.points import Point

RETRIES = 5  # of a point whose worker or node dies
WAIT_S = 1.0  # between two looks at how many cores the cluster has
AHEAD = 2  # points handed out for each core


@dataclass(frozen=True)
class OnRay:
    """On a Ray cluster that :func:`connected` has reached."""

    work: Work
    ray: Any

    def run(self, points: Sequence[Point]) -> Outcomes:
        """See :class:`mooncake_bench.studies.sweep.executors.Executor`."""
        try:
            if points:
                yield from _run(self.ray, self.work, points)
        finally:
            self.ray.shutdown()


def connected(work: Work, address: str) -> OnRay:
    """The Ray cluster at an address, or ``auto``: the one that runs on this machine.

    Raises SetupError where there is none, or no Ray.
    """
    return OnRay(work, _connect(address))


def _run(ray: Any, work: Work, points: Sequence[Point]) -> Outcomes:
    task = ray.remote(num_cpus=1, max_retries=RETRIES)(_attempt)
    traces = {key: ray.put(load(key[0], **dict(key[1]))) for key in dict.fromkeys(map(_key, points))}
    folder = str(Path.cwd())
    left = deque(points)
    busy: dict[Any, Point] = {}
    try:
        while left or busy:
            while left and len(busy) < AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1))):
                point = left.popleft()
                busy[task.remote(point, work, [traces[_key(point)]], folder)] = point
            done, _ = ray.wait(list(busy), num_returns=len(busy), timeout=0)
            done = done or ray.wait(list(busy), num_returns=1, timeout=WAIT_S)[0]
            yield [_outcome(ray, reference, busy.pop(reference)) for reference in done]
    finally:
        for reference in busy:
            with contextlib.suppress(Exception):  # it may have ended by now
                ray.cancel(reference, force=True)


def _connect(address: str) -> Any:
    try:
        import ray
    except ImportError:
        raise SetupError("--ray: Ray is not installed; pip install 'mooncake-bench[ray]'") from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, namespace="mooncake-bench")
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise SetupError(
            f"--ray {address}: no Ray cluster answers: {reason}; start one with: ray start --head"
        ) from None
    return ray


def _key(point: Point) -> tuple[str, tuple[tuple[str, Any], ...]]:
    return point.trace, tuple(point.setup.reading.items())


def _outcome(ray: Any, reference: Any, point: Point) -> Outcome:
    """What came of a task; one that the cluster gave up is a failed point."""
    try:
        outcome: Outcome = ray.get(reference)
    except ray.exceptions.RayError as error:
        why = " ".join(str(error).split())[:200]
        return failed(point, f"Ray gave up after {RETRIES + 1} tries: {type(error).__name__}: {why}")
    return outcome


def _attempt(point: Point, work: Work, boxed: list[Any], folder: str) -> Outcome:
    """In a worker. The reference to the trace comes in a list, or Ray would unpack the trace for every point."""
    with contextlib.suppress(OSError):
        os.chdir(folder)  # what the SPEC of a policy's file is relative to
    return attempt(point, work, _taken(boxed[0]))


@lru_cache(maxsize=TRACES_KEPT)
def _taken(reference: Any) -> Any:
    import ray

    return ray.get(reference)
