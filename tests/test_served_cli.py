"""``calibrate fit --served`` on the command line."""

from __future__ import annotations

import csv
import tomllib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from served_logs import naive, requests, step_ms

from mooncake_bench.hardware.presets import load_node
from mooncake_bench.studies.served import fit

if TYPE_CHECKING:
    from fault_tools import Tool

COLUMNS = "arrival=sent:s,input=prompt,output=answer,ttft=ttft:s,e2e=total:s"


@pytest.fixture
def served(tmp_path: Path) -> list[str]:
    """The words of a command that works: 40 requests served by the slow reference, o_pre 4 and o_dec 2 ms."""
    work = requests(40, 60.0, seed=4)
    coefficients = load_node("rtxpro6000").costs["llama-3-8b"].coefficients
    naive(work, partial(step_ms, coefficients, 4.0, 2.0), 8192, 256, ahead=True)
    with (tmp_path / "log.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["sent", "prompt", "answer", "ttft", "total"])
        for r in work:
            first, last = r.token_ms[0] - r.arrival_ms, r.token_ms[-1] - r.arrival_ms
            writer.writerow([r.arrival_ms / 1e3, r.prompt, r.answer, first / 1e3, last / 1e3])
    words = "calibrate fit --served log.csv --node rtxpro6000 --model llama-3-8b --scheduling async --columns"
    return [*words.split(), COLUMNS]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that ends early, where its result does not matter."""
    monkeypatch.setattr(fit, "COARSE", (0.0, 0.2))
    monkeypatch.setattr(fit, "TRIES", 4)


def test_the_answer_the_preset_and_a_replay_with_it(tool: Tool, served: list[str]) -> None:
    found = tool(*served, "-o", "mine.toml")
    assert found.code == 0, found.err
    assert "Later half, not fitted: 20 requests, ms" in found.out
    assert "TTFT predicted" in found.out
    assert "written: mine.toml; use it with --engine mine.toml" in found.err
    values = tomllib.loads(Path("mine.toml").read_text(encoding="utf-8"))
    assert (values["prefill_ms"], values["decode_ms"]) == (pytest.approx(4, rel=0.02), pytest.approx(2, rel=0.02))
    words = "replay conversation-like -p random --max-requests 5 --node rtxpro6000 --model llama-3-8b"
    replay = tool.json(*words.split(), "--engine", "mine.toml", "--cluster", "1P+1D")
    assert "20 held-out requests of a served log: TTFT off by" in str(replay)


@pytest.mark.usefixtures("quick")
def test_both_ways_of_scheduling_are_fitted_where_none_is_given(tool: Tool, served: list[str]) -> None:
    at = served.index("--scheduling")
    found = tool(*served[:at], *served[at + 2 :], "--format", "csv")
    assert "--scheduling was not given: both were fitted" in found.err
    assert "--scheduling" not in tool(*served, "--format", "csv").err


@pytest.mark.usefixtures("quick")
def test_a_wrong_unit_is_suspected(tool: Tool, served: list[str]) -> None:
    # the time to the first token, in seconds, taken for microseconds: a millionth
    words = [word.replace("ttft:s", "ttft:us") for word in served]
    found = tool(*words)
    text = " ".join(found.out.split())
    assert "the later half's median TTFT is predicted" in text
    assert "a column's unit (--columns ttft=NAME:ms, :s, :us or :ns), the node or the model may be wrong" in text
    assert "may be wrong" not in tool(*served).out


def test_json_is_strict_and_says_what_was_written(tool: Tool, served: list[str]) -> None:
    values: dict[str, Any] = tool.json(*served, "-o", "mine.toml")
    assert (values["requests"], values["failed_requests"], values["written"]) == (40, 0, ["mine.toml"])
    assert values["decode_ms"] == pytest.approx(2, rel=0.02)
    assert {each["metric"] for each in values["heldout"]} == {"ttft_ms", "tpot_ms"}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--scheduling", "asink"], "--scheduling 'asink': expected async or sync; did you mean 'async'"),
        (["--max-seqs", "9000"], "--max-seqs 9000 with --max-batched-tokens 8192"),
        (["--force"], "--force: no effect without -o"),
        (["-o", "mine.json"], "ends in .toml"),
        (["-o", "log.csv/x.toml"], "there is no folder"),
        (["--engine", "vllm-h10"], "unknown engine 'vllm-h10'; did you mean 'vllm-h100'"),
        (["--format", "jsn"], "did you mean 'json'"),
    ],
)
def test_wrong_use_is_one_line_and_writes_nothing(tool: Tool, served: list[str], more: list[str], reason: str) -> None:
    found = tool(*served, *more)
    assert (found.code, found.out) == (2, "")
    assert found.err.count("\n") == 1
    assert reason in found.err
    assert not list(Path().glob("*.toml"))


def test_node_and_model_must_be_said(tool: Tool, served: list[str]) -> None:
    at = served.index("--node")
    found = tool(*served[:at], *served[at + 2 :])
    assert found.code == 2
    assert "--served: --node is missing: which node served?" in found.err


@pytest.mark.usefixtures("quick")
def test_an_existing_file_is_kept_unless_forced(tool: Tool, served: list[str]) -> None:
    Path("mine.toml").write_text("mine", encoding="utf-8")
    assert "exists; choose another name, or --force" in tool(*served, "-o", "mine.toml").err
    assert Path("mine.toml").read_text(encoding="utf-8") == "mine"
    assert tool(*served, "-o", "mine.toml", "--force", "-q").code == 0
    assert "prefill_ms" in Path("mine.toml").read_text(encoding="utf-8")


def test_a_missing_log_is_one_line(tool: Tool, served: list[str]) -> None:
    found = tool(*("absent.csv" if word == "log.csv" else word for word in served))
    assert (found.code, found.out, found.err.count("\n")) == (2, "", 1)
    assert "absent.csv" in found.err


@pytest.mark.usefixtures("quick")
def test_csv_has_a_line_a_half_metric_and_statistic(tool: Tool, served: list[str]) -> None:
    rows = list(csv.DictReader(tool(*served, "--format", "csv").out.splitlines()))
    assert len(rows) == 2 * 2 * 5  # fitted and held out; TTFT and TPOT; four quantiles and the mean
    assert {row["requests"] for row in rows} == {"20"}
    assert all(float(row["observed"]) > 0 for row in rows)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("shown", ["markdown", "latex"])
def test_documents_hold_the_same_tables(tool: Tool, served: list[str], shown: str) -> None:
    found = tool(*served, "--format", shown)
    assert found.code == 0
    assert "TPOT observed" in found.out
