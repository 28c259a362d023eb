"""A seeded generator of traces: multi-turn sessions over shared system prompts.

A session starts at a bursty time, opens with a shared system prompt, and takes turns: each prompt is the previous
prompt, its answer and the new turn's text, unless the user edits an earlier message or asks again. Blocks are
prefix-chained, so two prompts share exactly the whole blocks of the tokens they share. Sessions begin before the
trace does and the window is cut out of their life, as a recorded hour is.

All randomness is uniform numbers of PCG64, one named stream a purpose, put through quantile tables: the same seed
gives the same trace in every process.

``python -m mooncake_bench.trace.synth OUTDIR`` writes the bundled traces.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.errors import TraceError, nearest
from mooncake_bench.trace.model import DEFAULT_BLOCK_TOKENS, Floats, Ints, Trace
from mooncake_bench.trace.schema import RawColumns, finish

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

GENERATOR_VERSION = "1"
LICENCE = "Apache-2.0"


@dataclass(frozen=True)
class Quantiles:
    """A distribution given by points ``(probability, value)`` of its quantile function; between them the logarithm
    of the value is linear in the probability, or with ``linear`` the value itself."""

    points: tuple[tuple[float, float], ...]
    linear: bool = False

    def __call__(self, uniform: Floats) -> Floats:
        """Values for uniform numbers in [0, 1)."""
        at, values = zip(*self.points, strict=True)
        return np.interp(uniform, at, values) if self.linear else np.exp(np.interp(uniform, at, np.log(values)))


@dataclass(frozen=True)
class SystemPrompts:
    """A family of shared openings, chosen by a Zipf law; all begin with the trace's one root block."""

    tokens: tuple[int, ...]  # length of each, in order of popularity
    zipf: float = 0.0  # exponent; 0: all alike

    def choose(self, uniform: Floats) -> Ints:
        """Which prompt each session opens with."""
        weight = np.arange(1, len(self.tokens) + 1, dtype=np.float64) ** -self.zipf
        return np.searchsorted(np.cumsum(weight) / weight.sum(), uniform, side="right")


@dataclass(frozen=True)
class Workload:
    """Sessions of one kind, drawn until they have put ``requests`` requests into the window."""

    name: str
    requests: int
    system: SystemPrompts
    first_tokens: Quantiles  # the first turn's own text
    turn_tokens: Quantiles  # a later turn's own text
    output_tokens: Quantiles
    think_ms: Quantiles  # from one turn's arrival to the next
    casual: float  # share of sessions that go on with probability `casual_goes_on`, the rest with `goes_on`
    casual_goes_on: float
    goes_on: float
    resends: float = 0.0  # share of later turns that send the previous prompt again
    edits: float = 0.0  # share of later turns that keep only a part of the conversation, uniform in `edit_keeps`
    edit_keeps: tuple[float, float] = (0.1, 1.0)
    edit_rewrites: float = 0.0  # how much of what an edit drops is written anew


@dataclass(frozen=True)
class Spec:
    """A whole trace."""

    name: str
    about: str
    workloads: tuple[Workload, ...]
    span_ms: int  # arrivals fall in [0, span_ms)
    grid_ms: int  # arrivals are rounded down to multiples of this
    burst_ms: int  # session starts have a constant rate within such an interval ...
    burst_cv: float  # ... which differs between intervals by this coefficient of variation
    ramp: tuple[float, float]  # relative rate of session starts at the window's start and end
    root_tokens: int = DEFAULT_BLOCK_TOKENS
    max_input_tokens: int = 126_195
    lead_ms: int = 3_600_000  # sessions start this long before the window
    block_tokens: int = DEFAULT_BLOCK_TOKENS


def stream(seed: int, name: str) -> np.random.Generator:
    """The random stream of one purpose; adding a stream changes no other."""
    words = np.frombuffer(hashlib.sha256(name.encode()).digest(), "<u4").tolist()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *words])))


