"""Clients and SLO classes on the command line: flags, what reports say of them, what is refused."""

from __future__ import annotations

import pytest
from fault_tools import Tool, gate, latest, line, written

from mooncake_bench import replay
from mooncake_bench.trace import Trace

# Two sessions of two turns each, 600 tokens a prompt; the second turn thinks for 5 s.
ROWS = [
    line(0.0, session_id=1, priority=1), line(10.0, session_id=2, priority=2),
    line(20.0, session_id=1, priority=1, delay=5000.0), line(30.0, session_id=2, priority=2, delay=5000.0),
]  # fmt: skip
SMALL = ("--cluster", "1P+1D")


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_a_report_tells_how_clients_behave_and_what_came_of_it(tool: Tool) -> None:
    policy = gate("None if request.attempt else 'busy'")
    words = ("--retries", "2", "--backoff", "10ms", "--backoff-factor", "3", "--jitter", "0.5", "--patience", "1min")
    answer = tool("replay", written("turns.jsonl", ROWS), *SMALL, "-p", policy, *words, "--loop", "closed")
    assert answer.code == 0, answer.err
    shown = one_line(answer.out)
    assert "clients ask again up to 2× after 10 ms, ×3 each time, ±50 %; closed loop; patience 60 s" in shown
    assert "turned away: 4 at attempt 1" in one_line(answer.out + answer.err)
    metrics = latest().metrics()
    assert (metrics["attempts_per_request"].value, metrics["retried_requests"].value) == (2.0, 4)
    assert latest().requests.column("arrival_ms").to_pylist()[2] > 5000


def test_who_gave_up_is_told_of(tool: Tool) -> None:
    answer = tool("replay", written("turns.jsonl", ROWS), *SMALL, "--patience", "1ms")
    assert answer.code == 3, answer.err  # nothing completed
    assert "4 requests failed: cancelled: no first token within 1 ms, prefilling" in one_line(answer.out + answer.err)
    assert latest().metrics()["cancelled_requests"].value == 4


def test_classes_are_told_of_and_shown_by_priority(tool: Tool) -> None:
    words = ("--slo-class", "1=ttft:10s,tbt:1ms", "--slo-class", "2=ttft:1ms", "--by", "priority")
    answer = tool("replay", written("turns.jsonl", ROWS), *SMALL, *words)
    assert answer.code == 0, answer.err
    shown = one_line(answer.out)
    assert "of priority 1 TTFT 10 s, TBT 1 ms; of priority 2 TTFT 1 ms" in shown
    assert "priority 2" in shown
    assert latest().requests.column("slo_ttft_ok").to_pylist() == [True, False, True, False]
    assert latest().requests.column("slo_tbt_ok").to_pylist() == [False, True, False, True]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--backoff", "1s"), "--backoff: no effect without --retries"),
        (("--jitter", "0"), "--jitter: no effect without --retries"),
        (("--think-speedup", "2"), "--think-speedup: no effect without --loop closed"),
        (("--slo-class", "9=ttft:1s"), "no request of this trace has priority 9; its priorities are 1, 2"),
        (("--slo-class", "1=ttft:1s", "--slo-class", "1=ttft:2s"), "priority 1 has two classes"),
    ],
)
def test_what_has_no_effect_is_refused(tool: Tool, words: tuple[str, ...], why: str) -> None:
    answer = tool("replay", written("turns.jsonl", ROWS), *SMALL, *words)
    assert (answer.code, answer.out) == (2, "")
    assert why in one_line(answer.err)


def test_a_trace_says_whether_it_can_be_replayed_in_a_closed_loop(tool: Tool) -> None:
    with_delays = tool.json("traces", "info", written("turns.jsonl", ROWS))
    assert with_delays["closed_loop"] == {"possible": True, "gap": None}
    without = written("plain.jsonl", [line(0.0), line(10.0)])
    assert tool.json("traces", "info", without)["closed_loop"] == {"possible": False, "gap": "it has no session ids"}
    answer = tool("replay", without, *SMALL, "--loop", "closed")
    assert answer.code == 2
    assert "no closed loop is possible, for it has no session ids" in one_line(answer.err)


def test_a_repeated_run_has_the_same_clients(tool: Tool) -> None:
    words = ("--retries", "1", "--loop", "closed", "--patience", "5s", "--slo-class", "1=ttft:1s")
    assert tool("replay", written("turns.jsonl", ROWS), *SMALL, *words).code == 0
    first = latest()
    assert tool("replay", "--from", "@last").code == 0
    assert latest().manifest["setup"] == first.manifest["setup"]
    assert latest().manifest["content_sha256"] == first.manifest["content_sha256"]


def test_a_mean_of_prefill_time_counts_everybody_whose_prefill_began() -> None:
    # 20,000 tokens take more than 2.5 s; their client gives up after 500 ms, so 500 ms of the GPU were spent on it.
    # 512 tokens, later, take less: the mean is over both, although the first shows no hits.
    trace = Trace.of([(0, 20_000, 2, list(range(40))), (10_000, 512, 2, [99])])
    run = replay(trace, cluster="1P+1D", client_patience_ms=500)
    first, second = run.requests.column("prefill_gpu_ms").to_pylist()
    assert (run.requests.column("status").to_pylist(), first) == (["failed", "completed"], 500.0)
    mean = run.metrics()["mean_prefill_gpu_ms"]
    assert (mean.value, mean.n) == ((500.0 + second) / 2, 2)
