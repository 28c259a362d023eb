"""What a person should know before believing a run's numbers: one line each, with what to do about it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mooncake_bench import spool
from mooncake_bench.results.facts import Facts, arrived
from mooncake_bench.results.gaps import PS_PER_MS
from mooncake_bench.results.records import TOO_LARGE
from mooncake_bench.results.words import counted, decimal, duration, share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mooncake_bench.results.metrics import Value
    from mooncake_bench.results.run import Run

MANY_UNMEASURED = 0.05  # share of one-token answers above which a TBT says little
FEW = 100  # completions below which a p99 is one request
FARTHEST = 10  # times this run's speedup beyond which an estimate from it says little
EVENTS = 6  # shown on their own
REASONS = 4  # to fail, shown on their own
ATTEMPTS = 6  # of which rejections are shown
ADMIT_ALL = ("accept-all", "elastic")
# For runs whose manifest does not name its admission, the SPEC has to.
ADMISSIONS = ("baseline", "early", "predictive", "predictive-request", "queue-cap", "deadline")


def notices(run: Run) -> list[str]:
    """Warnings about one run, most important first."""
    return list(_notices(run, run.metrics()))


def _notices(run: Run, values: Mapping[str, Value]) -> Iterator[str]:
    label, offered = run.label, _number(values, "offered_requests")
    completed, failed = _number(values, "completed_requests"), _number(values, "failed_requests")
    reached = arrived(run.manifest, run.requests)
    early = run.interrupted and not offered and run.manifest["setup"]["warmup_ms"] > 0
    if early:
        yield f"{label}: interrupted within the warm-up: nothing is measured"
    elif run.interrupted:
        yield (
            f"{label}: interrupted; {reached.sum():,} of {len(reached):,} requests had arrived, and every number is of "
            f"those; {_number(values, 'unfinished_requests'):,.0f} had not ended"
        )
    if run.manifest["policy"].get("oracle"):
        yield f"{label}: an oracle, it sees the output lengths; no real scheduler could decide so"
    if early:
        return  # what follows is of measured requests
    if not completed:
        yield f"{label}: no request completed, so there is no latency to report"
    elif completed < FEW:
        yield f"{label}: only {counted(completed, 'request')} completed; a p99 is then one request"
    if failed:
        yield from _failures(run)
    yield from _retries(run)
    yield from _events(run)
    if (unmeasured := _number(values, "n_tbt_unmeasured")) > MANY_UNMEASURED * completed:
        yield f"{label}: {counted(unmeasured, 'completed request')} without a token gap; their TBT is not judged"
    if left_out := int(reached.sum() - offered):
        yield (
            f"{label}: {counted(left_out, 'request')} of the warm-up left out; only fetches, bytes fetched and "
            "streamed, and evictions are of the whole run"
        )
    if offered and never_fired(run):
        yield f"{label}: its admission never turned a request away; {pools(run)}{advice(run)}"
    if completed and never_evicted(run):
        many = counted(reached.sum(), "request")
        yield f"{label}: in {many} no cache gave up or refused a block: more DRAM cannot help these"


def _events(run: Run) -> Iterator[str]:
    """What happened to instances, and what that cost."""
    cluster, counters = run.manifest["cluster"], run.manifest["counters"]
    events = cluster.get("events", [])
    if events:
        shown = "; ".join(f"at {duration(float(f'{time:.6g}'))} {words}" for time, words in events[:EVENTS])
        more = f"; and {len(events) - EVENTS:,} more (run.json)" if len(events) > EVENTS else ""
        yield f"{run.label}: {shown}{more}"
    if lost := counters.get("fault_lost_requests"):
        fate = "failed with it" if run.manifest["setup"].get("faults.requests") == "fail" else "routed anew"
        spent = (Facts(run.manifest, run).sum("lost_prefill_ms") or 0.0) / 1000
        on = f"{counted(lost, 'request')} on an instance that failed, {fate}"
        yield f"{run.label}: {on}; {spent:,.3g} s of prefill lost"
    if missed := cluster.get("events_missed"):
        yield f"{run.label}: {counted(missed, 'event')} did not happen: nothing else was left to happen by then"


def _failures(run: Run) -> Iterator[str]:
    """Why requests failed, the most frequent reasons first."""
    found = Facts(run.manifest, run).failures()
    for reason, count in found[:REASONS]:
        hint = " (--vram, --cluster)" if reason == TOO_LARGE else ""
        yield f"{run.label}: {counted(count, 'request')} failed: {reason}{hint}"
    if more := sum(count for _, count in found[REASONS:]):
        yield f"{run.label}: {counted(more, 'request')} failed for other reasons (reject_reason)"


def _retries(run: Run) -> Iterator[str]:
    """How many requests were turned away at their first attempt, at their second, and so on."""
    retries = run.manifest["setup"].get("client.retries", 0)
    if not retries:
        return
    rejections = Facts(run.manifest, run).column("rejections")
    most = int(rejections.max(initial=0))
    if not most:
        yield f"{run.label}: no request was turned away, so --retries {retries} changed nothing"
        return
    shown = [
        f"{int((rejections >= attempt).sum()):,} at attempt {attempt}" for attempt in range(1, most + 1)[:ATTEMPTS]
    ]
    yield f"{run.label}: turned away: {', '.join(shown)}{', …' if most > ATTEMPTS else ''}"


def never_fired(run: Run) -> bool:
    """True when a policy that may reject rejected nothing in the whole run, no attempt either."""
    if run.manifest["counts"]["rejected"] or admission(run) in (None, *ADMIT_ALL):
        return False
    if not run.manifest["setup"].get("client.retries") or "rejections" not in run.requests.column_names:
        return True
    return not any(part.to_numpy().any() for part in run.requests.column("rejections").chunks)


def never_evicted(run: Run) -> bool:
    """True when every block found room in its cache in the whole run, so that larger ones would have done the same."""
    counters, sizes = run.manifest["counters"], run.manifest["cluster"].get("pool_blocks") or {}
    untouched = counters.get("evictions") == 0 and counters.get("refused_blocks") == 0
    return untouched and any(sizes.values())


def admission(run: Run) -> str | None:
    """Name of the admission a run used, None when it cannot be told."""
    policy = run.manifest["policy"]
    if policy.get("admission"):
        return str(policy["admission"])
    names = [part.split(":", 1)[0].rsplit("=", 1)[-1] for part in policy["spec"].split("+")]
    return next((name for name in names if name in ADMISSIONS), None)


def pools(run: Run) -> str:
    """How busy both pools were, in words."""
    values = run.metrics()
    return "; ".join(
        f"{pool} pool {share(values[f'{pool}_utilisation_ratio'].value)} busy, "
        f"load at most {decimal(values[f'max_{pool}_load_ratio'].value)} of its limit"
        for pool in ("prefill", "decode")
    )


def advice(run: Run) -> str:
    """What would make an admission or a router act: a speedup at which prefill falls behind, a TBT SLO that binds."""
    words = [words for words in (_speedup_words(run), _slo_words(run)) if words]
    return f"; try {', or '.join(words)}" if words else ""


def eviction_advice(run: Run) -> str:
    """What would make an eviction policy act: a pool that fills."""
    evicted = run.manifest["counters"].get("evictions") or 0
    if not evicted:
        return "; no block was evicted, so no eviction policy had a choice: try a smaller --pool"
    return f"; {counted(evicted, 'block')} evicted without a difference: try a smaller --pool"


def _speedup_words(run: Run) -> str:
    values = run.metrics()
    busy, load = values["prefill_utilisation_ratio"].value, values["max_prefill_load_ratio"].value
    if busy is None or busy >= 1 or load is None or load >= 1:
        return ""  # it falls behind already: more speed is no new case
    speedup = overloading_speedup(run)
    if speedup is None:
        return "a higher --speedup"
    return f"about --speedup {speedup:g} (there prefill falls behind by the TTFT SLO)"


def overloading_speedup(run: Run) -> float | None:
    """The speedup at which the prefill pool's backlog reaches the TTFT SLO by the last arrival.

    The work is taken as given and evenly spread: s times as fast, a pool that is now busy for a share b of the span T
    has b T of work and T / s of time, and is behind by the SLO when b T - T / s is as much. None where that never
    happens, or so far from this run that the estimate says little.
    """
    own, facts = float(run.manifest["setup"]["speedup"]), Facts(run.manifest, run)
    busy, span_ms = facts.busy_ratio("prefill"), facts.arrival_span_ms
    if busy is None or span_ms is None:
        return None
    spare = busy - float(run.manifest["setup"]["slo.ttft_ms"]) / span_ms
    return math.ceil(10 * own / spare) / 10 if spare * FARTHEST > 1 else None


def _slo_words(run: Run) -> str:
    """A TBT SLO that the longest decode step would break."""
    segments = Facts(run.manifest, run).segments
    if not len(segments):
        return ""
    parts = (segments[part] for part in spool.parts(len(segments)))
    longest_ms = float(max((some.step_ps + some.growth_ps * (some.steps - 1)).max() for some in parts)) / PS_PER_MS
    slo = math.floor(longest_ms)
    return f"--slo tbt:{slo}ms" if 1 <= slo < float(run.manifest["setup"]["slo.tbt_ms"]) else ""


def _number(values: Mapping[str, Value], name: str) -> float:
    return values[name].value or 0
