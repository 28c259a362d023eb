"""What a person should know before believing a run's numbers: one line each, with what to do about it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mooncake_bench.results.records import TOO_LARGE
from mooncake_bench.results.words import counted, decimal, share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mooncake_bench.results.metrics import Value
    from mooncake_bench.results.run import Run

MANY_UNMEASURED = 0.05  # share of one-token answers above which a TBT says little
FEW = 100  # completions below which a p99 is one request
ADMIT_ALL = "accept-all"
# For runs whose manifest does not name its admission, the SPEC has to.
ADMISSIONS = ("baseline", "early", "predictive", "predictive-request", "queue-cap", "deadline")


def notices(run: Run) -> list[str]:
    """Warnings about one run, most important first."""
    return list(_notices(run, run.metrics()))


def _notices(run: Run, values: Mapping[str, Value]) -> Iterator[str]:
    label, offered = run.label, _number(values, "offered_requests")
    completed, failed = _number(values, "completed_requests"), _number(values, "failed_requests")
    if run.interrupted:
        unfinished = _number(values, "unfinished_requests")
        yield f"{label}: interrupted; {unfinished:,.0f} of {offered:,.0f} requests had not ended: numbers are partial"
    if run.manifest["policy"].get("oracle"):
        yield f"{label}: an oracle, it sees the output lengths; no real scheduler could decide so"
    if not completed:
        yield f"{label}: no request completed, so there is no latency to report"
    elif completed < FEW:
        yield f"{label}: only {counted(completed, 'request')} completed; a p99 is then one request"
    if failed:
        yield f"{label}: {counted(failed, 'request')} failed: {TOO_LARGE} (--vram, --cluster)"
    if (unmeasured := _number(values, "n_tbt_unmeasured")) > MANY_UNMEASURED * completed:
        yield f"{label}: {counted(unmeasured, 'completed request')} without a token gap; their TBT is not judged"
    if left_out := len(run.requests) - offered:
        yield f"{label}: {counted(left_out, 'request')} of the warm-up left out of every number"
    if offered and never_fired(run):
        yield f"{label}: its admission never turned a request away; {pools(run)}{advice(run)}"


def never_fired(run: Run) -> bool:
    """True when a policy that may reject rejected nothing in the whole run."""
    rejected = run.manifest["counts"]["rejected"]
    return not rejected and admission(run) not in (None, ADMIT_ALL)


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
    """What would make an admission act: a speedup that saturates a pool, or a TBT SLO that binds."""
    speedup = saturating_speedup(run)
    words = f"; expect differences from about --speedup {speedup:g}" if speedup else ""
    decode = run.metrics()["max_decode_load_ratio"].value
    if decode and decode < 1:
        slo = math.floor(decode * float(run.manifest["setup"]["slo.tbt_ms"]))
        words += f", or below --slo tbt:{slo}ms" if words and slo else f"; try below --slo tbt:{slo}ms" if slo else ""
    return words


def saturating_speedup(run: Run) -> float | None:
    """The speedup at which the first pool would have no idle time left (prefill) or no room left (decode), estimated
    from this run; None when that is not above its own or cannot be told."""
    values, own = run.metrics(), float(run.manifest["setup"]["speedup"])
    used = [values[name].value for name in ("prefill_utilisation_ratio", "mean_decode_load_ratio")]
    most = max((value for value in used if value is not None), default=0)
    if not most:
        return None
    found = math.ceil(10 * own / most) / 10
    return found if found > own else None


def _number(values: Mapping[str, Value], name: str) -> float:
    return values[name].value or 0
