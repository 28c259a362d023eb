"""What pictures of sweeps share: metrics as axes, and the points that are done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.report.figure import Axis

if TYPE_CHECKING:
    from mooncake_bench.results.metric import Metric
    from mooncake_bench.results.sweep import Sweep

POLICY = "policy_label"
SEED = "seed"


def policies(sweep: Sweep) -> list[str]:
    """The policies' labels, in the order of the sweep."""
    return list(dict.fromkeys(str(point[POLICY]) for point in sweep.points))


def metric_axis(metric: Metric) -> Axis:
    """An axis for a metric, with its unit."""
    said = metric.unit in ("", "ratio") or metric.name.endswith((metric.unit, "_rps", "_per_s"))
    unit = "" if said else f", {metric.unit}"
    return Axis(f"{metric.name}{unit}", low=0 if metric.unit != "" else None)


def not_done(sweep: Sweep) -> str:
    """A sentence that says how many points are not in the picture because they were not replayed, or failed."""
    counts = {"failed": len(sweep.failed), "are not replayed yet": len(sweep.left)}
    words = [f"{count:,} {what}" for what, count in counts.items() if count]
    return f"Of {len(sweep.points):,} points, {' and '.join(words)}." if words else ""