def generate(spec: Spec, seed: int = 0) -> Trace:
    """The trace of ``spec``: a pure function of it and the seed."""
    turns = [_Sessions(spec, number, seed).in_window() for number in range(len(spec.workloads))]
    merged = sorted((turn for kind in turns for turn in kind), key=lambda turn: turn.arrival_ms)
    counts = np.array([len(turn.blocks) for turn in merged], np.int64)
    raw = RawColumns(
        label=f"synthetic trace {spec.name!r}",
        timestamp=np.array([turn.arrival_ms // spec.grid_ms * spec.grid_ms for turn in merged], np.int64),
        input_tokens=np.array([turn.input_tokens for turn in merged], np.int64),
        output_tokens=np.array([turn.output_tokens for turn in merged], np.int64),
        block_offsets=np.concatenate(([0], np.cumsum(counts))),
        block_ids=_by_appearance(np.array([block for turn in merged for block in turn.blocks], np.int64)),
        session_id=_by_appearance(np.array([turn.session for turn in merged], np.int64)),
        metadata=_facts(spec, seed),
    )
    return finish(raw, spec.name, spec.block_tokens, "ms")


def _facts(spec: Spec, seed: int) -> dict[str, str]:
    return {
        "source": f"synthetic: mooncake_bench.trace.synth, version {GENERATOR_VERSION}",
        "about": spec.about,
        "seed": str(seed),
        "licence": LICENCE,
    }


def _by_appearance(labels: Ints) -> Ints:
    """Labels renumbered 0, 1, … in order of first appearance."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


@dataclass(frozen=True)
class _Turn:
    arrival_ms: int
    session: int
    input_tokens: int
    output_tokens: int
    blocks: list[int]  # provisional ids, distinct between workloads


class _Sessions:
    """The sessions of one workload, in the order they are drawn."""

    def __init__(self, spec: Spec, number: int, seed: int) -> None:
        self.spec, self.work, self.seed = spec, spec.workloads[number], seed
        self.count = 2 * self.work.requests + 1000  # more than ever needed: most sessions fall into the window
        self._next_block = (number + 1) << 40
        self._first_session = number << 40
        self._shared: dict[int, list[int]] = {}

    def draw(self, purpose: str, size: int) -> Floats:
        """Uniform numbers of the stream ``workload/purpose``."""
        return stream(self.seed, f"{self.spec.name}/{self.work.name}/{purpose}").random(size)

    def in_window(self) -> list[_Turn]:
        """The first ``requests`` turns, session after session, that arrive in the window."""
        kept: list[_Turn] = []
        for turn in self._turns():
            if 0 <= turn.arrival_ms < self.spec.span_ms:
                kept.append(turn)
                if len(kept) == self.work.requests:
                    return kept
        raise TraceError(f"synthetic trace {self.spec.name!r}: too few sessions reach the window; lead_ms is too long")

    def _turns(self) -> Iterator[_Turn]:
        work = self.work
        lengths = self._session_lengths()
        size = int(lengths.sum())
        begins = np.concatenate(([0], np.cumsum(lengths))).tolist()
        starts = self._starts().tolist()
        prompts = work.system.choose(self.draw("system", self.count)).tolist()
        opening = work.first_tokens(self.draw("first", self.count)).astype(np.int64).tolist()
        added = work.turn_tokens(self.draw("turn", size)).astype(np.int64).tolist()
        answers = work.output_tokens(self.draw("output", size)).astype(np.int64).tolist()
        think = work.think_ms(self.draw("think", size)).tolist()
        change, keep = self.draw("change", size).tolist(), self.draw("keep", size).tolist()
        for session in range(self.count):
            system = work.system.tokens[prompts[session]]
            tokens, blocks = system + opening[session], self._opened(prompts[session])
            arrival = starts[session]
            shared = system
            for at in range(begins[session], begins[session + 1]):
                if at > begins[session]:
                    arrival += think[at]
                    tokens, shared = self._next_turn(tokens, answers[at - 1], added[at], change[at], keep[at], system)
                if tokens > self.spec.max_input_tokens:
                    break  # the conversation has outgrown the context window
                blocks = self._chained(blocks, shared, tokens)
                yield _Turn(int(arrival // 1), self._first_session + session, tokens, answers[at], blocks)

    def _session_lengths(self) -> Ints:
        """Turns of each session: geometric, with one of two probabilities of going on."""
        casual = self.draw("casual", self.count) < self.work.casual
        goes_on = np.where(casual, self.work.casual_goes_on, self.work.goes_on)
        more = np.floor(np.log1p(-self.draw("turns", self.count)) / np.log(np.maximum(goes_on, 1e-9)))
        return 1 + more.astype(np.int64)

    def _starts(self) -> Floats:
        """When each session begins, ms; by inverting the cumulative rate."""
        spec = self.spec
        edges = np.arange(-spec.lead_ms, spec.span_ms + spec.burst_ms, spec.burst_ms, dtype=np.float64)
        low, high = spec.ramp
        rate = low + (high - low) * np.clip(edges[:-1] / spec.span_ms, 0, 1)
        wave = stream(self.seed, f"{spec.name}/bursts").random(len(rate))  # all workloads feel the same bursts
        rate *= 1 + spec.burst_cv * np.sqrt(3) * (2 * wave - 1)
        total = np.concatenate(([0], np.cumsum(rate)))
        when: Floats = np.interp(self.draw("start", self.count) * total[-1], total, edges)
        return when

    def _next_turn(
        self, tokens: int, answer: int, added: int, change: float, keep: float, system: int
    ) -> tuple[int, int]:
        """Prompt length of the next turn, and how many tokens it shares with this one."""
        work = self.work
        if change < work.resends:
            return tokens, tokens
        if change < work.resends + work.edits:
            low, high = work.edit_keeps
            kept = max(system, int(tokens * (low + (high - low) * keep)))
            return kept + int((tokens - kept) * work.edit_rewrites) + added, kept
        return tokens + answer + added, tokens

    def _opened(self, prompt: int) -> list[int]:
        """The block ids that every session with this system prompt opens with: the root, then its own."""
        if prompt not in self._shared:
            whole = self.work.system.tokens[prompt] // self.spec.block_tokens
            own = max(0, whole - self.spec.root_tokens // self.spec.block_tokens)
            roots = list(range(min(whole, self.spec.root_tokens // self.spec.block_tokens)))
            self._shared[prompt] = roots + self._fresh(own)
        return self._shared[prompt]

    def _chained(self, previous: list[int], shared: int, tokens: int) -> list[int]:
        """The block ids of a prompt of ``tokens`` whose first ``shared`` are those of the previous one."""
        count = -(-tokens // self.spec.block_tokens)
        whole = len(previous) if shared == tokens else min(shared // self.spec.block_tokens, len(previous))
        return previous[:whole] + self._fresh(count - whole)

    def _fresh(self, count: int) -> list[int]:
        first, self._next_block = self._next_block, self._next_block + count
        return list(range(first, first + count))


def presets() -> Mapping[str, Spec]:
    """The bundled specifications, by name."""
    from mooncake_bench.trace.presets import CONVERSATION_LIKE, TOOLAGENT_LIKE

    return {spec.name: spec for spec in (CONVERSATION_LIKE, TOOLAGENT_LIKE)}


def synthesize(name: str, seed: int = 0) -> Trace:
    """The bundled trace of that name, made anew (another seed: another draw of the same workload).

    Raises TraceError for an unknown name.
    """
    known = presets()
    if name not in known:
        raise TraceError(f"no generator named {name!r}{nearest(name, known)}; there are {', '.join(known)}")
    return generate(known[name], seed)


def write_bundled(folder: Path) -> list[Path]:
    """Write every bundled trace into ``folder``; the same bytes each time for one version of Arrow."""
    from mooncake_bench.trace.store import save

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in presets():
        written.append(folder / f"{name}.arrow")
        save(synthesize(name), written[-1], smallest=True)
    return written


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m mooncake_bench.trace.synth OUTDIR")
    for path in write_bundled(Path(sys.argv[1])):
        print(f"{path} {path.stat().st_size:,} bytes")
