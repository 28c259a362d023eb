"""``-v``: each decision of a replay as one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_bench.results import Run

_COLUMNS = [
    "request_id", "arrival_ms", "input_tokens", "status", "reject_stage", "reject_reason", "prefill_instance",
    "decode_instance", "hit_tokens", "fetched_tokens", "ttft_ms", "predicted_ttft_ms", "inlined",
]  # fmt: skip


def decision_lines(run: Run) -> Iterator[str]:
    """One line a request, in order of the trace: where it went, what it hit, what became of it."""
    for row in run.requests.select(_COLUMNS).to_pylist():
        yield f"{row['arrival_ms'] / 1000:10.3f} s  request {row['request_id']}: {_route(row)}; {_outcome(row)}"


def _route(row: dict[str, Any]) -> str:
    if row["prefill_instance"] is None:
        return "not routed"
    fetched = f", {row['fetched_tokens']} of them fetched" if row["fetched_tokens"] else ""
    hits = f"{row['hit_tokens'] or 0} of {row['input_tokens']} tokens hit{fetched}"
    if row["inlined"]:
        return f"prefill inlined into decode {row['decode_instance']} ({hits})"
    return f"prefill {row['prefill_instance']} ({hits}), decode {row['decode_instance']}"


def _outcome(row: dict[str, Any]) -> str:
    predicted = f" ({row['predicted_ttft_ms']:.1f} predicted)" if row["predicted_ttft_ms"] is not None else ""
    if row["status"] == "rejected":
        return f"rejected at {row['reject_stage']}: {row['reject_reason']}"
    if row["status"] == "failed":
        return f"failed: {row['reject_reason']}"
    return f"{row['status']}, ttft {row['ttft_ms']:.1f} ms{predicted}" if row["ttft_ms"] is not None else row["status"]
