"""Faults that other tools of this field have shipped: each kind is tried here, through the commands and the Python API.

The source of each is named above its tests. Kinds that another file already tests:

    source                the kind                                        tested in
    dynamo#14254          a key of another tool's, a default 0            test_trace_mooncake, test_trace_store
    guidellm#948          the number of hash ids; documentation runs      test_trace_mooncake, test_readme, _cli_help
    aisimulate#183        a NaN or missing timestamp                      test_trace_mooncake
    BLIS#1606             no completion ends with 3                       test_cli_replay; wall-clock units: below
    vllm-omni#6693        TPOT of one-token answers                       test_results_metrics, test_results_records
    llmperf#44            nothing left after a filter                     test_cli_usage, test_trace_model
    vllm#4987             percentiles of nothing                          test_results_metrics (odd runs)
    AIBrix#1178           a ranking by latency alone                      test_results_compare; what tables say: below
    hyperfine#9           Ctrl-C keeps partial results                    test_cli_replay; of several policies: below
    vllm#8997             reading, files and tables in any locale         test_cli_replay; JSON: below
    dynamo#12347          two processes, two hash seeds, the same bytes   test_cli_replay, test_results_run
    dynamo PR#12046       ids above bit 31, ids beyond 64 bits            test_trace_mooncake; the last bit: below
    dynamo#12643          blocks that are not ready cannot be fetched     test_sim_views, test_reference_scenarios
    inference-sim#1510    ttft = queue + fetch + prefill on each row      test_results_run, test_results_invariants
    kvcache-sim           VRAM is an invariant                            test_results_invariants; the pool: below

Options without effect and SLOs that match nothing (dynamo#13517, BLIS) are in test_known_faults_options. There is no
gate and no plot yet (pytest-benchmark#276, matplotlib#7493).
"""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from dataclasses import replace as changed
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fault_tools import TWENTY, Tool, gate, latest, line, strict, written

from mooncake_bench import open_run, replay
from mooncake_bench.cli.app import run
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.plugins import discover
from mooncake_bench.report.tables import FORMATS
from mooncake_bench.results.metrics import METRICS
from mooncake_bench.results.run import Run
from mooncake_bench.results.store import TABLES
from mooncake_bench.sim.replay import run as simulate
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace, load, save
from mooncake_bench.trace.formats.mooncake import encode

EPOCH_US = 1_700_000_000_000_000


# Mooncake#4020; simdistserve (SLO attainment of 104.9 %)


def test_every_ratio_names_its_denominator(tool: Tool) -> None:
    ratios = [metric for metric in METRICS if metric.unit == "ratio"]
    assert len(ratios) > 10
    assert [metric.name for metric in ratios if "/" not in metric.definition] == []
    written("t.jsonl", TWENTY)
    shown = " ".join(tool("replay", "t.jsonl", "--by", "input_tokens").out.split())
    for words in (
        "of tokens: share of the offered prompt tokens", "requests, tokens: of all offered", "TTFT ok: of completed",
        "TBT ok: of completed with a token gap", "of prompt tokens whose prefill began", "wasted: of prefill time",
        "busy: of the pool's instances", "in SLO: of its offered requests; hits: of its prompt tokens",
        "20 requests arriving in 1.9 s, speedup 1 = 10.5 requests/s",  # 20 / 1.9
    ):  # fmt: skip
        assert words in shown, words


# sglang#12601; kvcache-sim ("Loaded 1000", replays 80); vidur (prompts clipped without a word)


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "arrow"])
def test_every_format_goes_through_every_command_and_no_request_or_token_is_lost(tool: Tool, ending: str) -> None:
    rows = [line(100.0 * i, 600 + 9_000 * i, 2 + 90 * i) for i in range(20)]  # up to 171,600 tokens, answers to 1,712
    name = written(f"t.{ending}", rows)
    assert tool.json("traces", "info", name)["requests"] == 20
    replayed = tool.json("replay", name)["runs"][0]
    assert replayed["counts"]["offered"] == replayed["trace"]["requests"] == 20
    table = latest().requests.to_pydict()
    assert table["input_tokens"] == [row["input_length"] for row in rows]
    assert table["output_tokens"] == [row["output_length"] for row in rows]
    assert tool("replay", "--from", "@last", "-q").code == 0
    assert tool("replay", name, "--dry-run").code == 0
    plain = written("t.jsonl", rows)
    assert tool("replay", plain, "-q").code == 0
    for shown in FORMATS:  # the content decides what can be compared, not the file
        assert tool("compare", "@last:3", "--format", shown).code == 0


