"""calibrate live: the grid, its rows on disk, the fit and the preset, by kernels without torch; then on a real CPU."""

from __future__ import annotations

import csv
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_fakes import FakeBench, FakeKernels

from mooncake_bench.cli.app import run
from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.build import build_cost
from mooncake_bench.hardware.calibrate.preset import node_toml
from mooncake_bench.hardware.calibrate.reading import read_tables
from mooncake_bench.hardware.presets import load_model, load_node
from mooncake_bench.live import grid
from mooncake_bench.live.bench import LiveSettings, TorchBench
from mooncake_bench.live.calibration import Calibration, calibrate, rows_key
from mooncake_bench.live.device import OutOfMemory
from mooncake_bench.live.grid import Grid, measure, parse_decode, parse_prefill
from mooncake_bench.live.rowsfile import RowsFile

MINE = Grid(
    prefill=tuple((n, p) for p in (0, 100) for n in (16, 32, 64, 128, 256, 512)),
    decode=tuple((b, c) for c in (50, 500) for b in (1, 2, 4, 8, 16, 32)),
)


def calibrated(folder: Path, shapes: Grid = MINE, rows: str = "rows.csv") -> Calibration:
    model = load_model("tiny-llama")
    return calibrate(model, 1, LiveSettings(), shapes, folder / rows, lambda *_: None, None, FakeBench)


# ---- shapes


def test_shapes_of_ones_own_are_read() -> None:
    assert parse_prefill("64, 256,1024+512") == ((64, 0), (256, 0), (1024, 512))
    assert parse_decode("1x512,8x1024") == ((1, 512), (8, 1024))


@pytest.mark.parametrize(
    ("parse", "text", "reason"),
    [
        (parse_prefill, "64,many", r"--prefill: expected COMPUTED or COMPUTED\+PREFIX .* got 'many'"),
        (parse_prefill, "0", "--prefill: expected"),
        (parse_prefill, "", "--prefill: expected"),
        (parse_prefill, "64,64+0", "given twice"),
        (parse_decode, "8", "--decode: expected BATCHxCONTEXT such as 1x512,8x1024, got '8'"),
        (parse_decode, "0x5", "--decode: expected"),
        (parse_decode, "1x0", "--decode: expected"),
    ],
)
def test_a_malformed_shape_is_refused(parse: Any, text: str, reason: str) -> None:
    with pytest.raises(SetupError, match=reason):
        parse(text)


def test_every_shape_of_a_grid_is_run_once_in_an_order_that_mixes_sizes() -> None:
    for one in grid.GRIDS.values():
        assert len(one.shapes) == len(set(one.shapes)) == len(one.prefill) + len(one.decode)
        assert one.shapes == one.shapes  # the same each time, so that a grid that was interrupted goes on
        assert sorted(one.shapes) != one.shapes
    assert max(batch * context for batch, context in grid.FULL.decode) <= 2**20


# ---- rows on disk


KEY = {"device": "GPU", "dtype": "float32", "model": "tiny-llama", "tensor_parallel": 1, "layers": [1, 2, 4]}


def measured(folder: Path, kernels: FakeKernels, progress: Any = lambda *_: None, device: str = "GPU") -> list[str]:
    file = RowsFile(folder / "rows.csv", {**KEY, "device": device})
    return measure(MINE, lambda: kernels, file, progress)


def test_each_row_is_kept_as_it_comes_and_an_interrupted_grid_continues(tmp_path: Path) -> None:
    first, rest, none = FakeKernels(), FakeKernels(), FakeKernels()

    def stop(done: int, of: int) -> None:
        assert of == 24
        if done == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path, first, stop)
    assert len((tmp_path / "rows.csv").read_text(encoding="utf-8").splitlines()) == 11
    measured(tmp_path, rest)
    measured(tmp_path, none)
    assert (len(first.ran), len(rest.ran), len(none.ran)) == (10, 14, 0)
    assert sorted(first.ran + rest.ran) == sorted(MINE.shapes)


