"""Wrong use: one line on stderr that names the option, nothing on stdout, exit 2."""

from __future__ import annotations

import csv
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mooncake_bench.cli.app import run
from mooncake_bench.cli.line import join_spaced_slos
from mooncake_bench.cli.scenario import FIRST_RUN
from mooncake_bench.sim.setup import Setup

TRACE = "conversation-like"


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a wrong command line gets."""
    assert run(list(words)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert "Traceback" not in shown.err
    return shown.err


def resolved(capsys: pytest.CaptureFixture[str], *words: str) -> Setup:
    """The setup that a command line resolves to, read back from ``--dry-run``."""
    assert run(["replay", *words, "--dry-run"]) == 0
    values = tomllib.loads(capsys.readouterr().out)
    values["trace"].pop("path")
    return Setup.from_dict(values)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["replay", "--sped", "2"], "--speedup"),
        (["replya"], "replay"),
        (["replay", "no-such-trace.jsonl"], "no such file"),
        (["replay", "conversation-lik"], "did you mean 'conversation-like'"),
        (["replay", TRACE, "--cluster", "8P+4M"], "mixes coupled instances"),
        (["replay", TRACE, "--speedup", "0"], "speedup: must be"),
        (["replay", TRACE, "--speedup", "fast"], "speedup: expected a number"),
        (["replay", TRACE, "--slo", "ttft"], "lacks its value"),
        (["replay", TRACE, "--slo", "tfft:3s"], "did you mean 'ttft'"),
        (["replay", TRACE, "--slo", "ttft:3s", "--slo", "ttft:4s"], "given twice"),
        (["replay", TRACE, "--pool", "3Mtoks"], "expected a size such as"),
        (["replay", TRACE, "--pool", "1kB"], "hold less than one block"),
        (["replay", TRACE, "--pool", "2.5"], "whole blocks"),
        (["replay", TRACE, "--nic", "fast"], "expected a rate such as"),
        (["replay", TRACE, "--view", "delayed"], "delayed:<ms>"),
        (["replay", TRACE, "--first-gap", "maybe"], "include, exclude"),
        (["replay", TRACE, "--model", "lama-3-70b"], "did you mean 'llama-3-70b'"),
        (["replay", TRACE, "--node", "a80"], "did you mean"),
        (["replay", TRACE, "--engine", "vllm"], "engine"),
        (["replay", TRACE, "-p", "predictiv"], "did you mean 'predictive'"),
        (["replay", TRACE, "--format", "jsn"], "did you mean 'json'"),
        (["replay", TRACE, "--set", "slo.tfft_ms=3"], "did you mean 'slo.ttft_ms'"),
        (["replay", TRACE, "--set", "slo.ttft_ms"], "expected key=value"),
        (["replay", TRACE, "--set", "seed=1", "--set", "seed=2"], "given twice"),
        (["replay", TRACE, "--config", "absent.toml"], "cannot be read"),
        (["replay", TRACE, "--start", "900h"], "0 requests"),
        (["replay", TRACE, "--max-requests", "0"], "at least 1"),
        (["compare", "@last:2", "--out", "nowhere"], "no runs"),
        (["policies", "show", "predictiv"], "did you mean 'predictive'"),
        (["policies", "new", "rooter", "mine"], "did you mean 'router'"),
        (["traces", "info", "absent.jsonl"], "no such file"),
    ],
    ids=" ".join,
)
def test_wrong_use_gets_one_line_that_says_how_to_fix_it(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert reason in refused(capsys, *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--node", "h800", "--cluster", "4P@a800+4D@a100"], "--node: no effect"),
        (["--run-dir", "here", "-p", "lru", "-p", "lfu"], "--run-dir: holds one run"),
        (["--run-dir", "here", "--out", "there"], "--out: no effect"),
        (["-q", "-v"], "contradict"),
        (["--dry-run", "--profile", "file"], "--profile: no effect with --dry-run"),
        (["--dry-run", "--format", "json"], "--format: no effect with --dry-run"),
        (["--dry-run", "--name", "fig5"], "--name: no effect with --dry-run"),
        (["--set", "speedup=2", "--speedup", "3"], "--set speedup: no effect beside --speedup"),
        (["--set", "slo.ttft_ms=2", "--slo", "ttft:3"], "--set slo.ttft_ms: no effect beside --slo"),
        (["--policy-dir", "..", "-p", "lru"], "--policy-dir ..: no effect"),
        (["--warmup", "2h"], "leaves 0 requests"),
        (["-p", "lru", "-p", "lru"], "given twice; label them, as in a=lru and b=lru"),
        (["-p", "a=lru", "-p", "a=random+fifo"], "given twice; label them, as in a=lru and b=random+fifo"),
    ],
    ids=lambda item: " ".join(item) if isinstance(item, list) else "",
)
def test_an_option_without_effect_is_refused(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert reason in refused(capsys, "replay", TRACE, *words)
    assert list(tmp_path.iterdir()) == []


def test_a_seed_that_nothing_draws_from_is_a_notice(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", TRACE, "--seed", "3", "-p", "kvcache-centric", "--dry-run"]) == 0
    assert "--seed has no effect here" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["policies", "new", "router", "kvcache-centric"]])
def test_a_new_policy_needs_a_name_of_its_own(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "'kvcache-centric' is taken by kvcache_centric.py" in refused(capsys, *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("row", "hint"),
    [
        ('{"Timestamp": 0, "Input_Length": 3, "OUTPUT_LENGTH": 2, "hash-ids": [7]}', "'Timestamp' to 'timestamp'"),
        (
            '{"arrival_ms": 0, "isl": 3, "osl": 2, "block_ids": [7]}',
            "'isl' to 'input_length', 'osl' to 'output_length'",
        ),
        ('{"when": 0, "asked": 3}', "its keys have other names: expected timestamp, input_length"),
    ],
)
def test_keys_of_other_names_are_told_what_to_be_called(
    row: str, hint: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(row + "\n")
    assert hint in refused(capsys, "replay", str(path))


def test_a_bundled_trace_is_called_by_its_name_in_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert "bundled trace 'conversation-like'" in refused(capsys, "traces", "info", TRACE, "--block-size", "16")


def test_csv_facts_of_a_trace_are_plain_keys_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["traces", "info", TRACE, "--format", "csv"]) == 0
    rows = dict(csv.reader(capsys.readouterr().out.splitlines()))
    assert (rows["requests"], rows["block_tokens"], rows["key"]) == ("12031", "512", "value")
    assert float(rows["input_tokens.p50"]) < float(rows["input_tokens.max"])


def test_a_dry_run_prints_every_default_and_reads_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert resolved(capsys, TRACE) == Setup()


def test_flags_sizes_and_slos_reach_the_setup(capsys: pytest.CaptureFixture[str]) -> None:
    setup = resolved(
        capsys, TRACE, "--cluster", "2P+3D", "--pool", "3Mtok", "--nic", "800Gbps", "--slo", "ttft:10s,tbt:35ms",
        "--speedup", "3", "--start", "1min", "--warmup", "250us", "-p", "mine=predictive:td=12s",
    )  # fmt: skip
    # 3,000,000 tokens / 512 = 5859.375 -> 5859 whole blocks; 800 Gbps / 8 = 100 GB/s
    assert (setup.cluster, setup.pool_blocks, setup.nic_gbytes_per_s) == ("2P+3D", 5859, 100.0)
    assert (setup.slo_ttft_ms, setup.slo_tbt_ms, setup.speedup) == (10_000.0, 35.0, 3.0)
    assert (setup.start_ms, setup.warmup_ms, setup.policy) == (60_000.0, 0.25, "mine=predictive:td=12s")


def test_a_size_in_bytes_counts_the_models_kv(capsys: pytest.CaptureFixture[str]) -> None:
    # Llama-3-70B: 80 layers x 8 KV heads x 128 x 2 (K, V) x 2 bytes = 327,680 bytes a token
    # 1 TB / 327,680 = 3,051,757.8 tokens / 512 = 5,960.46 blocks; 64 GiB / 327,680 = 209,715.2 tokens
    setup = resolved(capsys, TRACE, "--pool", "1TB", "--vram", "64GiB")
    assert (setup.pool_blocks, setup.vram_tokens) == (5960, 209_715)


@pytest.mark.parametrize(
    "words", [["ttft:3000", "tbt:50"], ["ttft:3000 tbt:50"], ["ttft:3s,tbt:50ms"], ["ttft:3s", "--slo", "tbt:50"]]
)
def test_slos_are_read_in_vllms_spaced_form_too(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    setup = resolved(capsys, TRACE, "--slo", *words)
    assert (setup.slo_ttft_ms, setup.slo_tbt_ms) == (3000.0, 50.0)


def test_only_words_that_look_like_slos_are_joined() -> None:
    assert join_spaced_slos(["replay", "--slo", "ttft:3", "tbt:5", "trace.jsonl"]) == [
        "replay", "--slo", "ttft:3,tbt:5", "trace.jsonl",
    ]  # fmt: skip


def test_config_then_set_then_flags_win(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text('speedup = 2\ncluster = "2P+2D"\nslo.ttft_ms = "10s"\n[trace]\npath = "conversation-like"\n')
    setup = resolved(capsys, "--config", str(config), "--set", "slo.ttft_ms=20s", "--speedup", "4")
    assert (setup.speedup, setup.cluster, setup.slo_ttft_ms) == (4.0, "2P+2D", 20_000.0)


def test_what_a_dry_run_prints_is_a_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["replay", TRACE, "--speedup", "3", "-p", "early", "-p", "predictive", "--dry-run"]
    assert run(words) == 0
    printed = capsys.readouterr().out
    (tmp_path / "run.toml").write_text(printed, encoding="utf-8")
    assert run(["replay", "--config", str(tmp_path / "run.toml"), "--dry-run"]) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("spedup = 2", "no setting 'spedup'; did you mean 'speedup'"),
        ("speedup = ", "not TOML"),
        ("speedup = true", "speedup: expected a number"),
        ("policy = 3", "policy: expected a SPEC"),
        ("trace.path = 3", "trace.path: expected text"),
    ],
)
def test_a_faulty_config_names_file_and_key(
    text: str, reason: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "run.toml"
    config.write_text(text)
    assert reason in refused(capsys, "replay", TRACE, "--config", str(config))


def test_without_a_trace_the_first_run_scenario_says_what_it_chose(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "-p", "predictive", "--dry-run"]) == 0
    shown = capsys.readouterr()
    values = tomllib.loads(shown.out)
    assert values["trace"]["path"] == FIRST_RUN.trace
    assert values["speedup"] == FIRST_RUN.values["speedup"]
    assert FIRST_RUN.trace in shown.err
    assert "--speedup" in shown.err


def test_a_value_given_beside_the_scenario_wins_and_is_not_announced(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "--speedup", "1.25", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert tomllib.loads(shown.out)["speedup"] == 1.25
    assert "--speedup" not in shown.err


def test_a_group_without_a_command_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["policies"], ["traces"], ["metrics"]):
        assert run(words) == 2
        assert "Usage: mooncake-bench" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    from mooncake_bench import __version__

    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"mooncake-bench {__version__}\n"


def test_an_error_has_no_traceback_in_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "mooncake_bench", "replay", "absent.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