# BLIS#1615


def test_a_replay_of_our_own_export_is_the_same_run(tool: Tool) -> None:
    rows = [line(0.25 * i % 3, session_id=f"s{i % 4}", priority=i % 3, request_id=f"r{i}", first=i) for i in range(40)]
    trace = load(written("t.jsonl", rows))
    save(trace, "export.arrow")
    Path("export.jsonl").write_bytes(encode(trace))
    kept = [replay(name).manifest for name in ("t.jsonl", "export.arrow", "export.jsonl")]
    assert kept[0]["content_sha256"] == kept[1]["content_sha256"] == kept[2]["content_sha256"]
    counts = kept[2]["counts"]
    assert counts["offered"] == 40 == sum(counts[word] for word in ("completed", "rejected", "failed", "unfinished"))


# dynamo#14562


def test_half_as_fast_again_keeps_sub_millisecond_arrivals_apart_and_exact(tool: Tool) -> None:
    written("t.jsonl", [line(i / 10) for i in range(50)])
    assert tool("replay", "t.jsonl", "--speedup", "1.5", "-q").code == 0
    stored = latest().requests.column("arrival_ms").to_pylist()
    exact_ps = [round(Fraction(i, 10) * 10**9 / Fraction(3, 2)) for i in range(50)]  # 66,666,667 ps apart
    assert [round(Fraction(at) * 10**9) for at in stored] == exact_ps
    assert len(set(stored)) == 50
    assert stored == sorted(stored)


# BLIS#1606


def test_wall_clock_microseconds_are_the_same_requests_counted_from_zero(tool: Tool) -> None:
    at_ms = [0, 0.5, 1.5, 2000, 2000.25]
    trace = load(written("ms.jsonl", [line(at, first=10 * i) for i, at in enumerate(at_ms)]))
    wall = [line(at, first=10 * i) | {"timestamp": EPOCH_US + round(1000 * at)} for i, at in enumerate(at_ms)]
    assert load(written("wall.jsonl", wall)).sha256 == trace.sha256
    answer = tool("replay", "wall.jsonl")
    assert answer.code == 0
    assert "read as wall-clock time in us" in answer.err
    assert latest().requests.column("arrival_ms").to_pylist() == at_ms
    assert latest().completed_requests == 5


@pytest.mark.parametrize("command", [["replay"], ["traces", "info"]])
@pytest.mark.parametrize("far", [EPOCH_US, 1e300])
def test_times_of_two_units_in_one_file_are_refused_by_their_row(tool: Tool, command: list[str], far: float) -> None:
    written("t.jsonl", [line(0), line(1, first=5) | {"timestamp": far}])
    answer = tool(*command, "t.jsonl")
    assert answer.code == 2
    assert "line 2, field 'timestamp'" in answer.err
    assert answer.err.count("\n") == 1


# opendc-simulator#9


def test_the_order_of_the_policies_does_not_matter(tool: Tool) -> None:
    policies = ["random", "kvcache-centric+early", "lfu"]
    found = []
    for order in (policies, policies[::-1]):
        words = [word for spec in order for word in ("-p", spec)]
        runs = tool.json("replay", "conversation-like", "--max-requests", "300", *words)["runs"]
        manifests = [open_run(run["run_dir"]).manifest for run in runs]
        found.append({each["policy"]["label"]: each["content_sha256"] for each in manifests})
    assert found[0] == found[1]


# vllm-omni#6976, vllm#4987


ODD: dict[str, tuple[list[dict[str, Any]], list[str], int]] = {
    "one request": (TWENTY[:1], [], 0),
    "one request of one token": ([line(0, 600, 1)], [], 0),
    "one token each": ([line(at, 600, 1) for at in range(5)], [], 0),
    "all at once": ([line(7, first=10 * i) for i in range(20)], [], 0),
    "all rejected": (TWENTY, ["-p", "predictive", "--slo", "ttft:1ms"], 3),
    "one rejected": (TWENTY[:1], ["-p", "predictive", "--slo", "ttft:1ms"], 3),
    "all failed": (TWENTY, ["--vram", "100"], 3),
    "one after the warm-up": (TWENTY, ["--warmup", "1850ms"], 0),
    "one ends all": (TWENTY, ["-p", "queue-cap:limit=1", "--cluster", "1P+1D"], 0),
    "no gap is judged": ([line(0, 600, 2), line(9, 600, 2)], ["--set", "warmup_ms=5"], 0),
}


