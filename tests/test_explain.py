"""``explain``: what it says a policy saw is what the policy saw, and what happened is what the run tells."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fault_tools import Tool

from mooncake_bench import open_run
from mooncake_bench.cli.app import run
from mooncake_bench.errors import NothingToConclude
from mooncake_bench.results.explain import explain
from mooncake_bench.results.run import Run

BLOCK = 512
# Every policy here writes what it saw of one request into a file: a reference that owes nothing to explain.
TELLS = """
import json
from pathlib import Path
from mooncake_bench.api import Admission, Route, Router


class Teller(Router):
    name = "teller"

    def route(self, request, cluster):
        hit, ready = cluster.cached_tokens(request), cluster.fetchable_tokens(request)
        best = int(ready.argmax())
        fetch = (ready[best] - hit) * (ready[best] > 2 * hit)
        queue, more, compute = cluster.queue_ms, cluster.fetch_ms(fetch, best), cluster.prefill_ms(request, hit + fetch)
        p = int((queue + more + compute).argmin())
        seen = {
            "queue": queue[cluster.is_prefill].tolist(), "hit": hit[cluster.is_prefill].tolist(), "holder": best,
            "ready": int(ready[best]), "decode_tokens": cluster.decode_tokens[cluster.is_decode].tolist(),
            "compute": float(cluster.prefill_ms(request, hit)[p]),
        }
        with Path("seen.jsonl").open("a") as file:
            print(json.dumps([request.row, request.attempt, seen]), file=file)
        return Route(p, fetch_from=best if fetch[p] else None, ttft_ms=float((queue + more + compute)[p]))


class Picky(Admission):
    name = "picky"

    def reject(self, request, route, cluster):
        return "long" if request.row % 10 == 7 and request.attempt < 2 else None
"""
SETUPS = {
    "exact": ["--cluster", "3P+2D"],
    "delayed": ["--cluster", "3P+2D", "--view", "delayed:300ms"],
    "router-only": ["--cluster", "3P+2D", "--view", "router-only", "--estimate-error", "0.3"],
    "coupled": ["--cluster", "3M", "--schedule", "chunked"],
    "retries": ["--cluster", "3P+2D", "--retries", "3", "--backoff", "200ms"],
}


def trace_rows() -> list[dict[str, Any]]:
    """60 requests 150 ms apart: five documents of 4 to 20 blocks, each asked about again and again."""
    rows = []
    for i in range(60):
        document, length = i % 5, 4 * (1 + i % 5)
        shared = [1000 * document + k for k in range(length)]
        own = [100_000 + 10 * i + k for k in range(2)]
        tokens = BLOCK * (length + 1) + 100
        rows.append(
            {"timestamp": 150 * i, "input_length": tokens, "output_length": 3 + i % 7, "hash_ids": shared + own}
        )
    return rows


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each setup in ``results``, named after it, with what the policy saw in ``NAME.jsonl``."""
    folder = tmp_path_factory.mktemp("explain")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in trace_rows()), encoding="utf-8")
        Path("mine.py").write_text(TELLS, encoding="utf-8")
        for name, words in SETUPS.items():
            policy = "mine.py:Teller" + ("+mine.py:Picky" if name in ("exact", "retries") else "")
            assert run(["replay", "t.jsonl", "-p", policy, *words, "--name", name, "-q", "--format", "json"]) == 0
            Path("seen.jsonl").rename(f"{name}.jsonl")
    return folder


