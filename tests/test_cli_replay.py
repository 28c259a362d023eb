"""`replay` and `compare` as a person meets them: what goes where, what is kept, and how they end."""

from __future__ import annotations

import csv
import io
import json
import os
import pstats
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mooncake_bench import compare, open_run, replay
from mooncake_bench.cli.app import run
from mooncake_bench.errors import ResultError, SetupError

SMALL = ["conversation-like", "--max-requests", "300"]
TOOL = [sys.executable, "-m", "mooncake_bench"]

TEN_LINES = """
from mooncake_bench.api import Route, Router

class ToTheFirst(Router):
    name = "to-the-first"

    def route(self, request, cluster):
        return Route(prefill=0)
"""
REJECTS_ALL = """
from mooncake_bench.api import Admission

class Nobody(Admission):
    name = "nobody"

    def reject(self, request, route, cluster):
        return "closed"
"""
SLOW = """
import pathlib, time
from mooncake_bench.api import Route, Router

class Slow(Router):
    name = "slow"

    def route(self, request, cluster):
        if request.row == 40:
            pathlib.Path("reached").touch()
        time.sleep(0.01)
        return Route(prefill=0)
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs in a folder of its own, outside the checkout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def policy_file(text: str) -> str:
    Path("mine.py").write_text(text, encoding="utf-8")
    return "mine.py"


def call(*words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*TOOL, *words], capture_output=True, env=os.environ | environment)


def answer_json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert run([*words, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(f"{word} is not strict JSON"))


# where things go


def test_the_answer_is_on_stdout_and_paths_are_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", *SMALL, "-p", "random", "-p", "kvcache-centric"]) == 0
    shown = capsys.readouterr()
    assert shown.out.index("offered") < shown.out.index("TTFT of completed")
    assert "run folder" not in shown.out
    assert [line for line in shown.err.splitlines() if line.startswith("run folder: ")] == [
        "run folder: results/1_conversation-like_random",
        "run folder: results/2_conversation-like_kvcache-centric",
    ]


def test_the_json_answer_names_the_run_folders(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer_json(capsys, "replay", *SMALL, "-p", "a=random", "-p", "lru", "--out", "there")
    assert [run["run_dir"] for run in found["runs"]] == ["there/1_conversation-like_a", "there/2_conversation-like_lru"]
    assert open_run(found["runs"][0]["run_dir"]).label == "a"


def test_csv_markdown_and_latex_are_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", *SMALL, "-q", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert next(row["value"] for row in rows if row["metric"] == "offered_requests") == "300"
    assert run(["compare", "@last", "--format", "markdown"]) == 0
    assert "\n| --- | ---: |" in capsys.readouterr().out
    assert run(["compare", "@last", "--format", "latex"]) == 0
    assert "\\toprule" in capsys.readouterr().out


def test_quiet_leaves_stderr_empty_and_verbose_tells_each_decision(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", *SMALL, "-q"]) == 0
    assert capsys.readouterr().err == ""
    assert run(["replay", *SMALL, "-v"]) == 0
    assert capsys.readouterr().err.count(" s  request ") == 300


def test_no_bar_without_a_terminal() -> None:
    done = call("replay", *SMALL)
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"\r" not in done.stderr


def test_a_terminal_shows_progress_and_no_color_is_heeded() -> None:
    ours, theirs = pty.openpty()
    environment = os.environ | {"NO_COLOR": "1", "TERM": "xterm"}
    words = [*TOOL, "replay", "conversation-like", "--max-requests", "2500", "-q"]
    shown = ""
    for flags in (words[:-1], words):
        process = subprocess.Popen(flags, stdout=subprocess.DEVNULL, stderr=theirs, env=environment)
        assert process.wait(timeout=60) == 0
        os.set_blocking(ours, False)
        text = ""
        while True:
            try:
                text += os.read(ours, 65536).decode(errors="replace")
            except BlockingIOError:
                break
        assert ("2500" in text) == (flags is not words)
        shown += text
    assert "\x1b[3" not in shown
    os.close(ours)
    os.close(theirs)


def test_a_terminal_that_knows_ascii_only_gets_ascii() -> None:
    done = call("replay", *SMALL, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert done.stderr.isascii()
    for listing in (["policies", "list"], ["metrics", "list"], ["traces", "list"]):
        assert call(*listing, PYTHONIOENCODING="ascii", PYTHONUTF8="0").stdout.isascii()


@pytest.mark.parametrize("locale", ["C", "POSIX", "en_US.ISO-8859-1"])
def test_another_locale_changes_neither_reading_nor_writing(locale: str) -> None:
    Path("tráce.jsonl").write_text(
        '{"timestamp": 0, "input_length": 3, "output_length": 2, "hash_ids": [7], "request_id": "naïve"}\n',
        encoding="utf-8",
    )
    done = call("replay", "tráce.jsonl", "--name", "né", LC_ALL=locale)
    assert done.returncode == 0, done.stderr
    (folder,) = Path("results").iterdir()
    stored = open_run(folder)
    assert stored.requests.column("request_id").to_pylist() == ["naïve"]
    assert (stored.manifest["name"], stored.manifest["trace"]["path"]) == ("né", "tráce.jsonl")


def test_a_locale_that_cannot_spell_an_argument_gets_one_line() -> None:
    done = call("replay", "tráce.jsonl", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"PYTHONUTF8=1" in done.stderr


def test_a_reader_that_leaves_early_causes_no_traceback() -> None:
    command = " ".join([*TOOL, "metrics", "list", "--format", "json", "|", "head", "-c", "1"])
    done = subprocess.run(command, shell=True, capture_output=True)
    assert b"Traceback" not in done.stderr


# what is kept


def test_the_same_command_writes_the_same_bytes_whatever_the_hash_seed() -> None:
    for seed in ("1", "2"):
        words = ["replay", *SMALL, "-p", "random", "--run-dir", f"run{seed}", "-q"]
        assert call(*words, PYTHONHASHSEED=seed).returncode == 0
    assert Path("run1/requests.parquet").read_bytes() == Path("run2/requests.parquet").read_bytes()


def test_an_existing_run_folder_is_never_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", *SMALL, "--run-dir", "here", "-q"]) == 0
    before = Path("here/run.json").read_bytes()
    assert run(["replay", *SMALL, "--run-dir", "here", "-q"]) == 2
    assert "never overwritten" in capsys.readouterr().err
    assert Path("here/run.json").read_bytes() == before


def test_from_repeats_a_stored_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", *SMALL, "-p", "random", "--seed", "3", "--pool", "1000", "-q"]) == 0
    assert run(["replay", "--from", "1", "-q"]) == 0
    first, second = (open_run(folder) for folder in sorted(Path("results").iterdir()))
    assert first.manifest["setup"] == second.manifest["setup"]
    assert first.manifest["content_sha256"] == second.manifest["content_sha256"]
    assert run(["replay", "--from", "1", "--seed", "4", "-q"]) == 0
    third = open_run("results/3_conversation-like_random")
    assert (third.manifest["setup"]["seed"], third.manifest["setup"]["pool.blocks"]) == (4, 1000)


def test_from_refuses_a_trace_that_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    row = '{{"timestamp": 0, "input_length": {}, "output_length": 2, "hash_ids": [7]}}\n'
    Path("mine.jsonl").write_text(row.format(3))
    assert run(["replay", "mine.jsonl", "-q"]) == 0
    Path("mine.jsonl").write_text(row.format(4))
    assert run(["replay", "--from", "@last", "-q"]) == 2
    assert "is not the trace of that run" in capsys.readouterr().err


def test_from_refuses_another_trace_and_takes_the_same_under_another_name(capsys: pytest.CaptureFixture[str]) -> None:
    row = '{{"timestamp": 0, "input_length": {}, "output_length": 2, "hash_ids": [7]}}\n'
    for name, tokens in (("mine", 3), ("same", 3), ("other", 4)):
        Path(f"{name}.jsonl").write_text(row.format(tokens) * 2)
    assert run(["replay", "mine.jsonl", "-q"]) == 0
    assert run(["replay", "same.jsonl", "--from", "1", "-q"]) == 0
    assert run(["replay", "same.jsonl", "--from", "1", "--max-requests", "1", "--timestamp-unit", "s", "-q"]) == 0
    assert run(["replay", "--from", "1", "--set", "trace.max_requests=1", "-q"]) == 0
    capsys.readouterr()
    for more in ([], ["--max-requests", "1"], ["--timestamp-unit", "s"]):
        assert run(["replay", "other.jsonl", "--from", "1", *more]) == 2
        refusal = capsys.readouterr().err
        assert "--from 1: 'other.jsonl' (sha256 " in refusal
        assert "is not the trace of that run, 'mine.jsonl' (sha256 " in refusal
        assert refusal.count("\n") == 1


def test_from_refuses_a_policy_whose_code_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", *SMALL, "-p", policy_file(TEN_LINES), "-q"]) == 0
    assert run(["replay", "--from", "1", "-q"]) == 0
    policy_file(TEN_LINES.replace("prefill=0", "prefill=1"))
    capsys.readouterr()
    assert run(["replay", "--from", "1", "-q"]) == 2
    assert "policy file mine.py is not what that run used" in capsys.readouterr().err
    assert run(["replay", "--from", "1", "-p", "mine.py", "-q"]) == 0


def test_out_beside_from_says_where_the_run_lies(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", *SMALL, "-o", "there", "-q"]) == 0
    assert run(["replay", "--from", "1", "-o", "there", "--dry-run"]) == 0
    assert run(["replay", "--from", "1", "-o", "there", "--run-dir", "again", "-q"]) == 0
    assert (
        open_run("again").manifest["setup"] == open_run("there/1_conversation-like_kvcache-centric").manifest["setup"]
    )


def test_a_folder_that_is_no_run_does_not_hide_the_latest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", *SMALL, "-q"]) == 0
    Path("results/7_notes").mkdir()
    assert run(["compare", "@last"]) == 0
    assert run(["replay", *SMALL, "-q"]) == 0
    assert Path("results/8_conversation-like_kvcache-centric").is_dir()


def test_a_name_groups_the_runs_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", *SMALL, "-p", "random", "-p", "round-robin", "--name", "fig5", "-q"]) == 0
    capsys.readouterr()
    assert [run["label"] for run in answer_json(capsys, "compare", "fig5")["runs"]] == ["random", "round-robin"]


def test_a_profile_is_readable_by_pstats(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", *SMALL, "--profile", "profile.out", "-q"]) == 0
    assert pstats.Stats("profile.out").total_calls > 1000


def test_ctrl_c_keeps_what_is_done_and_ends_with_130() -> None:
    policy_file(SLOW)
    process = subprocess.Popen(
        [*TOOL, "replay", "conversation-like", "-p", "mine.py", "-p", "kvcache-centric", "-p", "b=random+fifo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60
    while not Path("reached").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    shown, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert b"Traceback" not in errors
    assert b"interrupted" in shown
    assert b"\nnot run: kvcache-centric, b\n" in errors
    stored = open_run("results/1_conversation-like_slow")
    counts = stored.manifest["counts"]
    assert stored.manifest["status"] == "interrupted"
    assert 40 <= counts["offered"] < 12_031  # what had arrived
    assert counts["unfinished"] > 0
    assert sum(counts[word] for word in ("completed", "rejected", "failed", "unfinished")) == counts["offered"]
    assert pq.read_table("results/1_conversation-like_slow/requests.parquet").num_rows == 12_031


# how it ends


def test_no_completion_is_exit_3_and_still_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", *SMALL, "-p", policy_file(REJECTS_ALL)]) == 3
    shown = capsys.readouterr()
    assert "300 at arrival (closed)" in shown.out
    assert "nan" not in shown.out.lower()
    for fmt in ("json", "csv", "markdown", "latex", "table"):
        assert run(["compare", "@last", "--format", fmt]) == 3
        shown = capsys.readouterr()
        assert shown.out
        assert shown.err == (
            "mooncake-bench: no request completed in any of these runs, so there is nothing to compare\n"
        )
    assert run(["replay", *SMALL, "-q"]) == 0
    assert run(["compare", "@last:2"]) == 0  # one of them completed some


def test_a_strangers_ten_lines_run_from_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", *SMALL, "-p", f"{policy_file(TEN_LINES)}:ToTheFirst"]) == 0
    assert "to-the-first" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("body", "reasons"),
    [
        ("return Route(prefill=12)", ("to-the-first", "another role")),
        ("return Route(prefill=99)", ("to-the-first", "no instance")),
        ("return Route(prefill=0, fetch_from=1)", ("to-the-first", "fetch")),
        ("return Route(prefill=0, decode=0)", ("to-the-first", "another role")),
        ("return Route(prefill=0, ttft_ms=float('nan'))", ("to-the-first", "nan")),
        ("return 0", ("to-the-first", "return a Route")),
        ("return 1 / 0", ("to-the-first", "ZeroDivisionError")),
        ("cluster.is_prefill[0] = False", ("to-the-first", "read-only")),
        ("retrun 0", ("mine.py", "SyntaxError")),
    ],
)
def test_a_wrong_decision_or_a_broken_file_names_the_policy_and_the_reason(
    body: str, reasons: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    file = policy_file(TEN_LINES.replace("return Route(prefill=0)", body))
    assert run(["replay", *SMALL, "-p", file, "-q"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert all(reason in shown.err for reason in reasons), shown.err


def test_a_broken_file_is_found_before_the_first_replay(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", *SMALL, "-p", "lru", "-p", policy_file("import nothing_of_that_name")]) == 2
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--out", "taken"], "cannot write a run folder in 'taken'"),
        (["--run-dir", "taken"], "--run-dir taken: already exists"),
        (["--profile", "nowhere/p"], "--profile nowhere/p: cannot be written"),
    ],
)
def test_a_place_that_cannot_be_written_is_found_before_the_replay(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken").touch()
    file = policy_file(TEN_LINES.replace("        return", "        1 / 0\n        return"))
    assert run(["replay", *SMALL, "-p", file, *words]) == 2
    assert reason in capsys.readouterr().err


def test_what_a_policy_prints_does_not_reach_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        TEN_LINES.replace("    name", '    """Sends all to one."""\n\n    name').replace(
            "        return", "        print('deciding')\n        return"
        )
        + "\nprint('loading')\n"
    )
    file = policy_file(text)
    for words in (
        ["replay", *SMALL, "-p", file],
        ["policies", "check", file],
        ["policies", "list", "--policy-dir", "."],
    ):
        assert run([*words, "--format", "json"]) == 0
        shown = capsys.readouterr()
        json.loads(shown.out)
        assert "loading" in shown.err


def test_a_file_goes_by_its_policys_name_in_tables(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(Path(policy_file(TEN_LINES)).resolve())
    run_of = answer_json(capsys, "replay", *SMALL, "-p", f"{file}+lfu")["runs"][0]
    assert run_of["label"] == "to-the-first+lfu"
    assert open_run(run_of["run_dir"]).manifest["policy"]["spec"] == f"{file}+lfu"


@pytest.mark.parametrize(
    ("redirection", "code", "reason"),
    [
        (">&-", 2, b"stdout is closed"),
        (">/dev/full", 2, b"cannot be written to stdout"),
        ("2>&-", 0, b""),
        ("2>/dev/full", 0, b""),
    ],
)
def test_a_stream_that_takes_nothing_costs_no_run_and_shows_no_traceback(
    redirection: str, code: int, reason: bytes
) -> None:
    line = f"{sys.executable} -m mooncake_bench replay {' '.join(SMALL)} {redirection}"
    done = subprocess.run(["sh", "-c", line], capture_output=True)
    assert done.returncode == code, done.stderr
    assert reason in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    assert (Path("results/1_conversation-like_kvcache-centric") / "run.json").is_file()


@pytest.mark.parametrize("words", ["replay --help", "policies list"])
def test_a_full_disk_behind_stdout_is_one_line(words: str) -> None:
    done = subprocess.run(["sh", "-c", f"{sys.executable} -m mooncake_bench {words} >/dev/full"], capture_output=True)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1), done.stderr


def test_a_mixed_cluster_names_the_nodes_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", *SMALL, "--cluster", "4P@h800+8D@a100", "-q"]) == 0
    assert "llama-3-70b on h800 and a100" in " ".join(capsys.readouterr().out.split())


def test_policies_check_fails_a_faulty_file_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policies", "check", policy_file(TEN_LINES.replace("prefill=0", "prefill=12"))]) == 2
    assert "to-the-first" in capsys.readouterr().err


def test_a_broken_file_is_named_and_hides_no_other_policy(capsys: pytest.CaptureFixture[str]) -> None:
    policy_file("import nothing_of_that_name")
    Path("good.py").write_text(TEN_LINES, encoding="utf-8")
    assert run(["policies", "list", "--policy-dir", "."]) == 0
    shown = capsys.readouterr()
    assert "to-the-first" in shown.out
    assert "kvcache-centric" in shown.out
    assert "mine.py" in shown.err
    assert shown.err.count("\n") == 1


def test_policies_new_overwrites_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policies", "new", "router", "mine"]) == 0
    before = Path("mine.py").read_text()
    assert run(["policies", "new", "admission", "mine"]) == 2
    assert Path("mine.py").read_text() == before


def test_compare_refuses_different_work_unless_forced(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", *SMALL, "-q"]) == 0
    assert run(["replay", *SMALL, "-q", "--slo", "tbt:50ms"]) == 0
    capsys.readouterr()
    assert run(["compare", "1", "2"]) == 2
    assert "TBT SLO differs" in capsys.readouterr().err
    assert run(["compare", "1", "2", "--force"]) == 0


# the same from Python


def test_the_python_api_replays_without_writing() -> None:
    one = replay("conversation-like", policy="random", max_requests=200, seed=1)
    two = replay("conversation-like", policy="round-robin", max_requests=200)
    assert one.completed_requests == 200
    assert "offered 200" in one.summary()
    assert compare([one, two]).labels == ("random", "round-robin")
    assert list(Path().iterdir()) == []


def test_the_python_api_takes_the_command_lines_words() -> None:
    words = {"slo": "ttft:10s,tbt:50ms", "pool": "1TB", "vram": "64GiB", "nic": "800Gbps"}
    setup = replay("conversation-like", max_requests=50, **words).manifest["setup"]
    # 327,680 bytes a token: 1e12 / 327,680 / 512 = 5,960.46 blocks; 64 GiB / 327,680 = 209,715.2 tokens; 800 / 8 GB/s
    assert (setup["pool.blocks"], setup["vram.tokens"], setup["nic.gbytes_per_s"]) == (5960, 209_715, 100.0)
    assert (setup["slo.ttft_ms"], setup["slo.tbt_ms"]) == (10_000.0, 50.0)


def test_the_python_api_refuses_in_one_line() -> None:
    with pytest.raises(SetupError, match="pool_blocks is given twice"):
        replay("conversation-like", pool="1TB", pool_blocks=3)
    with pytest.raises(SetupError, match="policy: expected a SPEC"):
        replay("conversation-like", policy=object())  # type: ignore[arg-type]
    with pytest.raises(SetupError, match="did you mean 'speedup'"):
        replay("conversation-like", speed_up=2)
    with pytest.raises(SetupError, match=r"warmup: .* ms leaves 0 requests"):
        replay("conversation-like", warmup="2h")
    with pytest.raises(ResultError, match="no run folder"):
        open_run(".")
