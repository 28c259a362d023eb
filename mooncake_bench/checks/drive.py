"""The checks themselves: they run one policy on small inputs and say what they saw, or raise AssertionError."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.api import Request, Route
from mooncake_bench.checks.scene import Scene
from mooncake_bench.plugins import build

if TYPE_CHECKING:
    from mooncake_bench.api import Eviction
    from mooncake_bench.plugins import PolicyClass
    from mooncake_bench.sim.replay import Replay
    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.trace import Trace

_PACKAGE = str(Path(__file__).resolve().parents[1])
REQUESTS = 160
CAPACITIES = (1, 2, 7, 40)
EVENTS_A_CAPACITY = 400
LONGEST_GAP_MS = 60_000  # between two requests to a node under test: minutes pass, so that what may expire does
SCENES = 40
DECIDED_AT_ARRIVAL = ("prefill_instance", "predicted_ttft_ms", "predicted_tbt_ms")


class Skipped(Exception):  # noqa: N818 - no error
    """The check does not apply to this policy."""


def small_trace(seed: int = 7, shortest_output: int = 1) -> Trace:
    """Conversations that share a system prompt: prompts of 1 to 40 blocks, growing turn by turn, all within 8 s."""
    from mooncake_bench.trace import Trace

    rng = np.random.default_rng(seed)
    chains: list[list[int]] = [[0] for _ in range(12)]
    lengths = [300] * 12
    fresh, rows = 1, []
    for arrival_ms in np.sort(rng.integers(0, 8000, REQUESTS)):
        turn = int(rng.integers(len(chains)))
        lengths[turn] += int(rng.integers(1, 4000))
        if lengths[turn] > 20_000:
            lengths[turn], chains[turn] = int(rng.integers(1, 1500)), [0]
        whole = lengths[turn] // 512  # full blocks are kept from turn to turn, a partial tail is not
        chains[turn] = chains[turn][: max(1, whole)]
        missing = -(-lengths[turn] // 512) - len(chains[turn])
        blocks = chains[turn] + list(range(fresh, fresh + max(0, missing)))
        fresh += max(0, missing)
        chains[turn] = blocks
        output = int(rng.integers(shortest_output, shortest_output + 60))
        rows.append((float(arrival_ms), lengths[turn], output, list(blocks)))
    return Trace.of(rows, 512, "check")


@dataclass(frozen=True)
class Trial:
    """One policy under test."""

    spec: str
    policy: PolicyClass
    policy_dirs: tuple[Path, ...] = ()

    def build(self) -> str:
        build(self.spec, self.policy_dirs)
        return f"{' and '.join(self.policy.kinds)} {self.policy.name!r}"

    # evictions

    def evicts_validly(self) -> str:
        count = sum(len(self._victims(capacity, check=True)) for capacity in CAPACITIES)
        return f"{count} evictions at capacities {', '.join(map(str, CAPACITIES))}"

    def evicts_alike(self) -> str:
        for capacity in CAPACITIES:
            if self._victims(capacity) != self._victims(capacity):
                raise AssertionError(f"two objects given the same calls named different victims at capacity {capacity}")
        return "same victims"

    def _victims(self, capacity: int, check: bool = False) -> list[int]:
        eviction = build(self.spec, self.policy_dirs).evictions()
        return drive_eviction(eviction, capacity, EVENTS_A_CAPACITY, check)

    # routers and admissions

    def leaves_the_view_alone(self) -> str:
        policies = build(self.spec, self.policy_dirs)
        rng = np.random.default_rng(11)
        for row in range(SCENES):
            scene = random_scene(rng)
            if row == 0:
                policies.router.start(scene, np.random.default_rng(1))
                policies.admission.start(scene, np.random.default_rng(2))
            tokens = int(rng.integers(1, 9000))
            request = Request(row, scene.now_ms, tokens, tuple(range(-(-tokens // 512))), output_tokens=50)
            before = _snapshot(scene)
            route = policies.router.route(request, scene)
            policies.admission.reject(request, _filled(route, scene), scene)
            changed = [name for name, value in _snapshot(scene).items() if value != before[name]]
            if changed:
                raise AssertionError(f"it changed what it was shown: {', '.join(changed)}")
        return f"{SCENES} decisions"

    # whole replays

    def decides_validly(self) -> str:
        replay = self._replay(small_trace())
        _accounts(replay)
        each_us = float(np.median(replay.policy_ns)) / 1000 if len(replay.policy_ns) else 0.0
        return f"{len(replay.trace)} requests, {each_us:.0f} us a decision; {_outcome(replay)}"

    def survives_pressure(self) -> str:
        replay = self._replay(small_trace(), **PRESSURE)
        _accounts(replay)
        return _outcome(replay)

    def decides_alike(self) -> str:
        for changes in ({}, PRESSURE):
            first, second = (self._replay(small_trace(), **changes) for _ in range(2))
            _require_same(first, second, list(first.columns), "two runs with the same seed differ in {}")
        return "every column of two runs is the same"

    def is_blind_to_the_future(self) -> str:
        if self.policy.oracle:
            raise Skipped("it declares oracle = True, which every report says")
        trace = small_trace(shortest_output=500)  # a step takes 20 ms or more: no finish before the last arrival
        outputs = np.random.default_rng(5).permutation(trace.output_tokens)
        for changes in ({}, PRESSURE):
            first, second = (
                self._replay(trace, **changes),
                self._replay(replace(trace, output_tokens=outputs), **changes),
            )
            _require_no_finish_before_the_last_arrival(first, second)
            _require_same(first, second, list(DECIDED_AT_ARRIVAL), "permuting output lengths changed {}")
            if not np.array_equal(first.columns["reject_stage"] == 1, second.columns["reject_stage"] == 1):
                raise AssertionError("permuting output lengths changed which requests are rejected at arrival")
        return "permuted output lengths change no decision at arrival"

    def _replay(self, trace: Trace, **changes: Any) -> Replay:
        from mooncake_bench.sim.replay import run

        replay = run(trace, self._setup(**changes), policy_dirs=self.policy_dirs)
        if replay.interrupted:  # a replay keeps what is done on Ctrl-C; half of one says nothing about a policy
            raise KeyboardInterrupt
        return replay

    def _setup(self, **changes: Any) -> Setup:
        from mooncake_bench.sim.setup import Setup

        return Setup(cluster="3P+2D", policy=self.spec, seed=3, **changes)


PRESSURE: dict[str, Any] = {
    "pool_blocks": 60,  # evictions, and refusals while much is pinned
    "vram_tokens": 60_000,  # preemptions
    "speedup": 4.0,
    "slo_ttft_ms": 4000.0,
    "slo_tbt_ms": 32.0,
}


def drive_eviction(eviction: Eviction, capacity: int, events: int, check: bool = True) -> list[int]:
    """Random requests on one node: expire, begin, pin, evict, insert, touch, unpin, sometimes drop; then drain it.

    The victims. With ``check``, raises AssertionError when one is pinned or not stored.
    """
    rng = np.random.default_rng(capacity)
    stored: set[int] = set()
    victims: list[int] = []

    def give_up(victim: int, pinned: set[int], method: str) -> None:
        if check and (victim not in stored or victim in pinned):
            state = "pinned" if victim in pinned else "not stored"
            raise AssertionError(f"{method}() returned {victim!r}, which is {state} (capacity {capacity})")
        stored.discard(victim)
        victims.append(victim)

    def evict(pinned: set[int]) -> None:
        give_up(eviction.evict(pinned), pinned, "evict")

    eviction.open(capacity)
    pinned: set[int] = set()
    now_ms = 0.0
    for _ in range(events):
        now_ms += float(rng.integers(LONGEST_GAP_MS))
        chain = int(rng.integers(8)) * 1000
        blocks = [chain + place for place in range(int(rng.integers(1, 12)))]
        if rng.random() < 0.3:
            pinned = set()  # running requests have ended
        for victim in list(eviction.expire(now_ms, pinned)):
            give_up(victim, pinned, "expire")
        eviction.begin(tuple(blocks), now_ms)
        pinned |= stored.intersection(blocks)
        absent = [(block, place) for place, block in enumerate(blocks) if block not in stored]
        while len(stored) + len(absent) > capacity and stored - pinned:
            evict(pinned)
        absent = absent[: capacity - len(stored)]
        if absent:
            eviction.insert([block for block, _ in absent], [place for _, place in absent])
            stored.update(block for block, _ in absent)
            pinned.update(block for block, _ in absent)
        used = [(block, place) for place, block in enumerate(blocks) if block in stored][::-1]
        eviction.touch([block for block, _ in used], [place for _, place in used])
        if absent and rng.random() < 0.1:  # its computation is dropped
            eviction.remove(absent[-1][0])
            stored.discard(absent[-1][0])
            pinned.discard(absent[-1][0])
    while stored:
        evict(set())
    return victims


def random_scene(rng: np.random.Generator) -> Scene:
    """A cluster of 3 prefill and 2 decode instances in some state."""

    def rows(since: int) -> list[tuple[int, float, int]]:
        return [
            (3 + int(rng.integers(2)), since + float(rng.integers(1000)), int(rng.integers(1, 9000)))
            for _ in range(int(rng.integers(4)))
        ]

    joined = rows(8000)
    cached = (rng.integers(0, 6, 3) * 512).tolist()
    return Scene(
        prefill=3,
        decode=2,
        now_ms=10_000.0,
        queue=rng.integers(0, 3000, 3).tolist(),
        queued=rng.integers(0, 5, 3).tolist(),
        cached=cached,
        batch=[sum(instance == 3 + d for instance, _, _ in joined) for d in range(2)],
        context=[sum(tokens for instance, _, tokens in joined if instance == 3 + d) for d in range(2)],
        joined_rows=joined,
        waiting_rows=rows(9000),
        promised_rows=rows(9500),
        vram=40_000,
        ttft_slo_ms=4000.0,
        tbt_slo_ms=30.0,
    )


def _filled(route: Route, scene: Scene) -> Route:
    """What the harness adds to a route before the admission sees it."""
    decode = scene.prefill if route.decode is None else route.decode
    ttft_ms = float(scene.queue_ms[route.prefill]) + 100.0 if route.ttft_ms is None else route.ttft_ms
    return route._replace(decode=decode, ttft_ms=ttft_ms)


def _snapshot(scene: Scene) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in vars(scene).items():
        found[name] = [column.tobytes() for column in value] if isinstance(value, tuple) and name in _TABLES else value
        if isinstance(value, np.ndarray):
            found[name] = value.tobytes()
    return found


_TABLES = ("joined", "waiting", "promised")


def _accounts(replay: Replay) -> None:
    left = int((replay.columns["status"] == 0).sum())
    if left:
        raise AssertionError(
            f"{left} of {len(replay.trace)} requests never end: they are neither completed nor rejected"
        )


def _outcome(replay: Replay) -> str:
    status = replay.columns["status"]
    return ", ".join(
        f"{(status == code).sum()} {word}" for code, word in ((1, "completed"), (2, "rejected"), (3, "failed"))
    )


def _require_same(first: Replay, second: Replay, columns: list[str], message: str) -> None:
    for name in columns:
        one, other = first.columns[name], second.columns[name]
        differs = np.flatnonzero(~((one == other) | ((one != one) & (other != other))))
        if differs.size:
            row = int(differs[0])
            what = f"{name} of request {row}: {one[row]} and {other[row]}"
            raise AssertionError(message.format(what))


def _require_no_finish_before_the_last_arrival(*replays: Replay) -> None:
    for replay in replays:
        done = replay.columns["status"] == 1
        if done.any() and replay.columns["end_ps"][done].min() < replay.columns["arrival_ps"].max():
            raise AssertionError("the check's trace is at fault: a request finishes before the last one arrives")


def where(fault: BaseException) -> str:
    """`` (FILE, line N)`` of the innermost frame of a policy's own code, or nothing."""
    frames = [frame for frame in traceback.extract_tb(fault.__traceback__) if not frame.filename.startswith(_PACKAGE)]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
