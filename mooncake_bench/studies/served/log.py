"""A served log: who came when, with what, and when the tokens were there. Times in ms, from the first arrival."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from mooncake_bench.errors import NothingToConclude, TraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float64]"
Ints: TypeAlias = "NDArray[np.int64]"

LEAST_REQUESTS = 20
"""Half of them must be enough for quantiles of some meaning."""
TAIL = 0.1
"""A request's TBT is the mean of this share of its gaps, the longest (FAST'25)."""


@dataclass(frozen=True)
class Row:
    """One answered request."""

    where: str
    """For messages: the file and its line or row."""
    arrival_ms: float
    input_tokens: float
    output_tokens: float
    ttft_ms: float
    rest_ms: float
    """From the first token to the last."""
    cached_tokens: float = 0.0
    """Of the prompt, found in a prefix cache."""
    gaps_ms: Sequence[float] | None = None


@dataclass(frozen=True)
class ServedLog:
    """(N,) columns, in the order of arrival."""

    label: str
    format: str
    arrival_ms: Floats
    input_tokens: Ints
    output_tokens: Ints
    cached_tokens: Ints
    ttft_ms: Floats
    """First token - arrival."""
    tpot_ms: Floats
    """(last token - first token) / (output - 1); NaN for an answer of one token."""
    tbt_ms: Floats
    """Mean of the longest tenth of a request's gaps; NaN where gaps are not known."""
    failed: int
    """Requests in the log that were not answered; they are not in the columns."""
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.arrival_ms)

    def most_decoding(self) -> int:
        """The most requests between their first and their last token at once."""
        first = self.arrival_ms + self.ttft_ms
        last = first + np.nan_to_num(self.tpot_ms) * (self.output_tokens - 1)
        moments = np.concatenate([first, last])
        change = np.repeat([1, -1], len(first))
        return int(np.cumsum(change[np.lexsort((change, moments))]).max())


def build(label: str, name: str, rows: Sequence[Row], failed: int, notes: Sequence[str] = ()) -> ServedLog:
    """The log of ``rows``, checked and in the order of arrival; ``name`` is the format's.

    Raises TraceError for a row that cannot be, and NothingToConclude for too few.
    """
    for row in rows:
        _check(row)
    if len(rows) < LEAST_REQUESTS:
        raise NothingToConclude(
            f"{label}: {len(rows)} answered requests ({failed} failed): to fit one half and predict the other takes at "
            f"least {LEAST_REQUESTS}; serve more"
        )
    arrival = np.array([row.arrival_ms for row in rows], dtype=np.float64)
    order = np.argsort(arrival, kind="stable")
    said = list(notes)
    if (np.diff(arrival) < 0).any():
        said.append(f"{label}: requests are not in the order of their arrival; sorted")
    if failed:
        said.append(
            f"{label}: {failed} of {failed + len(rows)} requests failed: they are left out, although they kept the "
            "server busy"
        )
    rows = [rows[i] for i in order.tolist()]
    return ServedLog(
        label=label,
        format=name,
        arrival_ms=arrival[order] - arrival.min(),
        input_tokens=np.array([row.input_tokens for row in rows], dtype=np.int64),
        output_tokens=np.array([row.output_tokens for row in rows], dtype=np.int64),
        cached_tokens=np.array([row.cached_tokens for row in rows], dtype=np.int64),
        ttft_ms=np.array([row.ttft_ms for row in rows], dtype=np.float64),
        tpot_ms=np.array([tpot(row.rest_ms, row.output_tokens) for row in rows], dtype=np.float64),
        tbt_ms=np.array([tbt(row.gaps_ms) for row in rows], dtype=np.float64),
        failed=failed,
        notes=tuple(said),
    )


def tpot(rest_ms: float, output_tokens: float) -> float:
    """Time per output token [ms] after the first."""
    return rest_ms / (output_tokens - 1) if output_tokens > 1 else np.nan


def tbt(gaps_ms: Sequence[float] | Floats | None) -> float:
    """Mean of the longest tenth of the gaps [ms]."""
    if gaps_ms is None or not len(gaps_ms):
        return np.nan
    count = max(1, int(np.ceil(TAIL * len(gaps_ms))))
    return float(np.partition(np.asarray(gaps_ms, dtype=np.float64), -count)[-count:].mean())


def _check(row: Row) -> None:
    """Raises TraceError unless the row's numbers can be those of an answered request."""
    for name, value in (("input", row.input_tokens), ("output", row.output_tokens)):
        if not (np.isfinite(value) and value == int(value) and 1 <= value < 2**40):
            raise TraceError(f"{row.where}: {name} tokens {value!r}: expected a whole number of at least 1")
    if not (0 <= row.cached_tokens < row.input_tokens and row.cached_tokens == int(row.cached_tokens)):
        raise TraceError(
            f"{row.where}: cached tokens {row.cached_tokens!r}: expected a whole number below the prompt's "
            f"{row.input_tokens:g}, for its last token is always computed"
        )
    if not np.isfinite(row.arrival_ms):
        raise TraceError(f"{row.where}: arrival {row.arrival_ms!r}: expected a finite number")
    if not (np.isfinite(row.ttft_ms) and row.ttft_ms > 0):
        raise TraceError(
            f"{row.where}: the first token is {row.ttft_ms:g} ms after the arrival: expected more than 0; are the "
            "columns, their units and their clocks the right ones?"
        )
    if not (np.isfinite(row.rest_ms) and row.rest_ms >= 0 and (row.rest_ms > 0 or row.output_tokens == 1)):
        raise TraceError(
            f"{row.where}: the last of {row.output_tokens:g} tokens is {row.rest_ms:g} ms after the first: expected "
            "more than 0; are the columns, their units and their clocks the right ones?"
        )
    if row.gaps_ms is not None and not all(np.isfinite(gap) and gap >= 0 for gap in row.gaps_ms):
        raise TraceError(f"{row.where}: a gap between two tokens is below 0 or no number: expected times >= 0")
