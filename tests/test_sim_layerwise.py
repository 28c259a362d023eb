"""Loading and storing KVCache around a prefill: hand-counted, and layer by layer against a slow timeline."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_bench import replay as replay_trace
from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.cost import PS_PER_MS
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.hardware.layerwise import LayeredCost, Moves
from mooncake_bench.hardware.pipeline import PipelinedCost
from mooncake_bench.results.run import Run
from mooncake_bench.sim.costs import cost_of
from mooncake_bench.sim.replay import run
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace

MS = 10**9  # ps
RATE = 1e6  # bytes/s: a token's 1000 bytes take 1 ms to load or to store


def layered(*, overlapped: bool, rate: float = RATE, **cost: Any) -> LayeredCost:
    """1 ms a computed token, 4 layers, and 1 ms to move a token's KVCache unless told."""
    return LayeredCost(FakeCost(2, **cost), [rate, rate], overlapped=overlapped)


# hand-counted: 8 tokens behind 4 cached ones; load 4 ms, computing 8 (2 a layer), store 8


def test_serialised_loads_then_computes_then_stores() -> None:
    assert layered(overlapped=False).prefill_ps(0, 8, 4) == (4 + 8 + 8) * MS


def test_overlapped_takes_computing_and_the_first_layers_load_and_the_last_ones_store() -> None:
    # Of 4 layers: 1 ms to load one, 2 to compute it, 2 to store it. Loaded at 1, computed at 3, 5, 7, 9, stored at 11.
    assert layered(overlapped=True).prefill_ps(0, 8, 4) == (1 + 8 + 2) * MS


def test_a_long_prefix_takes_the_time_of_its_load() -> None:
    # 16 cached tokens: 4 ms to load a layer; 4 computed ones: 1 to compute it and 1 to store it. All are loaded at 16.
    assert layered(overlapped=True).prefill_ps(0, 4, 16) == (16 + 1 + 1) * MS


def test_storing_that_is_slower_than_computing_sets_the_pace() -> None:
    # 4 tokens at 4 ms a token to move, none cached: 1 ms to compute a layer, 4 to store it: 1, then 4 stores.
    assert layered(overlapped=True, rate=RATE / 4).prefill_ps(0, 4, 0) == (1 + 16) * MS


def test_the_engines_time_comes_before_and_overlaps_nothing() -> None:
    cost = {"prefill_constant_ms": 7.0, "prefill_overhead_ms": 5.0}  # 2 ms of the constant are kernels
    # computing 8 + 2 = 10: 2.5 a layer; load 1, store 2 a layer
    assert layered(overlapped=True, **cost).prefill_ps(0, 8, 4) == 18_000_000_000  # 5 + 1 + 10 + 2
    assert layered(overlapped=False, **cost).prefill_ps(0, 8, 4) == 27 * MS  # 5 + 4 + 10 + 8


def test_chunks_load_the_prefix_once_and_store_all_that_they_compute() -> None:
    # Two chunks of 4 with 1 ms of kernels each: 5 + 5. Serialised: 4 + 10 + 8.
    base = PipelinedCost(FakeCost(2, prefill_constant_ms=1.0), chunk_tokens=4)
    assert LayeredCost(base, [RATE, RATE], overlapped=False).prefill_ps(0, 8, 4) == 22 * MS


def test_what_storing_adds_is_all_of_it_or_the_last_layers() -> None:
    assert layered(overlapped=False).moves(0, 8, 4).storing_ps == 8 * MS
    assert layered(overlapped=True).moves(0, 8, 4).storing_ps == 2 * MS


def test_kvcache_is_held_longer_when_it_is_moved_before_and_after() -> None:
    # 4000 bytes of prefix, 8000 of new KVCache. Serialised: the prefix from 0 to 12 ms, the new from 4 to 20.
    serialised = layered(overlapped=False).held_byte_s(0, 8, 4)
    assert serialised == pytest.approx(4000 * 0.012 + 8000 * 0.016)
    # Overlapped, a layer of prefix (1000 bytes): the first from 0 to 3; the others from when the layer before begins to
    # compute to when they have computed, 2 x 2. A layer of new KVCache (2000): computing 2 and storing 2.
    overlapped = layered(overlapped=True).held_byte_s(0, 8, 4)
    assert overlapped == pytest.approx(1000 * (0.003 + 3 * 0.004) + 2000 * 4 * 0.004)
    assert overlapped < serialised / 3


def test_stores_that_queue_hold_their_layers_longer() -> None:
    # As above, 1 ms to compute a layer of 1000 bytes, 4 to store it: layer k from k ms to 1 + 4 (k + 1).
    held = layered(overlapped=True, rate=RATE / 4).held_byte_s(0, 4, 0)
    assert held == pytest.approx(1.0 * ((5 - 0) + (9 - 1) + (13 - 2) + (17 - 3)))


# against a timeline of every layer


