"""Every metric, declared once: its name and unit, which way is better, over whom it is taken, what it means.

Tables, sorting, comparisons and exporters follow from these rows. Metrics are computed from the stored tables when
asked for, so an old run gains a new metric. Undefined is None, never 0 and never NaN, and each value carries the
number of samples behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.errors import ResultError, nearest
from mooncake_bench.results.metric import Metric, Number, Value
from mooncake_bench.results.metrics_requests import LATENCIES, LATENCY_STATISTICS, accounts, distributions, goodput
from mooncake_bench.results.metrics_system import cache, network, pools, throughput, work

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mooncake_bench.results.facts import Facts

__all__ = ["ALIASES", "BY_NAME", "LATENCY_NAMES", "METRICS", "Metric", "Number", "Value", "compute", "find"]

METRICS: tuple[Metric, ...] = (
    *accounts(), *goodput(), *distributions(), *cache(), *work(), *throughput(), *pools(), *network()
)  # fmt: skip
BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}
ALIASES = {
    "request_goodput": "request_goodput_rps",
    "request_throughput": "request_throughput_rps",
    "output_throughput": "output_throughput_tokens_per_s",
    "output_goodput": "output_goodput_tokens_per_s",
    "token_goodput": "output_goodput_tokens_per_s",
    "goodput_tokens_per_s": "output_goodput_tokens_per_s",
}
LATENCY_NAMES = frozenset(f"{s}_{column}" for column in LATENCIES for s in LATENCY_STATISTICS)


def find(name: str) -> Metric:
    """The metric of this name or alias. Raises ResultError with the nearest one."""
    metric = BY_NAME.get(ALIASES.get(name, name))
    if metric is None:
        hint = nearest(name, [*BY_NAME, *ALIASES])
        raise ResultError(f"no metric {name!r}{hint}; list them with: mooncake-bench metrics list")
    return metric


def compute(facts: Facts) -> dict[str, Value]:
    """Every metric of one run (or one group of its requests), in the order of declaration."""
    return {metric.name: metric.of(facts) for metric in METRICS}