@pytest.mark.parametrize("case", ODD)
def test_no_run_however_odd_writes_a_number_that_json_lacks(tool: Tool, case: str) -> None:
    rows, words, code = ODD[case]
    written("t.jsonl", rows)
    tool.json("replay", "t.jsonl", *words, code=code)
    strict(Path(latest().path or "", "run.json").read_text(encoding="utf-8"))
    tool.json("compare", "@last", code=code)
    tool.json("traces", "info", "t.jsonl")


def test_a_metric_beyond_the_range_of_numbers_is_undefined() -> None:
    for beyond in (float("inf"), float("nan")):
        metric = changed(METRICS[0], function=lambda facts, value=beyond: (value, 3))
        assert metric.of(None) == (None, 3, "requests", "none")  # type: ignore[arg-type]


# evalscope#1076


def test_one_request_has_rates_over_its_own_time_and_none_where_no_time_passes(tool: Tool) -> None:
    written("t.jsonl", TWENTY[:1])
    values = tool.json("replay", "t.jsonl")["runs"][0]["metrics"]
    [seconds] = [each / 1000 for each in latest().requests.column("e2e_ms").to_pylist()]
    assert values["request_throughput_rps"]["value"] == pytest.approx(1 / seconds)
    assert values["output_throughput_tokens_per_s"]["value"] == pytest.approx(3 / seconds)
    assert values["offered_rps"]["value"] is None  # one arrival spans no time
    values = tool.json("replay", "t.jsonl", "-p", gate("'closed'"), code=3)["runs"][0]["metrics"]
    rates = [name for name, value in values.items() if value["unit"].endswith("/s")]
    assert len(rates) >= 10
    assert [name for name in rates if values[name]["value"] is not None] == []
    assert values["duration_ms"]["value"] is None


# llm-d-benchmark#698


@pytest.mark.parametrize("shown", FORMATS)
@pytest.mark.parametrize(("words", "why"), [(["-p", "gate.py"], "closed"), (["--vram", "100"], "VRAM")])
def test_a_run_without_a_completion_is_reported_in_every_format_and_ends_with_3(
    tool: Tool, shown: str, words: list[str], why: str
) -> None:
    gate("'closed'")
    answer = tool("replay", written("t.jsonl", TWENTY), *words, "--format", shown)
    assert answer.code == 3
    assert "nan" not in answer.out.lower()
    assert why in answer.out or shown == "csv"
    assert latest().requests.num_rows == 20


# aiperf#1338, simdistserve (SLO attainment of 104.9 %), splitwise-sim (t = 0, output_length 1)


def test_who_was_turned_away_has_no_latency_and_stays_in_the_denominator(tool: Tool) -> None:
    # 1 ms a computed token, alone on 1P+1D: a TTFT of 100 ms each, whatever becomes of the request after its prefill
    trace = Trace.of([(1000.0 * i, 100, 3, [i]) for i in range(4)])
    setup = Setup(cluster="1P+1D", policy=gate(at_decode="'odd' if request.row % 2 else None"))
    made = Run.from_replay(simulate(trace, setup, cost=FakeCost(2)))
    values = made.metrics()
    assert (values["completed_requests"].value, values["rejected_decode_requests"].value) == (2, 2)
    for name in ("ttft_ms", "e2e_ms", "tbt_ms", "tpot_ms"):
        assert values[f"mean_{name}"].n == 2
    assert values["mean_ttft_ms"].value == values["p50_ttft_ms"].value == 100.0
    assert (values["request_goodput_ratio"].value, values["request_goodput_ratio"].n) == (2 / 4, 4)
    assert (values["slo_ttft_ratio"].value, values["slo_ttft_ratio"].n) == (2 / 2, 2)
    assert values["wasted_prefill_ratio"].value == 200 / 400