@pytest.fixture
def told(stored: Path, tool: Tool, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """The command line in the folder of the stored runs."""
    monkeypatch.chdir(stored)
    return tool


def seen(name: str, row: int, attempt: int = 0) -> dict[str, Any]:
    lines = [json.loads(line) for line in Path(f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    return next(what for number, time, what in lines if (number, time) == (row, attempt))


def row_of(told: Tool, name: str, row: int) -> dict[str, Any]:
    import pyarrow.parquet as pq

    (folder,) = (path.parent for path in Path("results").glob("*/run.json") if f'"name": "{name}"' in path.read_text())
    found: dict[str, Any] = pq.read_table(folder / "requests.parquet").slice(row, 1).to_pylist()[0]
    return found


@pytest.mark.parametrize("name", ["exact", "delayed", "router-only", "coupled"])
@pytest.mark.parametrize("row", [0, 24, 58])
def test_candidates_are_what_the_policy_saw(told: Tool, name: str, row: int) -> None:
    found = told.json("explain", name, str(row))["decision"]
    what = seen(name, row)
    by_instance = sorted(found["candidates"], key=lambda each: each["instance"])
    assert [each["queue_ms"] for each in by_instance] == what["queue"]
    assert [each["hit_tokens"] for each in by_instance] == what["hit"]
    assert found["holder_tokens"] == what["ready"]
    assert found["holder"] == (what["holder"] if what["ready"] else None)
    assert [each["context_tokens"] for each in found["decodes"]] == what["decode_tokens"]
    estimates = [each["estimate_ms"] for each in found["candidates"]]
    assert estimates == sorted(estimates)
    assert [each["chosen"] for each in by_instance].index(True) == found["prefill"]


@pytest.mark.parametrize("row", range(20, 30))
def test_an_estimate_is_queue_and_fetch_where_it_pays_and_prefill(told: Tool, row: int) -> None:
    for each in told.json("explain", "exact", str(row))["decision"]["candidates"]:
        fetch = each["fetch_ms"] if each["fetches"] else 0
        assert each["estimate_ms"] == pytest.approx(each["queue_ms"] + fetch + each["prefill_ms"], rel=1e-12)


def test_prediction_and_what_happened_are_those_of_the_run(told: Tool) -> None:
    found, row = told.json("explain", "exact", "24"), row_of(told, "exact", 24)
    decision = found["decision"]
    assert found["happened"] == row
    assert decision["ttft_ms"] == row["predicted_ttft_ms"]
    assert decision["prefill"] == row["prefill_instance"]
    # first come, first served on an exact view: nothing that comes later is in the way
    assert decision["parts_ms"]["queue"] == pytest.approx(row["queue_ms"], abs=1e-6)
    assert decision["parts_ms"]["prefill"] == pytest.approx(row["prefill_ms"], abs=1e-6)
    assert sum(decision["parts_ms"].values()) == pytest.approx(decision["ttft_ms"])


def test_the_first_request_finds_an_idle_and_empty_cluster(told: Tool) -> None:
    decision = told.json("explain", "exact", "0")["decision"]
    assert {each["queue_ms"] for each in decision["candidates"]} == {0}
    assert {each["hit_tokens"] for each in decision["candidates"]} == {0}
    assert (decision["holder"], decision["fetch_from"]) == (None, None)
    shown = told("explain", "exact", "0").out
    assert "nobody has a prefix of it that is ready to be fetched" in shown


def test_a_rejected_request_shows_the_reason_and_the_loads(told: Tool) -> None:
    found = told.json("explain", "exact", "17")
    decision = found["decision"]
    assert decision["reason"] == "long"
    assert decision["prefill_load"] == pytest.approx(decision["ttft_ms"] / 30_000)
    assert found["happened"]["status"] == "rejected"
    shown = told("explain", "exact", "17").out
    assert "answer: rejected at arrival (long)" in shown
    assert "What then happened" in shown


def test_each_attempt_of_a_retried_request_can_be_asked_for(told: Tool) -> None:
    last = told.json("explain", "retries", "27")
    assert (last["attempt"], last["attempts"], last["decision"]["reason"]) == (3, 3, None)
    first = told.json("explain", "retries", "27", "--attempt", "1")
    assert first["decision"]["reason"] == "long"
    assert first["decision"]["now_ms"] == pytest.approx(27 * 150)
    queues = [each["queue_ms"] for each in sorted(first["decision"]["candidates"], key=lambda each: each["instance"])]
    assert queues == seen("retries", 27)["queue"]
    assert last["decision"]["waited_ms"] == pytest.approx(200 + 400)  # twice as long the second time
    shown = told("explain", "retries", "27", "--attempt", "1").out
    assert "attempt 1 of 3" in shown
    assert "What then happened" not in shown
    assert "--attempt 4: request '27' came 3 times" in told("explain", "retries", "27", "--attempt", "4").err


def test_a_name_of_several_runs_is_answered_with_their_numbers_and_labels(told: Tool) -> None:
    words = ("--cluster", "2P+1D", "--name", "several", "-o", "others", "-q")
    told("replay", "t.jsonl", "-p", "random", "-p", "a=kvcache-centric", *words)
    done = told("explain", "several", "0", "-o", "others")
    assert done.code == 2
    assert "several: means 2 runs: 1 (random), 2 (a); name one by its number, such as 1" in done.err
    assert told("explain", "1", "0", "-o", "others").code == 0


def test_the_load_that_an_admission_asked_about_is_shown(told: Tool) -> None:
    told("replay", "t.jsonl", "-p", "early", "--cluster", "3P+2D", "--vram", "40000", "--name", "early", "-q")
    decision = told.json("explain", "early", "40")["decision"]
    # early asks about the batch, what waits and the candidate: what explain counts itself
    assert decision["asked_decode_load"] == pytest.approx(decision["decode_load"])
    assert (decision["reason"] is not None) == (decision["asked_decode_load"] > 1)


def test_a_large_cluster_shows_16_and_the_chosen_unless_all_are_wanted(told: Tool) -> None:
    told("replay", "t.jsonl", "-p", "round-robin", "--cluster", "20P+18D", "--name", "large", "-q")
    some, whole = told("explain", "large", "39").out, told("explain", "large", "39", "--all").out
    assert "on 4 more: --all" in some  # 20 - 16
    assert "19 chosen" in some  # 39 mod 20
    assert "more: --all" not in whole
    assert len(whole.splitlines()) > len(some.splitlines())


@pytest.mark.parametrize("name", list(SETUPS))
def test_a_table_fits_80_columns(told: Tool, name: str) -> None:
    shown = told("explain", name, "52")
    assert shown.code == 0, shown.err
    assert max(map(len, shown.out.splitlines())) <= 80


def test_other_formats_have_every_candidate(told: Tool) -> None:
    rows = list(csv.DictReader(io.StringIO(told("explain", "exact", "24", "--format", "csv").out)))
    assert [row["role"] for row in rows] == ["prefill"] * 3 + ["decode"] * 2
    assert "| 0" in told("explain", "exact", "24", "--format", "markdown").out
    assert told("explain", "exact", "24", "--format", "csv", "--all").code == 2


def test_an_unknown_request_names_what_there_is(told: Tool) -> None:
    found = told("explain", "exact", "600")
    assert (found.code, found.err.strip()) == (
        2,
        "mooncake-bench: run '1_t_teller+picky' has no request '600'; its 60 requests are '0' to '59'",
    )


def test_a_changed_trace_policy_or_simulator_is_said(told: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, trace = Path("mine.py").read_text(encoding="utf-8"), Path("t.jsonl").read_text(encoding="utf-8")
    try:
        Path("mine.py").write_text(policy + "\n", encoding="utf-8")
        assert "the policy changed: file mine.py" in told("explain", "exact", "24").err
        Path("mine.py").write_text(policy, encoding="utf-8")
        Path("t.jsonl").write_text(trace.replace('"output_length": 3', '"output_length": 4'), encoding="utf-8")
        found = told("explain", "exact", "24")
        assert (found.code, "the trace changed: 't.jsonl'" in found.err) == (2, True)
        Path("moved.jsonl").write_text(trace, encoding="utf-8")
        assert told("explain", "exact", "24", "--trace", "moved.jsonl").code == 0
    finally:
        Path("mine.py").write_text(policy, encoding="utf-8")
        Path("t.jsonl").write_text(trace, encoding="utf-8")
    monkeypatch.setattr("mooncake_bench.sim.replay.SIMULATOR_VERSION", "9")
    assert "simulator version 1, and this is 9" in told("explain", "exact", "24").err


def test_a_policy_that_does_not_repeat_is_said(told: Tool) -> None:
    Path("dice.py").write_text(
        "from pathlib import Path\nfrom mooncake_bench.api import Route, Router\n\n\n"
        "class Dice(Router):\n    name = 'dice'\n\n    def route(self, request, cluster):\n"
        "        return Route(int(Path('number').read_text()))\n",
        encoding="utf-8",
    )
    Path("number").write_text("0", encoding="utf-8")
    told("replay", "t.jsonl", "-p", "dice.py", "--cluster", "3P+2D", "--name", "dice", "-q")
    Path("number").write_text("1", encoding="utf-8")
    found = told("explain", "dice", "3")
    assert found.code == 2
    assert "replayed, request '3' goes to instance 1" in found.err
    assert "in the run it went to 0" in found.err


def test_the_replay_stops_at_the_decision(told: Tool) -> None:
    Path("seen.jsonl").unlink(missing_ok=True)
    assert told("explain", "exact", "24").code == 0
    lines = Path("seen.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)[0] for line in lines] == list(range(25))


def test_a_request_that_never_came_or_that_nobody_could_decide_on_is_nothing_to_conclude(told: Tool) -> None:
    folder = next(path.parent for path in Path("results").glob("*/run.json") if '"name": "exact"' in path.read_text())
    whole = open_run(folder)
    columns = {"status": ["unfinished"] * 60, "prefill_instance": [None] * 60}
    table = whole.requests
    for name, values in columns.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))
    cut = Run(whole.manifest | {"status": "interrupted"}, whole._tables | {"requests": table}, folder)
    with pytest.raises(NothingToConclude, match="interrupted before it came"):
        explain(cut, "59")
    # both instances that prefill are gone when the last requests come: they fail, and no policy is asked
    gone = ["--event", "8s:fail:prefill:0", "--event", "8s:fail:prefill:1"]
    told("replay", "t.jsonl", "-p", "random", "--cluster", "2P+1D", *gone, "--name", "gone", "-q")
    found = told("explain", "gone", "59")
    assert (found.code, found.out) == (3, "")
    assert "no policy decided on it, for it failed" in found.err


def test_the_page_works_as_printed(tool: Tool) -> None:
    text = (Path(__file__).resolve().parent.parent / "docs" / "explain.md").read_text(encoding="utf-8")
    printed = ""
    for line in text.split("```sh\n")[1].split("```")[0].splitlines():
        found = tool(*line.split()[1:])
        assert found.code == 0, found.err
        printed += found.out
    assert "What then happened" in found.out
    samples = [table for block in text.split("```text\n")[1:] for table in block.split("```")[0].split("\n\n")]
    assert len(samples) == 4
    for table in samples:
        assert table in printed
