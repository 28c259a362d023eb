"""Turns and their sessions: who continues whom, as the trace says it or as its prompts show it.

**How sessions are inferred.** A prompt of ``t`` tokens has ``t // block_tokens`` full blocks. Request ``j`` continues
an earlier request ``i`` when ``j``'s prompt begins with all of ``i``'s full blocks (there is at least one). Of several
such ``i`` the one with the most blocks counts, then the latest. An *opening* is no conversation: when more than
:data:`MAX_FOLLOWERS` different blocks come right after ``i``'s last full block anywhere in the trace, that block ends
a shared system prompt or document, and nothing continues ``i``. Requests linked this way, directly or through others,
are one session. It is a guess: an edited earlier message starts a session anew, and conversations that differ only
within their last, partial block are one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.errors import TraceError
from mooncake_bench.trace.model import NO_SESSION
from mooncake_bench.trace.rows import row_chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mooncake_bench.trace.model import Floats, Ints, Trace

NO_PARENT = -1
MAX_FOLLOWERS = 4  # a turn's last full block is followed by its own partial block, its next turn, and a few retries
DEFAULT_TTFT_MS, DEFAULT_TBT_MS = 1000.0, 30.0


def parents(trace: Trace) -> tuple[Ints, str | None]:
    """The row whose answer each request waited for, :data:`NO_PARENT` where there is none, and how it is known.

    ``given``: the previous request of its session; ``inferred``: by the rule of this module; None: the trace has
    neither sessions nor prefix ids. Shape (n,).
    """
    if trace.session_id is not None:
        return given_parents(trace.session_id), "given"
    if trace.has_prefix_ids:
        return inferred_parents(trace), "inferred"
    return np.full(len(trace), NO_PARENT, np.int64), None


def given_parents(session_id: Ints) -> Ints:
    """The previous row of the same session, :data:`NO_PARENT` for first turns and rows without a session."""
    order = np.argsort(session_id, kind="stable")
    label = session_id[order]
    follows = (label[1:] == label[:-1]) & (label[1:] != NO_SESSION)
    parent = np.full(len(session_id), NO_PARENT, np.int64)
    parent[order[1:][follows]] = order[:-1][follows]
    return parent


def closed_loop_gap(trace: Trace) -> str | None:
    """What a closed loop lacks in a trace; None: nothing. There each turn follows the answer before it by its delay."""
    if trace.session_id is None or bool((trace.session_id == NO_SESSION).all()):
        return "it has no session ids"
    further = given_parents(trace.session_id) != NO_PARENT
    turns = int(further.sum())
    if not turns:
        return "no session has a second turn"
    known = 0 if trace.delay_ms is None else int((further & ~np.isnan(trace.delay_ms)).sum())
    if known < turns:
        return f"{turns - known:,} of {turns:,} further turns have no delay after the answer before them"
    return None


def infer(trace: Trace) -> Ints:
    """A session id for every request, numbered by first appearance, from how prompts grow (see the module).

    Raises TraceError for a trace without prefix ids.
    """
    root = inferred_parents(trace)
    root = np.where(root == NO_PARENT, np.arange(len(root)), root)
    while (further := root[root]).tobytes() != root.tobytes():  # parents come first: doubling ends at the first turns
        root = further
    sessions: Ints = np.unique(root, return_inverse=True)[1].astype(np.int64)
    return sessions


def inferred_parents(trace: Trace) -> Ints:
    """The row that each request continues by the rule of this module, or :data:`NO_PARENT`. Shape (n,).

    Raises TraceError for a trace without prefix ids.
    """
    if not trace.has_prefix_ids:
        raise TraceError(
            f"trace {trace.name!r}: sessions cannot be inferred, for the source has no prefix ids; expected a trace "
            "with prefix-chained block ids or with session ids"
        )
    tips = _Tips(trace)
    parent = np.full(len(trace), NO_PARENT, np.int64)
    for first, end in row_chunks(trace):
        parent[first:end] = tips.parents(trace, first, end)
    return parent


class _Tips:
    """The last full block of every prompt, and which rows end there."""

    def __init__(self, trace: Trace) -> None:
        full = trace.input_tokens // trace.block_tokens
        rows = np.flatnonzero(full > 0)
        ids = trace.block_ids[trace.block_offsets[rows] + full[rows] - 1]
        self.values, label = np.unique(ids, return_inverse=True)
        self.rows = len(trace)
        keep = ~self._openings(trace)[label]
        self.key = np.sort(label[keep] * self.rows + rows[keep])  # by block, then by row

    def _openings(self, trace: Trace) -> NDArray[np.bool_]:
        """Which of the blocks are followed by more than MAX_FOLLOWERS different blocks."""
        pairs = np.empty((0, 2), np.int64)
        for first, end in row_chunks(trace):
            label, row, entry = self._entries(trace, first, end)
            inner = entry + 1 < trace.block_offsets[row + 1]
            after = trace.block_ids[entry[inner] + 1]
            pairs = np.unique(np.concatenate((pairs, np.stack((label[inner], after), axis=1))), axis=0)
        followers: NDArray[np.bool_] = np.bincount(pairs[:, 0], minlength=len(self.values)) > MAX_FOLLOWERS
        return followers

    def _entries(self, trace: Trace, first: int, end: int) -> tuple[Ints, Ints, Ints]:
        """The entries of rows ``first`` to ``end`` that are some row's tip: its label, the row, the entry's place."""
        begin, stop = int(trace.block_offsets[first]), int(trace.block_offsets[end])
        ids = np.asarray(trace.block_ids[begin:stop])
        label = np.searchsorted(self.values, ids)
        found = np.zeros(len(ids), np.bool_)
        inside = label < len(self.values)
        found[inside] = self.values[label[inside]] == ids[inside]
        row = np.repeat(np.arange(first, end), np.diff(trace.block_offsets[first : end + 1]))
        return label[found], row[found], np.flatnonzero(found) + begin

    def parents(self, trace: Trace, first: int, end: int) -> Ints:
        """The latest earlier row at each row's deepest tip."""
        label, row, _ = self._entries(trace, first, end)
        at = np.searchsorted(self.key, label * self.rows + row, side="left") - 1  # the last one before this row
        known = at >= 0
        known[known] = self.key[at[known]] // self.rows == label[known]
        parent = np.full(end - first, NO_PARENT, np.int64)
        parent[row[known] - first] = self.key[at[known]] % self.rows  # entries lie head first: the deepest is last
        return parent


