"""Run folders: whole or absent, never overwritten, found again, and damage is named."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_results_tiny import all_rejected, interrupted, tiny_policies, tiny_replay, tiny_run, tiny_trace

from mooncake_bench.errors import ResultError
from mooncake_bench.results.records import REQUESTS
from mooncake_bench.results.run import Run, open_run, open_runs
from mooncake_bench.results.store import resolve_runs
from mooncake_bench.sim.replay import Replay

FILES = ["requests.parquet", "run.json", "segments.parquet", "stays.parquet", "timeline.parquet"]


def manifest_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return found


def rewrite(folder: Path, **changes: Any) -> None:
    (folder / "run.json").write_text(json.dumps(manifest_of(folder) | changes), encoding="utf-8")


# ---- writing


def test_a_run_folder_is_numbered_and_named_after_trace_and_policy(tmp_path: Path) -> None:
    assert tiny_run().save(tmp_path) == tmp_path / "1_tiny_tiny"
    assert tiny_run().save(tmp_path) == tmp_path / "2_tiny_tiny"
    assert sorted(item.name for item in (tmp_path / "1_tiny_tiny").iterdir()) == FILES
    assert sorted(item.name for item in tmp_path.iterdir()) == ["1_tiny_tiny", "2_tiny_tiny"]  # nothing left over


def test_a_number_is_not_used_again_when_an_earlier_run_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "7_old_run").mkdir()
    assert tiny_run().save(tmp_path).name == "8_tiny_tiny"


def test_names_from_traces_and_policies_cannot_leave_the_folder(tmp_path: Path) -> None:
    trace = replace(tiny_trace(), name="../../etc/passwd")
    folder = tiny_run(trace=trace, policy_label="a b/../c:k=1,é\n").save(tmp_path)
    assert folder.parent == tmp_path
    assert folder.name == "1_etc-passwd_a-b-..-c-k=1,"
    assert tiny_run(policy_label="…").save(tmp_path).name == "2_tiny_unnamed"


def test_an_exact_folder_is_used_once_and_never_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "here" / "mine"
    assert tiny_run().save(run_dir=target) == target
    before = (target / "run.json").read_bytes()
    with pytest.raises(ResultError, match="already exists and a run is never overwritten"):
        tiny_run().save(run_dir=target)
    assert (target / "run.json").read_bytes() == before
    assert [item.name for item in target.parent.iterdir()] == ["mine"]


def test_many_writers_at_once_get_a_number_each(tmp_path: Path) -> None:
    runs = [tiny_run() for _ in range(12)]
    with ThreadPoolExecutor(6) as pool:
        folders = list(pool.map(lambda run: run.save(tmp_path), runs))
    assert sorted(int(folder.name.split("_")[0]) for folder in folders) == list(range(1, 13))
    assert len(list(tmp_path.iterdir())) == 12


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultError, match=r"cannot write a run folder in .*file"):
        tiny_run().save(tmp_path / "file")


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "ParquetWriter", full)
    with pytest.raises(ResultError, match="No space left on device"):
        tiny_run().save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_same_replay_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (tiny_run().save(tmp_path) for _ in range(2))
    for name in FILES:
        if name != "run.json":
            assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_wall_time_and_machine_stay_out_of_the_tables(tmp_path: Path) -> None:
    slow = Run.from_replay(tiny_replay(policy_ns=np.array([10**9])), wall_s=99.0, name="fig5").save(tmp_path)
    fast = tiny_run().save(tmp_path)
    assert (slow / "requests.parquet").read_bytes() == (fast / "requests.parquet").read_bytes()
    assert manifest_of(slow)["wall_s"] == 99.0


# ---- the manifest


def test_the_manifest_says_what_the_run_was(tmp_path: Path) -> None:
    sources = {"/home/someone/secret/mine.py": "ab" * 32, "policies/lru.py": "cd" * 32}
    replay = tiny_replay(policy_sources=sources)
    run = Run.from_replay(replay, wall_s=1.5, name="fig5", trace_path="traces/tiny.jsonl")
    manifest = manifest_of(run.save(tmp_path))
    assert manifest["format_version"] == 1
    assert manifest["status"] == "complete"
    assert manifest["name"] == "fig5"
    assert manifest["trace"]["sha256"] == replay.trace.sha256
    assert manifest["trace"]["path"] == "traces/tiny.jsonl"
    assert manifest["setup"] == replay.setup.to_dict()
    assert manifest["policy"]["sources"] == {"mine.py": "ab" * 32, "policies/lru.py": "cd" * 32}
    error = "invented numbers, for tests of results and reports"
    assert manifest["cost"] == {"name": "fake", "version": "1", "error": error, "error_short": "invented numbers"}
    assert manifest["counts"] == {
        "offered": 4,
        "completed": 3,
        "failed": 0,
        "rejected": 1,
        "unfinished": 0,
        "not_arrived": 0,
    }
    assert manifest["policy_decision_us"] == {"p50": 2.5, "p99": pytest.approx(3.97), "n": 4}
    assert manifest["percentile_method"] == "linear"
    assert set(manifest["machine"]) == {"cpu", "cores", "platform", "python", "numpy"}
    assert "someone" not in json.dumps(manifest)


def test_the_manifest_is_strict_json(tmp_path: Path) -> None:
    counters = {"fetches": np.int64(3), "odd": float("nan")}
    folder = tiny_run(counters=counters, policy_ns=np.zeros(0, np.int64)).save(tmp_path)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    text = (folder / "run.json").read_text(encoding="utf-8")
    manifest = json.loads(text, parse_constant=refuse)
    assert manifest["counters"] == {"fetches": 3, "odd": None}
    assert manifest["policy_decision_us"] == {"p50": None, "p99": None, "n": 0}


def test_an_interrupted_run_is_stored_as_such(tmp_path: Path) -> None:
    folder = Run.from_replay(interrupted()).save(tmp_path)
    assert manifest_of(folder)["status"] == "interrupted"
    assert open_run(folder).interrupted
    # d was never reached; a and b had arrived but not ended
    counts = {"offered": 3, "completed": 1, "failed": 0, "rejected": 0, "unfinished": 2, "not_arrived": 1}
    assert manifest_of(folder)["counts"] == counts
    [notice] = [line for line in manifest_of(folder)["notices"] if "interrupted" in line]
    assert "3 of 4 requests had arrived" in notice
    assert "2 had not ended" in notice


def test_a_run_names_its_router_admission_and_eviction_with_their_parameters(tmp_path: Path) -> None:
    odd = tiny_policies() | {
        "eviction": {"name": "mine", "parameters": {"share": np.float64("inf"), "size": np.int64(3)}}
    }
    parts = manifest_of(tiny_run(policies=odd).save(tmp_path))["policy"]["parts"]
    assert parts["router"] == {"name": "cache-aware", "parameters": {}}
    assert parts["admission"] == {"name": "queue-cap", "parameters": {"limit": 8}}
    assert parts["eviction"] == {"name": "mine", "parameters": {"share": None, "size": 3}}


# ---- reading


@pytest.mark.parametrize("replay", [tiny_replay(), all_rejected(), interrupted()])
def test_a_stored_run_has_the_metrics_and_the_words_of_the_fresh_one(tmp_path: Path, replay: Replay) -> None:
    run = Run.from_replay(replay)
    stored = open_run(run.save(tmp_path))
    assert stored.metrics() == run.metrics()
    assert stored.summary() == run.summary()
    assert stored.notices == run.notices
    for name in ("requests", "timeline", "segments", "stays"):
        assert getattr(stored, name).equals(getattr(run, name))


def test_parquet_keeps_explicit_types_even_without_a_value(tmp_path: Path) -> None:
    folder = Run.from_replay(all_rejected()).save(tmp_path)
    table = pq.read_table(folder / "requests.parquet")
    assert table.schema.equals(REQUESTS)
    other = pq.read_table(tiny_run().save(tmp_path) / "requests.parquet")
    assert pa.concat_tables([table, other]).num_rows == 8


@pytest.mark.parametrize("name", [name for name in FILES if name != "run.json"])
def test_a_truncated_and_a_missing_file_are_named(tmp_path: Path, name: str) -> None:
    folder = tiny_run().save(tmp_path)
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ResultError, match=rf"{name}' is damaged .*; replay the run again"):
        open_run(folder).metrics()
    (folder / name).unlink()
    with pytest.raises(ResultError, match=f"{name}' is missing"):
        open_run(folder).metrics()


def test_a_flipped_bit_is_either_named_or_without_effect(tmp_path: Path) -> None:
    run = tiny_run()
    path = run.save(tmp_path) / "requests.parquet"
    whole = path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 150)):
        flipped = bytearray(whole)
        flipped[place] ^= 0x10
        path.write_bytes(bytes(flipped))
        try:
            found = open_run(path.parent).requests
        except ResultError as error:
            assert "requests.parquet" in str(error)  # noqa: PT017 - either outcome is right
        else:
            assert found.equals(run.requests)


def test_a_table_of_another_run_is_found_out(tmp_path: Path) -> None:
    folder, other = tiny_run().save(tmp_path), Run.from_replay(all_rejected()).save(tmp_path)
    (folder / "requests.parquet").write_bytes((other / "requests.parquet").read_bytes())
    with pytest.raises(ResultError, match="its content hash differs"):
        open_run(folder).requests  # noqa: B018 - reading is the point


def test_a_table_without_a_column_is_refused(tmp_path: Path) -> None:
    folder = tiny_run().save(tmp_path)
    table = pq.read_table(folder / "requests.parquet")
    pq.write_table(table.drop_columns(["ttft_ms"]), folder / "requests.parquet")
    with pytest.raises(ResultError, match="column 'ttft_ms' is missing or of another type"):
        open_run(folder).requests  # noqa: B018


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "no run manifest"),
        ('{"format_version": 0}', "no run manifest"),
        ('{"format_version": 99}', "has format 99, and this version reads up to 1: update mooncake-bench"),
        ('{"format_version": 1}', "it lacks status, policy, trace"),
        ("\ud800", None),
    ],
)
def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path, text: str, words: str | None) -> None:
    (tmp_path / "run.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ResultError, match=re.escape("run.json") + ".*" + (words or "damaged")):
        open_run(tmp_path)


def test_a_folder_that_holds_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"is no run folder: it holds no run\.json"):
        open_run(tmp_path)


# ---- finding


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Five runs; 2 and 4 are named fig5."""
    for number in range(1, 6):
        Run.from_replay(tiny_replay(), name="fig5" if number in (2, 4) else None).save(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("references", "numbers"),
    [
        (["3"], [3]),
        (["@last"], [5]),
        (["@last:2"], [4, 5]),
        (["fig5"], [2, 4]),
        (["2_tiny_tiny"], [2]),
        (["5", "fig5", "1"], [5, 2, 4, 1]),
    ],
)
def test_a_reference_finds_its_runs(out: Path, references: list[str], numbers: list[int]) -> None:
    assert [folder.name for folder in resolve_runs(references, out)] == [f"{number}_tiny_tiny" for number in numbers]


