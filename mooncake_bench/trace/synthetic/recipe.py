"""A trace from its parts: arrivals, lengths, what is shared. Vectorised: millions of requests take seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.errors import SetupError
from mooncake_bench.trace.model import DEFAULT_BLOCK_TOKENS
from mooncake_bench.trace.rows import numbered
from mooncake_bench.trace.schema import RawColumns, finish
from mooncake_bench.trace.synthetic import draws
from mooncake_bench.trace.synthetic.arrivals import Arrivals, Poisson, Replay
from mooncake_bench.trace.synthetic.blocks import Prompts, block_ids
from mooncake_bench.trace.synthetic.draws import Draws
from mooncake_bench.trace.synthetic.lengths import Joint, Lengths, Lognormal
from mooncake_bench.trace.synthetic.structure import Share

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mooncake_bench.trace.model import Floats, Ints, Trace

VERSION = "1"
DEFAULT_RATE_RPS, DEFAULT_REQUESTS = 1.0, 1000
MOST_REQUESTS = 100_000_000
MOST_GROWTH = 32  # of the first guess of how many conversations are needed
NS_PER_MS = 1e6


@dataclass(frozen=True)
class Recipe:
    """A whole workload. ``input_tokens`` is the text of a request's own, beside what it shares."""

    name: str = "synthetic"
    about: str = ""
    arrivals: Arrivals = field(default_factory=Poisson)
    rate_rps: float | None = None  # of requests; None: the arrivals' own, else DEFAULT_RATE_RPS
    requests: int | None = None
    duration_ms: float | None = None
    input_tokens: Lengths = field(default_factory=lambda: Lognormal(8_000, 1.0))
    output_tokens: Lengths = field(default_factory=lambda: Lognormal(300, 1.0))
    turn_tokens: Lengths | None = None  # own text of the turns after a session's first; None: as `input_tokens`
    joint: Joint | None = None  # input and output of each request together, in place of the three above
    share: Share = field(default_factory=Share)
    block_tokens: int = DEFAULT_BLOCK_TOKENS


def make(recipe: Recipe, seed: int = 0) -> Trace:
    """The trace of a recipe: a pure function of it and the seed.

    Raises SetupError where the recipe gives no requests, or more than there are.
    """
    return finish(_Maker(recipe, seed).columns(), recipe.name, recipe.block_tokens, "ms")


@dataclass
class _Turns:
    """All turns of all conversations drawn, conversation after conversation."""

    conversation: Ints | None  # None: each turn is one
    arrival_ms: Floats
    input_tokens: Ints
    output_tokens: Ints
    delay_ms: Floats | None

    def take(self, rows: Ints) -> _Turns:
        """Some of them, in the given order."""
        return _Turns(
            None if self.conversation is None else self.conversation[rows],
            self.arrival_ms[rows],
            self.input_tokens[rows],
            self.output_tokens[rows],
            None if self.delay_ms is None else self.delay_ms[rows],
        )


@dataclass
class _Opening:
    """What each conversation opens with; ends in tokens, counted from the prompt's start."""

    system: Ints | None  # which system prompt
    system_end: Ints
    document: Ints | None
    end: Ints  # of the document, or of the system prompt where there is none

    def take(self, rows: Ints) -> _Opening:
        """That of some conversations."""
        system = None if self.system is None else self.system[rows]
        document = None if self.document is None else self.document[rows]
        return _Opening(system, self.system_end[rows], document, self.end[rows])


