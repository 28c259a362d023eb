"""Metrics of the requests: what became of them, how many met their SLOs, and how long they took."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mooncake_bench.results.metric import COMPLETED, OFFERED, Metric, ratio
from mooncake_bench.sim.job import CANCELLED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mooncake_bench.results.facts import Facts
    from mooncake_bench.results.metric import Computed
    from mooncake_bench.results.steps import Bools


# ---- accounts: what became of the requests


def _count(word: str, facts: Facts) -> Computed:
    return int(facts.status(word).sum()), facts.offered


def _rejected_at(stage: str, facts: Facts) -> Computed:
    return int(facts.rejected_at(stage).sum()), facts.offered


def _cancelled(facts: Facts) -> Computed:
    return int(facts.begins("reject_reason", CANCELLED).sum()), facts.offered


def _retried(facts: Facts) -> Computed:
    return int((facts.column("attempts") > 1).sum()), facts.offered


def _attempts(facts: Facts) -> Computed:
    return ratio(facts.sum("attempts"), facts.offered), facts.offered


def _share(word: str, facts: Facts) -> Computed:
    return ratio(float(facts.status(word).sum()), facts.offered), facts.offered


def _share_of_input(facts: Facts, where: Bools) -> Computed:
    """Every share "of tokens" is this one: of prompts, all of whose lengths are known when they are offered."""
    tokens = facts.column("input_tokens")
    return ratio(float(tokens[where].sum()), float(tokens.sum())), facts.offered


def _input_share(word: str, facts: Facts) -> Computed:
    return _share_of_input(facts, facts.status(word))


def accounts() -> Iterable[Metric]:
    def count(name: str, better: str, definition: str, function: Callable[[Facts], Computed]) -> Metric:
        return Metric(name, "requests", better, OFFERED, definition, function)

    yield count("offered_requests", "none", "all of them", lambda facts: (facts.offered, facts.offered))
    yield count("completed_requests", "higher", "got all their tokens", partial(_count, "completed"))
    yield count("rejected_requests", "lower", "turned away by the policy", partial(_count, "rejected"))
    for stage in ("arrival", "prefill", "decode"):
        definition = f"turned away at {stage}" + (": their prefill is wasted" if stage == "decode" else "")
        yield count(f"rejected_{stage}_requests", "lower", definition, partial(_rejected_at, stage))
    yield count("failed_requests", "lower", "could not be served at all", partial(_count, "failed"))
    yield count("unfinished_requests", "lower", "had not ended when the replay stopped", partial(_count, "unfinished"))
    yield count("cancelled_requests", "lower", "of the failed: called off, as by a client that gave up", _cancelled)
    yield count("retried_requests", "none", "came more than once", _retried)
    definition = "how often a request came: once, and again after each rejection that its client did not accept"
    yield Metric("attempts_per_request", "attempts", "lower", OFFERED, definition, _attempts)
    for word, better in (("completed", "higher"), ("rejected", "lower"), ("failed", "lower"), ("unfinished", "lower")):
        yield Metric(f"{word}_ratio", "ratio", better, OFFERED, f"{word} / offered requests", partial(_share, word))
        definition = f"input tokens of {word} / of offered requests"
        yield Metric(f"{word}_tokens_ratio", "ratio", better, OFFERED, definition, partial(_input_share, word))


# ---- goodput: what was completed within the SLOs


def _good(facts: Facts) -> Bools:
    return facts.true("slo_ok") & facts.completed


def output_tokens(facts: Facts, where: Bools) -> float:
    return float(facts.column("output_tokens")[where].sum())


def all_tokens(facts: Facts, where: Bools) -> float:
    return float(facts.column("input_tokens")[where].sum()) + output_tokens(facts, where)


def _good_requests(facts: Facts) -> Computed:
    return int(_good(facts).sum()), facts.offered


def _goodput_rps(facts: Facts) -> Computed:
    return facts.per_second(float(_good(facts).sum())), facts.offered


def _goodput_ratio(facts: Facts) -> Computed:
    return ratio(float(_good(facts).sum()), facts.offered), facts.offered


def _output_goodput(facts: Facts) -> Computed:
    return facts.per_second(output_tokens(facts, _good(facts))), facts.offered


def _goodput_tokens_ratio(facts: Facts) -> Computed:
    return _share_of_input(facts, _good(facts))


def gpus(facts: Facts) -> int:
    cluster = facts.manifest["cluster"]
    if "gpus" in cluster:
        return int(cluster["gpus"])
    instances = int(cluster["prefill_instances"]) + int(cluster["decode_instances"])
    return instances * int(cluster["gpus_per_instance"])


def _goodput_per_gpu(facts: Facts) -> Computed:
    return ratio(_goodput_rps(facts)[0], gpus(facts)), facts.offered


def _within(column: str, facts: Facts) -> Computed:
    judged = facts.known(column) & facts.completed
    count = int(judged.sum())
    return ratio(float((facts.true(column) & judged).sum()), count), count


def _tbt_unmeasured(facts: Facts) -> Computed:
    return int((facts.completed & ~facts.known("slo_tbt_ok")).sum()), int(facts.completed.sum())


def goodput() -> Iterable[Metric]:
    slo = "completed within every SLO that could be measured"
    yield Metric("good_requests", "requests", "higher", OFFERED, slo, _good_requests)
    yield Metric("request_goodput_ratio", "ratio", "higher", OFFERED, f"{slo}, / offered requests", _goodput_ratio)
    yield Metric("request_goodput_rps", "requests/s", "higher", OFFERED, f"{slo}, / duration", _goodput_rps)
    definition = "input tokens of requests within their SLOs / of offered requests"
    yield Metric("goodput_tokens_ratio", "ratio", "higher", OFFERED, definition, _goodput_tokens_ratio)
    definition = "output tokens of requests within their SLOs / duration"
    yield Metric("output_goodput_tokens_per_s", "tokens/s", "higher", OFFERED, definition, _output_goodput)
    definition = "request_goodput_rps / GPUs of the cluster"
    yield Metric("goodput_per_gpu_rps", "requests/s", "higher", OFFERED, definition, _goodput_per_gpu, whole_run=True)
    for name in ("ttft", "tbt"):
        definition = f"within the {name.upper()} SLO / those whose {name.upper()} could be measured"
        function = partial(_within, f"slo_{name}_ok")
        yield Metric(f"slo_{name}_ratio", "ratio", "higher", COMPLETED, definition, function)
    definition = "have no token gap, so their TBT is not judged"
    yield Metric("n_tbt_unmeasured", "requests", "none", COMPLETED, definition, _tbt_unmeasured)


# ---- latency distributions


LATENCIES = {
    "ttft_ms": "first token - (first) arrival: waits between attempts and queueing included",
    "itl_ms": "all gaps between tokens, pooled (the first one too, unless --first-gap exclude)",
    "tbt_ms": "a request's TBT: the mean of its longest 10 % of token gaps (FAST'25)",
    "tbt_max_ms": "a request's longest token gap",
    "tpot_ms": "(e2e - TTFT) / (output tokens - 1)",
    "e2e_ms": "last token - arrival",
    "first_gap_ms": "first to second token: KV transfer, wait and first step",
    "retry_wait_ms": "arrival to that of its last attempt, 0 for most",
    "queue_ms": "arrival (of its last attempt) to the head of its prefill queue",
    "fetch_ms": "head of the queue to prefill start: waiting for a fetched prefix",
    "prefill_ms": "prefill start to first token",
    "kv_transfer_ms": "first token to the arrival of all KV at the decode instance",
    "decode_wait_ms": "KV arrival to the first decode step",
    "ttft_error_ms": "|TTFT - the TTFT predicted at arrival|",
}
LATENCY_STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
SPEEDS = {"output_speed_tokens_per_s": "a request's 1000 / tpot_ms; for a rate the bad tail is the low one"}
SPEED_STATISTICS = ("mean", "p1", "p5", "p10", "p50")
_WORDS = {"mean": "mean of: ", "max": "largest of: "}


def _statistic(column: str, statistic: str, facts: Facts) -> Computed:
    summary = facts.summary(column)
    return summary.statistics[statistic], summary.samples


def _ordinal(number: str) -> str:
    return f"{number}{'st' if number == '1' else 'th'}"


def distributions() -> Iterable[Metric]:
    families = (LATENCIES, LATENCY_STATISTICS, "lower", "ms"), (SPEEDS, SPEED_STATISTICS, "higher", "tokens/s")
    for family, statistics, better, unit in families:
        for column, meaning in family.items():
            for statistic in statistics:
                definition = _WORDS.get(statistic, f"{_ordinal(statistic[1:])} percentile (linear) of: ") + meaning
                function = partial(_statistic, column, statistic)
                yield Metric(f"{statistic}_{column}", unit, better, COMPLETED, definition, function)
