"""Caches that are warm from the start, as another replay left them.

Blocks of 4 tokens; a prefill takes 1 ms a computed token.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.results.run import Run
from mooncake_bench.results.store import write_run
from mooncake_bench.sim.replay import Replay, run
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace, save

if TYPE_CHECKING:
    from pathlib import Path

POLICY = "round-robin+accept-all+lru"
BEFORE = [(0.0, 8, 2, [1, 2]), (10_000.0, 12, 2, [3, 4, 5])]
AFTER = [(0.0, 8, 2, [1, 2]), (10_000.0, 12, 2, [3, 4, 9])]


def trace_of(rows: list[Any], name: str, block_tokens: int = 4) -> Trace:
    return Trace.of(rows, block_tokens=block_tokens, name=name)


def replayed(rows: list[Any] = AFTER, **more: Any) -> Replay:
    setup = Setup(**({"cluster": "1P+1D", "pool_blocks": 10, "policy": POLICY} | more))
    return run(trace_of(rows, "after"), setup, cost=FakeCost(2))


@pytest.fixture
def before(tmp_path: Path) -> str:
    """The trace whose caches are taken over, as a file."""
    path = tmp_path / "before.arrow"
    save(trace_of(BEFORE, "before"), path)
    return str(path)


def stored_run(before: str, tmp_path: Path, **more: Any) -> Path:
    """A run of that trace, as a folder."""
    from mooncake_bench.trace import load

    setup = Setup(**({"cluster": "1P+1D", "pool_blocks": 10, "policy": POLICY} | more))
    done = Run.from_replay(run(load(before), setup, cost=FakeCost(2)), trace_path=before)
    tables = {name: getattr(done, name) for name in ("requests", "timeline", "segments", "stays")}
    return write_run(done.manifest, tables, tmp_path / "results")


def hits(replay: Replay) -> list[int]:
    return replay.columns["hit_tokens"].tolist()


def test_a_replay_finds_what_the_trace_before_it_left(before: str) -> None:
    # Of its 8 and 12 tokens, 1, 2 and 3, 4 are there; 9 is new. Cold, nothing is.
    assert hits(replayed()) == [0, 0]
    warm = replayed(warm_from=before)
    assert hits(warm) == [8, 8]
    run = Run.from_replay(warm)  # no hit exceeds the infinite cache's, which has the warm blocks
    assert run.requests.column("ceiling_tokens").to_pylist() == [8, 8]
    told = run.manifest["warm"]
    assert (told["trace"], told["requests"], told["pool_blocks"], told["ssd_blocks"]) == ("before", 2, 5, 0)
    assert run.manifest["setup"]["warm_from"] == before
    assert "warm" not in Run.from_replay(replayed()).manifest


def test_a_run_leaves_what_its_trace_leaves_under_its_setup(before: str, tmp_path: Path) -> None:
    folder = stored_run(before, tmp_path, max_requests=1)
    assert hits(replayed(warm_from=str(folder))) == [8, 0]  # it replayed the first request only


def test_nothing_but_the_caches_is_taken_over(before: str) -> None:
    # The clock starts at 0, and with no request in a batch: one token is computed from 0 to 1 ms.
    warm = replayed(warm_from=before)
    assert (warm.columns["arrival_ps"][0], warm.columns["first_token_ps"][0]) == (0, 10**9)
    assert warm.counters["evictions"] == 0


def test_the_eviction_policy_goes_on_where_it_was(before: str) -> None:
    # A pool of 5 is full with 1, 2 (older), 3, 4, 5. Storing 7 takes the place of the older prompt's tail, 2.
    rows = [(0.0, 4, 2, [7]), (1000.0, 8, 2, [1, 2]), (2000.0, 12, 2, [3, 4, 5])]
    assert hits(replayed(rows, pool_blocks=5, warm_from=before)) == [0, 4, 8]
    # For 2 in turn, 5 goes, the least recently used; so of 3, 4, 5 the first two are hits.


def test_the_clock_of_a_ttl_goes_on(before: str) -> None:
    # 1, 2 were last used at 0 and 3, 4, 5 at 10,000 ms, and the replay ended soon after that. With a ttl of 5 s the
    # first are gone, whatever the new clock reads, the others are not.
    rows = [(0.0, 8, 2, [1, 2]), (100.0, 12, 2, [3, 4, 5])]
    found = replayed(rows, policy="round-robin+accept-all+ttl:ttl_ms=5000", warm_from=before)
    assert hits(found) == [0, 12]


def test_ssds_are_taken_over_too(before: str) -> None:
    # A pool of 3: 1, 2 were evicted for 3, 4, 5, and lie on the SSD.
    fast = {"ssd_blocks": 10, "ssd_read_gbytes_per_s": 1.0, "ssd_write_gbytes_per_s": 1.0}
    warm = replayed(pool_blocks=3, warm_from=before, **fast)
    assert warm.warm is not None
    assert (warm.warm["pool_blocks"], warm.warm["ssd_blocks"]) == (3, 2)
    assert warm.columns["loaded_tokens"].tolist()[0] == 8


@pytest.mark.parametrize("view", ["delayed:50ms", "router-only", "exact"])
def test_whoever_sees_late_may_know_of_warm_caches_or_not(before: str, view: str) -> None:
    assert hits(replayed(warm_from=before, view=view)) == [8, 8]


def test_the_windows_of_a_trace_do_not_cut_the_trace_before_it(before: str) -> None:
    assert hits(replayed(warm_from=before, start_ms=5000.0)) == [8]


@pytest.mark.parametrize(
    "clients",
    [
        {"client_loop": "closed", "client_think_speedup": 2.0},
        {"slo_classes": "1=ttft:1s"},
        {"client_retries": 2, "client_jitter": 0.5, "client_patience_ms": 1e6},
    ],
)
def test_the_trace_before_it_need_not_fit_the_clients(before: str, clients: dict[str, Any]) -> None:
    # It has neither sessions nor priorities.
    trace = replace(
        trace_of(AFTER, "after"), priority=np.array([0, 1]), session_id=np.array([1, 1]),
        delay_ms=np.array([np.nan, 5.0]),
    )  # fmt: skip
    setup = Setup(cluster="1P+1D", pool_blocks=10, policy=POLICY, warm_from=before, **clients)
    assert hits(run(trace, setup, cost=FakeCost(2))) == [8, 8]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pool_blocks": 9}, "its pool on instance 0 has 10 blocks, and this setup wants 9"),
        ({"policy": "round-robin+accept-all+fifo"}, "its pools were kept by 'lru', and this setup wants 'fifo'; give"),
        ({"cluster": "2P+1D"}, "this setup has a pool on instance 1, and it has none"),
        ({"ssd_blocks": 7}, "its SSDs have no blocks, and this setup wants 7"),
    ],
)
def test_a_run_with_other_pools_is_refused(before: str, tmp_path: Path, changed: Any, message: str) -> None:
    folder = stored_run(before, tmp_path)
    setup = Setup(**({"cluster": "1P+1D", "pool_blocks": 10, "policy": POLICY, "warm_from": str(folder)} | changed))
    with pytest.raises(SetupError, match=message):
        run(trace_of(AFTER, "after"), setup)  # costs of real nodes, of which there are as many as it takes


def test_another_trace_under_the_old_name_is_refused(before: str, tmp_path: Path) -> None:
    from pathlib import Path

    folder = stored_run(before, tmp_path)
    save(trace_of(AFTER, "before"), Path(before).with_suffix(".new.arrow"))
    Path(before).with_suffix(".new.arrow").replace(before)
    with pytest.raises(SetupError, match="is no longer the trace that it replayed"):
        replayed(warm_from=str(folder))


def test_an_interrupted_or_damaged_run_is_refused(before: str, tmp_path: Path) -> None:
    folder = stored_run(before, tmp_path)
    manifest = json.loads((folder / "run.json").read_text())
    for change, message in (({"status": "interrupted"}, "was interrupted"), ({"trace": 1}, "is damaged")):
        (folder / "run.json").write_text(json.dumps(manifest | change))
        with pytest.raises(SetupError, match=message):
            replayed(warm_from=str(folder))


def test_other_blocks_and_traces_without_prefixes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.arrow"
    save(trace_of([(0.0, 8, 2, [1])], "other", block_tokens=8), path)
    with pytest.raises(SetupError, match="has blocks of 8 tokens, the trace to replay of 4"):
        replayed(warm_from=str(path))
    save(replace(trace_of(BEFORE, "none"), metadata={"prefix_ids": "none"}), path)
    with pytest.raises(SetupError, match="has no prefix ids"):
        replayed(warm_from=str(path))
