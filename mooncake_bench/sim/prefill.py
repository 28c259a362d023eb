"""A prefill instance's queue: first come, first served unless the policy orders it (rule 5)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_bench.sim.job import Job


class PrefillNode:
    """The running prefill, and the requests behind it.

    ``work_end`` is when the work routed so far would be done: what a view's ``queue_ms`` is measured to.
    """

    __slots__ = ("busy_end", "epoch", "head", "instance", "queue", "queued_ps", "recount", "routed_ps", "running")

    def __init__(self, instance: int) -> None:
        self.instance = instance
        self.queue: deque[Job] = deque()
        self.head: Job | None = None  # chosen to be next: sticky while the node idles for its fetch
        self.running: Job | None = None
        self.busy_end = 0
        self.queued_ps = 0  # turns of everything in the queue
        self.routed_ps = 0  # turns of everything ever routed here
        self.recount = False  # promised blocks were dropped: hits are counted again at the start
        self.epoch = 0

    def remove(self, job: Job) -> None:
        """Take a request that is not running out of the queue, whose ``queued_ps`` is without it already."""
        self.queue.remove(job)
        if self.head is job:
            self.head = None
        job.waits_for = None

    @property
    def started(self) -> tuple[Job, ...]:
        """What is being prefilled here."""
        return () if self.running is None else (self.running,)

    def abort(self, job: Job, now: int) -> None:
        """Give up what is being prefilled."""
        self.running = None
        self.epoch += 1

    def clear(self) -> None:
        """Forget all that is queued or running here."""
        self.queue.clear()
        self.head = self.running = None
        self.queued_ps = 0
        self.recount = False
        self.epoch += 1  # the end of the running prefill does not come

    def work_end(self, now: int) -> int:
        """When everything routed here would be prefilled, by what is known now (ps)."""
        if self.running is not None:
            return self.busy_end + self.queued_ps
        head = self.head
        ready = now if head is None or head.fetch is None else head.fetch.end()
        if head is not None and head.awaits:
            ready = max(ready, *[flow.end() for flow in head.awaits])
        return ready + self.queued_ps

    def choose(self, now: int, order: Callable[[int, Sequence[Job], int], int] | None) -> Job:
        """Name the head of the queue; it keeps its place until it starts or is dropped."""
        head = self.head
        if head is None:
            head = self.queue[0] if order is None else self._ordered(now, order)
            self.head = head
            head.head_ps = now
        return head

    def _ordered(self, now: int, order: Callable[[int, Sequence[Job], int], int]) -> Job:
        """The policy's choice; but no request overtakes the one that computes its prefix."""
        wanted = self.queue[order(self.instance, self.queue, now)]
        while wanted.waits_for is not None and wanted.waits_for in self.queue:
            wanted = wanted.waits_for
        return wanted

    def take_head(self) -> Job:
        """Remove the head from the queue."""
        head = self.head
        assert head is not None
        if self.queue[0] is head:
            self.queue.popleft()
        else:
            self.queue.remove(head)
        self.head = None
        head.waits_for = None  # or chains of requests long gone would stay in memory
        self.queued_ps -= head.turn_ps
        return head
