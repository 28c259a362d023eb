"""The timeline file: valid trace events, and the tiny replay of tests/test_results_tiny.py on it, by hand."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_results_tiny import all_rejected, tiny_run

from mooncake_bench import replay
from mooncake_bench.cli.line import run_line
from mooncake_bench.report.tracks import document
from mooncake_bench.report.tracks.events import Slice, track
from mooncake_bench.results.run import Run

ROUNDING_US = 1e-4  # of times that add up


def events(*runs: Run, most: int = 50_000) -> list[dict[str, Any]]:
    text, _ = document(runs, most)
    found: list[dict[str, Any]] = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))[
        "traceEvents"
    ]
    return found


def assert_valid(found: list[dict[str, Any]]) -> None:
    """What the format asks of events of these kinds."""
    open_slices: dict[tuple[int, str], list[str]] = defaultdict(list)
    threads: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in found:
        assert event["ph"] in "MXCibe"
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["name"], str)
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        if event["ph"] == "b":
            open_slices[event["pid"], event["id"]].append(event["name"])
        if event["ph"] == "e":
            assert open_slices[event["pid"], event["id"]].pop() == event["name"]
    assert not any(open_slices.values())
    for spans in threads.values():
        spans.sort()
        assert all(end <= start + ROUNDING_US for (_, end), (start, _) in pairwise(spans))


def slices(found: list[dict[str, Any]], process: str) -> dict[str, tuple[float, float]]:
    """Slices of a process by name: start and end in ms."""
    pid = next(e["pid"] for e in found if e["name"] == "process_name" and e["args"]["name"] == process)
    mine = [e for e in found if e["ph"] == "X" and e["pid"] == pid]
    return {e["name"]: (e["ts"] / 1e3, (e["ts"] + e["dur"]) / 1e3) for e in mine}


def test_the_tiny_replay_by_hand() -> None:
    found = events(tiny_run())
    assert_valid(found)
    # the first tokens come at 8, 10 and 14 ms, after prefills of 8, 2 and 4 ms
    approx = pytest.approx
    assert slices(found, "prefill instances") == {
        "request a": approx((0, 8)), "request b": approx((8, 10)), "request c": approx((10, 14)),
    }  # fmt: skip
    # one step of 11.009 ms from 9 ms on; then two of 12.021 and 12.023 ms
    assert slices(found, "decode instances") == {"batch 1": approx((9, 20.009)), "batch 2": approx((20.009, 44.053))}
    assert slices(found, "KVCache to decode instances, by sender") == {
        "request a to 1": approx((0, 9)), "request b to 1": approx((8, 12)),
    }  # fmt: skip
    lives = [(e["name"], e["ph"], e["ts"] / 1e3) for e in found if e.get("id", "").endswith(":b") and e["ph"] == "b"]
    # b arrives at 4, is prefilled from 8 on, sent from 10 to 12, joins at 20.009
    assert lives == [
        ("request b", "b", 4), ("queue", "b", approx(4)), ("prefill", "b", approx(8)),
        ("KVCache on its way", "b", approx(10)), ("wait for a batch", "b", approx(12)), ("decode", "b", approx(20.009)),
    ]  # fmt: skip
    [mark] = [e for e in found if e["ph"] == "i"]
    assert (mark["name"], mark["ts"], mark["args"]["request_id"]) == ("busy", 6000, "d")


@pytest.mark.parametrize(
    "setup",
    [
        {"cluster": "2P+2D", "speedup": 3},
        {"cluster": "3M", "schedule": "chunked"},
        {"cluster": "4P+2D", "prefill_group": 2, "prefill_chunk": 2048},
        {"cluster": "2P+0D"},
    ],
    ids=["overloaded", "coupled", "pipelines", "prefill alone"],
)
def test_every_kind_of_cluster_gives_a_valid_file(setup: dict[str, Any]) -> None:
    run = replay("conversation-like", max_requests=60, **setup)
    found = events(run)
    assert_valid(found)
    computed = sum(1 for ms in run.requests.column("prefill_ms").to_pylist() if ms is not None)
    assert len(slices(found, "prefill instances")) == computed


def test_runs_without_anything_to_draw_give_a_valid_file() -> None:
    assert_valid(events(Run.from_replay(all_rejected())))


def test_several_runs_have_processes_of_their_own() -> None:
    found = events(tiny_run(), tiny_run(policy_label="<script>"))
    assert_valid(found)
    names = [e["args"]["name"] for e in found if e["name"] == "process_name"]
    assert "<script>: prefill instances" in names
    pids = [e["pid"] for e in found if e["name"] == "process_name"]
    assert len(set(pids)) == len(pids)


def test_a_large_run_is_thinned_and_says_so() -> None:
    text, notes = document([tiny_run()], most=2)
    assert notes == ["2 of 3 prefills are drawn", "2 of 3 requests are drawn"]
    assert json.loads(text)["otherData"]["notes"] == notes


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 10)), min_size=1, max_size=30))
def test_lanes_never_overlap_and_are_no_more_than_needed(spans: list[tuple[int, int]]) -> None:
    made = [Slice("x", float(start), float(start + lasts), {}) for start, lasts in spans]
    found = list(track(1, 0, "t", made))
    assert_valid(found)
    at_once = max(sum(start <= at < start + lasts for start, lasts in spans) for at in range(31))
    assert len({e["tid"] for e in found if e["ph"] == "X"}) == at_once


def test_report_writes_a_timeline_alone_or_beside_the_page(tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "run"
    tiny_run().save(run_dir=folder)
    plain, packed, page = (tmp_path / name for name in ("t.json", "t.json.gz", "page.html"))
    assert run_line(["report", str(folder), "--timeline", str(plain)]) == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run", "t.json"]
    assert_valid(json.loads(plain.read_text(encoding="utf-8"))["traceEvents"])
    assert "for Perfetto or chrome" in capsys.readouterr().out
    assert run_line(["report", str(folder), "--timeline", str(packed), "-o", str(page)]) == 0
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert page.is_file()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--timeline t.txt", "expected a name that ends in .json or .json.gz"),
        ("--timeline t.json --title x", "--title: no effect without a page"),
        ("--timeline no/such/t.json", "--timeline 'no/such/t.json'"),
    ],
)
def test_a_timeline_that_cannot_be_written_is_refused(words: str, told: str, tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "run"
    tiny_run().save(run_dir=folder)
    assert run_line(["report", str(folder), *words.split()]) == 2
    assert told in capsys.readouterr().err
