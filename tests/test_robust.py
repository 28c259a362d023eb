"""``robust``: its rows, what they say together, and the numbers against replays made one by one."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from mooncake_bench import replay
from mooncake_bench.cli.line import run_line
from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.hardware.scaled import ScaledCost
from mooncake_bench.results.metrics import BY_NAME
from mooncake_bench.results.uncertainty import Interval
from mooncake_bench.sim.replay import run
from mooncake_bench.sim.setup import Setup
from mooncake_bench.studies.robust.run import Outcome, Row, says, verdict, without_idle
from mooncake_bench.studies.robust.show import conclusion
from mooncake_bench.studies.robust.worlds import AS_IT_IS, Errors, World, cost_errors, worlds
from mooncake_bench.trace import Trace, load

PRESETS = Path(__file__).resolve().parents[1] / "mooncake_bench" / "hardware" / "presets"
NO_ERRORS = Errors(0.1, 0.2, "made up")


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONCAKE_BENCH_WORKERS", "1")


def one_request() -> Trace:
    return Trace(
        name="one",
        arrival_ms=np.zeros(1),
        input_tokens=np.array([1000]),
        output_tokens=np.array([3]),
        block_offsets=np.array([0, 2]),
        block_ids=np.arange(2),
        block_tokens=512,
    )


# ---- the rows


def test_costs_off_by_a_factor_stretch_prefill_and_decode_apart() -> None:
    # fake costs: a prefill of 1,000 tokens 1,000 ms; a step 10 + 1 a sequence + 0.001 a token of context, which is
    # 1,001 and then 1,002: 12.001 and 12.002 ms
    plain = run(one_request(), Setup(cluster="1P+1D"), cost=FakeCost(2)).columns
    scaled = run(one_request(), Setup(cluster="1P+1D"), cost=ScaledCost(FakeCost(2), prefill=1.5, decode=3.0)).columns
    assert (plain["first_token_ps"][0], scaled["first_token_ps"][0]) == (1000e9, 1500e9)
    assert (plain["end_ps"] - plain["join_ps"])[0] == 24.003e9
    assert (scaled["end_ps"] - scaled["join_ps"])[0] == 3 * 24.003e9


def test_a_coarse_grid_is_spread_and_where_there_is_none_a_note_says_so() -> None:
    grid, _ = worlds(load("conversation-like"), Setup(), 2, NO_ERRORS)
    assert [each.name for each in grid] == [
        AS_IT_IS, "arrivals ±1 ms, 1", "arrivals ±1 ms, 2", "ticks, uniform", "ticks, poisson", "seed 1", "seed 2",
        "view delayed:1s", "view router-only", "prefill +10.0 %", "prefill -10.0 %", "decode +20.0 %", "decode -20.0 %",
        "load -10 %", "load +10 %",
    ]  # fmt: skip
    fine, missing = worlds(one_request(), Setup(view="router-only"), 0, NO_ERRORS)
    assert [each.name for each in fine if each.group in ("ticks", "view", "seed")] == ["view delayed:1s"]
    assert missing == ["no ticks are spread: trace 'one': its arrivals lie on no coarse grid"]


def test_what_costs_may_be_off_by_is_the_held_out_p90_of_the_preset() -> None:
    nodes = tomllib.loads((PRESETS / "nodes.toml").read_text(encoding="utf-8"))
    costs = nodes["h100"]["costs"]["llama-3-70b"]
    expected = (costs["prefill_heldout"]["p90"] / 100, costs["decode_heldout"]["p90"] / 100)
    assert cost_errors(Setup(node="h100"))[:2] == pytest.approx(expected)


def test_a_node_that_was_not_measured_counts_with_the_worst_that_was() -> None:
    nodes = tomllib.loads((PRESETS / "nodes.toml").read_text(encoding="utf-8"))
    costs = nodes["a100"]["costs"]["llama-3-70b"]  # off by more than H100's
    found = cost_errors(Setup(node="a800"))
    assert found[:2] == pytest.approx((costs["prefill_heldout"]["p90"] / 100, costs["decode_heldout"]["p90"] / 100))
    assert "a800 has none of its own" in found.source


# ---- what they say together


def row(name: str, a: float, b: float, low: float, group: str = "") -> Row:
    """Of two policies, more is better; ``low``: the lower end of the lead's interval."""
    outcomes = {"a": Outcome(a, 10, None), "b": Outcome(b, 10, None)}
    if a == b:
        return Row(World(name, one_request(), group=group), outcomes, None, None, None, None, told=False)
    ahead, behind = ("a", "b") if a > b else ("b", "a")
    lead = Interval(abs(a - b), low, 1.0)
    return Row(World(name, one_request(), group=group), outcomes, ahead, behind, lead, abs(a - b), told=low > 0)


