"""What pictures of sweeps share: metrics as axes, points by their settings, and the points that are done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.report.figure import Axis

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mooncake_bench.results.metric import Metric
    from mooncake_bench.results.sweep import Sweep

POLICY = "policy_label"
SEED = "seed"
LARGE_MS, MS_PER_S = 1000, 1000  # from the first on, times are shown in seconds
WORDS = {  # of metrics whose names do not read as words
    "attempts_per_request": "attempts of a request",
    "completed_ratio": "completed requests, share of offered",
    "completed_tokens_ratio": "completed prompt tokens, share of offered",
    "rejected_ratio": "rejected requests, share of offered",
    "rejected_tokens_ratio": "rejected prompt tokens, share of offered",
    "failed_ratio": "failed requests, share of offered",
    "failed_tokens_ratio": "failed prompt tokens, share of offered",
    "unfinished_ratio": "unfinished requests, share of offered",
    "unfinished_tokens_ratio": "unfinished prompt tokens, share of offered",
    "good_requests": "requests within SLOs",
    "request_goodput_ratio": "requests within SLOs, share of offered",
    "request_goodput_rps": "goodput, requests/s",
    "goodput_tokens_ratio": "prompt tokens within SLOs, share of offered",
    "output_goodput_tokens_per_s": "goodput, output tokens/s",
    "goodput_per_gpu_rps": "goodput of a GPU, requests/s",
    "slo_ttft_ratio": "within the TTFT SLO, share of measured",
    "slo_tbt_ratio": "within the TBT SLO, share of measured",
    "n_tbt_unmeasured": "requests without a token gap",
    "hit_ratio_tokens": "cache hits, share of prompt tokens",
    "hit_ratio_blocks": "cache hits, share of blocks",
    "hit_ratio_full_blocks": "cache hits, share of full blocks",
    "ceiling_ratio_tokens": "infinite cache's hits, share of prompt tokens",
    "hit_ratio_ceiling": "cache hits, share of the infinite cache's",
    "request_throughput_rps": "throughput, requests/s",
    "output_throughput_tokens_per_s": "throughput, output tokens/s",
    "total_throughput_tokens_per_s": "throughput, tokens/s",
    "offered_rps": "offered, requests/s",
    "gpu_hours": "GPU hours",
}
STATISTICS = ("mean", "max", "std", "p1", "p5", "p10", "p50", "p90", "p95", "p99")
MEASURED = {  # what such a statistic is of
    "ttft": "TTFT", "itl": "token gap", "tbt": "TBT", "tbt_max": "longest token gap", "tpot": "TPOT",
    "e2e": "end-to-end time", "first_gap": "first token gap", "retry_wait": "wait between attempts",
    "queue": "time in prefill queue", "fetch": "wait for a fetched prefix", "prefill": "prefill time",
    "kv_transfer": "KVCache transfer time", "decode_wait": "wait to decode", "ttft_error": "error of predicted TTFT",
    "output_speed_tokens_per_s": "output speed", "prefill_load": "prefill load", "decode_load": "decode load",
    "prefill_gpu": "prefill GPU time", "kv_load": "KVCache load time",
}  # fmt: skip


class Scaled(NamedTuple):
    """An axis for a metric, and how much of the metric's unit is one of the axis."""

    axis: Axis
    unit: float

    def of(self, value: float) -> float:
        """A value of the metric, on the axis."""
        return value / self.unit


def metric_axis(metric: Metric, values: Iterable[float | None]) -> Scaled:
    """An axis for these values of a metric, in words with its unit; large times in seconds."""
    large = metric.unit == "ms" and max((value for value in values if value is not None), default=0) >= LARGE_MS
    unit = "s" if large else metric.unit
    return Scaled(Axis(_with_unit(metric, unit), low=0 if metric.unit else None), MS_PER_S if large else 1)


def _with_unit(metric: Metric, unit: str) -> str:
    """The metric in words, and its unit where the words do not say it."""
    words = metric_words(metric)
    said = metric.name in WORDS or unit in ("", "ratio") or unit in words.split()
    return words if said else f"{words}, {unit}"


def metric_words(metric: Metric) -> str:
    """What a metric is called where people read it: its name in words, without its unit."""
    if metric.name in WORDS:
        return WORDS[metric.name]
    name = metric.name.removesuffix("_ms").removesuffix("_ratio")
    statistic, _, what = name.partition("_")
    if statistic not in STATISTICS:
        return _spoken(name)
    return f"{statistic.upper() if statistic[1:].isdigit() else statistic} {MEASURED.get(what) or _spoken(what)}"


def _spoken(name: str) -> str:
    return " ".join({"gpu": "GPU", "kv": "KV", "vram": "VRAM"}.get(word, word) for word in name.split("_"))


def policies(sweep: Sweep) -> list[str]:
    """The policies' labels, in the order of the sweep."""
    return list(dict.fromkeys(str(point[POLICY]) for point in sweep.points))


def said(value: Any) -> str:
    """A setting's value as people write it: 1 rather than 1.0."""
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def settings(values: Mapping[str, Any]) -> str:
    """Settings by name, those that a policy does not have left out."""
    return ", ".join(f"{name} {said(value)}" for name, value in values.items() if value is not None)


def not_done(sweep: Sweep) -> str:
    """A sentence that says how many points are not in the picture because they were not replayed, or failed."""
    counts = {"failed": len(sweep.failed), "are not replayed yet": len(sweep.left)}
    words = [f"{count:,} {what}" for what, count in counts.items() if count]
    return f"Of {len(sweep.points):,} points, {' and '.join(words)}." if words else ""
