"""Options that would change nothing are refused before anything is replayed; all others change the result.

dynamo#13517 (options silently ignored), BLIS (an SLO for a class that no request has), vllm-omni#6693. More options
without effect are in test_cli_usage.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fault_tools import TWENTY, Tool, gate, latest, line, written

from mooncake_bench import replay
from mooncake_bench.cli.options import SETUP_FLAGS
from mooncake_bench.errors import SetupError
from mooncake_bench.sim.setup import LIVE
from mooncake_bench.trace import Trace


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--cluster", "1P@h800+1D@a100", "--set", "node=h100"], "--node: no effect"),
        (["--by", "input_tokens", "--format", "csv"], "--by: no effect with --format csv"),
        (["--by", "session"], "--by session: the requests of trace 't' have none"),
        (["--by", "sesion"], "did you mean 'session'"),
        (["--name", ""], "--name: expected a word"),
        (["--name", "12"], "--name: expected a word that is no number"),
        (["--nic", "1e300"], "expected a number from"),
        (["--vram", "1e300"], "expected a whole number from"),
        (["--block-size", "1e300"], "block size is a number of more than 20 digits"),
    ],
    ids=lambda item: " ".join(item) if isinstance(item, list) else "",
)
def test_what_would_have_no_effect_is_refused_before_the_replay(tool: Tool, words: list[str], reason: str) -> None:
    answer = tool("replay", written("t.jsonl", TWENTY), *words)
    assert (answer.code, answer.out) == (2, "")
    assert reason in answer.err
    assert not Path("results").exists()


@pytest.mark.parametrize("command", ["show", "check"])
def test_a_folder_of_policies_means_nothing_beside_a_file(tool: Tool, command: str) -> None:
    answer = tool("policies", command, gate("None"), "--policy-dir", ".")
    assert answer.code == 2
    assert "--policy-dir .: no effect" in answer.err


@pytest.mark.parametrize("setting", [{"block_tokens": 16}, {"timestamp_unit": "s"}])
def test_reading_a_trace_that_is_read_already_has_no_effect_and_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(SetupError, match="no effect on a Trace"):
        replay(Trace.of([(0, 600, 2, [1, 2])]), **setting)


BUSY = ["-p", "queue-cap:limit=1", "--speedup", "4"]  # some are turned away
SESSIONS = ("slo_classes", "client_loop", "client_think_speedup")
COUPLED = ["--cluster", "2M"]
SMALL = ["--pool", "5"]  # blocks: seven prompts of three blocks do not fit
EFFECTS = {  # option: its value, and what else makes it count
    "cluster": ("1P+2D", []),
    "model": ("half.toml", []),
    "node": ("h800", []),
    "engine": ("none", []),
    "pool_blocks": ("8", []),
    "pool_scope": ("local", ["-p", "kvcache-centric"]),
    "ssd_blocks": ("40", SMALL),
    "ssd_read_gbytes_per_s": ("9", [*SMALL, "--ssd", "40", "--pool-scope", "local", "--speedup", "0.02"]),
    "ssd_write_gbytes_per_s": ("0.5", [*SMALL, "--ssd", "40"]),
    "touch_order": ("head-first", ["--pool", "7"]),
    "vram_tokens": ("20000", []),
    "nic_gbytes_per_s": ("1", []),
    "nic_core_gbytes_per_s": ("1", []),
    "prefill_group": ("3", []),
    "prefill_chunk": ("200", []),
    "prefill_layers": ("serialised", []),
    "dram_gbytes_per_s": ("3", ["--prefill-layers", "serialised"]),
    "decode_load_gbytes_per_s": ("2", []),
    "decode_preemption": ("recompute", ["--vram", "4600"]),
    "decode_inline": ("on", ["--slo", "tbt:1s"]),
    "schedule": ("one-at-a-time", COUPLED),
    "step_tokens": ("1600", COUPLED),
    "sequences": ("2", COUPLED),
    "prefix_cache": ("off", COUPLED),
    "events": ("900ms:fail:prefill:0", []),
    "faults_requests": ("fail", ["--event", "900ms:fail:decode:0"]),
    "warm_from": ("t.jsonl", []),
    "tbt_metric": ("max", ["--slo", "tbt:35ms"]),
    "first_gap": ("exclude", []),
    "speedup": ("3", []),
    "view": ("delayed:2s", []),
    "estimate_error": ("0.5", []),
    "slo_classes": ("1=ttft:1ms", []),
    "client_retries": ("2", BUSY),
    "client_backoff_ms": ("100ms", [*BUSY, "--retries", "2"]),
    "client_backoff_factor": ("4", [*BUSY, "--retries", "2"]),
    "client_jitter": ("0.5", [*BUSY, "--retries", "2"]),
    "client_loop": ("closed", []),
    "client_think_speedup": ("3", ["--loop", "closed"]),
    "client_patience_ms": ("800ms", ["--speedup", "4"]),
    "seed": ("4", ["-p", "random"]),
    "block_tokens": ("1024", []),
    "timestamp_unit": ("us", []),
    "columns": ("arrival=timestamp,input=input_length,output=output_length", []),  # no block ids: nothing is shared
    "max_requests": ("20", []),
    "start_ms": ("500ms", []),
    "end_ms": ("500ms", []),
    "warmup_ms": ("500ms", []),
}
HALF = """
description = "Llama-3-70B with half its KVCache"
source = "invented"
layers = 80
kv_bytes_per_token = 163_840
costs_of = "llama-3-70b"
error = "invented"
"""


def outcome(tool: Tool, *words: str) -> Any:
    """Everything that a replay's tables and metrics say."""
    assert tool("replay", *words, "-q").code == 0, words
    made = latest()
    return made.requests.to_pylist(), {name: value.value for name, value in made.metrics().items()}


