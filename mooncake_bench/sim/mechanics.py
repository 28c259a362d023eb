"""Columns and counters that a replay has only under some settings, and the rules that these settings stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench import spool
from mooncake_bench.hardware.layerwise import LayeredCost
from mooncake_bench.hardware.pipeline import PipelinedCost
from mooncake_bench.sim.loading import DecodeRules, LoadingDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from mooncake_bench.sim.cluster import Cluster
    from mooncake_bench.sim.setup import Setup

    Column = NDArray[Any]
    Price = Callable[[int, int, int], float | tuple[float, ...]]


def more_columns(cluster: Cluster, columns: Mapping[str, Column]) -> dict[str, Column]:
    """By name, one row a request.

    - ``turn_ps``, ``node_ps`` (prefill groups): how long its prefill kept the first stage, and all stages together
    - ``vram_byte_s`` (prefill.layers overlapped or serialised): KVCache bytes x time in the memory of the prefill GPUs
    - ``loaded_tokens`` (ssd.blocks): of its prompt, loaded from its node's SSD
    - ``kv_load_ps`` (decode.load_gbytes_per_s): how long its KVCache took into VRAM from its turn on; -1: it did not
    - ``inlined`` (decode.inline): whether its prompt was computed in a step of its decode instance
    - ``lost_inlined_ps`` (decode.inline): of the prefill that its attempts lost, what was in such steps
    """
    cost = cluster.cost
    found: dict[str, Column] = {}
    if cluster.decoding.loads:
        rows, loads = np.array(cluster.decoding.loads, np.int64).reshape(-1, 2).T
        found["kv_load_ps"] = spool.full(len(columns["start_ps"]), -1, np.int64)
        found["kv_load_ps"][rows] = loads
    if isinstance(cost, PipelinedCost) and cost.group > 1:
        found["turn_ps"], found["node_ps"] = _priced(columns, cost.kept_ps, np.int64, 2)
    if isinstance(cost, LayeredCost):
        (found["vram_byte_s"],) = _priced(columns, cost.held_byte_s, np.float64, 1)
    if cluster.tiers is not None:
        found["loaded_tokens"] = spool.full(len(columns["start_ps"]), 0, np.int64)
        rows = np.array(list(cluster.tiers.tokens), np.int64)
        found["loaded_tokens"][rows] = np.array(list(cluster.tiers.tokens.values()), np.int64)
        found["loaded_tokens"][columns["start_ps"] < 0] = 0  # a request turned away before its prefill used nothing
    if cluster.inlining is not None:
        cluster.inlining.amend(found, columns)
    return found


def more_counters(cluster: Cluster) -> dict[str, int | float]:
    """By name.

    - ``recomputed_tokens`` (decode.preemption recompute): of preempted requests, prefilled again to go on
    - what :meth:`Tiers.counters` gives (ssd.blocks), and :meth:`Replicas.counters` (a policy that has an ``on_tick``),
      and :meth:`Inlining.counters` (decode.inline)
    """
    rules, decoders = cluster.decoding.rules, cluster.decoding.decoders.values()
    found: dict[str, int | float] = {}
    if rules is not None and rules.recompute:
        found["recomputed_tokens"] = sum(
            each.recomputed_tokens for each in decoders if isinstance(each, LoadingDecoder)
        )
    for more in (cluster.tiers, cluster.prefilling.replicas, cluster.coupling, cluster.inlining):
        found |= {} if more is None else more.counters()
    return found


def check_at_rest(cluster: Cluster) -> None:
    """Raises InvariantError when nothing is under way any more and something still holds blocks."""
    cluster.pool.check_at_rest()
    if cluster.tiers is not None:
        cluster.tiers.check_at_rest()
    if cluster.coupling is not None:
        cluster.coupling.check_at_rest()


def decode_rules(setup: Setup) -> DecodeRules | None:
    """How KVCache comes into the VRAM of decode nodes; None: at once, and back from DRAM as fast."""
    rate, recompute = setup.decode_load_gbytes_per_s, setup.decode_preemption == "recompute"
    inline = setup.decode_inline == "on"
    if rate is None and not recompute and not inline:
        return None
    return DecodeRules(None if rate is None else int(1e9 * rate), recompute, inline)


def _priced(columns: Mapping[str, Column], price: Price, kind: type[Any], times: int) -> list[Column]:
    """``price(instance, computed, prefix)``, so many numbers, of every prefill that ran; 0 for the others."""
    rows = len(columns["start_ps"])
    found = [spool.full(rows, 0, kind) for _ in range(times)]
    for part in spool.parts(rows):
        ran = np.flatnonzero(columns["start_ps"][part] >= 0)
        names = ("prefill_instance", "computed_tokens", "input_tokens")
        facts = (columns[name][part][ran].tolist() for name in names)
        asked = zip(*facts, strict=True)
        prices = [price(instance, computed, tokens - computed) for instance, computed, tokens in asked]
        for column, values in zip(found, np.array(prices, kind).reshape(-1, times).T, strict=True):
            column[part.start + ran] = values
    return found