def test_rows_say_what_was_measured_how_well_and_on_what(tmp_path: Path) -> None:
    measured(tmp_path, FakeKernels())
    rows = list(csv.DictReader((tmp_path / "rows.csv").open(encoding="utf-8")))
    row = next(row for row in rows if (row["computed_tokens"], row["prefix_tokens"]) == ("64", "100"))
    assert (row["phase"], row["batch"], row["context"]) == ("prefill", "1", "")
    assert float(row["ms"]) == pytest.approx(10 + 6.4 + 0.002 * 6400, rel=1e-12)
    assert (row["spread"], row["rounds"], row["noisy"], row["depth_error_percent"]) == ("0.01", "5", "no", "2.0")
    assert {name: row[name] for name in KEY} == {**KEY, "tensor_parallel": "1", "layers": "1+2+4"}
    step = next(row for row in rows if (row["batch"], row["context"]) == ("8", "500"))
    assert (step["phase"], step["computed_tokens"], float(step["ms"])) == ("decode", "", 4 + 8 + 0.001 * 4000)


def test_calibrate_fit_reads_the_rows(tmp_path: Path) -> None:
    measured(tmp_path, FakeKernels())
    found = read_tables([tmp_path / "rows.csv"])
    assert found.prefill is not None
    assert found.decode is not None
    # S = n p + n^2 / 2 of 64 after 100: 6400 + 2048; T of 8 sequences of 500: 4000
    assert (64, 8448.0) in zip(found.prefill.n.tolist(), found.prefill.s.tolist(), strict=True)
    assert (8, 4000.0, 4 + 8 + 4.0) in zip(
        *(x.tolist() for x in (found.decode.batch, found.decode.tokens, found.decode.ms)), strict=True
    )


def test_rows_of_another_device_are_refused(tmp_path: Path) -> None:
    measured(tmp_path, FakeKernels())
    with pytest.raises(SetupError, match="row 2 has device 'GPU', expected 'another'; name another file, or delete it"):
        measured(tmp_path, FakeKernels(), device="another")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("phase", "phrase", "header"),
        ("tiny-llama", "big-llama", "has model 'big-llama', expected 'tiny-llama'"),
    ],
)
def test_a_file_of_other_rows_is_refused(tmp_path: Path, old: str, new: str, reason: str) -> None:
    measured(tmp_path, FakeKernels())
    path = tmp_path / "rows.csv"
    path.write_text(path.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    with pytest.raises(SetupError, match=reason):
        measured(tmp_path, FakeKernels())


def test_a_shape_without_memory_is_left_out_and_said(tmp_path: Path) -> None:
    class Small(FakeKernels):
        def prefill_ms(self, computed: int, prefix: int, mode: str) -> Any:
            if computed > 256:
                raise OutOfMemory(f"not enough memory for {computed} tokens")
            return super().prefill_ms(computed, prefix, mode)

    assert measured(tmp_path, Small()) == ["left out: not enough memory for 512 tokens"] * 2
    assert len((tmp_path / "rows.csv").read_text(encoding="utf-8").splitlines()) == 1 + 22


def edited(folder: Path, **cells: str) -> Path:
    """A file of two rows, a prefill of 64 tokens and then a decode of 8 x 500; ``cells`` of the latter replaced."""
    shapes = Grid(((64, 0),), ((8, 500),))
    path = folder / "rows.csv"
    measure(shapes, FakeKernels, RowsFile(path, KEY), lambda *_: None)
    with path.open(encoding="utf-8") as file:
        prefill, decode = sorted(csv.DictReader(file), key=lambda row: row["phase"] == "decode")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(decode))
        writer.writeheader()
        writer.writerows([prefill, {**decode, **cells}])
    return path


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"phase": "decod"}, "phase 'decod', expected prefill or decode"),
        ({"context": "-96"}, "context '-96', expected a whole number from 1 to 1,000,000,000"),
        ({"context": "0"}, "context '0', expected a whole number from 1"),
        ({"context": "9" * 400}, "context '9{40}'…, expected a whole number from 1"),
        ({"batch": "0"}, "batch '0', expected a whole number from 1"),
        ({"computed_tokens": "5"}, "computed_tokens '5' of a decode, expected nothing"),
        ({"ms": "inf"}, "ms 'inf', expected a number from 1e-06 to 1e.09"),
        ({"ms": "nan"}, "ms 'nan', expected a number"),
        ({"ms": "1e300"}, "ms '1e300', expected a number"),
        ({"ms": "1e-300"}, "ms '1e-300', expected a number"),
        ({"ms": ""}, "ms '', expected a number"),
        ({"noisy": "maybe"}, "noisy 'maybe', expected yes or no"),
        ({"rounds": "-1"}, "rounds '-1', expected a whole number from 1"),
        ({"rounds": "5.5"}, "rounds '5.5', expected a whole number from 1"),
        ({"spread": "nan"}, "spread 'nan', expected a number from 0"),
        ({"depth_error_percent": "nan"}, "depth_error_percent 'nan', expected a number from 0"),
    ],
)
def test_a_row_that_cannot_be_a_measurement_is_refused(tmp_path: Path, cells: dict[str, str], reason: str) -> None:
    path = edited(tmp_path, **cells)
    with pytest.raises(SetupError, match=rf"rows\.csv: row 3: {reason}.*; delete the row"):
        RowsFile(path, KEY)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: [*lines, lines[2].replace("16", "17")], "row 4: the shape of row 3 again"),
        (lambda lines: [*lines[:2], lines[2] + ",more"], "row 3: 17 cells, expected 16"),
        (lambda lines: [*lines[:2], "decode,8"], "row 3: 2 cells, expected 16"),
        (
            lambda lines: [lines[0], lines[1].replace("prefill,1,", "prefill,2,"), lines[2]],
            "row 2: batch '2' of a pref",
        ),
    ],
    ids=["twice", "a cell more", "cells less", "a batch of prefills"],
)
def test_a_file_whose_rows_cannot_be_those_measured_is_refused(tmp_path: Path, change: Any, reason: str) -> None:
    path = edited(tmp_path)
    path.write_text("\n".join(change(path.read_text(encoding="utf-8").splitlines())), encoding="utf-8")
    with pytest.raises(SetupError, match=reason):
        RowsFile(path, KEY)