WITHOUT: dict[Any, Any] = {}  # outcomes that several options are compared with
NEEDS_TORCH = {"cost", *LIVE}  # tests/test_live_replay.py


@pytest.mark.parametrize("name", [name for name in SETUP_FLAGS if name not in {"failures", *NEEDS_TORCH}])
def test_every_option_of_the_setup_changes_the_result(tool: Tool, name: str) -> None:
    """``failures`` reads or refuses; live costs need torch."""
    Path("half.toml").write_text(HALF, encoding="utf-8")
    # prompts of 1,500 tokens: 3 blocks of 512, and 2 of 1,024; seven different prompts, again and again
    rows = [line(40 * i, 1500, 20 + i, i * i % 13 * 10) for i in range(60)]
    if name in SESSIONS:
        rows = [row | {"session_id": i % 3, "priority": i % 2, "delay": 70.0} for i, row in enumerate(rows)]
    plain = trace = written("t.jsonl", rows)
    if name == "block_tokens":
        trace = written("wide.jsonl", [row | {"hash_ids": row["hash_ids"][:2]} for row in rows])
    value, more = EFFECTS[name]
    common = more if name == "cluster" or "--cluster" in more else ["--cluster", "3P+2D", *more]
    unchanged = (name in SESSIONS, *common)
    if unchanged not in WITHOUT:
        WITHOUT[unchanged] = outcome(tool, plain, *common)
    assert outcome(tool, trace, *common, SETUP_FLAGS[name][0][0], value) != WITHOUT[unchanged]


# BLIS (an SLO for a class that no request has), vllm-omni#6693


@pytest.mark.parametrize(
    ("answer_tokens", "words"),
    [
        (1, ["--slo", "ttft:1s,tbt:50ms"]),
        (1, ["--set", "slo.tbt_ms=50"]),
        (1, ["--tbt-metric", "max"]),
        (2, ["--slo", "tbt:50ms", "--first-gap", "exclude"]),
    ],
)
def test_an_slo_that_no_request_has_a_number_for_is_refused(tool: Tool, answer_tokens: int, words: list[str]) -> None:
    name = written("t.jsonl", [line(100 * i, 600, answer_tokens) for i in range(5)])
    answer = tool("replay", name, *words)
    assert answer.code == 2
    assert "has a token gap to judge" in answer.err
    assert tool("replay", name, "--slo", "ttft:1s", "-q").code == 0