def test_a_folder_is_a_reference_wherever_it_lies(out: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tiny_run().save(run_dir=tmp_path_factory.mktemp("x") / "run")
    assert resolve_runs([str(elsewhere)], out) == [elsewhere]
    assert [run.path for run in open_runs([str(elsewhere)], out)] == [elsewhere]


def test_numbers_above_nine_come_after_nine(tmp_path: Path) -> None:
    for _ in range(11):
        tiny_run().save(tmp_path)
    assert [folder.name.split("_")[0] for folder in resolve_runs(["@last:3"], tmp_path)] == ["9", "10", "11"]


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("9", "no run 9 in .*; it holds runs 1 to 5"),
        ("@last:6", "only 5 runs in"),
        ("@first", "expected @last or @last:N"),
        ("@last:0", "expected @last or @last:N"),
        ("fig6", "did you mean 'fig5'"),
        ("zzz", "neither a run folder nor a --name .*; it holds runs 1 to 5"),
    ],
)
def test_a_reference_that_means_nothing_is_refused(out: Path, reference: str, words: str) -> None:
    with pytest.raises(ResultError, match=words):
        resolve_runs([reference], out)


def test_without_any_run_the_message_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"no runs yet in .*; make one with: mooncake-bench replay"):
        resolve_runs(["@last"], tmp_path / "absent")
    with pytest.raises(ResultError, match="it holds no runs yet"):
        resolve_runs(["1"], tmp_path)
    with pytest.raises(ResultError, match="is no run folder"):
        resolve_runs([str(tmp_path)], tmp_path)


def test_a_damaged_neighbour_does_not_hide_the_others(out: Path) -> None:
    (out / "3_tiny_tiny" / "run.json").write_text("{", encoding="utf-8")
    assert len(resolve_runs(["fig5"], out)) == 2


def test_an_old_run_keeps_being_read_when_keys_are_added_later(out: Path) -> None:
    folder = out / "1_tiny_tiny"
    rewrite(folder, something_new={"a": 1})
    assert open_run(folder).metrics()["offered_requests"].value == 4