def test_a_request_at_time_zero_and_an_answer_of_one_token_are_ordinary() -> None:
    # 10 tokens: first token at 10 ms and that is all; the next, at 20 ms: first token at 30, KV 1 us a token / 4 layers
    trace = Trace.of([(0.0, 10, 1, [1]), (20.0, 10, 2, [2])])
    table = Run.from_replay(simulate(trace, Setup(cluster="1P+1D"), cost=FakeCost(2))).requests.to_pydict()
    assert table["status"] == ["completed", "completed"]
    assert table["ttft_ms"] == [10.0, 10.0]
    assert table["e2e_ms"][0] == 10.0
    assert (table["tpot_ms"][0], table["kv_transfer_ms"][0]) == (None, None)


# AIBrix#1178


@pytest.mark.parametrize("shown", ["table", "markdown", "latex", "json"])
def test_runs_that_completed_different_requests_are_said_not_to_be_ranked_by_latency(tool: Tool, shown: str) -> None:
    words = ["-p", "kvcache-centric", "-p", gate("'odd' if request.row % 2 else None"), "--format", shown]
    answer = " ".join(tool("replay", written("t.jsonl", TWENTY), *words).out.split())
    assert "gate 0 more and 10 fewer): latencies alone do not rank them" in answer


# hyperfine#9


SLOW = """
import pathlib, time
from mooncake_bench.api import Route, Router

class Slow(Router):
    name = "slow"

    def route(self, request, cluster):
        pathlib.Path("reached").touch()
        time.sleep(0.01)
        return Route(prefill=0)
"""


def test_ctrl_c_in_the_second_policy_keeps_the_first_and_half_of_the_second(tool: Tool) -> None:
    Path("slow.py").write_text(SLOW, encoding="utf-8")
    words = ["replay", "conversation-like", "-p", "random", "-p", "slow.py", "-p", "lru", "--max-requests", "1000"]
    command = [sys.executable, "-m", "mooncake_bench", *words, "--format", "json", "-q"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not Path("reached").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    shown, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.decode()) == (130, "mooncake-bench: interrupted\n")
    assert [(run["label"], run["status"]) for run in strict(shown)["runs"]] == [
        ("random", "complete"), ("slow", "interrupted"),
    ]  # fmt: skip
    random, slow = (open_run(folder) for folder in sorted(Path("results").iterdir()))
    assert random.completed_requests == 1000
    assert slow.requests.num_rows == 1000


