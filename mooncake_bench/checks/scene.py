"""A still cluster, for tests of policies: what a policy sees at one moment, with costs that a hand can work out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mooncake_bench.api import Columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.api import Bools, Floats, Ints, Request

_Rows = list[tuple[int, float, int]]
_Column = TypeVar("_Column", bound="np.ndarray[Any, Any]")


@dataclass
class Scene:
    """A read-only :class:`mooncake_bench.api.Cluster` of ``prefill`` + ``decode`` instances, in this order of ids.

    Lists have one number a prefill instance (queues, hits) or one a decode instance (batches); left out, they are 0.
    ``joined``, ``waiting`` and ``promised`` list (instance, since_ms, tokens). A computed token takes 1 ms, a fetched
    one 0.01 ms, and a decode step 10 ms + 1 ms a request + 0.001 ms a context token.
    """

    prefill: int = 2
    decode: int = 2
    now_ms: float = 0.0
    queue: Sequence[float] = ()  # ms
    queued: Sequence[int] = ()  # requests
    cached: Sequence[int] = ()  # tokens, of any request
    fetchable: Sequence[int] | None = None  # tokens, of any request; None: all that is cached
    batch: Sequence[int] = ()
    context: Sequence[int] = ()  # tokens
    routed: Sequence[int] = ()  # tokens
    joined_rows: _Rows = field(default_factory=list)
    waiting_rows: _Rows = field(default_factory=list)
    promised_rows: _Rows = field(default_factory=list)
    vram: int = 1_000_000  # tokens
    ttft_slo_ms: float = 30_000.0
    tbt_slo_ms: float = 100.0
    block_tokens: int = 512

    def __post_init__(self) -> None:
        size = self.prefill + self.decode
        self.is_prefill: Bools = _frozen(np.arange(size) < self.prefill)
        self.is_decode: Bools = _frozen(np.arange(size) >= self.prefill)
        self.vram_tokens: Ints = _frozen(np.where(self.is_decode, self.vram, 0))
        self.queue_ms: Floats = _frozen(np.where(self.is_prefill, self._first(self.queue), np.inf))
        self.queue_requests: Ints = _frozen(self._first(self.queued).astype(np.int64))
        self._cached: Ints = _frozen(self._first(self.cached).astype(np.int64))
        ready = self.cached if self.fetchable is None else self.fetchable
        self._fetchable: Ints = _frozen(self._first(ready).astype(np.int64))
        self.decode_batch: Ints = self._last(self.batch)
        self.decode_tokens: Ints = self._last(self.context)
        self.routed_tokens: Ints = self._last(self.routed)
        self.joined = _columns(self.joined_rows)
        self.waiting = _columns(self.waiting_rows)
        self.promised = _columns(self.promised_rows)

    def cached_tokens(self, request: Request) -> Ints:
        return _frozen(np.minimum(self._cached, request.input_tokens))

    def fetchable_tokens(self, request: Request) -> Ints:
        return _frozen(np.minimum(self._fetchable, request.input_tokens))

    def fetch_ms(self, tokens: Ints, holder: int) -> Floats:
        return np.asarray(tokens * 0.01)

    def loadable_tokens(self, request: Request) -> Ints:
        return self.cached_tokens(request)

    def load_ms(self, tokens: Ints) -> Floats:
        return np.where(np.asarray(tokens) > 0, np.inf, np.where(self.is_prefill, 0.0, np.inf))

    def prefill_ms(self, request: Request, cached: Ints) -> Floats:
        computed = np.maximum(request.input_tokens - cached, 1)
        return np.where(self.is_prefill, computed * 1.0, np.inf)

    def step_ms(self, batch: Ints | Floats, tokens: Ints | Floats) -> Floats:
        return np.where(self.is_decode, 10 + batch + 0.001 * tokens, np.inf)

    def _first(self, numbers: Sequence[float]) -> Floats:
        column = np.zeros(self.prefill + self.decode)
        column[: len(numbers)] = numbers
        return column

    def _last(self, numbers: Sequence[int]) -> Ints:
        column = np.zeros(self.prefill + self.decode, np.int64)
        column[self.prefill : self.prefill + len(numbers)] = numbers
        return _frozen(column)


def _frozen(column: _Column) -> _Column:
    column.flags.writeable = False
    return column


def _columns(rows: _Rows) -> Columns:
    instance, since_ms, tokens = zip(*rows, strict=True) if rows else ((), (), ())
    return Columns(
        _frozen(np.array(instance, np.int64)),
        _frozen(np.array(since_ms, np.float64)),
        _frozen(np.array(tokens, np.int64)),
    )
