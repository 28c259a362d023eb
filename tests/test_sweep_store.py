"""A sweep's folder: typed, whole, resumed without a row twice, and read by others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from mooncake_bench.errors import ResultError, SetupError
from mooncake_bench.results.metrics import METRICS
from mooncake_bench.results.sweep import open_sweep
from mooncake_bench.sim.setup import Setup
from mooncake_bench.studies.sweep import store as stores
from mooncake_bench.studies.sweep.merge import merge
from mooncake_bench.studies.sweep.points import Point, Shard, describe
from mooncake_bench.studies.sweep.store import opened
from mooncake_bench.studies.sweep.sweeping import sweep
from mooncake_bench.studies.sweep.work import Outcome, failed
from mooncake_bench.trace import Trace

TRACE = Trace.of([(0, 5, 2, [1])], name="one")
SPEEDUPS = (1.0, 1.5, 2.0, 2.5, 3.0)
KEYS = ["speedup", "cluster", "ours.k", "ours.deep"]


def points(speedups: tuple[float, ...] = SPEEDUPS) -> list[Point]:
    return [
        Point(i, "one", TRACE.sha256, Setup(speedup=speedup, seed=i), "ours",
              {"speedup": speedup, "cluster": "8P+8D", "ours.k": i if i else None, "ours.deep": i % 2 == 0})
        for i, speedup in enumerate(speedups)
    ]  # fmt: skip


def manifest(speedups: tuple[float, ...] = SPEEDUPS, shard: list[int] | None = None) -> dict[str, Any]:
    made = describe(points(speedups), KEYS, [TRACE], {"/home/x/ours.py": "ab"}, keep_runs=False)
    return made | {"name": "five", "shard": shard}


def done(number: int, ttft: float | None = 1.5, content: str = "c") -> Outcome:
    """A point's outcome whose count of completed requests is its number."""
    metrics: dict[str, tuple[Any, Any]] = {metric.name: (None, 0) for metric in METRICS}
    metrics |= {"completed_requests": (number, 9), "mean_ttft_ms": (ttft, number)}
    return Outcome(number, "done", None, f"{content}{number}", 0.25, metrics)


class Counting:
    """An executor that makes outcomes up, and knows for which points."""

    def __init__(self, stop_at: int | None = None, bad: tuple[int, ...] = ()) -> None:
        self.asked: list[int] = []
        self.stop_at, self.bad = stop_at, bad

    def run(self, wanted: Any) -> Any:
        for point in wanted:
            if point.number == self.stop_at:
                raise KeyboardInterrupt
            self.asked.append(point.number)
            yield [failed(point, "no luck") if point.number in self.bad else done(point.number)]


def filled(folder: Path, numbers: tuple[int, ...], shard: Shard | None = None, **changes: Any) -> Path:
    listed = [shard.number, shard.count] if shard else None
    with opened(folder, manifest(shard=listed)) as store:
        store.add([done(number, **changes) for number in numbers])
    return folder


def test_columns_are_typed_and_undefined_is_null(tmp_path: Path) -> None:
    found = open_sweep(filled(tmp_path / "s", (1, 0)))
    types = {name: found.table.schema.field(name).type for name in [*KEYS, "point", "wall_s", "completed_requests"]}
    assert types == {
        "speedup": pa.float64(), "cluster": pa.string(), "ours.k": pa.int64(), "ours.deep": pa.bool_(),
        "point": pa.int64(), "wall_s": pa.float64(), "completed_requests": pa.int64(),
    }  # fmt: skip
    assert found.column("point") == [0, 1]
    assert found.column("ours.k") == [None, 1]
    assert found.column("p99_ttft_ms") == [None, None]
    assert found.column("mean_ttft_ms.n") == [0, 1]
    assert found.table.schema.field("mean_ttft_ms").metadata == {b"unit": b"ms", b"better": b"lower"}
    assert found.varied == ("speedup", "cluster", "ours.k", "ours.deep")
    assert set(found.metrics) == {metric.name for metric in METRICS}
    assert found.left == (2, 3, 4)


def test_a_column_and_a_metric_that_are_not_there_are_said_with_the_nearest(tmp_path: Path) -> None:
    found = open_sweep(filled(tmp_path / "s", (0,)))
    with pytest.raises(ResultError, match="did you mean 'speedup'"):
        found.column("speedups")
    assert found.metric("request_goodput").name == "request_goodput_rps"


