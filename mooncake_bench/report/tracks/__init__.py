"""Runs over time, as Chrome's trace events: what Perfetto and chrome://tracing open."""

from mooncake_bench.report.tracks.document import MOST, document

__all__ = ["MOST", "document"]