def test_a_byte_order_mark_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    path = edited(tmp_path)
    before = RowsFile(path, KEY).rows
    path.write_text("\ufeff" + path.read_text(encoding="utf-8") + "\n\n", encoding="utf-8")
    assert RowsFile(path, KEY).rows == before
    assert len(before) == 2


# ---- the fit and the preset


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A preset of the fake's times. Its prefill is E1 only without a prefix, for E1's S costs the same with one."""
    folder = tmp_path_factory.mktemp("fitted")
    shapes = Grid(tuple((n, 0) for n in range(16, 400, 32)), MINE.decode)
    (folder / "node.toml").write_text(node_toml(calibrated(folder, shapes).node), encoding="utf-8")
    return folder / "node.toml"


def test_the_preset_predicts_what_the_kernels_take(fitted: Path) -> None:
    # 10 + 0.1 n ms is E1 with a constant, 4 + B + 0.001 T ms is E2 with a floor and no roof
    cost = build_cost([str(fitted)], "tiny-llama", "none")
    for n in (20, 100, 300):
        assert cost.prefill_ps(0, n, 0) == pytest.approx((10 + 0.1 * n) * 1e9, rel=0.01)
    for batch, tokens in ((1, 100), (8, 3000), (32, 10_000)):
        found = cost.decode_ps(0, batch) + cost.token_ps(0) * tokens
        assert found == pytest.approx((4 + batch + 0.001 * tokens) * 1e9, rel=0.01)


def test_the_preset_says_where_its_numbers_come_from(fitted: Path) -> None:
    node = load_node(str(fitted))
    costs = node.costs["tiny-llama"]
    assert (node.gpus, costs.status) == (1, "measured")
    assert "calibrate live on fake GPU in float32 (driver 1, torch 9.9): 24 shapes, 5 rounds each" in costs.source
    assert "held-out" in costs.error
    assert costs.prefill_heldout is not None
    assert costs.decode_heldout is not None
    assert (costs.prefill_heldout.rows, costs.decode_heldout.rows) == (12, 12)
    assert costs.vram_tokens == (9_000_000_000 - 13_132_800) // 2048  # as in test_live_cost


def test_too_few_rows_are_said_to_have_no_held_out_error(tmp_path: Path) -> None:
    shapes = Grid(MINE.prefill[:7], MINE.decode[:7])
    path = tmp_path / "node.toml"
    path.write_text(node_toml(calibrated(tmp_path, shapes=shapes).node), encoding="utf-8")
    costs = load_node(str(path)).costs["tiny-llama"]
    assert costs.prefill_heldout is None
    assert "in-sample: 7 rows" in costs.error
    with pytest.raises(SetupError, match="5 prefill rows: a fit needs at least 6"):
        calibrated(tmp_path, shapes=Grid(MINE.prefill[:5], MINE.decode), rows="few.csv")
    assert not (tmp_path / "few.csv").exists()  # known before anything is measured


def test_rows_of_an_earlier_grid_count_for_the_fit(tmp_path: Path) -> None:
    calibrated(tmp_path, Grid(MINE.prefill[:7], MINE.decode[:7]))
    done = calibrated(tmp_path, Grid(MINE.prefill[7:9], MINE.decode[7:9]))
    assert (len(done.prefill.rows), len(done.decode.rows)) == (9, 9)


def test_a_depth_that_is_run_anyway_is_no_other_measurement() -> None:
    # tiny-llama has 4 layers: depths up to 4 or more are the whole model; 1,2,3 is another way of measuring it
    shape = load_model("tiny-llama").shape
    assert shape is not None

    def layers(*given: int) -> Any:
        settings = LiveSettings(layers=given or None)
        return rows_key(FakeBench(settings), shape, 1, settings)["layers"]

    assert layers() == layers(1, 2, 4) == layers(1, 2, 8) == [4]
    assert layers(1, 2, 3) == [1, 2, 3]
    deep = replace(shape, layers=32)
    assert rows_key(FakeBench(LiveSettings()), deep, 1, LiveSettings())["layers"] == [1, 2, 4]


# ---- the command, without torch


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--grid", "smal"], "did you mean 'small'"),
        (["--prefill", "64"], "--prefill: give --decode as well"),
        (["--decode", "1x64"], "--decode: give --prefill as well"),
        (["--grid", "small", "--prefill", "64", "--decode", "1x64"], "--grid: no effect beside"),
        (["--dtype", "float8"], "live.dtype: expected one of auto, float32"),
        (["--layers", "1,2"], "live.layers: expected three or more rising"),
        (["--repeat", "0"], "live.repeat: must be at least 1"),
        (["--tensor-parallel", "0"], "--tensor-parallel: must be at least 1"),
        (["--vram", "0"], "vram.tokens: must be at least 1, got 0"),
        (["--vram", "-5"], "vram.tokens: must be at least 1, got -5"),
        (["--vram", "many"], "--vram: expected a size such as"),
        (["--vram", "5blocks"], "--vram: expected tokens or bytes such as 64Ktok or 40GB, got '5blocks'"),
        (["--prefill", "64", "--decode", "99999999999x99999999"], "expected sizes of at most 1,000,000,000"),
        (["--model", "deepseek-v3"], "has a mixture of experts: the live kernels run dense models"),
        (["-o", "node"], "expected a name ending in .toml"),
        (["-o", "a.toml", "--rows", "a.toml"], "is the preset's own file"),
        (["-o", "nowhere/a.toml"], "there is no folder"),
        (["--model", "tiny-lama"], "did you mean 'tiny-llama'"),
    ],
    ids=" ".join,
)
def test_wrong_use_is_one_line_and_leaves_nothing(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["calibrate", "live", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert reason in shown.err
    assert list(tmp_path.iterdir()) == []


def test_an_existing_preset_is_kept_unless_forced(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("live.toml").write_text("mine", encoding="utf-8")
    assert run(["calibrate", "live"]) == 2
    assert "--force" in capsys.readouterr().err


def test_ctrl_c_exits_130_and_the_same_command_continues(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(FakeKernels):
        def _timing(self, *arguments: Any) -> Any:
            if len(self.ran) == 5 and not resumed:
                raise KeyboardInterrupt
            return super()._timing(*arguments)

    resumed: list[bool] = []
    kernels = Stopped()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mooncake_bench.live.calibration.TorchBench", lambda settings: FakeBench(settings, kernels))
    words = ["calibrate", "live", "--prefill", "16,32,64,96,128,160", "--decode", "1x64,2x64,3x64,4x64,1x99,2x99"]
    assert run(words) == 130
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "what was measured is in live.rows.csv; the same command continues", "mooncake-bench: interrupted"
    ]  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["live.rows.csv"]
    resumed.append(True)
    assert run(words) == 0
    assert len(kernels.ran) == len(set(kernels.ran)) == 12
    assert Path("live.toml").exists()


WORDS = ["calibrate", "live", "--prefill", "16,32,64,96,128,160", "--decode", "1x64,2x64,3x64,4x64,1x99,2x99"]


def use(kernels: FakeKernels, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("mooncake_bench.live.calibration.TorchBench", lambda settings: FakeBench(settings, kernels))


def test_too_few_shapes_are_said_before_any_is_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = FakeKernels()
    use(kernels, tmp_path, monkeypatch)
    for prefill, reason in (("16,32", "2 prefill rows"), ("16,16+1,16+2,16+3,32,32+1", "6 prefill rows")):
        assert run([*WORDS[:2], "--prefill", prefill, *WORDS[4:]]) == 2
        assert reason in capsys.readouterr().err
    assert (kernels.ran, list(tmp_path.iterdir())) == ([], [])


def test_shapes_that_did_not_fit_are_named_before_what_their_lack_means(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Small(FakeKernels):
        def prefill_ms(self, computed: int, prefix: int, mode: str) -> Any:
            if computed > 64:
                raise OutOfMemory(f"not enough memory for {computed} tokens")
            return super().prefill_ms(computed, prefix, mode)

    use(Small(), tmp_path, monkeypatch)
    assert run(WORDS) == 2
    *told, error = capsys.readouterr().err.splitlines()
    assert sorted(told) == [f"left out: not enough memory for {n} tokens" for n in (128, 160, 96)]
    assert "3 of the shapes did not fit in memory, and of those that did 3 prefill rows: a fit needs" in error
    assert "measure more" not in error


@pytest.mark.parametrize(
    ("vram", "tokens"), [("64Ktok", 64_000), ("4096", 4096), ("2048kB", 1000)]
)  # a token of tiny-llama's KVCache takes 2048 bytes
def test_vram_is_written_as_a_replay_writes_it(
    vram: str, tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(FakeKernels(), tmp_path, monkeypatch)
    assert run([*WORDS, "-q", "--vram", vram]) == 0
    assert load_node("live.toml").costs["tiny-llama"].vram_tokens == tokens


# ---- real kernels on a CPU

TRIES, PASSES, BOUND, NOISE = 3, 3, 0.15, 0.1
FITTED = Grid(
    prefill=((16, 0), (32, 0), (64, 0), (96, 0), (128, 0), (16, 128), (64, 128), (128, 128)),
    decode=((1, 64), (2, 64), (4, 64), (8, 64), (12, 64), (1, 320), (3, 320), (6, 320), (12, 320), (16, 160)),
)
FRESH = Grid(
    prefill=((24, 0), (48, 0), (80, 0), (112, 0), (40, 96), (100, 64)),
    decode=((2, 160), (5, 64), (10, 96), (1, 192), (8, 250), (14, 128)),
)


@pytest.fixture
def own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, and time as this process spends it: what else runs on the machine counts less."""
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'mooncake-bench[live]'")
    from mooncake_bench.live import timing

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(timing, "perf_counter_ns", time.process_time_ns)
    yield
    torch.set_num_threads(threads)


