"""What a policy sees: arrays over instances, computed when asked for and never writable."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from mooncake_bench.api import Columns

if TYPE_CHECKING:
    from mooncake_bench.api import Bools, Floats, Ints, Request
    from mooncake_bench.hardware.cost import CostModel
    from mooncake_bench.sim.job import Job
    from mooncake_bench.sim.pool import Match, PrefixIndex
    from mooncake_bench.sim.state import ClusterState
    from mooncake_bench.sim.tiers import Tiers

PS_PER_MS = 1e9


def frozen(array: Ints) -> Ints:
    """The same memory, read-only."""
    view = array.view()
    view.flags.writeable = False
    return view


class EstimateError:
    """Seeded error on the prefill and fetch times that policies see; what happens is untouched.

    Each request gets its own factor an instance, uniform around 1 with the standard deviation ``sigma`` (below
    1/sqrt(3), so that no time is negative). Uniform, because it needs no function that differs between libraries.
    """

    def __init__(self, sigma: float, seed: int, instances: int) -> None:
        self._width = sigma * sqrt(3)
        self._seed = [seed, crc32(b"estimate")]
        self._instances = instances
        self.draw(0)

    def draw(self, row: int) -> None:
        """The factors of one request, whatever was drawn before."""
        draws = np.random.default_rng([*self._seed, row]).random((2, self._instances))
        self.prefill, self.fetch = 1.0 + self._width * (2.0 * draws - 1.0)


class View:
    """The exact view: the state of this very moment (implements :class:`mooncake_bench.api.Cluster`)."""

    exact = True
    follows = False  # whether it wants to hear what happens

    def __init__(
        self,
        state: ClusterState,
        index: PrefixIndex,
        cost: CostModel,
        ttft_slo_ms: float,
        tbt_slo_ms: float,
        error: EstimateError | None = None,
        *,
        local: bool = False,
    ) -> None:
        """``local``: no node fetches from another's pool."""
        self.local = local
        self._state = state
        self._error = error
        self._index = index
        self._cost = cost
        self._now = 0
        self.block_tokens = index.block_tokens
        self.ttft_slo_ms = ttft_slo_ms
        self.tbt_slo_ms = tbt_slo_ms
        self._queue_requests = frozen(state.queue_requests)
        self._routed_tokens = frozen(state.routed_tokens)
        nic = cost.nic_bytes_per_s
        self._fetch_ms_a_token = 1e3 * cost.kv_bytes_per_token / np.minimum.outer(nic, nic)
        self.tiers: Tiers | None = None  # where prefill nodes have SSDs, and this view sees them
        self._request: Request | None = None
        self._hidden: Bools | None = None  # (2 N,) instances whose blocks are not shown, once roles have changed
        self._found: Match = index.match(())
        self._tokens = self._found.tokens
        self._decode_key = (-1, -1)
        self._steps: Ints | list[int] = []
        self._decode_tokens: Ints = np.zeros(0, np.int64)
        self._tables: dict[str, tuple[tuple[int, ...], Columns]] = {}
        self._asked = 0  # calls of `at`
        self._set_roles(state.is_prefill, state.is_decode)
        # operands kept as arrays: numpy takes them twice as fast as Python numbers
        self._zeros = np.zeros(state.instances, np.int64)
        self._zeros.flags.writeable = False
        self._ones = np.ones(state.instances)
        self._ps_per_ms = np.array(PS_PER_MS)
        self._now_array = np.zeros((), np.int64)
        self._input_tokens, self._prompt = np.zeros(()), np.zeros((), np.int64)

    def roles_changed(self, prefill: Bools, decode: Bools) -> None:
        """Instances have these roles from now on; a dead one has none. Seen at once, however late a view is."""
        self._set_roles(prefill, decode)
        self._hidden = np.concatenate([~prefill, ~prefill])
        self._shown = np.where(self._hidden, 0, 1)
        self._request = None

    def _set_roles(self, prefill: Bools, decode: Bools) -> None:
        self.is_prefill, self.is_decode = prefill.copy(), decode.copy()
        self.vram_tokens = np.where(decode, self._cost.vram_tokens, 0)
        for array in (self.is_prefill, self.is_decode, self.vram_tokens):
            array.flags.writeable = False
        self._role_wait = np.where(prefill, 0.0, np.inf)
        self._not_decode = np.where(decode, 0, 1 << 62)

    def at(self, now: int, request: Request | None = None) -> None:
        """Move to ``now`` (ps); with a request, its prefix is looked up anew."""
        self._now = now
        self._now_array[()] = now
        self._asked += 1
        self._request = None
        if request is not None:
            self._match(request)
            if self._error is not None:
                self._error.draw(request.row)

    @property
    def now_ms(self) -> float:
        return self._now / PS_PER_MS

    @property
    def queue_ms(self) -> Floats:
        left = self._state.work_end - self._now_array
        np.maximum(left, self._zeros, out=left)
        wait: Floats = left / self._ps_per_ms
        wait += self._role_wait
        wait.setflags(write=False)
        return wait

    @property
    def queue_requests(self) -> Ints:
        return self._queue_requests

    @property
    def routed_tokens(self) -> Ints:
        return self._routed_tokens

    def _match(self, request: Request) -> None:
        self._request = request
        self._input_tokens[()] = request.input_tokens
        self._found = found = self._index.match(request.blocks)
        self._tokens = found.tokens
        if found.longest == len(request.blocks):  # the last block may be partial
            self._prompt[()] = request.input_tokens
            self._tokens = np.minimum(found.tokens, self._prompt)
            self._tokens.flags.writeable = False
        if self._hidden is not None:
            self._tokens = self._tokens * self._shown
            self._tokens.flags.writeable = False

    def cached_tokens(self, request: Request) -> Ints:
        if request is not self._request:
            self._match(request)
        return self._tokens[: self._state.instances]

    def fetchable_tokens(self, request: Request) -> Ints:
        if request is not self._request:
            self._match(request)
        return self._zeros if self.local else self._tokens[self._state.instances :]

    def fetch_ms(self, tokens: Ints, holder: int) -> Floats:
        wait: Floats = tokens * self._fetch_ms_a_token[holder]
        wait += self._role_wait
        return wait if self._error is None else wait * self._error.fetch

    def loadable_tokens(self, request: Request) -> Ints:
        if self.tiers is None:
            return self.cached_tokens(request)
        tokens = self.tiers.lengths(request.blocks, self._now) * self.block_tokens
        np.minimum(tokens, request.input_tokens, out=tokens)
        if self._hidden is not None:
            tokens[self._hidden[: len(tokens)]] = 0
        return frozen(tokens)

    def load_ms(self, tokens: Ints) -> Floats:
        if self.tiers is None:
            return np.where(tokens > 0, np.inf, self._role_wait)
        wait: Floats = np.array(self.tiers.load_ms(tokens)) + self._role_wait
        return wait if self._error is None else wait * self._error.fetch

    def prefill_ms(self, request: Request, cached: Ints) -> Floats:
        tokens = self._input_tokens if request is self._request else np.array(float(request.input_tokens))
        computed = tokens - cached
        np.maximum(computed, self._ones, out=computed)
        time = self._cost.prefill_ms(computed, tokens - computed)
        time += self._role_wait
        return time if self._error is None else time * self._error.prefill

    @property
    def decode_batch(self) -> Ints:
        return frozen(self._state.decode.batches())

    @property
    def decode_tokens(self) -> Ints:
        self._refresh_decode()
        return self._decode_tokens

    def _refresh_decode(self) -> None:
        decode = self._state.decode
        key = (self._now, decode.version)
        if key != self._decode_key:
            self._decode_key = key
            self._decode_tokens, self._steps = decode.at(self._now)
            self._decode_tokens.flags.writeable = False

    @property
    def joined(self) -> Columns:
        self._refresh_decode()
        key = (*self._decode_key, self._state.joined.version)
        if self._cached("joined") != key:
            instance, since, tokens = self._state.joined.columns()
            self._keep("joined", key, instance, since, tokens + np.asarray(self._steps)[instance])
        return self._tables["joined"][1]

    @property
    def waiting(self) -> Columns:
        key = (self._state.waiting.version,)
        if self._cached("waiting") != key:
            self._keep("waiting", key, *self._state.waiting.columns())
        return self._tables["waiting"][1]

    @property
    def promised(self) -> Columns:
        key = (self._asked, self._state.promised.version)  # a queue can change with no request entering or leaving it
        if self._cached("promised") != key:
            self._keep("promised", key, *self._state.promised_columns(self._now))
        return self._tables["promised"][1]

    def _cached(self, name: str) -> tuple[int, ...] | None:
        found = self._tables.get(name)
        return found[0] if found else None

    def _keep(self, name: str, key: tuple[int, ...], instance: Ints, since: Ints, tokens: Ints) -> None:
        columns = Columns(instance, since / PS_PER_MS, tokens)
        for column in columns:
            column.flags.writeable = False
        self._tables[name] = (key, columns)

    def step_ms(self, batch: Ints | Floats, tokens: Ints | Floats) -> Floats:
        return np.where(self.is_decode, self._cost.step_ms(batch, tokens), np.inf)

    # for the engine, not for policies

    def routed(self, job: Job, now: int) -> None:
        """The router's own decision was carried out."""

    def inlined(self, job: Job, now: int) -> None:
        """A request is to be prefilled in a step of the instance where it decodes."""

    def happened(self, kind: str, job: Job, now: int) -> None:
        """``first_token``, ``finished``, ``rejected`` or ``failed``."""

    def observe(self, now: int) -> None:
        """An event is over."""

    def moved(self, job: Job, decode: int, now: int) -> None:
        """A request is about to be sent to another decode instance than ``job.decode``."""

    def emptied(self, instance: int, capacity: int) -> None:
        """An instance has an empty pool of so many blocks now."""

    def through_core(self, bytes_per_s: float) -> None:
        """Nothing is sent faster than the core of the network carries."""
        self._fetch_ms_a_token = np.maximum(self._fetch_ms_a_token, 1e3 * self._cost.kv_bytes_per_token / bytes_per_s)

    def actual_lengths(self, request: Request) -> list[int]:
        """Leading blocks really cached (first N) and fetchable (last N) on each instance, at this moment."""
        if request is not self._request:
            self._match(request)
        return self._found.lengths

    def estimate_factor(self, instance: int) -> float:
        """By how much this view's prefill times are off on an instance, for the request at hand."""
        return 1.0 if self._error is None else float(self._error.prefill[instance])

    def load_factor(self, instance: int) -> float:
        """By how much this view's transfer times to an instance are off, for the request at hand."""
        return 1.0 if self._error is None else float(self._error.fetch[instance])

    def fetch_ms_a_token(self, source: int, target: int) -> float:
        """Uncontended ms to copy one token's KV."""
        factor = 1.0 if self._error is None else float(self._error.fetch[target])
        return float(self._fetch_ms_a_token[source, target]) * factor

    def lightest_decode(self) -> int:
        """argmin over decode instances of context + routed tokens, lowest id (rule 10)."""
        load = self.decode_tokens + self.routed_tokens
        load += self._not_decode
        return int(load.argmin())
