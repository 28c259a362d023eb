"""The pool of a replay that names none: each prefill node's own tokens, in whole blocks of the trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mooncake_bench
from mooncake_bench.cli.app import run
from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.results.headline import headline
from mooncake_bench.results.run import Run
from mooncake_bench.sim import replay as sim
from mooncake_bench.sim.costs import pool_blocks_of
from mooncake_bench.sim.replay import Replay
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace

NODE = """
description = "made up"
gpus = 1
gpu = "h100"
pool_tokens = {tokens}
pool_source = "counted"
nic_gbytes_per_s = 12.5
nic_status = "assumed"
nic_source = "assumed"
"""


def node_file(folder: Path, tokens: int, name: str = "box.toml") -> str:
    (folder / name).write_text(NODE.format(tokens=tokens), encoding="utf-8")
    return str(folder / name)


def round_trip(blocks: int = 10) -> Trace:
    """One prompt of ``blocks`` blocks of 4 tokens, and the same again when the first is long done."""
    ids = list(range(blocks))
    return Trace.of([(0.0, 4 * blocks, 2, ids), (1e6, 4 * blocks, 2, ids)], block_tokens=4)


def replayed(trace: Trace, setup: Setup) -> Replay:
    return sim.run(trace, setup, cost=FakeCost(len(setup.instances), computed_token_ms=1.0))


@pytest.mark.parametrize(
    ("node", "block_tokens", "blocks"),
    [
        *((node, 512, 5859) for node in ("a100", "a800", "h100", "h800", "h200")),  # 3,000,000 / 512 = 5859.4
        ("rtxpro6000x2", 512, 1523),  # 780,000 / 512 = 1523.4
        ("a800", 16, 187_500),  # 3,000,000 / 16
        ("local", 16, 48_750),  # 780,000 / 16
    ],
)
def test_an_unset_pool_is_the_nodes_tokens_in_whole_blocks(node: str, block_tokens: int, blocks: int) -> None:
    assert pool_blocks_of(Setup(node=node, cluster="2P+1D"), block_tokens) == {0: blocks, 1: blocks}
    assert pool_blocks_of(Setup(node=node, cluster="2P+1D", pool_blocks=7), block_tokens) == {0: 7, 1: 7}


def test_prefill_nodes_of_two_kinds_each_hold_their_own(tmp_path: Path) -> None:
    small, large = node_file(tmp_path, 11, "small.toml"), node_file(tmp_path, 401, "large.toml")
    setup = Setup(cluster=f"1P@{small}+1D@a800+2P@{large}")
    replay = replayed(round_trip(), setup)
    assert replay.pool_blocks == {0: 2, 2: 100, 3: 100}  # 11 / 4 and 401 / 4 blocks
    run = Run.from_replay(replay)
    assert run.manifest["cluster"]["pool_blocks"] == {small: 2, large: 100}
    assert f"pool 2 ({small}) and 100 ({large}) blocks of 4 tokens a prefill node" in headline(run)[1]


@pytest.mark.parametrize("view", ["exact", "delayed:1ms", "router-only"])
@pytest.mark.parametrize(("tokens", "hits"), [(40, 10), (39, 9), (12, 3), (4, 1)])
def test_a_replay_keeps_no_more_than_the_nodes_tokens(tmp_path: Path, tokens: int, hits: int, view: str) -> None:
    # a full node refuses the tail of the prompt of 10 blocks while its head is in use: the second finds the head again,
    # all of it but the last block, which is computed when everything is there
    setup = Setup(cluster="1P+1D", node=node_file(tmp_path, tokens), policy="round-robin", view=view)
    replay = replayed(round_trip(), setup)
    assert replay.counters["refused_blocks"] == 2 * (10 - tokens // 4)
    assert replay.columns["hit_blocks"].tolist() == [0, hits]
    given = replayed(round_trip(), Setup(cluster="1P+1D", pool_blocks=tokens // 4, policy="round-robin", view=view))
    assert given.columns["hit_tokens"].tolist() == replay.columns["hit_tokens"].tolist()


def test_a_node_that_holds_no_block_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = node_file(tmp_path, 500)
    with pytest.raises(
        SetupError, match=r"its pool_tokens, 500, are less than one block of 512 tokens; .* give --pool"
    ):
        pool_blocks_of(Setup(node=node), 512)
    words = ["replay", "conversation-like", "--max-requests", "5", "--node", node, "--engine", "none", "--dry-run"]
    assert run([*words, "--model", "llama-3-8b"]) == 2
    assert "less than one block of 512 tokens" in capsys.readouterr().err
    assert run([*words, "--model", "llama-3-8b", "--pool", "9"]) == 0


def test_a_dry_run_says_that_it_is_the_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "conversation-like", "--max-requests", "5", "--dry-run"]) == 0
    assert "# pool.blocks: not set (the node preset's tokens)" in capsys.readouterr().out


def test_the_report_the_manifest_and_python_have_the_blocks_of_the_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["replay", "conversation-like", "--max-requests", "20", "--cluster", "1P+1D", "--node", "rtxpro6000x2"]
    served = ["--model", "qwen3-32b", "--engine", "none"]
    assert run([*words, *served, "-q", "--run-dir", str(tmp_path / "run")]) == 0
    assert "pool 1,523 blocks of 512 tokens a prefill node" in " ".join(capsys.readouterr().out.split())
    manifest = json.loads((tmp_path / "run/run.json").read_text(encoding="utf-8"))
    assert manifest["setup"]["pool.blocks"] is None
    assert manifest["cluster"]["pool_blocks"] == {"rtxpro6000x2": 1523}
    kept = {"max_requests": 20, "cluster": "1P+1D", "node": "rtxpro6000x2", "model": "qwen3-32b", "engine": "none"}
    made = mooncake_bench.replay("conversation-like", **kept)  # type: ignore[arg-type]
    assert made.manifest["content_sha256"] == manifest["content_sha256"]
    given = mooncake_bench.replay("conversation-like", pool="800Ktok", **kept)  # type: ignore[arg-type]
    assert given.manifest["cluster"]["pool_blocks"] == {"rtxpro6000x2": 1562}  # 800,000 / 512 = 1562.5


def test_a_run_from_before_still_says_its_pool() -> None:
    run = Run.from_replay(replayed(round_trip(), Setup(cluster="1P+1D", pool_blocks=50)))
    del run.manifest["cluster"]["pool_blocks"]
    assert "pool 50 blocks of 4 tokens a prefill node" in headline(run)[1]
