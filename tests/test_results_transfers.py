"""How long transfers took and would have taken alone: columns and metrics, counted by hand.

A token's KVCache is 1,000 bytes, a NIC moves 10^6 B/s (1 ms a token), a prefill takes 1 ms a computed token, 4 layers.
"""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from test_sim_rules import replayed

from mooncake_bench.api import Route
from mooncake_bench.results.content import content_sha256
from mooncake_bench.results.run import Run
from mooncake_bench.results.store import read_manifest, read_table, write_run

NIC = {"nic_bytes_per_s": 1e6}
HOLDER = (0.0, 8, 1, [1, 2])  # is computed on instance 0 from 0 to 8 ms


def columns(run: Run, *names: str) -> list[list[object]]:
    return [run.requests.column(name).to_pylist() for name in names]


def test_two_fetches_from_one_holder_take_twice_as_long_as_alone() -> None:
    # Rows 1 and 2 fetch 8 tokens each from instance 0 from 10 ms on: 8 ms alone, and 16 as they share its egress.
    rows = [HOLDER, (10.0, 8, 1, [1, 2]), (10.0, 8, 1, [1, 2])]
    routes = {0: Route(0), 1: Route(1, fetch_from=0), 2: Route(2, fetch_from=0)}
    run = Run.from_replay(replayed(rows, "3P+1D", routes=routes, cost=NIC))
    assert columns(run, "fetch_actual_ms", "fetch_ideal_ms") == [[None, 16.0, 16.0], [None, 8.0, 8.0]]
    values = run.metrics()
    found = {name: values[name].value for name in ("mean_fetch_actual_ms", "mean_fetch_ideal_ms")}
    assert found == {"mean_fetch_actual_ms": 16.0, "mean_fetch_ideal_ms": 8.0}
    assert values["fetch_congestion_ratio"][:2] == (2.0, 2)
    assert values["stream_congestion_ratio"][:2] == (None, 0)  # answers of one token are not sent


def test_a_stream_ends_no_sooner_than_the_last_layer_of_its_prefill() -> None:
    # 8 tokens take 8 ms to compute; at 1 ms a token they are sent as they are made, and the last layer, 2 tokens, after
    # that: 10 ms. At 4 ms a token 2 of the 8 are through by 8 ms, and the whole takes 32.
    for nic, expected in ((1e6, 10.0), (0.25e6, 32.0)):
        run = Run.from_replay(replayed([(0.0, 8, 2, [1, 2])], cost={"nic_bytes_per_s": nic}))
        assert columns(run, "stream_actual_ms", "stream_ideal_ms") == [[expected], [expected]]
        assert run.metrics()["stream_congestion_ratio"][:2] == (1.0, 1)


def test_two_streams_to_one_decode_instance_take_longer_than_alone() -> None:
    # Two prefills of 8 tokens on two instances, 8 ms each, want 1,000 B/ms each of a NIC of 1,000: 4 tokens each by
    # 8 ms, and the 8 left over take 8 ms more: 16 ms, where each alone takes 10.
    rows = [(0.0, 8, 2, [1, 2]), (0.0, 8, 2, [3, 4])]
    run = Run.from_replay(replayed(rows, "2P+1D", routes={0: Route(0), 1: Route(1)}, cost=NIC))
    assert columns(run, "stream_actual_ms", "stream_ideal_ms") == [[16.0, 16.0], [10.0, 10.0]]
    assert run.metrics()["stream_congestion_ratio"].value == pytest.approx(1.6)


def test_a_run_of_an_earlier_version_reads_as_one_whose_transfers_were_not_timed(tmp_path) -> None:
    run = Run.from_replay(replayed([(0.0, 8, 2, [1, 2])], cost=NIC))
    old = run.requests.drop_columns(["fetch_actual_ms", "stream_actual_ms", "attempts"])
    manifest = dict(run.manifest, content_sha256={"requests": content_sha256(old)})
    folder = write_run(manifest, {"requests": old}, tmp_path)
    table = read_table(folder, "requests", read_manifest(folder))
    assert pq.read_table(folder / "requests.parquet").num_columns == table.num_columns - 3
    assert [table.column(name).to_pylist() for name in ("stream_actual_ms", "attempts")] == [[None], [1]]