def timeline(load: int, compute: int, store: int, layers: int) -> tuple[Fraction, Fraction, Fraction]:
    """When the last store ends; how long a layer of the prefix, and of the new KVCache, is held, summed over layers."""
    one = [Fraction(work, layers) for work in (load, compute, store)]
    link_in = computed = link_out = Fraction(0)
    prefix = new = Fraction(0)
    begin_load = Fraction(0)
    for _ in range(layers):
        link_in = max(link_in, begin_load) + one[0]
        begin = max(computed, link_in)
        computed = begin + one[1]
        link_out = max(link_out, computed) + one[2]
        prefix += computed - begin_load
        new += link_out - begin
        begin_load = begin
    return link_out, prefix, new


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 90), st.integers(0, 10**9))
def test_the_closed_form_is_what_every_layer_does(load: int, compute: int, store: int, layers: int, size: int) -> None:
    moves = Moves(load, compute, store, layers)
    end, prefix, new = timeline(load, compute, store, layers)
    assert moves.total_ps == -(-end.numerator // end.denominator)
    expected = float(prefix * size + new * 3 * size) / layers / 1e12
    assert moves.held_byte_s(size, 3 * size) == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 131_072), st.integers(0, 131_072), st.sampled_from(["overlapped", "serialised"]),
       st.floats(0.5, 500))  # fmt: skip
def test_policies_are_told_what_the_clock_takes(computed: int, prefix: int, layers: str, rate: float) -> None:
    cost = cost_of(Setup(cluster="1P+1D", prefill_layers=layers, dram_gbytes_per_s=rate))
    told = cost.prefill_ms(np.array([computed, 1.0]), np.array([prefix, 0.0]))[0]
    assert told * PS_PER_MS == pytest.approx(cost.prefill_ps(0, computed, prefix), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10**5), st.integers(0, 10**5), st.floats(1, 100), st.floats(1.001, 4))
def test_a_faster_link_never_lengthens_a_prefill(computed: int, prefix: int, rate: float, more: float) -> None:
    for layers in ("overlapped", "serialised"):
        slow, fast = (
            cost_of(Setup(cluster="1P+1D", prefill_layers=layers, dram_gbytes_per_s=gbytes)).prefill_ps(
                0, computed, prefix
            )
            for gbytes in (rate, rate * more)
        )
        assert fast <= slow


# in a replay


def test_a_replay_reports_what_the_kvcache_occupied() -> None:
    # Row 0 computes 8 tokens: 8 load-free ms + 8 of store; row 1 finds them and computes 4 more behind them.
    rows = [(0.0, 8, 1, [1, 2]), (50.0, 12, 1, [1, 2, 3])]
    found = {}
    for layers, overlapped in (("overlapped", True), ("serialised", False)):
        setup = Setup(cluster="1P+1D", prefill_layers=layers)
        done = run(Trace.of(rows, block_tokens=4), setup, cost=layered(overlapped=overlapped))
        made = Run.from_replay(done)
        found[layers] = made.requests.column("vram_byte_s").to_pylist()
        assert made.metrics()["vram_byte_s"].value == pytest.approx(sum(found[layers]))
    # Serialised: 8000 bytes for 8 + 8 ms. Then 8000 of prefix for 8 + 4, 4000 new for 4 + 4.
    assert found["serialised"] == pytest.approx([8 * 16, 8 * 12 + 4 * 8])
    # Overlapped, 2000 bytes a layer: 2 + 2 ms each. Then a layer of prefix (2 ms to load, 1 to compute): 3, then 2 + 1
    # each; a new one (1000): 1 + 1.
    assert found["overlapped"] == pytest.approx([4 * 2 * 4, 4 * 2 * 3 + 4 * 1 * 2])


def test_what_is_composed_is_told_not_to_be_measured() -> None:
    cost = cost_of(Setup(prefill_layers="overlapped", prefill_chunk=512))
    assert cost.error_short.endswith("KVCache loaded and stored layer by layer: composed, not measured")
    assert "Chunks of 512 tokens: composed from these, not measured." in cost.error


def test_a_replay_of_fitted_times_reports_none() -> None:
    done = replay_trace("conversation-like", max_requests=5)
    assert done.requests.column("vram_byte_s").null_count == 5
    assert done.metrics()["vram_byte_s"].value is None


def test_the_link_of_the_node_is_the_default() -> None:
    # a800-h2d: 102 GB/s, h100-h2d: 512 GB/s (presets/links.toml)
    setup = Setup(cluster="1P@a800+1P@h100+1D@a800", prefill_layers="serialised")
    cost = cost_of(setup)
    assert isinstance(cost, LayeredCost)
    assert cost.host_bytes_per_s.tolist() == [102e9, 512e9, 102e9]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"dram_gbytes_per_s": 50}, "dram.gbytes_per_s: no effect where prefill.layers is fitted"),
        ({"prefill_layers": "overlapped", "prefill_group": 2}, "known for single nodes only"),
        ({"prefill_layers": "sideways"}, "expected one of fitted, overlapped, serialised"),
        ({"cluster": "2M", "prefill_layers": "overlapped"}, "prefill.layers: no effect on cluster 2M"),
        ({"prefill_layers": "overlapped", "dram_gbytes_per_s": 0}, "must be above 0"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(SetupError, match=reason):
        Setup(**settings)