def one_try(folder: Path) -> tuple[float, float]:
    """Median relative error of predictions for shapes that were not fitted, and how far several measurements of the
    same shape are apart in the median.

    Each shape is measured in several passes and its middle time counts: on a machine that others use, the speed changes
    from one second to the next.
    """
    model, settings = load_model("tiny-llama"), LiveSettings(device="cpu", repeat=3)
    assert model.shape is not None
    bench = TorchBench(settings)
    kernels, key = bench.kernels(model.shape, 1), rows_key(bench, model.shape, 1, settings)
    shapes = Grid(FITTED.prefill + FRESH.prefill, FITTED.decode + FRESH.decode)
    passes = [RowsFile(folder / f"{number}.csv", key) for number in range(PASSES)]
    for each in passes:
        measure(shapes, lambda: kernels, each, lambda *_: None)
    times = {shape: sorted(each.rows[shape].measurement.ms for each in passes) for shape in shapes.shapes}
    known = RowsFile(folder / "node.rows.csv", key)
    for shape in FITTED.shapes:
        row = passes[0].rows[shape]
        known.add(replace(row, measurement=replace(row.measurement, ms=times[shape][1])))
    prefills, steps = (
        ",".join(f"{a}{sign}{b}" for a, b in one) for one, sign in ((FITTED.prefill, "+"), (FITTED.decode, "x"))
    )
    words = ["calibrate", "live", "--device", "cpu", "--repeat", "3", "--prefill", prefills, "--decode", steps, "-q"]
    assert run([*words, "-o", str(folder / "node.toml")]) == 0  # every row is there: it fits
    cost = build_cost([str(folder / "node.toml")], "tiny-llama", "none")

    def predicted(phase: str, first: int, second: int) -> float:
        if phase == "prefill":
            return cost.prefill_ps(0, first, second) / 1e9
        return (cost.decode_ps(0, first) + cost.token_ps(0) * first * second) / 1e9

    errors = [abs(predicted(*shape) / times[shape][1] - 1) for shape in FRESH.shapes]
    apart = [(times[shape][-1] - times[shape][0]) / times[shape][1] for shape in FRESH.shapes]
    return float(np.median(errors)), float(np.median(apart))


