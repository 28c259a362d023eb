"""What was measured as rows for a program, and as a links file of the form that the bundled one has."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.live.transfer.fit import LinkFit
    from mooncake_bench.live.transfer.measure import Measured

HEADER = """\
# Links measured by `mooncake-bench calibrate transfer`, every transfer's data checked byte by byte.
# (E4) a transfer takes latency_ms + bytes / bandwidth (gbytes_per_s, 1e9 bytes/s, one direction); error: of sizes left
# out of the fit (median/p90); points: timed transfers.
"""


def as_json(one: Measured) -> dict[str, Any]:
    """A link as a JSON object; what could not be fitted is null."""
    fit = one.fit
    return {
        "name": one.link.name,
        "kind": one.link.kind,
        "description": one.link.description,
        "device": one.link.device,
        "versions": one.link.versions,
        "latency_ms": fit and fit.latency_ms,
        "gbytes_per_s": fit and fit.gbytes_per_s,
        "left_out_error_percent": fit
        and {"median": fit.left_out_median, "p90": fit.left_out_p90, "worst": fit.left_out_worst},
        "spread_ratio": fit and fit.spread,
        "noisy": fit and fit.noisy,
        "points": len(one.link.ms),
        "sizes": as_rows(one),
    }


def as_rows(one: Measured) -> list[dict[str, Any]]:
    """One row a size: what was measured, and what the fit says."""
    return [
        {
            "link": one.link.name,
            "bytes": size.nbytes,
            "median_ms": size.median_ms,
            "fitted_ms": one.fit and one.fit.predict(size.nbytes),
            "spread_ratio": size.spread,
            "samples": size.samples,
        }
        for size in one.sizes
    ]


def as_csv(measured: Sequence[Measured]) -> str:
    """One line a link and size; what could not be fitted is empty."""
    rows = [row for one in measured for row in as_rows(one)]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([list(rows[0]), *(list(row.values()) for row in rows)])
    return out.getvalue()


def error_text(fit: LinkFit) -> str:
    """How good a fit is, in the words of the bundled links file."""
    noisy = f"; noisy: a size's quartiles are {100 * fit.spread:.0f} % of its median apart" if fit.noisy else ""
    return (
        f"sizes left out of the fit are off by {fit.left_out_median:.1f}/{fit.left_out_p90:.1f} % (median/p90), "
        f"at worst {fit.left_out_worst:.0f} %{noisy}"
    )


def as_toml(measured: Sequence[Measured], date: str) -> str:
    """A links file of all links that could be fitted; ``date`` (YYYY-MM-DD) is when they were measured."""
    return HEADER + "".join(_table(one, one.fit, date) for one in measured if one.fit is not None)


def _table(one: Measured, fit: LinkFit, date: str) -> str:
    sizes = f"{one.sizes[0].nbytes:,} to {one.sizes[-1].nbytes:,} bytes"
    values = {
        "kind": one.link.kind,
        "description": one.link.description,
        "latency_ms": float(f"{fit.latency_ms:.4g}"),
        "gbytes_per_s": float(f"{fit.gbytes_per_s:.4g}"),
        "status": "measured",
        "source": f"{one.link.device}; {one.link.versions}; {date}; {sizes}, {one.sizes[0].samples} times each",
        "error": error_text(fit),
        "points": len(one.link.ms),
    }
    lines = "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
    return f"\n[{one.link.name}]\n{lines}"
