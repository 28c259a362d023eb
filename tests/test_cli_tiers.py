"""SSDs, a narrow core and warm caches by the command line and the Python API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fault_tools import Tool

from mooncake_bench import open_run, replay
from mooncake_bench.errors import SetupError

if TYPE_CHECKING:
    from pathlib import Path

FEW = ("replay", "conversation-like", "--max-requests", "40", "--cluster", "1P+1D", "--pool", "50", "-q")


def test_sizes_and_rates_are_written_as_those_of_pools_and_nics(tool: Tool) -> None:
    answer = tool(*FEW, "--ssd", "512ktok", "--ssd-read", "8Gbps", "--ssd-write", "500MB/s", "--nic-core", "80")
    assert answer.code == 0, answer.err
    setup = open_run("results/1_conversation-like_kvcache-centric").manifest["setup"]
    assert setup["ssd.blocks"] == 1000  # 512,000 tokens in blocks of 512
    assert (setup["ssd.read_gbytes_per_s"], setup["ssd.write_gbytes_per_s"]) == (1.0, 0.5)
    assert setup["nic.core_gbytes_per_s"] == 80.0


def test_a_replay_starts_with_the_caches_of_the_last_run(tool: Tool) -> None:
    assert tool(*FEW).code == 0
    answer = tool(*FEW, "--warm-from", "@last", "--name", "warm")
    assert answer.code == 0, answer.err
    cold, warm = (open_run(f"results/{i}_conversation-like_kvcache-centric") for i in (1, 2))
    assert warm.manifest["warm"]["requests"] == 40
    assert warm.manifest["warm"]["pool_blocks"] == 50
    assert warm.manifest["warm"]["sha256"] == cold.manifest["trace"]["sha256"]
    again = tool("replay", "--from", "2", "-q")  # by the manifest alone
    assert again.code == 0, again.err
    third = open_run("results/3_conversation-like_kvcache-centric").manifest
    assert third["content_sha256"] == warm.manifest["content_sha256"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--ssd-read", "27"), "--ssd-read: no effect without --ssd; add that, or drop this"),
        (("--ssd", "0.5blocks"), "ssd.blocks: expected whole blocks, got 0.5"),
        (("--ssd", "100", "--ssd-read", "0"), "ssd.read_gbytes_per_s: must be at least 0.001"),
        (("--warm-from", "absent.arrow"), "absent.arrow"),
        (("--warm-from", "@last"), "no runs yet"),
        (("--warm-from", "absent"), "no run 'absent'"),
        (("--warm-from", "conversation-like", "--block-size", "256"), "512"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_what_cannot_be_is_one_line_before_anything_is_replayed(
    tool: Tool, words: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    answer = tool(*FEW, *words)
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    assert reason in answer.err
    assert not (tmp_path / "results").exists()


def test_the_python_api_takes_the_same_words() -> None:
    run = replay(
        "conversation-like", cluster="1P+1D", max_requests=40, pool="50blocks", ssd="1000blocks", ssd_read="10GB/s"
    )
    assert run.manifest["setup"]["ssd.read_gbytes_per_s"] == 10.0
    assert run.manifest["counters"]["demotions"] > 0
    with pytest.raises(SetupError, match=r"ssd\.read_gbytes_per_s: no effect without ssd\.blocks"):
        replay("conversation-like", max_requests=40, ssd_read=5)
