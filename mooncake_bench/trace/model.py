"""The trace itself: immutable columns, one row a request."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mooncake_bench import spool
from mooncake_bench.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DEFAULT_BLOCK_TOKENS = 512
NO_SESSION = -1

_HASH_HEADER = b"mooncake-bench trace columns, version 1\n"


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """Requests in order of arrival, as read-only columns.

    Row ``i`` owns ``block_ids[block_offsets[i]:block_offsets[i + 1]]``: the prefix-chained ids of its prompt's
    blocks, head first, ``ceil(input_tokens / block_tokens)`` of them, the last one possibly partial. Two traces
    are equal when their columns are; name, metadata, notices and where rows stood in a file do not count.

    The constructor trusts its caller (the readers check); :meth:`of` builds and checks a trace from plain rows.
    """

    name: str
    arrival_ms: Floats  # (n,) never decreasing, relative to the first arrival
    input_tokens: Ints  # (n,) >= 1
    output_tokens: Ints  # (n,) >= 1
    block_offsets: Ints  # (n + 1,)
    block_ids: Ints  # (m,) 0 .. 2**63 - 1
    block_tokens: int = DEFAULT_BLOCK_TOKENS
    request_id: tuple[str, ...] | None = None  # None: the numbers of the source's rows
    session_id: Ints | None = None  # (n,) NO_SESSION: a request without one
    priority: Ints | None = None  # (n,)
    delay_ms: Floats | None = None  # (n,) from the session's previous answer to this request; nan: not known
    metadata: Mapping[str, str] = field(default_factory=dict)  # source, format, how made, units, licence
    notices: tuple[str, ...] = ()  # one-line facts a person should see
    source_row: Ints | None = None  # (n,) where each row stood in its source, the first is 0; None: here

    def __post_init__(self) -> None:
        whole = ("input_tokens", "output_tokens", "block_offsets", "block_ids", "session_id", "priority", "source_row")
        for name in whole:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _frozen(getattr(self, name), np.int64))
        for name in ("arrival_ms", "delay_ms"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _frozen(getattr(self, name), np.float64))
        object.__setattr__(self, "metadata", MappingProxyType(dict(self.metadata)))
        object.__setattr__(self, "notices", tuple(self.notices))

    @classmethod
    def of(
        cls,
        rows: Iterable[tuple[float, int, int, Sequence[int]]],
        block_tokens: int = DEFAULT_BLOCK_TOKENS,
        name: str = "rows",
    ) -> Trace:
        """A checked trace of ``(arrival_ms, input_tokens, output_tokens, block_ids)`` rows.

        Raises TraceError as a reader would.
        """
        from mooncake_bench.trace.schema import from_rows

        return from_rows(list(rows), block_tokens, name)

    def __len__(self) -> int:
        return len(self.arrival_ms)

    def __repr__(self) -> str:
        return f"Trace({self.name!r}, {len(self):,} requests, {self.span_ms / 1000:,.0f} s, {self.sha256[:12]})"

    def __eq__(self, other: object) -> bool:
        return self.sha256 == other.sha256 if isinstance(other, Trace) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __reduce__(self) -> tuple[Any, ...]:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return _rebuild, (values | {"metadata": dict(self.metadata)},)

    @property
    def has_prefix_ids(self) -> bool:
        """Whether the block ids come from the source; False where each block was given an id of its own."""
        return self.metadata.get("prefix_ids") != "none"

    @property
    def span_ms(self) -> float:
        """Time from the first arrival to the last, ms; 0 for an empty trace."""
        return float(self.arrival_ms[-1] - self.arrival_ms[0]) if len(self) else 0.0

    @cached_property
    def sha256(self) -> str:
        """Hash of the content: every column that is present, and the block size."""
        digest = hashlib.sha256(_HASH_HEADER + f"block_tokens={self.block_tokens}\n".encode())
        for name in ("arrival_ms", "input_tokens", "output_tokens", "block_offsets", "block_ids"):
            _hash_column(digest, name, getattr(self, name))
        for name in ("session_id", "priority", "delay_ms"):
            if getattr(self, name) is not None:
                _hash_column(digest, name, getattr(self, name))
        if self.request_id is not None:
            digest.update(f"request_id {len(self.request_id)}\n".encode())
            digest.update("".join(f"{len(text)}:{text}" for text in self.request_id).encode())
        return digest.hexdigest()

    def request_ids(self) -> tuple[str, ...]:
        """Each request's id, or the number of its row in the source where the trace gives none."""
        return tuple(map(str, self._places().tolist())) if self.request_id is None else self.request_id

    def _places(self) -> Ints:
        return np.arange(len(self)) if self.source_row is None else self.source_row

    def blocks(self, row: int) -> Ints:
        """The block ids of one row's prompt, head first (a view)."""
        return self.block_ids[self.block_offsets[row] : self.block_offsets[row + 1]]

    def select(
        self, max_requests: int | None = None, start_ms: float | None = None, end_ms: float | None = None
    ) -> Trace:
        """The requests that arrive in ``[start_ms, end_ms)``, at most ``max_requests`` of them, as a new trace.

        Times are this trace's; the result starts at 0 again. Raises TraceError when nothing is left.
        """
        if max_requests is not None and max_requests < 1:
            raise TraceError(f"max_requests is {max_requests}; expected at least 1")
        first = 0 if start_ms is None else int(np.searchsorted(self.arrival_ms, start_ms, side="left"))
        end = len(self) if end_ms is None else int(np.searchsorted(self.arrival_ms, end_ms, side="left"))
        if max_requests is not None:
            end = min(end, first + max_requests)
        if end <= first:
            raise TraceError(self._nothing_left(start_ms, end_ms))
        return self if (first, end) == (0, len(self)) else self._rows(first, end)

    def _nothing_left(self, start_ms: float | None, end_ms: float | None) -> str:
        window = f"[{'start' if start_ms is None else f'{start_ms:g} ms'}, "
        window += f"{'end' if end_ms is None else f'{end_ms:g} ms'})"
        last = float(self.arrival_ms[-1]) if len(self) else 0.0
        return (
            f"0 requests after selecting arrivals in {window} of trace {self.name!r}: "
            f"its {len(self):,} request{'s arrive' if len(self) != 1 else ' arrives'} from 0 to {last:g} ms"
        )

    def _rows(self, first: int, end: int) -> Trace:
        rows, offsets = slice(first, end), self.block_offsets[first : end + 1]
        return Trace(
            name=self.name,
            arrival_ms=self.arrival_ms[rows] - self.arrival_ms[first],
            input_tokens=self.input_tokens[rows],
            output_tokens=self.output_tokens[rows],
            block_offsets=offsets - offsets[0],
            block_ids=self.block_ids[offsets[0] : offsets[-1]],
            block_tokens=self.block_tokens,
            request_id=None if self.request_id is None else self.request_id[rows],
            session_id=None if self.session_id is None else self.session_id[rows],
            priority=None if self.priority is None else self.priority[rows],
            delay_ms=None if self.delay_ms is None else self.delay_ms[rows],
            metadata=dict(self.metadata) | {"selected_rows": f"{first}..{end - 1} of {len(self)}"},
            notices=self.notices,
            source_row=self._places()[rows],
        )


def _rebuild(values: dict[str, Any]) -> Trace:
    return Trace(**values)


def _frozen(values: Any, dtype: type[Any]) -> NDArray[Any]:
    """A contiguous read-only array; copied when the caller could still write to it."""
    array = np.asarray(values, dtype=dtype, order="C")
    if array.flags.writeable and array is values:
        array = array.copy()
    array.flags.writeable = False
    return array


def _hash_column(digest: hashlib._Hash, name: str, column: NDArray[Any]) -> None:
    digest.update(f"{name} {len(column)}\n".encode())
    for part in spool.parts(len(column)):
        digest.update(column[part].astype(column.dtype.newbyteorder("<"), copy=False).data)