def test_the_last_part_grows_and_the_next_begins_when_it_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "PART_ROWS", 2)
    for numbers in ((0,), (1,), (2,), (3, 4)):
        filled(tmp_path / "s", numbers)
    rows = [pq.read_metadata(path).num_rows for path in sorted((tmp_path / "s").glob("*.parquet"))]
    assert rows == [2, 3]  # 0 and 1; 2, and what came at once
    assert open_sweep(tmp_path / "s").column("point") == [0, 1, 2, 3, 4]


def test_pyarrow_reads_the_folder_although_other_things_lie_in_it(tmp_path: Path) -> None:
    folder = filled(tmp_path / "s", (0, 1))
    (folder / "_runs" / "0").mkdir(parents=True)
    pq.write_table(pa.table({"other": [1]}), folder / "_runs" / "0" / "requests.parquet")
    assert ds.dataset(folder, format="parquet").to_table().column("completed_requests").to_pylist() == [0, 1]


@pytest.mark.parametrize("reader", ["pandas", "polars", "duckdb"])
def test_others_read_the_parts_as_one_table(tmp_path: Path, reader: str) -> None:
    module = pytest.importorskip(reader, reason=f"{reader} is not installed")
    parts = f"{filled(tmp_path / 's', (0, 1))}/*.parquet"
    if reader == "pandas":
        found = module.read_parquet(tmp_path / "s")["mean_ttft_ms"].tolist()
    elif reader == "polars":
        found = module.read_parquet(parts)["mean_ttft_ms"].to_list()
    else:
        found = [row[0] for row in module.sql(f"SELECT mean_ttft_ms FROM read_parquet('{parts}')").fetchall()]
    assert found == [1.5, 1.5]


def test_what_is_interrupted_is_kept_and_gone_on_with(tmp_path: Path) -> None:
    first, second, third = Counting(stop_at=3), Counting(), Counting()
    with pytest.raises(KeyboardInterrupt):
        sweep(points(), manifest(), tmp_path / "s", first)
    assert open_sweep(tmp_path / "s").column("point") == [0, 1, 2]
    sweep(points(), manifest(), tmp_path / "s", second)
    sweep(points(), manifest(), tmp_path / "s", third)
    assert (first.asked, second.asked, third.asked) == ([0, 1, 2], [3, 4], [])
    whole = sweep(points(), manifest(), tmp_path / "at once", Counting())
    assert open_sweep(tmp_path / "s").content_sha256() == whole.content_sha256()


def test_failed_points_are_rows_with_a_reason_and_replayed_only_when_asked(tmp_path: Path) -> None:
    found = sweep(points(), manifest(), tmp_path / "s", Counting(bad=(1, 4)))
    assert found.failed.select(["point", "error"]).to_pylist() == [
        {"point": 1, "error": "no luck"}, {"point": 4, "error": "no luck"}
    ]  # fmt: skip
    assert found.table.column("mean_ttft_ms").to_pylist() == [1.5, None, 1.5, 1.5, None]
    again = Counting()
    sweep(points(), manifest(), tmp_path / "s", again)
    assert again.asked == []
    found = sweep(points(), manifest(), tmp_path / "s", again, retry_failed=True)
    assert again.asked == [1, 4]
    assert (len(found.done), len(found.failed)) == (5, 0)


def test_the_remains_of_a_killed_process_are_swept_away(tmp_path: Path) -> None:
    folder = filled(tmp_path / "s", (0,))
    (folder / ".part-0000.parquet.x.partial").write_bytes(b"half")
    filled(folder, (1,))
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "_sweep.json", "part-0000.parquet"]


def test_two_processes_never_add_to_one_folder(tmp_path: Path) -> None:
    with (
        opened(tmp_path / "s", manifest()),
        pytest.raises(ResultError, match="another process is adding"),
        opened(tmp_path / "s", manifest()),
    ):
        pass
    assert not stores.is_held(tmp_path / "s")


