"""Every error a person may see.

BenchError                  wrong use or bad input: one line, exit 2
├── SetupError              a flag or a setup key
├── TraceError              a trace file: names file, line (or row) and field
├── PolicyError             a SPEC, a policy file or a policy's decision: names the policy
├── ResultError             a run folder, or runs that cannot be compared
│   └── MissingRun          a run that is not there
└── NothingToConclude       the work was done but says nothing: exit 3
InvariantError              the simulator contradicted itself: a bug of ours, exit 1 with the facts to report
"""

from __future__ import annotations

import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class BenchError(Exception):
    """Wrong use or bad input; the message is one line: what, where, what was expected, how to fix it."""

    exit_code = 2


class SetupError(BenchError):
    """A flag or a setup key that cannot be used."""


class TraceError(BenchError):
    """A trace that cannot be read as it stands."""


class PolicyError(BenchError):
    """A SPEC or a policy file that cannot be used, or a decision that cannot be carried out."""


class ResultError(BenchError):
    """A run folder that cannot be read, or runs that are not comparable."""


class MissingRun(ResultError):  # noqa: N818 - it says what is wrong, as KeyError does
    """A run, or a baseline, that is not there (yet)."""


class NothingToConclude(BenchError):  # noqa: N818 - it says what happened, as KeyboardInterrupt does
    """The work was done, yet nothing can be said of it (no request completed, no baseline)."""

    exit_code = 3


class InvariantError(Exception):
    """The simulation broke one of its own rules; never the user's fault."""

    exit_code = 1


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint ``; did you mean 'x'?`` for the known name closest to ``word``, or an empty string."""
    match = get_close_matches(word, list(known), n=1)
    return f"; did you mean {match[0]!r}?" if match else ""


def faults() -> type[BaseException] | tuple[()]:
    """What a policy may raise, for ``except faults()`` around its code: anything but Ctrl-C is its own fault."""
    return () if isinstance(sys.exception(), KeyboardInterrupt) else BaseException
