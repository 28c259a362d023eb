"""Runs in other tools' formats: their keys, and numbers by hand from the tiny replay of tests/test_results_tiny.py.

Completed: a, b, c with TTFTs 8, 10 - 4 = 6 and 14 - 5 = 9 ms, ends at 44.053, 44.053 and 14 ms, prompts of 8, 10 and 4
tokens, answers of 4, 3 and 1. d was rejected. First arrival 0, last end 44.053 ms.
"""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from test_results_tiny import all_rejected, tiny_run

from mooncake_bench.cli.line import run_line
from mooncake_bench.errors import ResultError
from mooncake_bench.results.exporters import exporter, exporters
from mooncake_bench.results.run import Run

SECONDS = 0.044053


def exported(name: str, *runs: Any) -> Any:
    return json.loads(exporter(name).export(runs or [tiny_run()]))


def test_vllm_json_holds_what_vllm_bench_serve_saves() -> None:
    found = exported("vllm-json")
    assert (found["num_prompts"], found["completed"], found["failed"]) == (4, 3, 1)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (22, 8)
    assert found["duration"] == pytest.approx(SECONDS)
    assert found["request_throughput"] == pytest.approx(3 / SECONDS)
    assert found["output_throughput"] == pytest.approx(8 / SECONDS)
    assert found["total_token_throughput"] == pytest.approx(30 / SECONDS)
    assert found["mean_ttft_ms"] == pytest.approx(23 / 3)
    assert found["median_ttft_ms"] == 8
    assert found["std_ttft_ms"] == pytest.approx(math.sqrt((64 + 36 + 81) / 3 - (23 / 3) ** 2))
    assert found["p90_ttft_ms"] == pytest.approx(8.8)  # 8 + 0.8 of the way from 8 to 9
    # a: (44.053 - 8) / 3, b: (40.053 - 6) / 2; c has one token
    assert found["mean_tpot_ms"] == pytest.approx((36.053 / 3 + 34.053 / 2) / 2)
    assert found["mean_e2el_ms"] == pytest.approx((44.053 + 40.053 + 9) / 3)
    assert found["std_itl_ms"] is None
    latencies = {f"{s}_{name}_ms" for s in ("mean", "median", "std", "p99") for name in ("ttft", "tpot", "itl", "e2el")}
    assert latencies <= set(found)


def test_aiperf_json_holds_distributions_with_counts_and_scalars_without() -> None:
    found = exported("aiperf-json")
    ttft = found["time_to_first_token"]
    assert (ttft["unit"], ttft["count"], ttft["sum"], ttft["min"], ttft["max"]) == ("ms", 3, 23.0, 6.0, 9.0)
    assert (ttft["p25"], ttft["p50"], ttft["p75"]) == (7.0, 8.0, 8.5)
    assert ttft["std"] == pytest.approx(math.sqrt((64 + 36 + 81) / 3 - (23 / 3) ** 2))
    assert found["inter_token_latency"]["count"] == 2
    assert found["inter_token_latency"]["max"] == pytest.approx(34.053 / 2)
    assert found["request_count"] == {"unit": "requests", "avg": 3.0}
    assert found["error_request_count"] == {"unit": "requests", "avg": 1.0}
    assert found["request_throughput"] == {"unit": "requests/sec", "avg": pytest.approx(3 / SECONDS)}
    assert found["total_osl"] == {"unit": "tokens", "avg": 8.0}
    assert found["was_cancelled"] is False


def test_aiperf_leaves_out_what_is_undefined() -> None:
    rejected = Run.from_replay(all_rejected())
    found = exported("aiperf-json", rejected)
    assert "time_to_first_token" not in found
    assert found["request_count"]["avg"] == 0
    assert exported("vllm-json", rejected)["mean_ttft_ms"] is None


def test_csv_has_a_line_a_request_or_a_metric_and_names_stay_text() -> None:
    hostile = tiny_run(policy_label="=cmd()")
    rows = list(csv.DictReader(io.StringIO(exporter("requests-csv").export([hostile]))))
    assert [row["request_id"] for row in rows] == ["a", "b", "c", "d"]
    assert [row["ttft_ms"] for row in rows] == ["8", "6", "9", ""]
    lines = list(csv.DictReader(io.StringIO(exporter("metrics-csv").export([hostile, tiny_run()]))))
    completed = [(line["label"], line["value"], line["n"]) for line in lines if line["metric"] == "completed_requests"]
    assert completed == [("'=cmd()", "3", "4"), ("tiny", "3", "4")]


@pytest.mark.parametrize("name", sorted(exporters()))
def test_every_format_says_what_it_is_and_gives_a_file(name: str) -> None:
    chosen = exporter(name)
    assert chosen.DESCRIPTION
    assert chosen.EXTENSION in (".json", ".csv")
    assert chosen.export([tiny_run()]).endswith("\n")


@pytest.mark.parametrize("name", ["vllm-json", "aiperf-json", "requests-csv"])
def test_a_file_of_one_run_refuses_two(name: str) -> None:
    with pytest.raises(ResultError, match="a file holds one run, 2 are given"):
        exporter(name).export([tiny_run(), tiny_run()])


def test_the_command_writes_a_stored_run(tmp_path: Path, capsys: Any) -> None:
    folder, target = tmp_path / "run", tmp_path / "out.json"
    tiny_run().save(run_dir=folder)
    assert run_line(["export", "vllm-json", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert run_line(["export", "vllm-json", str(folder), "-o", str(target)]) == 0
    assert target.read_text(encoding="utf-8") == shown
    assert json.loads(shown)["completed"] == 3
    assert run_line(["export", "vllm-json", str(folder), "-o", str(target)]) == 2
    assert run_line(["export", "--list"]) == 0
    assert "aiperf-json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("vllm-jsn @last", "did you mean 'vllm-json'?"),
        ("vllm-json", "expected FORMAT RUN..."),
        ("vllm-json @last -o x.csv", "expected a name that ends in .json"),
        ("vllm-json @last --force", "--force: no effect without -o"),
        ("--list --force", "--force: no effect with --list"),
    ],
)
def test_what_cannot_be_exported_is_refused(words: str, told: str, capsys: Any) -> None:
    assert run_line(["export", *words.split()]) == 2
    assert told in capsys.readouterr().err


def test_aiperf_itself_reads_the_summary() -> None:
    reason = "aiperf is not installed: pip install aiperf (it brings a hundred packages, so nothing here asks for it)"
    models = pytest.importorskip("aiperf.common.models.export_models", reason=reason)
    read = models.JsonExportData.model_validate(exported("aiperf-json"))
    assert read.time_to_first_token.count == 3
    assert not read.model_extra  # it knows every key
