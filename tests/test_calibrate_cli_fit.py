"""``calibrate fit`` at the command line: the answer, the files, and what is refused."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING

import pytest

from mooncake_bench.cli.app import run
from mooncake_bench.hardware.calibrate import fitting
from mooncake_bench.hardware.presets import load_node

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "phase,n,prefix,batch,context,ms\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table of 0.1 ms a token + 20 ms, and 10 ms + 0.05 ms a sequence + 1e-5 ms a context token."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(fitting, "HALVES", 3)  # what the errors are is of no interest here
    lines = [f"prefill,{n},{p},,,{20 + 0.1 * n + 1e-6 * (n * p + n * n / 2)}" for n in (16, 256, 1024, 8192, 30000)
             for p in (0, 1000, 9000)]  # fmt: skip
    lines += [f"decode,,,{b},{c},{10 + 0.05 * b + 1e-5 * b * c}" for b in (1, 4, 16, 64, 256) for c in (100, 900, 5000)]
    (tmp_path / "rows.csv").write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["calibrate", "fit", *words]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    return shown.err


def test_a_table_becomes_a_preset_that_a_replay_reads(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", "fit", "rows.csv", "-o", "mine.toml", "--gpus", "4", "--vram-tokens", "500000"]) == 0
    shown = capsys.readouterr()
    assert "ms per computed token" in shown.out
    assert "use it with --node mine.toml" in shown.err
    node = load_node("mine.toml")
    costs = node.costs["llama-3-70b"]
    assert (node.gpus, costs.vram_tokens, costs.status) == (4, 500_000, "measured")
    assert costs.coefficients.prefill_token_ms == pytest.approx(0.1, rel=0.01)
    assert costs.coefficients.decode_token_ms == pytest.approx(1e-5, rel=0.01)
    assert (costs.prefill_heldout and costs.prefill_heldout.rows) == 15
    assert run(["replay", "conversation-like", "--node", "mine.toml", "--max-requests", "20", "-p", "random"]) == 0
    assert "fitted times are off by" in " ".join(capsys.readouterr().out.split())


def test_json_and_csv_carry_errors_and_counts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", "fit", "rows.csv", "--where", "phase=decode", "--format", "json"]) == 0
    (fit,) = json.loads(capsys.readouterr().out)["fits"]
    assert (fit["phase"], fit["rows"]) == ("decode", 15)
    assert fit["heldout_percent"]["median"] < 1
    assert run(["calibrate", "fit", "rows.csv", "--where", "phase=decode", "--format", "csv"]) == 0
    rows = {row["name"]: row for row in csv.DictReader(capsys.readouterr().out.splitlines())}
    assert rows["heldout_p90"]["unit"] == "%"
    assert float(rows["token_ms"]["value"]) == pytest.approx(1e-5, rel=0.01)


def test_a_row_that_is_far_off_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (folder / "rows.csv").open("a") as file:
        file.write("decode,,,64,901,50\n")  # 10 + 3.2 + 0.58 = 13.8 ms would fit: 13.8 / 50 - 1 = -72 %
    assert run(["calibrate", "fit", "rows.csv", "--where", "phase=decode"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "decode: 1 of 16 rows are missed by more than 20 %: batch=64, tokens=57664 -7" in text


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "FILE is missing"),
        (["absent.csv"], "absent.csv: cannot be read"),
        (["rows.csv", "--where", "hw=a100"], "has no column 'hw'"),
        (["rows.csv", "--name", "x"], "--name: no effect without -o"),
        (["rows.csv", "--base", "a10"], "did you mean 'a100'"),
        (["rows.csv", "--force"], "--force: no effect without -o or --plot"),
        (["rows.csv", "-o", "mine.txt"], "expected a name ending in .toml"),
        (["rows.csv", "-o", "mine.toml", "--status", "measurd"], "did you mean 'measured'"),
        (["rows.csv", "-o", "mine.toml", "--gpus", "0"], "--gpus: must be at least 1"),
        (["rows.csv", "-o", "mine.toml", "--base", "a10"], "did you mean 'a100'"),
        (["rows.csv", "--where", "phase=prefill", "--root"], "--root: no effect, for the files hold no decode"),
        (["rows.csv", "--plot", "picture.gif"], "expected a file name that ends in"),
        (["rows.csv", "--engine", "none"], "--engine: no effect without --served"),
        (["rows.csv", "--example", "more.csv"], "FILE: no effect with --example"),
        (["--served", "log.json", "--root"], "--root: no effect with --served"),
        (["rows.csv", "--seed", "-1"], "--seed: must be at least 0"),
    ],
    ids=lambda item: " ".join(item) if isinstance(item, list) else "",
)
def test_wrong_use_is_one_line_and_leaves_nothing(
    words: list[str], reason: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reason in refused(capsys, *words)
    assert [path.name for path in folder.iterdir()] == ["rows.csv"]


@pytest.mark.parametrize("words", [[], ["-o", "mine.toml"]], ids=["no preset", "a preset"])
def test_a_table_in_seconds_is_doubted(words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Decode steps of 10 ms and more, written in seconds: a thousandth, where a100 needs 19 ms and more for 70B
    lines = (folder / "rows.csv").read_text().splitlines()
    steps = [(*line.split(",")[:-1], str(float(line.split(",")[-1]) / 1000)) for line in lines if "decode" in line]
    (folder / "seconds.csv").write_text(HEADER + "\n".join(map(",".join, steps)) + "\n", encoding="utf-8")
    assert run(["calibrate", "fit", "seconds.csv", *words]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "known of llama-3-70b on a100: does the column ms hold milliseconds?" in text
    assert run(["calibrate", "fit", "seconds.csv", "--format", "csv"]) == 0
    assert "hold milliseconds?" in capsys.readouterr().err  # a CSV answer has no place for it
    assert run(["calibrate", "fit", "rows.csv", "--where", "phase=decode"]) == 0
    assert "hold milliseconds?" not in " ".join(capsys.readouterr().out.split())


def test_a_model_of_which_the_base_knows_nothing_is_predicted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Two layers of 32 heads, 8 of them for KV, of 128 values, two bytes each: 8 KiB a token
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    words = [
        "calibrate",
        "fit",
        "rows.csv",
        "--model",
        "config.json",
        "--base",
        "h200",
        "--gpus",
        "1",
        "-o",
        "own.toml",
    ]
    assert run(words) == 0
    capsys.readouterr()
    node = load_node("own.toml")
    (costs,) = node.costs.values()
    # 0.9 of 141 GB, less 0.7 billion weights of two bytes
    weights = 2 * (2 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 2 * 32000 * 4096)
    assert node.gpus == 1
    assert costs.vram_tokens == pytest.approx((0.9 * 141e9 - weights) / 8192, rel=0.03)


def test_an_example_table_is_fitted_and_says_what_it_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", "fit", "--example", "some.csv", "--base", "h100"]) == 0
    assert "not measurements" in capsys.readouterr().out
    assert "not measurements" in (folder / "some.csv").read_text().splitlines()[0]
    assert run(["calibrate", "fit", "some.csv", "--where", "phase=decode", "--root", "--format", "json"]) == 0
    for fit in json.loads(capsys.readouterr().out)["fits"]:
        assert fit["in_sample_percent"]["worst"] < 1
    assert "some.csv' exists" in refused(capsys, "--example", "some.csv").replace("some.csv exists", "some.csv' exists")