def test_ctrl_c_before_anything_is_done_ends_with_one_line(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mooncake_bench.trace.load", stop)
    assert tool("replay", "conversation-like") == (130, "", "mooncake-bench: interrupted\n")


# vllm#8997


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437"])
def test_json_stays_json_where_the_screen_cannot_show_every_letter(
    tool: Tool, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = written("Gespräch→.jsonl", TWENTY)
    gate("'nö'", name="später.py")
    screens = []
    for words in (["replay", name, "-p", "später=später.py", "-q"], ["compare", "@last"], ["traces", "info", name]):
        screen = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", screen)
        run([*words, "--format", "json"])
        screens.append(strict(screen.buffer.getvalue()))  # type: ignore[attr-defined]
    replayed, compared, facts = screens
    assert replayed["reference"] == compared["reference"] == "später"
    assert compared["runs"][0]["rejections"][0]["reason"] == "nö"
    assert facts["name"] == "Gespräch→"


# arrow#34397


def test_tables_with_nothing_in_a_column_are_joined_to_those_of_a_full_run(tool: Tool) -> None:
    written("t.jsonl", TWENTY)
    for words, code in ((["--vram", "100"], 3), (["-p", gate("'closed'")], 3), (["-p", "predictive"], 0)):
        assert tool("replay", "t.jsonl", *words, "-q").code == code
    folders = sorted(Path("results").iterdir())
    for name, schema in TABLES.items():
        tables = [pq.read_table(folder / f"{name}.parquet") for folder in folders]
        assert pa.concat_tables(tables).num_rows == sum(table.num_rows for table in tables)
        assert all(table.schema.types == schema.types for table in tables)


# dynamo#13188, dynamo PR#12046


@pytest.mark.parametrize("policy", ["kvcache-centric", "cache-aware", "random", "round-robin+deadline"])
def test_a_trace_without_reuse_has_no_hits(policy: str) -> None:
    # ids that only the last of 63 bits tells apart: a float, or 32 bits, would make them one
    rows = [(10.0 * i, 1024, 2, [2**62 + 2 * i, 2**62 + 2 * i + 1]) for i in range(30)]
    made = replay(Trace.of(rows), policy=policy, cluster="2P+2D")
    assert made.requests.column("hit_tokens").to_pylist() == [0] * 30
    assert made.metrics()["hit_ratio_tokens"].value == made.metrics()["ceiling_ratio_tokens"].value == 0


@pytest.mark.parametrize("ending", ["jsonl", "arrow"])
@pytest.mark.parametrize(("by", "field"), [("session", "session_id"), ("priority", "priority")])
def test_groups_whose_ids_differ_in_the_last_bit_stay_apart(tool: Tool, by: str, field: str, ending: str) -> None:
    name = written(f"t.{ending}", [line(100 * i, **{field: 2**62 + i % 2}) for i in range(6)])
    groups = tool.json("replay", name, "--by", by)["groups"]
    found = [(group[by], group["metrics"]["offered_requests"]["value"]) for group in groups]
    assert found == [(f"{by} {2**62}", 3), (f"{by} {2**62 + 1}", 3)]


# dynamo PR#13052


BLIND = sorted(name for name, policy in discover().items() if not policy.oracle and "eviction" not in policy.kinds)
ANSWERS = (1, 400, 7, 2, 1000, 30, 5, 60)


@pytest.mark.parametrize("policy", BLIND)
def test_lengths_of_answers_change_no_prefill_and_no_decision_before_the_first_finish(policy: str) -> None:
    # eight prompts within 7 ms, the shortest prefill takes 80 ms and more: nothing is revealed while they arrive
    def decided(answers: tuple[int, ...]) -> pa.Table:
        rows = [(i, 600 + 50 * i, answer, [0, i + 1]) for i, answer in enumerate(answers)]
        return replay(Trace.of(rows), policy=policy, cluster="3P+2D", slo_ttft_ms=500.0).requests

    one, two = decided(ANSWERS), decided(ANSWERS[::-1])
    for name in (
        "prefill_instance", "decode_instance", "hit_tokens", "fetched_tokens", "queue_ms", "fetch_ms", "prefill_ms",
        "predicted_ttft_ms", "reject_stage", "reject_reason",
    ):  # fmt: skip
        assert one.column(name).equals(two.column(name)), name


# dynamo#11015, simdistserve (prompts over 40,000 tokens spin without end)


def test_prompts_of_any_length_end_in_a_status_and_one_beyond_the_vram_says_why(tool: Tool) -> None:
    lengths = [40_000, 40_001, 131_072, 999_999, 1_000_000, 1_456_997, 1_457_000, 3_000_000]
    written("t.jsonl", [line(1000 * i, tokens, 2) for i, tokens in enumerate(lengths)])
    answer = tool("replay", "t.jsonl", "-v")
    # 1,457,000 tokens of VRAM: a prompt, its first token and the one it is about to make have to fit
    table = latest().requests.to_pydict()
    assert table["status"] == ["completed"] * 6 + ["failed"] * 2
    assert table["reject_reason"] == [None] * 6 + ["larger than a decode instance's VRAM"] * 2
    assert "2 requests failed: larger than a decode instance's VRAM (--vram, --cluster)" in " ".join(answer.out.split())
    assert answer.err.count("failed: larger than") == 2


# kvcache-sim (capacity at 2740 % without an error)


def test_a_pool_gives_up_exactly_what_it_cannot_hold(tool: Tool) -> None:
    # a pool of 3 blocks, prompts of 2 blocks one after another: each takes 2 slots, so 2 x 20 - 3 blocks have to go
    written("t.jsonl", [line(1000 * i) for i in range(20)])
    values = tool.json("replay", "t.jsonl", "--cluster", "1P+1D", "--pool", "3")["runs"][0]["metrics"]
    assert values["evictions"]["value"] == 2 * 20 - 3


# vidur (a traceback from plotting after the simulation)


def test_results_are_stored_before_anything_is_drawn(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> str:
        raise RuntimeError("cannot draw")

    written("t.jsonl", TWENTY)
    monkeypatch.setattr("mooncake_bench.report.tables.render", broken)
    with pytest.raises(RuntimeError, match="cannot draw"):
        tool("replay", "t.jsonl")
    assert latest().completed_requests == 20
