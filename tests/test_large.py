"""Large runs: what is written in between, mapped or worked on in parts is what a run held whole in memory has."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mooncake_bench import spool
from mooncake_bench.errors import SetupError
from mooncake_bench.results import gaps
from mooncake_bench.results.run import Run, open_run
from mooncake_bench.sim import recorder
from mooncake_bench.sim.replay import run
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace, load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mooncake_bench.sim.replay import Replay

CHANGING = ("created", "wall_s", "policy_decision_us")  # what two runs of one replay may differ in
ROWS = 400
WORLDS = {
    "plenty of everything": {"policy": "kvcache-centric", "cluster": "2P+2D"},
    "a small pool and transfers": {"policy": "kvcache-centric", "cluster": "3P+1D", "pool_blocks": 60, "speedup": 9},
    "rejections at every stage": {"policy": "early", "cluster": "1P+1D", "speedup": 20, "slo_tbt_ms": 30.0},
    "preemptions": {"policy": "cache-aware", "cluster": "2P+1D", "speedup": 8, "vram_tokens": 90_000},
    "a p99 as TBT": {"policy": "random", "cluster": "2P+2D", "tbt_metric": "p99"},
    "no first gap": {"policy": "predictive", "cluster": "1P+1D", "speedup": 6, "first_gap": "exclude"},
}


@pytest.fixture(scope="module")
def trace() -> Trace:
    return load("conversation-like").select(max_requests=ROWS)


@pytest.fixture
def tiny_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every column is mapped, and worked on a few rows at a time."""
    monkeypatch.setattr(spool, "LARGE_BYTES", 64)
    monkeypatch.setattr(spool, "PART_ROWS", 53)
    monkeypatch.setattr(gaps, "STEPS", 1000)
    monkeypatch.setattr(gaps, "GROUP_STEPS", 2000)
    monkeypatch.setattr(gaps, "BIN_BITS", 8)


def same_columns(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, column in one.items():
        assert np.array_equal(column, other[name], equal_nan=column.dtype.kind == "f"), name
        assert column.dtype == other[name].dtype


def same(one: Replay, other: Replay) -> None:
    """Two replays are equal in everything but the wall time of decisions."""
    for kind in ("columns", "segments", "stays"):
        same_columns(getattr(one, kind), getattr(other, kind))
    assert (one.counters, one.reasons, one.horizon_ps) == (other.counters, other.reasons, other.horizon_ps)
    assert len(one.policy_ns) == len(other.policy_ns)


def lasting(made: Run) -> dict[str, Any]:
    """What of a manifest is the same whenever it is made."""
    return {key: value for key, value in made.manifest.items() if key not in CHANGING}


def stopping_at(done: int) -> Any:
    def stop(now: int, total: int, simulated_ms: float) -> None:
        if now >= done:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
@pytest.mark.parametrize("stop", [None, 256], ids=["to the end", "interrupted"])
def test_a_run_written_in_pieces_equals_one_held_whole(
    world: dict[str, Any], stop: int | None, trace: Trace, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    def replayed(**more: Any) -> Replay:
        return run(trace, Setup(**world), None if stop is None else stopping_at(stop), **more)

    whole = replayed()
    held = Run.from_replay(whole)
    folder = held.save(tmp_path / "held")
    numbers = held.metrics()
    request.getfixturevalue("tiny_parts")
    for flush in (1, 64):
        same(whole, replayed(flush=flush))
    pieces = Run.from_replay(replayed(flush=50))
    assert pieces.requests.column("status").num_chunks > 5
    assert lasting(pieces) == lasting(held)  # the content hashes of all tables, and the notices, among it
    for read in (pieces, open_run(pieces.save(tmp_path / "pieces")), open_run(folder)):
        values = read.metrics()
        for name, expected in numbers.items():
            found = values[name]
            assert (found.n, found.value is None) == (expected.n, expected.value is None), name
            assert expected.value is None or found.value == pytest.approx(expected.value, rel=1e-12), name
        assert read.rejections() == held.rejections()


def test_ctrl_c_while_results_are_written_is_heeded_afterwards(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    def struck(flat: list[int], columns: dict[str, spool.Growing]) -> None:
        if flat and flat[0] >= 0 and len(strikes) == 0:
            strikes.append(len(flat))
            signal.raise_signal(signal.SIGINT)
        move(flat, columns)

    strikes: list[int] = []
    move = recorder._move
    monkeypatch.setattr(recorder, "_move", struck)
    monkeypatch.setattr("mooncake_bench.sim.replay.WINDOW", 16)
    stopped = run(trace, Setup(cluster="2P+2D"), flush=200)
    assert stopped.interrupted
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert Run.from_replay(stopped).manifest["counts"]["offered"] == 208  # 13 windows of 16 arrivals


def test_requests_under_way_are_all_that_stays_in_memory(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    def watched(self: recorder.Recorder) -> None:
        write(self)
        jobs = self._cluster.jobs
        kept.append((len(jobs), sum(job.status == 0 for job in jobs)))
        assert not self._cluster.decoding.segments
        assert not self._cluster.decoding.stays

    kept: list[tuple[int, int]] = []
    write = recorder.Recorder.flush
    monkeypatch.setattr(recorder.Recorder, "flush", watched)
    run(trace, Setup(cluster="2P+2D"), flush=100)
    assert len(kept) == ROWS // 100  # three in between, and the last
    assert all(jobs == unfinished for jobs, unfinished in kept)
    assert kept[-1] == (0, 0)


# ---- columns in files


def test_a_growing_column_is_what_was_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [np.arange(n, dtype=np.int64) * 3 for n in (0, 5, 1, 40, 7)]
    for large in (10**9, 100, 8):  # never in a file, half-way, from the start
        monkeypatch.setattr(spool, "LARGE_BYTES", large)
        grown = spool.Growing(np.int32)
        for piece in pieces:
            grown.append(piece)
        column = grown.column()
        assert column.dtype == np.int32
        assert column.tolist() == [value for piece in pieces for value in piece.tolist()]
        assert grown.rows == len(column) == 53
        assert not column.flags.writeable


def test_trimmed_columns_keep_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "LARGE_BYTES", 64)
    column = spool.full(10_000, 7, np.int64)
    column[5000] = 9
    spool.trim()
    assert column[5000] == 9
    assert column.sum() == 9_999 * 7 + 9


@pytest.mark.parametrize(("rows", "expected"), [(0, [(0, 0)]), (4, [(0, 4)]), (5, [(0, 4), (4, 5)])])
def test_parts_cover_all_rows_once(rows: int, expected: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "PART_ROWS", 4)
    assert [(part.start, part.stop) for part in spool.parts(rows)] == expected


@pytest.fixture
def no_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spool, "LARGE_BYTES", 64)
    monkeypatch.setattr(spool.os, "posix_fallocate", refuse)
    return


@pytest.mark.usefixtures("no_disk")
def test_a_full_temporary_disk_is_one_line_that_names_tmpdir(trace: Trace) -> None:
    with pytest.raises(SetupError, match=r"cannot be kept in '.*': No space left on device; .*TMPDIR") as caught:
        run(trace, Setup())
    assert "\n" not in str(caught.value)
