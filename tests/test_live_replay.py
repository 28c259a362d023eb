"""replay --cost live: what is refused, and ten requests on a CPU beside the analytic model."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import rich.console
import rich.progress
from live_fakes import NODE, FakeBench, FakeKernels

import mooncake_bench
from mooncake_bench.cli.app import run
from mooncake_bench.cli.progress import Bar
from mooncake_bench.errors import SetupError
from mooncake_bench.live.bench import LiveSettings
from mooncake_bench.live.cost import build_live_cost
from mooncake_bench.live.device import OutOfMemory
from mooncake_bench.sim.replay import run as simulate
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import load

TRACE = "conversation-like"


@pytest.mark.parametrize(
    "words",
    [["--live-repeat", "5"], ["--live-device", "cpu"], ["--set", "live.dtype=float32"], ["--live-layers", "1,2,4"],
     ["--live-cache", "here", "--cost", "analytic"]],
    ids=" ".join,
)  # fmt: skip
def test_a_live_setting_without_live_costs_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["replay", TRACE, *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert "no effect without --cost live" in shown.err


def test_a_live_setting_without_live_costs_is_refused_in_python_too() -> None:
    with pytest.raises(SetupError, match="live_repeat: no effect without cost='live'"):
        mooncake_bench.replay(TRACE, live_repeat=3, max_requests=1)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"cost": "real"}, "cost: expected one of analytic, live"),
        ({"cost": "live", "live_repeat": 0}, "live.repeat: must be at least 1"),
        ({"cost": "live", "live_dtype": "float8"}, "live.dtype: expected one of auto, float32, bfloat16, float16"),
        ({"cost": "live", "live_layers": "4,2,1"}, "three or more rising numbers of layers such as 1,2,4"),
        ({"cost": "live", "live_layers": "1,2,x"}, "three or more rising numbers"),
        ({"cost": "live", "live_layers": "0,1,2"}, "three or more rising numbers"),
    ],
)
def test_a_bad_live_setting_says_what_is_expected(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(SetupError, match=reason):
        Setup(**values)


def test_live_settings_stand_in_a_setup_only_where_they_have_an_effect() -> None:
    assert not [key for key in Setup().to_dict() if key.startswith("live.")]
    live = Setup(cost="live", live_layers=" 1, 2,8")
    assert [key for key in live.to_dict() if key.startswith("live.")] == [
        "live.repeat", "live.device", "live.dtype", "live.layers", "live.cache"
    ]  # fmt: skip
    assert Setup.from_dict(live.to_dict()) == live
    assert live.live_depths == (1, 2, 8)
    assert Setup(cost="live").live_depths is None


def test_without_torch_a_live_replay_is_one_line_that_says_what_to_install(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(["replay", TRACE, "--cost", "live", "--model", "tiny-llama", "--node", "local"]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert "pip install 'mooncake-bench[live]'" in shown.err
    assert list(tmp_path.iterdir()) == []


def test_without_torch_a_dry_run_prints_the_setup_and_still_looks_at_the_presets(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    words = ["replay", TRACE, "--cost", "live", "--dry-run", "--node", "local", "--model"]
    assert run([*words, "tiny-llama"]) == 0
    shown = capsys.readouterr()
    assert 'cost = "live"' in shown.out
    assert "torch is not here, so no device was tried" in shown.err
    for model, reason in (("tiny-lama", "did you mean 'tiny-llama'"), ("deepseek-v3", "has a mixture of experts")):
        assert run([*words, model]) == 2
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1)
        assert reason in shown.err


def test_a_shape_without_memory_is_not_blamed_on_the_policy_that_asked(tmp_path: Path) -> None:
    class Small(FakeKernels):
        def prefill_ms(self, computed: int, prefix: int, mode: str) -> Any:
            raise OutOfMemory(f"not enough memory for {computed} tokens")

    (tmp_path / "node.toml").write_text(NODE.format(gpus=1), encoding="utf-8")
    nodes, settings = [str(tmp_path / "node.toml")] * 2, LiveSettings(cache=str(tmp_path / "cache"))
    cost = build_live_cost(
        nodes, "tiny-llama", "none", 9000, settings=settings, open_kernels=lambda settings: FakeBench(settings, Small())
    )
    with pytest.raises(SetupError, match=r"^not enough memory for 2048 tokens$"):
        simulate(load(TRACE), Setup(cluster="1P+1D", max_requests=3), cost=cost)


# ---- on a CPU

LENGTHS = [(60, 4), (40, 1), (90, 6), (100, 3), (16, 9), (75, 2), (60, 5), (90, 2), (33, 3), (100, 7)]
PRESET = """
description = "made up"
gpus = 1
pool_tokens = 780_000
pool_source = "made up"
nic_gbytes_per_s = 12.5
nic_status = "assumed"
nic_source = "made up"
[costs.tiny-llama]
status = "assumed"
source = "made up"
error = "invented"
vram_tokens = 2000
prefill = { floor_ms = 3, token_ms = 0.1, constant_ms = 2, token2_ms = 1e-4 }
decode = { floor_ms = 3, roof_ms = 0, sequence_ms = 0.3, token_ms = 5e-4 }
"""


def ten_requests(folder: Path) -> str:
    rows = [
        {"timestamp": 5 * i, "input_length": n, "output_length": out, "hash_ids": [n]}
        for i, (n, out) in enumerate(LENGTHS)
    ]
    (folder / "ten.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return "ten.jsonl"


def keys(value: Any) -> Any:
    """The shape of a JSON answer: its keys, whatever the numbers."""
    return {key: keys(item) for key, item in value.items()} if isinstance(value, dict) else None


def test_a_run_counts_the_gpus_of_its_nodes_and_compare_tells_cost_models_apart(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.toml").write_text(PRESET, encoding="utf-8")
    Path("two.toml").write_text(PRESET.replace("gpus = 1", "gpus = 2").replace("invented", "guessed"), encoding="utf-8")
    common = ["replay", ten_requests(tmp_path), "--model", "tiny-llama", "--engine", "none", "--run-dir"]
    for folder, cluster in (("alike", "2P@one.toml+1D@one.toml"), ("mixed", "2P@one.toml+1D@two.toml")):
        assert run([*common, folder, "--cluster", cluster]) == 0
    assert run(["compare", "alike", "mixed"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "(1 GPU each): tiny-llama on one.toml" in shown
    assert "(4 GPUs in all): tiny-llama on one.toml and two.toml" in shown  # 2 x 1 + 1 x 2
    assert "has another cost model: analytic: tiny-llama on 2 x one.toml + 1 x two.toml" in shown
    assert "two.toml assumed, not measured: guessed" in shown
    clusters = [
        json.loads(Path(folder, "run.json").read_text(encoding="utf-8"))["cluster"] for folder in ("alike", "mixed")
    ]
    assert [(one["gpus"], one["gpus_per_instance"]) for one in clusters] == [(3, 1), (4, None)]


@pytest.mark.live
def test_ten_requests_have_the_same_report_by_either_cost_and_compare_shows_both(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'mooncake-bench[live]'")
    monkeypatch.chdir(tmp_path)
    Path("made_up.toml").write_text(PRESET, encoding="utf-8")
    common = ["replay", ten_requests(tmp_path), "--model", "tiny-llama", "--engine", "none", "--cluster", "2P+1D",
              "--vram", "2000", "--format", "json"]  # fmt: skip
    live = ["--cost", "live", "--live-device", "cpu", "--live-repeat", "3", "--live-cache", "cache", "--node", "local"]

    notes: list[list[tuple[str, str]]] = []

    def answered(*words: str) -> dict[str, Any]:
        assert run([*common, *words]) == 0
        shown = capsys.readouterr()
        notes.append(re.findall(r"^live: (\d+) shapes measured in \d+ s, (\d+) from earlier", shown.err, re.MULTILINE))
        answer: dict[str, Any] = json.loads(shown.out)
        return answer

    analytic, first = answered("--node", "made_up.toml", "--run-dir", "analytic"), answered(*live, "--run-dir", "live")
    assert keys(first["runs"][0]["metrics"]) == keys(analytic["runs"][0]["metrics"])
    assert set(first) == set(analytic)
    assert set(first["runs"][0]) == set(analytic["runs"][0])
    assert first["runs"][0]["counts"]["completed"] == 10
    cost = first["runs"][0]["cost"]
    assert cost["name"] == "live: tiny-llama at 3 x tensor parallelism 1, engine none"
    assert cost["error"].startswith("live: measured on cpu: ")

    (file,) = Path("cache").iterdir()
    before = file.read_bytes()
    forbid_kernels(monkeypatch)
    second = answered(*live, "--run-dir", "again")
    assert file.read_bytes() == before
    assert second["runs"][0]["cost"] == cost
    shapes = str(len(json.loads(before)["measurements"]))
    assert notes == [[], [(shapes, "0")], [("0", shapes)]]
    assert manifest("live")["content_sha256"] == manifest("again")["content_sha256"]

    assert run(["compare", "analytic", "live"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "cost analytic: tiny-llama on 3 x made_up.toml" in shown
    assert "error: assumed, not measured: invented" in shown
    assert "has another cost model: live: tiny-llama at 3 x tensor parallelism 1" in shown
    assert "error: measured on cpu: " in shown
    assert "cost differs between the runs: analytic, live" in shown


def forbid_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    from mooncake_bench.live import timing

    def build(*_: Any, **__: Any) -> None:
        raise AssertionError("every time is on the disk")

    monkeypatch.setattr(timing, "Kernels", build)


def manifest(folder: str) -> Any:
    return json.loads((Path(folder) / "run.json").read_text(encoding="utf-8"))


def test_the_bar_says_what_is_measured_and_then_its_label_again() -> None:
    bar = rich.progress.Progress(console=rich.console.Console(file=io.StringIO()))
    progress = Bar(bar, "cache-aware", "requests")
    progress.say("live: measuring")
    assert bar.tasks[0].description == "live: measuring"
    progress(3, 10, 0.0)
    progress.say(None)
    assert (bar.tasks[0].description, bar.tasks[0].completed, bar.tasks[0].total) == ("cache-aware", 3, 10)


def test_ctrl_c_while_kernels_run_exits_130_and_keeps_what_was_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(FakeKernels):
        def _timing(self, *arguments: Any) -> Any:
            if len(self.ran) == 5:
                raise KeyboardInterrupt
            return super()._timing(*arguments)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mooncake_bench.live.cost.TorchBench", lambda settings: FakeBench(settings, Stopped()))
    words = ["--cost", "live", "--live-cache", "cache", "--model", "tiny-llama", "--engine", "none", "--node", "local"]
    assert run(["replay", ten_requests(tmp_path), *words, "--cluster", "1P+1D", "--vram", "2000"]) == 130
    assert "live: 6 shapes measured" not in capsys.readouterr().err  # the sixth was not finished
    (file,) = Path("cache").iterdir()
    assert len(json.loads(file.read_text(encoding="utf-8"))["measurements"]) == 5


@pytest.mark.live
def test_a_prompt_beyond_the_memory_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'mooncake-bench[live]'")
    from mooncake_bench.live import decode, prefill

    monkeypatch.chdir(tmp_path)
    for module in (decode, prefill):

        def no_memory(needed: int, free: int, what: str, where: str, real: Any = module.require_memory) -> None:
            real(needed, 0, what, where)

        monkeypatch.setattr(module, "require_memory", no_memory)
    words = ["--cost", "live", "--live-device", "cpu", "--live-cache", "cache", "--model", "tiny-llama", "--node"]
    code = run(["replay", ten_requests(tmp_path), *words, "local", "--vram", "2000", "--run-dir", "out"])
    shown = capsys.readouterr()
    assert (code, shown.out, shown.err.count("\n")) == (2, "", 1)
    assert "not enough memory for" in shown.err
    assert not Path("out").exists()
