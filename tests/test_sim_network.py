"""Shared NICs: max-min fair, in whole bytes a second (rule 11). At n B/s a byte takes 10^12 / n ps."""

from __future__ import annotations

import heapq
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import network as naive

from mooncake_bench.sim import network
from mooncake_bench.sim.network import SCALE

SECOND = 10**12  # ps


class Line:
    """A network whose ends are kept in a list, to be looked at or worked off."""

    def __init__(self, *capacities: int) -> None:
        self.posted: list[tuple[int, int, int, Any]] = []
        self.heard: list[tuple[int, int]] = []
        self.network = network.Network(
            list(capacities), self._post, lambda now, flow: self.heard.append((now, flow.rate))
        )

    def _post(self, time: int, flow: Any, epoch: int) -> None:
        heapq.heappush(self.posted, (time, flow.number, epoch, flow))

    def send(self, now: int, source: int, target: int, size: int = 100, cap: int | None = None) -> Any:
        done = None if cap else (lambda now, owner: None)
        return self.network.start(now, source, target, size * SCALE, cap=cap, done=done)

    def next_end(self) -> int:
        """The earliest end that still holds."""
        return min(time for time, _, epoch, flow in self.posted if epoch == flow.epoch)


def test_a_transfer_alone_runs_at_the_slower_nic_and_ends_on_a_picosecond_rounded_up() -> None:
    line = Line(7, 3)
    flow = line.send(5, 0, 1, size=1)
    assert flow.rate == 3
    assert line.next_end() == 5 + 333_333_333_334  # 10^12 / 3 = 333,333,333,333.3 ps


def test_three_fetches_from_one_holder_get_a_third_each_and_a_replica_helps() -> None:
    line = Line(9, 9, 9, 9, 9)
    hot = [line.send(0, 0, target) for target in (1, 2, 3)]
    assert [flow.rate for flow in hot] == [3, 3, 3]
    line.network.stop(0, hot.pop())
    helped = line.send(0, 4, 3)
    assert [flow.rate for flow in hot] == [4, 4]  # 9 // 2
    assert helped.rate == 9


def test_a_flow_held_back_elsewhere_leaves_its_share_to_others() -> None:
    # ingress of 2 carries 4 B/s: 2 for each of its flows; so egress 0 has 10 - 2 = 8 left for the other
    line = Line(10, 10, 4, 10)
    free, held, other = line.send(0, 0, 1), line.send(0, 0, 2), line.send(0, 3, 2)
    assert (free.rate, held.rate, other.rate) == (8, 2, 2)


def test_a_capped_stream_takes_its_cap_and_an_uncapped_flow_the_rest() -> None:
    line = Line(10, 10, 10)
    fetch, stream = line.send(0, 0, 1), line.send(0, 0, 2, cap=3)
    assert (fetch.rate, stream.rate) == (7, 3)


def test_streams_whose_caps_sum_to_more_than_the_link_share_it() -> None:
    # into 3: caps 2, 9, 9 on 12 B/s: 2 stops at its cap, the others get 10 // 2 = 5
    line = Line(100, 100, 100, 12)
    rates = [line.send(0, source, 3, cap=cap) for source, cap in ((0, 2), (1, 9), (2, 9))]
    assert [flow.rate for flow in rates] == [2, 5, 5]


def test_a_flow_that_ends_gives_its_share_to_the_others_at_once() -> None:
    # 100 bytes each at 5 B/s. At 4 s one is stopped; the other has 80 left at 10 B/s: 8 s more
    line = Line(10, 10, 10)
    one, other = line.send(0, 0, 1), line.send(0, 0, 2)
    assert line.next_end() == 20 * SECOND
    line.network.stop(4 * SECOND, one)
    assert other.rate == 10
    assert line.next_end() == 12 * SECOND


@pytest.mark.parametrize(
    ("last_layer", "end_s"),
    [(10, 12), (50, 18)],
    ids=["more is unsent than the last layer", "the last layer is more than what is unsent"],
)
def test_at_the_prefills_end_the_unsent_or_the_last_layer_remains(last_layer: int, end_s: int) -> None:
    # 80 of 100 bytes are sent in 8 s at its cap of 10 B/s. Then it shares them with a fetch: 5 B/s each, so the 20
    # unsent take 4 s, a last layer of 50 takes 10.
    line = Line(10, 100, 100)
    stream = line.send(0, 0, 1, size=100, cap=10)
    line.send(8 * SECOND, 0, 2, size=10_000)
    line.network.release_cap(8 * SECOND, stream, last_layer * SCALE, lambda now, owner: None, None)
    assert stream.rate == 5
    assert line.next_end() == end_s * SECOND


