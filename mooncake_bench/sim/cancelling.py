"""Requests that are called off: they leave wherever they are, and fail.

Who waits for another attempt, queues, fetches, prefills, streams, or waits for its turn to decode leaves at once: a
running prefill is aborted and frees its instance, blocks that only it had promised are dropped, its flows stop. A
member of a batch leaves with the next step boundary of its instance, even if that step made its last token. What its
attempt did is lost, as with an instance that dies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.sim import job as status

if TYPE_CHECKING:
    from mooncake_bench.sim.cluster import Cluster
    from mooncake_bench.sim.job import Job


def cancel(cluster: Cluster, job: Job, now: int, reason: str) -> bool:
    """Call a request off that has come; whether it was still under way, and not called off before."""
    if job.status != status.UNFINISHED or job in cluster.decoding.leaving:
        return False
    reason = status.CANCELLED + reason
    if cluster.clients is not None and cluster.clients.recall(job):
        cluster.fail(job, now, reason)  # between two attempts: the last one is forgotten already
    elif cluster.coupling is not None:
        cluster.coupling.cancel(job, now, reason)
    elif cluster.inlining is not None and cluster.inlining.cancel(job, now, reason):
        pass
    elif job.kv_arrival_ps < 0:
        _withdraw(cluster, job, now, reason)
    else:
        cluster.decoding.cancel(job, now, reason)
    return True


def _withdraw(cluster: Cluster, job: Job, now: int, reason: str) -> None:
    """Call off a request that is not at its decode instance yet; the next in its queue may start."""
    instance, queued = job.prefill, job.first_token_ps < 0
    cluster.prefilling.withdraw(job, now)
    cluster.give_up(job, now, reason)
    if queued:
        cluster.prefilling.go_on(instance, now)


def place(cluster: Cluster, job: Job) -> str:
    """Where a request is that has no first token, in words."""
    if cluster.clients is not None and cluster.clients.waits(job):
        return "between two attempts"
    if job.start_ps >= 0:
        return "prefilling"
    return "fetching" if job.head_ps >= 0 and job.fetch is not None else "queued"
