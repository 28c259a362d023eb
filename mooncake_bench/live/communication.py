"""What a single process cannot measure: the all-reduces between the ranks of a tensor-parallel model, by arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mooncake_bench.hardware.architecture import Architecture


def allreduce_ms(
    model: Architecture, ranks: int, tokens: int, value_bytes: int, latency_us: float, bus_gbytes_per_s: float
) -> float:
    """All-reduces of one step of ``tokens`` tokens in ms, two a layer: latency + bytes / bandwidth (E4, as in E5).

    ``latency_us`` of one and ``bus_gbytes_per_s`` (one direction) are the datasheet's or a benchmark's; each rank
    sends 2 (ranks - 1) / ranks of the hidden states.
    """
    if ranks == 1:
        return 0.0
    sent = tokens * model.hidden * value_bytes * 2 * (ranks - 1) / ranks
    return 2 * model.layers * (latency_us / 1e3 + sent / (bus_gbytes_per_s * 1e6))