def test_another_sweep_is_never_taken_for_this_one(tmp_path: Path) -> None:
    filled(tmp_path / "s", (0,))
    others = {
        "at point 1, speedup is 1.5 there and 4.0 here": manifest((1.0, 4.0, 2.0, 2.5, 3.0)),
        "it has 5 points there and 2 here": manifest((1.0, 1.5)),
        "simulator version is .1. there and .x. here": manifest() | {"simulator_version": "x"},
        "ours.py is .ab. there and .cd. here": manifest() | {"sources": {"ours.py": "cd"}},
        "keep runs is false there and true here": manifest() | {"keep_runs": True},
        r"shard is not there there and \[1, 2\] here": manifest(shard=[1, 2]),
    }
    for said, other in others.items():
        with pytest.raises(ResultError, match=said), opened(tmp_path / "s", other):
            pass


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ResultError, match="holds no sweep but 'notes"), opened(tmp_path, manifest()):
        pass


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "damaged"),
        ("[]", "expected a format_version"),
        (json.dumps({"format_version": 99}), "update mooncake-bench"),
        (json.dumps({"format_version": 1}), "lacks name, shard"),
    ],
)
def test_a_damaged_manifest_is_said_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "_sweep.json").write_text(text, encoding="utf-8")
    with pytest.raises(ResultError, match=said):
        open_sweep(tmp_path)


def test_a_damaged_part_and_a_strange_one_are_refused(tmp_path: Path) -> None:
    folder = filled(tmp_path / "s", (0,))
    part = folder / "part-0000.parquet"
    pq.write_table(pa.table({"point": [1]}), folder / "part-0001.parquet")
    with pytest.raises(ResultError, match="has other columns"):
        open_sweep(folder)
    (folder / "part-0001.parquet").write_bytes(part.read_bytes())
    with pytest.raises(ResultError, match="point 0 is there twice"):
        open_sweep(folder)
    (folder / "part-0001.parquet").unlink()
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(ResultError, match="damaged"):
        open_sweep(folder)


def test_the_same_point_twice_is_refused_before_anything_runs() -> None:
    twins = [points()[0], replace(points()[0], number=1)]
    with pytest.raises(SetupError, match="points 0 and 1 are the same replay"):
        describe(twins, KEYS, [TRACE], {}, keep_runs=False)


# ---- merging


def test_shards_merge_into_what_one_folder_would_hold(tmp_path: Path) -> None:
    odd, even = filled(tmp_path / "a", (0, 2, 4), Shard(1, 2)), filled(tmp_path / "b", (1, 3), Shard(2, 2))
    assert open_sweep(even).left == ()
    merged = merge([odd, even], tmp_path / "all")
    assert merged.content_sha256() == open_sweep(filled(tmp_path / "whole", (0, 1, 2, 3, 4))).content_sha256()
    assert merged.manifest["shard"] is None


def test_missing_shards_are_named(tmp_path: Path) -> None:
    one = filled(tmp_path / "a", (0,), Shard(1, 3))  # 0 and 3 are its points
    two = filled(tmp_path / "b", (1, 4), Shard(2, 3))
    with pytest.raises(
        ResultError, match=r"2 of 5 points are missing \(2, 3\): shard 1/3 is unfinished, shard 3/3 is n"
    ):
        merge([one, two], tmp_path / "all")
    assert not (tmp_path / "all").exists()
    assert merge([one, two], tmp_path / "all", partial=True).left == (2, 3)


def test_what_two_folders_agree_on_counts_once_and_a_difference_is_refused(tmp_path: Path) -> None:
    all_of, some = filled(tmp_path / "a", (0, 1, 2, 3, 4)), filled(tmp_path / "b", (1, 2))
    assert len(merge([all_of, some], tmp_path / "all").done) == 5
    other = filled(tmp_path / "c", (3,), content="other")
    with pytest.raises(ResultError, match="point 3 has different results"):
        merge([all_of, other], tmp_path / "again")


def test_folders_of_different_sweeps_are_not_merged(tmp_path: Path) -> None:
    one = filled(tmp_path / "a", (0,))
    with opened(tmp_path / "b", manifest((9.0, 8.0))) as store:
        store.add([done(0)])
    with pytest.raises(ResultError, match="only shards of one sweep can be merged"):
        merge([one, tmp_path / "b"], tmp_path / "all")
    with pytest.raises(ResultError, match="already exists"):
        merge([one], tmp_path / "b")