def early_turns(
    trace: Trace,
    speedups: Sequence[float] = (1, 2, 5, 10),
    ttft_ms: float = DEFAULT_TTFT_MS,
    tbt_ms: float = DEFAULT_TBT_MS,
) -> dict[str, Any]:
    """How many turns would arrive before their parent's answer is there, at each speedup.

    The answer of a parent of ``o`` output tokens is taken to need ``ttft_ms + o * tbt_ms`` from its arrival, however
    fast the replay is; a turn is early when it arrives strictly before that. Plain values: ``parents`` ("given",
    "inferred" or None, see :func:`parents`), ``turns`` (requests with a parent), ``assumed_ttft_ms``,
    ``assumed_tbt_ms`` and ``rows`` of ``speedup``, ``turns``, ``early``, ``early_ratio`` (None without turns).
    Raises TraceError for a speedup that is not above 0 or a negative time.
    """
    for name, value in (("ttft_ms", ttft_ms), ("tbt_ms", tbt_ms)):
        if not 0 <= value < np.inf:
            raise TraceError(f"early turns: {name} is {value:g}; expected a finite number >= 0")
    odd = next((value for value in speedups if not 0 < value < np.inf), None)
    if odd is not None:
        raise TraceError(f"early turns: a speedup is {odd:g}; expected finite numbers above 0")
    parent, known = parents(trace)
    turn = np.flatnonzero(parent != NO_PARENT)
    before = parent[turn]
    gap_ms: Floats = trace.arrival_ms[turn] - trace.arrival_ms[before]
    answer_ms = ttft_ms + trace.output_tokens[before] * tbt_ms
    early = [int((gap_ms / speedup < answer_ms).sum()) for speedup in speedups]
    rows = [
        {"speedup": speedup, "turns": len(turn), "early": n, "early_ratio": n / len(turn) if len(turn) else None}
        for speedup, n in zip(speedups, early, strict=True)
    ]
    return {
        "parents": known,
        "turns": len(turn),
        "assumed_ttft_ms": float(ttft_ms),
        "assumed_tbt_ms": float(tbt_ms),
        "rows": rows,
    }