@pytest.mark.live
@pytest.mark.usefixtures("own_clock")
def test_a_calibration_predicts_fresh_measurements_within_15_percent(tmp_path: Path) -> None:
    tries = []
    for number in range(TRIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        error, apart = one_try(folder)
        tries.append(f"off by {error:.1%}, measurements {apart:.1%} apart")
        if error <= BOUND:
            return
        assert apart > NOISE, f"{tries[-1]}: the machine is quiet, so the fit is bad"
    pytest.fail(f"inconclusive {TRIES} times, the machine is too noisy: {'; '.join(tries)}")


@pytest.mark.live
def test_calibrate_live_writes_a_preset_that_a_replay_takes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'mooncake-bench[live]'")
    monkeypatch.chdir(tmp_path)
    shapes = ["--prefill", "16,32,48,64,16+64,64+64", "--decode", "1x64,2x64,4x64,1x128,2x128,4x128"]
    words = ["calibrate", "live", "--device", "cpu", "--repeat", "3", *shapes, "--format", "json"]
    assert run(words) == 0
    shown = capsys.readouterr()
    assert [(row["phase"], row["rows"], row["median"]) for row in json.loads(shown.out)] == [
        ("prefill", 6, None),
        ("decode", 6, None),
    ]
    assert re.search(r"measured on cpu: .* in float32 .*: 12 shapes, 3 rounds each", shown.err)
    costs = load_node("live.toml").costs["tiny-llama"]
    assert costs.status == "measured"
    before = Path("live.toml").read_text(encoding="utf-8")
    assert run([*words, "--force"]) == 0  # all rows are there: no kernel runs, the same text is written
    assert Path("live.toml").read_text(encoding="utf-8") == before
