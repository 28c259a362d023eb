"""One pool of blocks under one eviction policy, with instant service. What a policy raises passes through."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, NoReturn

from mooncake_bench.api import Eviction
from mooncake_bench.errors import PolicyError

if TYPE_CHECKING:
    from collections.abc import Sequence

_NOTHING: frozenset[int] = frozenset()  # service is instant: nothing is ever pinned


class Ledger:
    """What all pools of a run write down together."""

    __slots__ = ("evictions", "gone_ms", "holders")

    def __init__(self) -> None:
        self.holders: dict[int, int] = {}  # block: bit i says that pool i stores it; kept when there are several pools
        self.gone_ms: dict[int, float] = {}  # block: when it was last given up; also of blocks stored again since
        self.evictions = 0


class Pool:
    """Stored blocks, and the policy that says which of them goes."""

    __slots__ = ("_alone", "_begins", "_bit", "_ledger", "_policy", "_replaces", "capacity", "expires", "stored_ms")

    def __init__(self, number: int, capacity: int, policy: Eviction, ledger: Ledger, alone: bool) -> None:
        self.capacity = capacity
        self.stored_ms: dict[int, float] = {}  # block: when it was stored
        self.expires = type(policy).expire is not Eviction.expire  # whether `expire` may do anything
        self._replaces = type(policy).replace is not Eviction.replace
        self._begins = type(policy).begin is not Eviction.begin
        self._policy = policy
        self._ledger = ledger
        self._alone = alone
        self._bit = 1 << number
        policy.open(capacity)

    def expire(self, now_ms: float) -> None:
        """Let the policy give up what it no longer wants."""
        victims = list(self._policy.expire(now_ms, _NOTHING))
        for block in victims:
            if block not in self.stored_ms:
                self._refuse(block, "expire")
            del self.stored_ms[block]
        self._note_gone(victims, now_ms)

    def serve(self, blocks: Sequence[int], now_ms: float, reverse: bool, ready_ms: float, hit: int) -> int:
        """Access a prompt in touch order; the hits per block: stored when their turn came, and not after ``ready_ms``.

        ``hit``: the leading blocks that are stored, where no other is; -1 where that is not known.
        """
        if self._begins:
            self._policy.begin(blocks, now_ms)
        positions = range(len(blocks))
        if reverse:
            blocks, positions = blocks[::-1], positions[::-1]
            if 0 <= hit < len(blocks):
                absent = len(blocks) - hit
                self._store(blocks[:absent], positions[:absent], now_ms)
                return self._access(blocks[absent:], positions[absent:], now_ms, ready_ms)
        elif 0 <= hit < len(blocks):
            hits = self._touch(blocks[:hit], positions[:hit], now_ms, ready_ms) if hit else 0
            self._store(blocks[hit:], positions[hit:], now_ms)
            return hits
        return self._access(blocks, positions, now_ms, ready_ms)

    def _access(self, blocks: Sequence[int], positions: range, now_ms: float, ready_ms: float) -> int:
        """Runs of stored blocks are touched at once; runs of absent ones are stored by :meth:`_store`."""
        stored_ms = self.stored_ms
        hits = start = 0
        while start < len(blocks):
            if blocks[start] in stored_ms:
                run = list(takewhile(stored_ms.__contains__, blocks[start:]))
                hits += self._touch(run, positions[start : start + len(run)], now_ms, ready_ms)
            else:
                run = list(takewhile(lambda block: block not in stored_ms, blocks[start:]))
                self._store(run, positions[start : start + len(run)], now_ms)
            start += len(run)
        return hits

    def _touch(self, blocks: Sequence[int], positions: range, now_ms: float, ready_ms: float) -> int:
        """A run of stored blocks; how many of them are hits."""
        self._policy.touch(blocks, positions)
        if ready_ms == now_ms:
            return len(blocks)
        return sum(self.stored_ms[block] <= ready_ms for block in blocks)

    def _store(self, blocks: Sequence[int], positions: range, now_ms: float) -> None:
        """Store absent blocks, one after the other once the pool is full: each may be the victim of the next."""
        stored_ms, policy = self.stored_ms, self._policy
        room = self.capacity - len(stored_ms)
        free = blocks[:room]
        if free:
            policy.insert(free, positions[:room])
            stored_ms.update(dict.fromkeys(free, now_ms))
        if room < len(blocks):
            self._note_gone(self._replace(blocks[room:], positions[room:], now_ms), now_ms)
        if not self._alone:
            holders = self._ledger.holders
            for block in blocks:
                if block in stored_ms:  # it may be gone again
                    holders[block] = holders.get(block, 0) | self._bit

    def _replace(self, blocks: Sequence[int], positions: range, now_ms: float) -> Sequence[int]:
        """Store absent blocks in a full pool, one up for each; the victims."""
        stored_ms, policy = self.stored_ms, self._policy
        if self._replaces:
            victims = policy.replace(blocks, positions, _NOTHING)
            if len(victims) != len(blocks):
                name = policy.name
                raise PolicyError(f"policy {name!r}: replace() returned {len(victims)} blocks, not {len(blocks)}")
            stored_ms.update(dict.fromkeys(blocks, now_ms))
            for victim in victims:
                if victim not in stored_ms:
                    self._refuse(victim, "replace")
                del stored_ms[victim]
            return victims
        evict, insert = policy.evict, policy.insert
        victims = []
        for block, position in zip(blocks, positions, strict=True):
            victim = evict(_NOTHING)
            if stored_ms.pop(victim, None) is None:
                self._refuse(victim, "evict")
            victims.append(victim)
            insert((block,), (position,))
            stored_ms[block] = now_ms
        return victims

    def _note_gone(self, victims: Sequence[int], now_ms: float) -> None:
        self._ledger.evictions += len(victims)
        self._ledger.gone_ms.update(dict.fromkeys(victims, now_ms))
        holders = self._ledger.holders
        for block in () if self._alone else victims:
            bits = holders.pop(block, 0) & ~self._bit
            if bits:
                holders[block] = bits

    def _refuse(self, block: int, method: str) -> NoReturn:
        raise PolicyError(
            f"policy {self._policy.name!r}: {method}() returned block {block!r}, which is not stored; "
            "return a stored block"
        )
