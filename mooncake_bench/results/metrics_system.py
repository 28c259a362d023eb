"""Metrics of the system: its cache, its work and what of it was wasted, its pools and its network."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.results.metric import COMPLETED, OFFERED, POOL, PREFILLED, RUN, Metric, ratio
from mooncake_bench.results.metrics_requests import all_tokens, gpus, output_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mooncake_bench.results.facts import Facts
    from mooncake_bench.results.metric import Computed
    from mooncake_bench.results.steps import Bools, Ints


# ---- the cache


def _prefilled(facts: Facts) -> Bools:
    return facts.known("computed_tokens")


def _over_prefilled(facts: Facts, part: Ints, whole: Ints) -> Computed:
    """Sum over sum, for the requests whose prefill began."""
    ran = _prefilled(facts)
    return ratio(float(part[ran].sum()), float(whole[ran].sum())), int(ran.sum())


def _hit_tokens(facts: Facts) -> Computed:
    return _over_prefilled(facts, facts.column("hit_tokens"), facts.column("input_tokens"))


def _block_tokens(facts: Facts) -> int:
    return int(facts.manifest["trace"]["block_tokens"])


def _hit_blocks(facts: Facts) -> Computed:
    blocks = -(-facts.column("input_tokens") // _block_tokens(facts))
    return _over_prefilled(facts, facts.column("hit_blocks"), blocks)


def _hit_full_blocks(facts: Facts) -> Computed:
    full = facts.column("input_tokens") // _block_tokens(facts)
    return _over_prefilled(facts, np.minimum(facts.column("hit_blocks"), full), full)


def _ceiling(facts: Facts) -> Computed:
    return _over_prefilled(facts, facts.column("ceiling_tokens"), facts.column("input_tokens"))


def _of_ceiling(facts: Facts) -> Computed:
    return _over_prefilled(facts, facts.column("hit_tokens"), facts.column("ceiling_tokens"))


def cache() -> Iterable[Metric]:
    def of_prompts(name: str, better: str, definition: str, function: Callable[[Facts], Computed]) -> Metric:
        return Metric(name, "ratio", better, PREFILLED, definition, function)

    yield of_prompts("hit_ratio_tokens", "higher", "prompt tokens found in the pool / prompt tokens", _hit_tokens)
    yield of_prompts(
        "hit_ratio_blocks", "higher", "blocks found / blocks, a partial last one counted whole", _hit_blocks
    )
    yield of_prompts("hit_ratio_full_blocks", "higher", "full blocks found / full blocks", _hit_full_blocks)
    definition = "prompt tokens that an infinite cache would find in this order / prompt tokens"
    yield of_prompts("ceiling_ratio_tokens", "none", definition, _ceiling)
    yield of_prompts(
        "hit_ratio_ceiling", "higher", "prompt tokens found / those an infinite cache would find", _of_ceiling
    )


# ---- work


def _total(column: str, facts: Facts) -> Computed:
    return facts.sum(column), int(_prefilled(facts).sum())


def _whole_total(column: str, facts: Facts) -> Computed:
    total, count = _total(column, facts)
    return (None if total is None else int(total)), count


def _known_total(column: str, facts: Facts) -> Computed:
    return facts.sum(column), int(facts.known(column).sum())


def _mean_gpu(facts: Facts) -> Computed:
    total, count = _known_total("prefill_gpu_ms", facts)  # of any attempt: one that was lost shows no hits
    return ratio(total, count), count


def _wasted_gpu(facts: Facts) -> Computed:
    lost = facts.status("rejected") | facts.status("failed")
    wasted = (facts.sum("prefill_gpu_ms", lost) or 0.0) + (facts.sum("lost_prefill_ms", ~lost) or 0.0)
    return wasted, int(((lost & _prefilled(facts)) | (facts.column("lost_prefill_ms") > 0)).sum())


def _wasted_ratio(facts: Facts) -> Computed:
    total, count = _total("prefill_gpu_ms", facts)
    return ratio(_wasted_gpu(facts)[0], total), count


def work() -> Iterable[Metric]:
    occupied = "time prefills occupied an instance (all its GPUs)"
    yield Metric("prefill_gpu_ms", "ms", "lower", PREFILLED, occupied, partial(_known_total, "prefill_gpu_ms"))
    yield Metric("mean_prefill_gpu_ms", "ms", "lower", PREFILLED, f"{occupied}, per request", _mean_gpu)
    wasted = "prefill of requests that were later rejected or failed, and of attempts that came to nothing"
    yield Metric("wasted_prefill_gpu_ms", "ms", "lower", PREFILLED, f"time spent on the {wasted}", _wasted_gpu)
    definition = f"time of the {wasted} / of all prefills"
    yield Metric("wasted_prefill_ratio", "ratio", "lower", PREFILLED, definition, _wasted_ratio)
    function = partial(_whole_total, "wasted_prefill_tokens")
    yield Metric("wasted_prefill_tokens", "tokens", "lower", PREFILLED, f"tokens computed in the {wasted}", function)
    function = partial(_whole_total, "computed_tokens")
    yield Metric("computed_tokens", "tokens", "lower", PREFILLED, "prompt tokens computed, not found", function)
    definition = "KVCache bytes x time in the memory of the prefill GPUs, loads and stores told apart (prefill.layers)"
    yield Metric("vram_byte_s", "byte s", "lower", PREFILLED, definition, partial(_known_total, "vram_byte_s"))
    function = partial(_whole_total, "fetched_tokens")
    yield Metric("fetched_tokens", "tokens", "none", PREFILLED, "prompt tokens copied from another instance", function)
    function = partial(_whole_total, "loaded_tokens")
    yield Metric("loaded_tokens", "tokens", "none", PREFILLED, "prompt tokens loaded from an SSD", function)
    definition = "prompts computed in a step of their decode instance (decode.inline)"
    function = partial(_whole_total, "inlined")
    yield Metric("inlined_requests", "requests", "none", PREFILLED, definition, function)
    function = partial(_whole_total, "preemptions")
    yield Metric("preemptions", "times", "lower", OFFERED, "swapped out of a decode batch for lack of VRAM", function)


# ---- throughput, time and machines


def _completed_rps(facts: Facts) -> Computed:
    return facts.per_second(float(facts.completed.sum())), int(facts.completed.sum())


def _output_rate(facts: Facts) -> Computed:
    return facts.per_second(output_tokens(facts, facts.completed)), int(facts.completed.sum())


def _total_rate(facts: Facts) -> Computed:
    return facts.per_second(all_tokens(facts, facts.completed)), int(facts.completed.sum())


def _offered_rps(facts: Facts) -> Computed:
    span = facts.arrival_span_ms
    return (None if span is None else facts.offered / span * 1000), facts.offered


def _gpu_hours(facts: Facts) -> Computed:
    duration = facts.duration_ms
    return (None if duration is None else duration / 3_600_000 * gpus(facts)), None


def throughput() -> Iterable[Metric]:
    per_s = "/ duration (first arrival to last end)"
    yield Metric("request_throughput_rps", "requests/s", "higher", COMPLETED, f"requests {per_s}", _completed_rps)
    definition = f"output tokens {per_s}"
    yield Metric("output_throughput_tokens_per_s", "tokens/s", "higher", COMPLETED, definition, _output_rate)
    definition = f"input + output tokens {per_s}"
    yield Metric("total_throughput_tokens_per_s", "tokens/s", "higher", COMPLETED, definition, _total_rate)
    definition = "offered requests / arrival span"
    yield Metric("offered_rps", "requests/s", "none", OFFERED, definition, _offered_rps)
    definition = "first arrival to last end"
    yield Metric("duration_ms", "ms", "lower", OFFERED, definition, lambda facts: (facts.duration_ms, facts.offered))
    definition = "GPUs of the cluster x duration (first arrival after the warm-up to last end)"
    yield Metric("gpu_hours", "GPU h", "lower", OFFERED, definition, _gpu_hours, whole_run=True)


# ---- the pools and the network


def _busy(pool: str, facts: Facts) -> Computed:
    return facts.busy_ratio(pool), int(facts.manifest["cluster"][f"{pool}_instances"])


def _load(pool: str, statistic: str, facts: Facts) -> Computed:
    samples = facts.load(f"{pool}_load_ratio")
    if not len(samples):
        return None, 0
    reduced = {"mean": samples.mean(), "max": samples.max(), "std": samples.std()}
    return float(reduced[statistic]), len(samples)


def _correlation(facts: Facts) -> Computed:
    prefill, decode = facts.load("prefill_load_ratio"), facts.load("decode_load_ratio")
    if len(prefill) < 3 or np.ptp(prefill) == 0 or np.ptp(decode) == 0:
        return None, len(prefill)
    return float(np.corrcoef(prefill, decode)[0, 1]), len(prefill)


def _counter(name: str, facts: Facts) -> Computed:
    return facts.counter(name), None


def _mean_transfer(column: str, facts: Facts) -> Computed:
    count = int(facts.known(column).sum())
    return ratio(facts.sum(column), count), count


def _congestion(kind: str, facts: Facts) -> Computed:
    count = int(facts.known(f"{kind}_actual_ms").sum())
    return ratio(facts.sum(f"{kind}_actual_ms"), facts.sum(f"{kind}_ideal_ms")), count


_TRANSFERS = {
    "fetch": ("requests that fetched a prefix", "copying a prefix from another prefill instance"),
    "stream": ("requests whose KVCache reached a decode instance", "sending the KVCache, from the prefill's start"),
}


def network() -> Iterable[Metric]:
    for kind, (population, what) in _TRANSFERS.items():
        for column, words in ((f"{kind}_actual_ms", ""), (f"{kind}_ideal_ms", ", were nothing else sent")):
            function = partial(_mean_transfer, column)
            yield Metric(f"mean_{column}", "ms", "lower", population, f"mean time of {what}{words}", function)
        definition = f"sum of the times of {what} / their sum were nothing else sent; 1: no congestion"
        yield Metric(f"{kind}_congestion_ratio", "ratio", "lower", population, definition, partial(_congestion, kind))
    definition = "mean time of loading the KVCache into a decode instance's VRAM, behind others on the same link"
    function = partial(_mean_transfer, "kv_load_ms")
    yield Metric("mean_kv_load_ms", "ms", "lower", "requests whose KVCache was loaded", definition, function)


_STEPS = {"prefill": "of prompts alone", "decode": "that decode"}
_LOADS = {
    "prefill": "work routed to the pool and not yet done, per instance, / TTFT SLO",
    "decode": "mean over instances of max(step / TBT SLO, context / VRAM)",
}


def pools() -> Iterable[Metric]:
    for pool in ("prefill", "decode"):
        name = f"{pool}_utilisation_ratio"
        definition = f"time the {pool} instances are busy / (arrival span x their number)"
        definition += f"; of coupled ones, in steps {_STEPS[pool]}"
        yield Metric(name, "ratio", "none", POOL, definition, partial(_busy, pool), whole_run=True)
    for pool, meaning in _LOADS.items():
        for statistic, words in (("mean", "mean of: "), ("max", "largest of: "), ("std", "standard deviation of: ")):
            name = f"{statistic}_{pool}_load_ratio"
            function = partial(_load, pool, statistic)
            yield Metric(name, "ratio", "none", POOL, words + meaning, function, whole_run=True)
    definition = "Pearson correlation of prefill and decode load over time; anti-phase swings are negative"
    yield Metric("load_correlation", "", "none", POOL, definition, _correlation, whole_run=True)
    for name, unit, definition in (
        ("fetches", "times", "copies of a prefix from one prefill instance to another"),
        ("fetched_bytes", "bytes", "KV copied between prefill instances"),
        ("streamed_bytes", "bytes", "KV streamed from prefill to decode instances"),
        ("evictions", "blocks", "blocks given up by full pools"),
        ("demotions", "blocks", "of them, blocks written to an SSD"),
        ("loads", "times", "loads of a prefix from an SSD into the pool"),
        ("loads_declined", "times", "loads that would have taken longer than computing"),
        ("loaded_bytes", "bytes", "KV loaded from SSDs"),
        ("promotions", "blocks", "loaded blocks that took a slot in the pool"),
        ("replications", "times", "copies of hot blocks that a policy asked for"),
        ("replicated_bytes", "bytes", "KV in such copies"),
    ):
        yield Metric(name, unit, "none", RUN, definition, partial(_counter, name), whole_run=True)
