"""How a cluster is doing in the middle of a replay: counted by hand, shown on a terminal, and without effect."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mooncake_bench.cli.progress import Silent, progress_bar, pulse_line
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.results.run import Run
from mooncake_bench.sim.pulse import Pulse, pulse
from mooncake_bench.sim.replay import run
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace

if TYPE_CHECKING:
    from mooncake_bench.sim.cluster import Cluster

SETUP = Setup(cluster="2P+1D", policy="round-robin", slo_ttft_ms=2000.0, slo_tbt_ms=100.0)


def arrivals(count: int) -> Trace:
    """Prompts of 1,000 tokens, a second apart; the first one's answer is very long, the others' one token."""
    answers = np.ones(count, np.int64)
    answers[0] = 100_000
    return Trace(
        name="steady",
        arrival_ms=1000.0 * np.arange(count),
        input_tokens=np.full(count, 1000),
        output_tokens=answers,
        block_offsets=2 * np.arange(count + 1),
        block_ids=np.arange(2 * count),
        block_tokens=512,
    )


def test_a_pulse_by_hand() -> None:
    """At 255 s, when the 256th request comes and progress is told of, each prompt taking 1 s on one of two nodes."""
    seen: list[Pulse] = []

    def look(cluster: Cluster, now: int) -> None:
        assert now == cluster.now
        seen.append(pulse(cluster, SETUP))

    run(arrivals(256), SETUP, lambda *_: None, cost=FakeCost(3), watch=(None, look))
    [found] = seen
    # the node that it goes to has 1 s to do, the other has just ended: (1000 + 0) / 2 / 2000
    assert (found.simulated_ms, found.prefill_load_ratio) == (255_000.0, 0.25)
    # one request decodes since 1 s, at about 12 ms a step: some 19,000 steps, so a context of some 20,000 tokens and a
    # step of 10 + 1 + 0.001 x 20,000 = 31 ms; the fake node holds a million tokens: the step is the larger share
    assert found.decode_load_ratio is not None
    steps = next(k for k in range(30_000) if 11 * k + 0.001 * (1001 * k + k * (k - 1) / 2) > 254_000) - 1
    assert found.decode_load_ratio == pytest.approx((11 + 0.001 * (1001 + steps)) / 100, abs=2e-5)
    assert found.decoding_requests == 1
    assert found.rejected_requests == 0


def test_rejections_are_counted() -> None:
    seen: list[Pulse] = []
    setup = Setup(cluster="1P+1D", policy="round-robin+queue-cap:limit=1", speedup=2.0)
    watch = (None, lambda cluster, _now: seen.append(pulse(cluster, setup)))
    done = run(arrivals(256), setup, lambda *_: None, cost=FakeCost(2), watch=watch)
    # two arrive in the second that one prompt takes: every other one finds the node taken
    assert seen[0].rejected_requests == int((done.columns["status"] == 2).sum()) == 128


def test_who_looks_changes_nothing() -> None:
    setup = Setup(cluster="2P+2D", speedup=3.0)
    trace = arrivals(300)
    plain = Run.from_replay(run(trace, setup, cost=FakeCost(4)))
    watch = (None, lambda cluster, _now: pulse(cluster, setup))
    watched = Run.from_replay(run(trace, setup, lambda *_: None, cost=FakeCost(4), watch=watch))
    for key in ("content_sha256", "counters"):
        assert plain.manifest[key] == watched.manifest[key]


@pytest.mark.parametrize("cluster", ["3M", "3P+0D"])
def test_clusters_without_a_role_have_a_pulse_too(cluster: str) -> None:
    setup, seen = Setup(cluster=cluster), []
    watch = (None, lambda cluster, _now: seen.append(pulse(cluster, setup)))
    run(arrivals(256), setup, lambda *_: None, cost=FakeCost(3), watch=watch)
    assert (seen[0].decode_load_ratio is None) == (cluster == "3P+0D")


def test_the_line_says_when_and_how_loaded() -> None:
    line = pulse_line(Pulse(3_723_400.0, 0.254, None, 1234, 5, 6))
    assert line == "at 1:02:03, rejected 6, load P 0.25, queued 1,234, decoding 5"


class Terminal(io.StringIO):
    """A stderr that somebody watches."""

    def isatty(self) -> bool:
        return True


def test_it_is_shown_on_a_terminal_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    with progress_bar("lru", quiet=False) as bar:
        assert bar.wants_pulse
        bar(10, 100, 0.0)
        bar.beat(Pulse(1000.0, 0.5, 0.25, 1, 2, 3))
        assert not bar.wants_pulse  # just looked
    assert "load P 0.50 D 0.25" in screen.getvalue()
    with progress_bar("lru", quiet=True) as silent:
        assert type(silent) is Silent
        assert not silent.wants_pulse


def test_a_replay_with_a_terminal_looks_and_prints_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from mooncake_bench.cli.line import run_line

    screen, words = Terminal(), ["replay", "conversation-like", "--max-requests", "300", "-o", str(tmp_path)]
    monkeypatch.setattr("sys.stderr", screen)
    assert run_line(words) == 0
    assert "load P" in screen.getvalue()
