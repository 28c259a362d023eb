"""What prompts share: system prompts, documents asked several times, the history of a conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.errors import SetupError
from mooncake_bench.trace.synthetic import draws, spelling
from mooncake_bench.trace.synthetic.lengths import Lognormal
from mooncake_bench.trace.synthetic.spelling import Spelled, unknown_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_bench.trace.model import Ints
    from mooncake_bench.trace.synthetic.draws import Draws

KINDS = ("none", "system", "documents", "sessions")
MOST_SHARED = 10_000_000  # system prompts or documents of one trace


@dataclass(frozen=True)
class System:
    """System prompts that conversations open with, chosen by Zipf's law."""

    tokens: tuple[int, ...]  # of each, the most popular first
    zipf: float = 0.0

    def choose(self, draw: Draws, count: int) -> Ints:
        """Which one each of ``count`` conversations opens with."""
        return draws.zipf_choice(draw("system", count), len(self.tokens), self.zipf)


@dataclass(frozen=True)
class Documents:
    """Long texts that several conversations open with.

    With ``questions`` each is asked exactly that often (the last one perhaps less), at random places of the whole
    trace, or, with ``spread``, within about so many conversations; with ``count`` a fixed shelf is chosen from by
    Zipf's law.
    """

    tokens: int  # mean
    cv: float = 0.0  # lognormal
    questions: int | None = None
    spread: int | None = None
    count: int | None = None
    zipf: float = 0.0

    def choose(self, draw: Draws, count: int) -> Ints:
        """Which document each of ``count`` conversations opens with."""
        if self.questions is None:
            assert self.count is not None
            return draws.zipf_choice(draw("document", count), self.count, self.zipf)
        place = np.arange(count) if self.spread is not None else np.zeros(count)
        keys = place + (self.spread or 1) * draw("document", count)
        chosen = np.empty(count, np.int64)
        chosen[np.argsort(keys, kind="stable")] = np.arange(count) // self.questions
        return chosen

    def lengths(self, draw: Draws, count: int) -> Ints:
        """Tokens of each of the first ``count`` documents."""
        return Lognormal(self.tokens, self.cv)(draw("document tokens", count))


@dataclass(frozen=True)
class Sessions:
    """Conversations of several turns: each prompt is the previous one, its answer, and new text."""

    turns: float  # mean
    think_ms: float  # mean, exponential
    regular: bool = False  # every session has `turns` turns; else geometric
    answer_ms: float | None = None  # expected time for a token of the previous answer, before the user thinks
    context_tokens: int | None = None  # a session ends before a prompt would be longer

    def counts(self, draw: Draws, count: int) -> Ints:
        """Turns of each of ``count`` sessions."""
        if self.regular:
            return np.full(count, round(self.turns), np.int64)
        return draws.geometric_turns(draw("turns", count), self.turns)

    @property
    def lead_ms(self) -> float:
        """How long before the trace sessions have to begin so that its first second is like any other."""
        return 10 * max(0.0, self.turns - 1) * (self.think_ms + 1000 * (self.answer_ms or 0))


@dataclass(frozen=True)
class Share:
    """The parts that are combined; None: not there."""

    system: System | None = None
    documents: Documents | None = None
    sessions: Sessions | None = None


def parse(texts: Sequence[str]) -> Share:
    """What one or several ``--share`` texts say together. Raises SetupError for a bad one, or one given twice."""
    found: dict[str, System | Documents | Sessions | None] = {}
    for text in texts:
        part = Spelled(text, "--share")
        if part.kind not in KINDS:
            raise unknown_kind(part, KINDS)
        if part.kind in found or (found and "none" in (part.kind, *found)):
            raise SetupError(f"--share {part.text!r}: cannot be added to {', '.join(map(repr, found))}; keep one")
        known = {"none": (), "system": _SYSTEM, "documents": _DOCUMENTS, "sessions": _SESSIONS}[part.kind]
        found[part.kind] = _PARSERS[part.kind](part) if part.kind != "none" else None
        part.done(known)
    found.pop("none", None)
    return Share(**found)  # type: ignore[arg-type]


_SYSTEM = ("count", "tokens", "zipf")
_DOCUMENTS = ("tokens", "cv", "questions", "spread", "count", "zipf")
_SESSIONS = ("turns", "think", "vary", "answer", "context")


def _system(part: Spelled) -> System:
    listed = tuple(spelling.token_count(one, part.name("tokens")) for one in part.take("tokens").split("/"))
    count = spelling.whole(part.take("count", str(len(listed))), part.name("count"), 1, MOST_SHARED)
    if len(listed) not in (1, count):
        raise part.error(f"count= is {count}, but tokens= lists {len(listed)} lengths")
    return System(listed * count if len(listed) == 1 else listed, _zipf(part))


def _zipf(part: Spelled) -> float:
    return spelling.number(part.take("zipf", "0"), part.name("zipf"), 0, 10)


def _documents(part: Spelled) -> Documents:
    if part.has("questions") == part.has("count"):
        raise part.error("one of questions= (times each is asked) and count= (documents on the shelf) is needed")
    if part.has("spread") and not part.has("questions"):
        raise part.error("spread= goes with questions=")
    if part.has("zipf") and not part.has("count"):
        raise part.error("zipf= goes with count=; with questions= every document is asked as often")
    tokens = spelling.token_count(part.take("tokens"), part.name("tokens"))
    cv = spelling.number(part.take("cv", "0"), part.name("cv"), 0, 100)
    spread = spelling.whole(part.take("spread"), part.name("spread")) if part.has("spread") else None
    if part.has("questions"):
        return Documents(tokens, cv, spelling.whole(part.take("questions"), part.name("questions")), spread)
    count = spelling.whole(part.take("count"), part.name("count"), 1, MOST_SHARED)
    return Documents(tokens, cv, None, None, count, _zipf(part))


def _sessions(part: Spelled) -> Sessions:
    turns = spelling.number(part.take("turns"), part.name("turns"), 1, 10_000)
    think = spelling.duration_ms(part.take("think"), part.name("think"))
    vary = part.take("vary", "geometric")
    if vary not in ("geometric", "fixed") or (vary == "fixed" and turns != int(turns)):
        raise part.error("vary= is geometric or, for a whole number of turns, fixed")
    answer = spelling.duration_ms(part.take("answer"), part.name("answer")) if part.has("answer") else None
    context = spelling.token_count(part.take("context"), part.name("context")) if part.has("context") else None
    return Sessions(turns, think, vary == "fixed", answer, context)


_PARSERS: dict[str, Callable[[Spelled], System | Documents | Sessions]] = {
    "system": _system,
    "documents": _documents,
    "sessions": _sessions,
}