def test_whoever_watches_a_flow_hears_of_its_new_rates() -> None:
    line = Line(10, 10, 10)
    flow = line.send(0, 0, 1)
    flow.watched = True
    other = line.send(SECOND, 0, 2)
    line.network.stop(2 * SECOND, other)
    assert line.heard == [(SECOND, 5), (2 * SECOND, 10)]


# against rates worked out from scratch

NODES = 6
events = st.lists(
    st.tuples(
        st.sampled_from(("fetch", "fetch", "stream", "stream", "release", "release", "stop")),
        st.integers(0, 3 * SECOND),  # later than the one before, ps
        st.integers(0, NODES - 1),  # source
        st.integers(0, NODES - 1),  # target
        st.integers(1, 60),  # bytes; of a release: the least that remains
        st.integers(1, 30),  # cap
        st.integers(0, 30),  # which of the streams (release) or flows (stop)
    ),
    min_size=1,
    max_size=40,
)


class Naive:
    """The reference's network, spoken to as the engine's."""

    def __init__(self, capacities: list[int], post: Any) -> None:
        self.inner = naive.Network(capacities, post)

    def start(self, now, source, target, size, cap, done):
        return self.inner.add(now, source, target, size, cap, done)

    def release(self, now, flow, least, done):
        self.inner.release(now, flow, least * SCALE, done)

    def stop(self, now, flow):
        self.inner.remove(now, flow)


class Quick:
    def __init__(self, capacities: list[int], post: Any) -> None:
        self.inner = network.Network(capacities, post, lambda now, flow: None)

    def start(self, now, source, target, size, cap, done):
        return self.inner.start(now, source, target, size * SCALE, cap=cap, done=done)

    def release(self, now, flow, least, done):
        self.inner.release_cap(now, flow, least * SCALE, done, None)

    def stop(self, now, flow):
        self.inner.stop(now, flow)


def story(kind: Any, capacities: list[int], script: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Play a script; after every change, the time, and the rates of all flows under way by their number."""
    heap: list[tuple[int, int, int, Any]] = []
    numbers = count()
    names: dict[Any, int] = {}
    net = kind(capacities, lambda time, flow, epoch: heapq.heappush(heap, (time, flow.number, epoch, flow)))
    told: list[tuple[Any, ...]] = []
    now, live, streams = 0, [], []

    def note(what: str, flow: Any) -> None:
        told.append((what, now, names.get(flow), tuple((names[f], f.rate) for f in live)))

    def work_off(until: float) -> None:
        nonlocal now
        while heap and heap[0][0] <= until:
            time, _, epoch, flow = heapq.heappop(heap)
            if epoch == flow.epoch and flow in live:
                now = time
                live.remove(flow)
                net.stop(now, flow)
                note("end", flow)

    for what, wait, source, target, size, cap, which in script:
        then = now + wait
        work_off(then)
        now = then
        if what in ("fetch", "stream") and source != target:
            capped = what == "stream"
            flow = net.start(now, source, target, size, cap if capped else None, None if capped else lambda *_: None)
            names[flow] = next(numbers)
            live.append(flow)
            streams += [flow] * capped
        elif what == "release" and streams:
            flow = streams.pop(which % len(streams))
            net.release(now, flow, size, lambda *_: None)
        elif what == "stop" and live:
            flow = live.pop(which % len(live))
            streams = [stream for stream in streams if stream is not flow]
            net.stop(now, flow)
        else:
            continue
        note(what, flow)
    work_off(float("inf"))
    return told


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.integers(40, 120), min_size=NODES, max_size=NODES), events)
def test_local_changes_give_the_rates_and_ends_of_a_global_refill(capacities: list[int], script: list[Any]) -> None:
    assert story(Quick, capacities, script) == story(Naive, capacities, script)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(40, 120), min_size=NODES, max_size=NODES), events)
def test_rates_keep_to_caps_and_links_and_leave_no_room_that_someone_could_use(
    capacities: list[int], script: list[Any]
) -> None:
    heap: list[Any] = []
    net = Quick(capacities, lambda *post: heap.append(post))
    flows = []
    for what, _, source, target, size, cap, _ in script:
        if what in ("fetch", "stream") and source != target:
            capped = what == "stream"
            flow = net.start(0, source, target, size, cap if capped else None, None if capped else lambda *_: None)
            flows.append(flow)
    used = {link: sum(flow.rate for flow in link.flows) for link in (*net.inner.egress, *net.inner.ingress)}
    assert all(total <= link.capacity for link, total in used.items())
    for flow in flows:
        links = (flow.egress, flow.ingress)
        full = [link for link in links if link.capacity - used[link] < len(link.flows)]  # less than 1 B/s for each
        assert flow.rate == flow.cap or any(flow.rate >= max(f.rate for f in link.flows) - 1 for link in full)
