"""What a policy does wrong is said in one line that names it; what it is shown is on one clock."""

from __future__ import annotations

import pytest

from mooncake_bench.errors import PolicyError, SetupError
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.sim.replay import run
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace

EVICTION = '''class Mine(Eviction):
    """An eviction."""

    name = "mine"

    def evict(self, pinned):
        {}
'''

ADMISSION = '''class Mine(Admission):
    """An admission."""

    name = "mine"

    def reject(self, request, route, cluster):
        return 1
'''

HEAD = """
from mooncake_bench.api import Admission, Eviction, Route, Router


"""


@pytest.fixture
def replay_of(tmp_path):
    def replay(body: str, **settings):
        path = tmp_path / "mine.py"
        path.write_text(HEAD + body, encoding="utf-8")
        trace = Trace.of([(0.0, 8, 2, [1, 2]), (30.0, 8, 2, [3, 4])], block_tokens=4)
        return run(trace, Setup(cluster="1P+1D", policy=str(path), **settings), cost=FakeCost(2))

    return replay


ROUTER = '''class Mine(Router):
    """A router."""

    name = "mine"

    def route(self, request, cluster):
        {}
'''


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("return 1 / 0", r"'mine', request 0: it raised ZeroDivisionError: division by zero at mine.py:11"),
        ("raise SystemExit(0)", r"'mine', request 0: it raised SystemExit: 0"),
        ("raise GeneratorExit", r"'mine', request 0: it raised GeneratorExit"),
        ("raise type('Own', (BaseException,), {})('x')", r"'mine', request 0: it raised Own: x"),
        ("return 0", r"'mine', request 0: route\(\) returned 0; return a Route"),
        ("return Route(1)", r"it routed the prefill to instance 1, which has another role"),
        ("return Route(7)", r"it routed the prefill to instance 7, which is no instance of this cluster"),
        ("return Route(0, decode=0)", r"it routed the decode to instance 0, which has another role"),
        ("return Route(0, fetch_from=0)", r"it fetches from instance 0 to itself"),
        ("return Route(0, fetch_from=1)", r"it fetches from instance 1, which has another role"),
        ("return Route(0, ttft_ms=float('nan'))", r"predicted a TTFT of nan ms; predict a finite time"),
        ("return Route(0, ttft_ms='x')", r"predicted a TTFT of 'x' ms"),
        ("return Route(0, ttft_ms=-5)", r"predicted a TTFT of -5 ms"),
        ("return Route(0, tbt_ms='x')", r"predicted a TBT of 'x' ms"),
    ],
)
def test_a_router_s_fault_names_it_the_request_and_the_reason(line: str, message: str, replay_of) -> None:
    with pytest.raises(PolicyError, match=message):
        replay_of(ROUTER.format(line))


def test_a_start_that_raises_names_the_policy(replay_of) -> None:
    body = ROUTER.format("return Route(0)") + "\n    def start(self, cluster, rng):\n        [][0]\n"
    with pytest.raises(PolicyError, match=r"'mine', start\(\): it raised IndexError"):
        replay_of(body)


def test_an_eviction_that_raises_names_the_policy_and_the_request(replay_of) -> None:
    body = EVICTION.format("return [][0]")
    with pytest.raises(PolicyError, match=r"'mine', request 1: it raised IndexError"):
        replay_of(body, pool_blocks=2)


def test_an_eviction_that_names_a_block_not_stored_is_refused(replay_of) -> None:
    body = (
        'class Mine(Eviction):\n    """E."""\n\n    name = "mine"\n\n    def evict(self, pinned):\n        return 99\n'
    )
    with pytest.raises(PolicyError, match=r"'mine'.*returned block 99, which is not stored on this node"):
        replay_of(body, pool_blocks=2)


def test_a_rejection_without_words_is_refused(replay_of) -> None:
    with pytest.raises(PolicyError, match=r"a rejection is a reason in words, or None to admit; got 1"):
        replay_of(ADMISSION)


@pytest.mark.parametrize("speedup", [0.5, 1.0, 3.0])
def test_a_request_s_arrival_is_on_the_clock_that_the_view_shows(speedup: float, replay_of) -> None:
    replay = replay_of(ROUTER.format("assert request.arrival_ms == cluster.now_ms; return Route(0)"), speedup=speedup)
    assert replay.columns["arrival_ps"].tolist() == [0, round(30e9 / speedup)]


def test_deadline_drops_by_the_replay_s_clock_whatever_the_speedup() -> None:
    # 8 ms of prefill each, one a millisecond of trace time, at twice the speed: the k-th (from 0) arrives at k/2 ms and
    # would have its first token at 8 (k + 1) ms. Allowed are 20 ms: k = 0 (8 ms) and 1 (15.5 ms) make it. The third
    # (k = 2) would take 24 - 1 = 23 ms and is dropped at its turn, at 16 ms; so does k = 3: 24 - 1.5 = 22.5 ms. k = 4
    # again: at 16 ms it would end at 24, 22 ms after its arrival at 2 ms.
    trace = Trace.of([(float(k), 8, 2, [2 * k, 2 * k + 1]) for k in range(5)], block_tokens=4)
    setup = Setup(cluster="1P+1D", policy="deadline", speedup=2.0, slo_ttft_ms=20.0)
    columns = run(trace, setup, cost=FakeCost(2)).columns
    assert columns["reject_stage"].tolist() == [0, 0, 2, 2, 2]


def test_a_simulated_time_beyond_64_bits_of_picoseconds_is_one_line() -> None:
    # 2^63 ps are 106.75 days, 9.2e9 ms: a prefill of 9.5e9 tokens at 1 ms each is longer
    trace = Trace.of([(0.0, 950_000_000, 2, [1])], block_tokens=10**9)
    cost = FakeCost(2, computed_token_ms=10.0, vram_tokens=10**12)
    with pytest.raises(SetupError, match="runs past 107 days of simulated time"):
        run(trace, Setup(pool_blocks=1, cluster="1P+1D"), cost=cost)