class _Maker:
    """One trace in the making."""

    def __init__(self, recipe: Recipe, seed: int) -> None:
        self.recipe, self.share, self.seed = recipe, recipe.share, seed
        self.draw = Draws(seed, "traces synth")
        self.rate_rps = recipe.rate_rps or recipe.arrivals.own_rate_rps or DEFAULT_RATE_RPS
        if not np.isfinite(self.rate_rps):
            raise SetupError("the replayed arrivals have no rate; give --rate")
        self.requests = recipe.requests
        if self.requests is None and recipe.duration_ms is None:
            self.requests = min(DEFAULT_REQUESTS, recipe.arrivals.limit or DEFAULT_REQUESTS)
        self.notices: list[str] = []
        self.cut: str | None = None  # how many sessions begin before the trace or go on after it

    def columns(self) -> RawColumns:
        """Everything that a reader would have found in a file."""
        first = count = self._conversations()
        while (turns := self._window(count)) is None:
            if count == self.recipe.arrivals.limit:
                raise self._too_few(count)
            if count > MOST_GROWTH * first:
                raise SetupError(
                    f"of {count:,} conversations too few requests are in the trace; do prompts fit sessions' context=?"
                )
            count = min(2 * count, self.recipe.arrivals.limit or 2 * count)
        if not len(turns.arrival_ms):
            raise SetupError("0 requests fall into the trace; give a longer --duration or a higher --rate")
        offsets, ids = block_ids(self._prompts(turns), self.recipe.block_tokens)
        return RawColumns(
            label=f"synthetic trace {self.recipe.name!r}",
            timestamp=np.rint(turns.arrival_ms * NS_PER_MS) / NS_PER_MS,
            input_tokens=turns.input_tokens,
            output_tokens=turns.output_tokens,
            block_offsets=offsets,
            block_ids=ids,
            session_id=self._session_ids(turns),
            delay_ms=turns.delay_ms,
            metadata=self._facts(),
            notices=self.notices,
        )

    def _session_ids(self, turns: _Turns) -> Ints | None:
        return None if turns.conversation is None else numbered(turns.conversation)

    def _facts(self) -> dict[str, str]:
        facts = {"source": f"synthetic: mooncake-bench traces synth, version {VERSION}", "seed": str(self.seed)}
        facts |= {"sessions_cut": self.cut} if self.cut else {}
        return facts | ({"about": self.recipe.about} if self.recipe.about else {})

    def _too_few(self, count: int) -> SetupError:
        asked = f"{self.requests:,} requests" if self.requests else f"{self.recipe.duration_ms:g} ms"
        what = "sessions" if self.share.sessions else "requests"
        return SetupError(
            f"the replayed trace has arrivals for {count:,} {what}; expected enough for {asked}; ask less"
        )

    def _conversations(self) -> int:
        """A first guess of how many conversations have to be drawn; exact where each is one request."""
        sessions, limit = self.share.sessions, self.recipe.arrivals.limit
        wanted = self.requests or self.rate_rps * (self.recipe.duration_ms or 0) / 1000 * 1.05 + 100
        if sessions is not None:
            wanted = (wanted + self._lead_ms() / 1000 * self.rate_rps) / sessions.turns * 1.1 + 100
        if wanted > MOST_REQUESTS:
            raise SetupError(f"{wanted:,.0f} requests are more than {MOST_REQUESTS:,}; ask fewer, or a shorter time")
        return int(wanted) if limit is None else min(int(wanted), limit)

    def _lead_ms(self) -> float:
        sessions = self.share.sessions
        return 0.0 if sessions is None or isinstance(self.recipe.arrivals, Replay) else sessions.lead_ms

    def _window(self, count: int) -> _Turns | None:
        """The trace's turns in order of arrival; None when ``count`` conversations do not fill it."""
        sessions, lead_ms = self.share.sessions, self._lead_ms()
        self.notices = []  # those of the last attempt count
        rate = self.rate_rps / (1 if sessions is None else sessions.turns)
        starts = self.recipe.arrivals.times_ms(self.draw, count, rate, -lead_ms)
        end_ms = self._end_ms(float(starts[-1]), exhausted=count == self.recipe.arrivals.limit)
        if end_ms is None:
            return None
        if sessions is not None:
            self.opening = self._opening(count)
            return self._cut(self._turns(starts), end_ms)
        starts = starts[: int(np.searchsorted(starts, end_ms))]
        if len(starts) < (self.requests or 0):
            return None
        self.opening = self._opening(len(starts))
        return self._single(starts)

    def _end_ms(self, last_ms: float, exhausted: bool) -> float | None:
        """The time before which all requests are drawn when the last conversation begins at ``last_ms``.

        ``exhausted``: there are no more. None: more have to be drawn.
        """
        wanted = self.recipe.duration_ms
        if wanted is None:
            return np.inf if exhausted or self.share.sessions is None else last_ms
        if last_ms >= wanted:
            return wanted
        if exhausted:
            self.notices.append(
                f"the last replayed arrival is at {last_ms / 1000:,.1f} s, before {wanted / 1000:,.1f} s"
            )
        return wanted if exhausted else None

    def _cut(self, turns: _Turns, end_ms: float) -> _Turns | None:
        inside = np.flatnonzero((turns.arrival_ms >= 0) & (turns.arrival_ms < end_ms))
        if self.requests is not None and len(inside) < self.requests:
            return None
        order = inside[np.argsort(turns.arrival_ms[inside], kind="stable")][: self.requests]
        kept = turns.take(order)
        self._count_cut(turns, kept)
        if kept.delay_ms is not None:  # the answer before the first turn of the window is not in the trace
            assert kept.conversation is not None
            kept.delay_ms[np.unique(kept.conversation, return_index=True)[1]] = np.nan
        return kept

    def _count_cut(self, turns: _Turns, kept: _Turns) -> None:
        """Remembers how many sessions of the trace have turns before or after it, too."""
        assert turns.conversation is not None
        assert kept.conversation is not None
        drawn = np.bincount(turns.conversation)
        inside = np.bincount(kept.conversation, minlength=len(drawn))
        cut = int(((inside > 0) & (inside < drawn)).sum())
        self.cut = f"{cut:,} of {int((inside > 0).sum()):,}"

    def _single(self, starts: Floats) -> _Turns:
        own, answers = self._lengths(len(starts), None)
        return _Turns(None, starts, own + self.opening.end, answers, None)

    def _lengths(self, size: int, later: Ints | None) -> tuple[Ints, Ints]:
        """Own text and answer of each request; ``later`` marks the turns after a session's first."""
        recipe = self.recipe
        if recipe.joint is not None:
            rows = recipe.joint.rows(self.draw("lengths", size))
            return recipe.joint.input_tokens[rows], recipe.joint.output_tokens[rows]
        uniform = self.draw("input", size)
        own = recipe.input_tokens(uniform)
        if later is not None and recipe.turn_tokens is not None:
            own = np.where(later > 0, recipe.turn_tokens(uniform), own)
        return own, recipe.output_tokens(self.draw("output", size))

    def _opening(self, count: int) -> _Opening:
        system, documents = self.share.system, self.share.documents
        document = None if documents is None or not count else documents.choose(self.draw, count)
        owners = count if document is None else int(document.max()) + 1
        if system is None:
            which, system_end = None, np.zeros(owners, np.int64)
        else:  # a document has its system prompt: under another it would be another document
            which = system.choose(self.draw, owners)
            system_end = np.asarray(system.tokens, np.int64)[which]
        if documents is None or document is None:
            return _Opening(which, system_end, None, system_end)
        end = system_end + documents.lengths(self.draw, owners)
        return _Opening(None if which is None else which[document], system_end[document], document, end[document])

    def _turns(self, starts: Floats) -> _Turns:
        sessions = self.share.sessions
        assert sessions is not None
        counts = sessions.counts(self.draw, len(starts))
        begins = np.cumsum(counts) - counts
        conversation = np.repeat(np.arange(len(starts)), counts)
        turn = np.arange(len(conversation)) - np.repeat(begins, counts)
        own, answers = self._lengths(len(turn), turn)
        before = np.where(turn > 0, np.roll(answers, 1), 0)
        tokens = _running(own + before, begins, counts) + self.opening.end[conversation]
        think = draws.exponential(self.draw("think", len(turn))) * sessions.think_ms
        gap = np.where(turn > 0, think + before * (sessions.answer_ms or 0), starts[conversation])
        delay = None if sessions.answer_ms is None else np.where(turn > 0, think, np.nan)
        turns = _Turns(conversation, _running(gap, begins, counts), tokens, answers, delay)
        if sessions.context_tokens is None:
            return turns
        fits = np.flatnonzero(tokens <= sessions.context_tokens)
        if len(fits) < len(tokens):
            self.notices.append(
                f"sessions end before a prompt of more than {sessions.context_tokens:,} tokens: "
                f"{1 - len(fits) / len(tokens):.1%} of the turns drawn are left out"
            )
        return turns.take(fits)

    def _prompts(self, turns: _Turns) -> Prompts:
        opening = self.opening if turns.conversation is None else self.opening.take(turns.conversation)
        return Prompts(
            turns.input_tokens,
            opening.system,
            opening.system_end,
            opening.document,
            opening.end,
            turns.conversation,
        )


def _running(values: NDArray[Any], begins: Ints, counts: Ints) -> NDArray[Any]:
    """Sums from each conversation's first turn on."""
    total = np.cumsum(values)
    sums: NDArray[Any] = total - np.repeat(total[begins] - values[begins], counts)
    return sums