def test_a_conclusion_holds_turns_or_cannot_be_told() -> None:
    rows = [row(AS_IT_IS, 2, 1, 0.5), row("w", 3, 1, 0.5), row("x", 1, 2, 0.5), row("y", 3, 2, -0.5), row("z", 1, 1, 0)]
    found = verdict([*rows, row("v", 2, 1, 0.5)])
    assert (found.winner, found.holds, found.turns, found.open, found.rows) == ("a", 1, ("x",), ("y", "z"), 4)
    assert conclusion(found, BY_NAME["request_goodput_ratio"]) == (
        "a is ahead: holds in 1 of 4 other rows; turns: x; cannot tell apart: y, z; the same, not counted: v"
    )
    assert conclusion(found, BY_NAME["p99_ttft_ms"]).startswith("a is ahead, by value alone: holds in 1 of 4")


def test_without_a_winner_as_it_is_there_is_nothing_to_test() -> None:
    rows = [row(AS_IT_IS, 2, 1, -0.5), row("w", 1, 3, 0.5)]
    found = verdict(rows)
    assert (found.winner, found.turns) == (None, ())  # there was nothing to turn
    assert says(rows[1], rows[0]) == "told apart"
    assert conclusion(found, BY_NAME["mean_ttft_ms"]).startswith("as it is, the best two cannot be told apart")


def test_seeds_that_change_nothing_are_no_rows() -> None:
    rows = [row(AS_IT_IS, 2, 1, 0.5), row("seed 1", 2, 1, 0.5, "seed"), row("load", 2, 1, 0.5, "load")]
    kept, some = without_idle(rows, "seed")
    assert ([each.world.name for each in kept], some) == ([AS_IT_IS, "load"], True)


# ---- the command line

LINE = "robust conversation-like -p load-balancing -p kvcache-centric --max-requests 120 --cluster 2P+2D -q"


def test_its_numbers_are_those_of_replays_made_one_by_one(tmp_path: Path, capsys: Any) -> None:
    points = tmp_path / "points.parquet"
    words = [*LINE.split(), "--metric", "mean_ttft_ms", "--seeds", "1", "--format", "json", "--points", str(points)]
    code = run_line(words)
    found = json.loads(capsys.readouterr().out)
    rows = {each["world"]: each for each in found["worlds"]}
    own: dict[str, Any] = {"cluster": "2P+2D", "max_requests": 120}
    for name, changes in (
        (AS_IT_IS, {}),
        ("load +10 %", {"speedup": 1.1}),
        ("view router-only", {"view": "router-only"}),
    ):
        for policy in ("load-balancing", "kvcache-centric"):
            done = replay("conversation-like", policy=policy, **own, **changes)
            ttft = done.requests.column("ttft_ms").drop_null().to_numpy()
            assert rows[name]["values"][policy] == pytest.approx(float(ttft.mean()), rel=1e-12)
    stored = pq.read_table(points).to_pylist()
    assert len(stored) == 2 * len(rows)
    assert found["rows"] == len(rows) - 1 - len(found["the_same"])
    assert {"decode +5.7 %", "decode -5.7 %"} <= set(found["the_same"])  # nothing waits for decode here
    assert {(one["world"], one["policy"]): one["value"] for one in stored} == {
        (name, policy): value for name, each in rows.items() for policy, value in each["values"].items()
    }
    assert code == (3 if found["winner"] is None else 0)
    assert "seed 1" not in rows  # neither of them draws


def test_a_table_says_in_how_many_it_holds_and_what_was_left_out(capsys: Any) -> None:
    line = LINE.replace("load-balancing", "random") + " --seeds 1 --metric mean_ttft_ms"
    assert run_line(line.split()) in (0, 3)
    out = " ".join(capsys.readouterr().out.split())
    assert "seed 1" in out  # random draws
    assert "held-out p90 of a100" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("-p random", "compares policies; give two or more"),
        ("-p random -p lru --metric offered_rps", "neither more nor less of it is better"),
        ("-p random -p load-balancing --seeds 101", "--seeds: expected 0 to 100"),
        ("-p random -p load-balancing --cost-error 7%", "--cost-error: expected two shares"),
        ("-p random -p load-balancing --force", "--force: no effect without --points"),
    ],
)
def test_what_cannot_be_studied_is_refused(words: str, told: str, capsys: Any) -> None:
    assert run_line(["robust", "conversation-like", "--max-requests", "5", *words.split()]) == 2
    assert told in capsys.readouterr().err


def test_a_model_without_a_held_out_error_asks_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooncake_bench.studies.robust.worlds.node_names", list)
    with pytest.raises(SetupError, match="say what to assume, such as --cost-error"):
        cost_errors(Setup(node="a800"))
