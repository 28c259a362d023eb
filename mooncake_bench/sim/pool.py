"""The KVCache pool: each prefill node's store of blocks, and one prefix index over all of them.

Rule 3 and 4 of the simulator's physics. A block on a node is *promised* from routing (a hit on its own node only)
and *ready*, so fetchable by others, when its prefill or fetch ends. The index holds one integer a block: bit ``i``
says that instance ``i`` has it, so one AND a block follows the prefixes of all instances at once. The few blocks that
are only promised somewhere stand in a second, small table of the same form.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.api import Eviction
from mooncake_bench.errors import InvariantError, PolicyError
from mooncake_bench.hardware.cost import PS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mooncake_bench.sim.tiers import Ssd

_MEMO_LIMIT = 16_384


class Match:
    """Leading blocks held on each instance (first N entries) and ready there (last N), in blocks and in tokens."""

    __slots__ = ("lengths", "longest", "tokens")

    def __init__(self, lengths: list[int], block_tokens: int) -> None:
        self.lengths = lengths
        self.longest = max(lengths)
        self.tokens = np.array(lengths, np.int64) * block_tokens
        self.tokens.flags.writeable = False


class PrefixIndex:
    """Which instance holds which block, as one bit set a block."""

    def __init__(self, instances: int, block_tokens: int) -> None:
        self.instances = instances
        self.block_tokens = block_tokens
        self.holders: dict[int, int] = {}
        self.promised: dict[int, int] = {}
        self.slots = 0  # in use, on all instances together
        self.journal: list[tuple[str, int, Sequence[int]]] | None = None  # (what, instance bit, blocks), if anyone asks
        self._all = (1 << instances) - 1
        self._bits: dict[int, tuple[int, ...]] = {}
        self._matches: dict[tuple[int, ...], Match] = {}

    def match(self, blocks: Sequence[int]) -> Match:
        """How far each instance's copy of this prefix reaches."""
        get, promised, shift = self.holders.get, self.promised, self.instances
        alive = ready = self._all
        levels: list[int] = []  # (bits that end, at this length) pairs; those of `ready` N places up
        for position, block in enumerate(blocks):
            held = get(block, 0) & alive
            if held != alive:
                gone = alive ^ held
                levels += (gone | (gone & ready) << shift, position)
                if not held:
                    break
                alive = held
                ready &= held
            if block in promised and (late := promised[block] & ready):
                levels += (late << shift, position)
                ready ^= late
        else:
            levels += (alive | ready << shift, len(blocks))
        key = tuple(levels)
        found = self._matches.get(key)
        return self._spread(key) if found is None else found

    def apply(self, what: str, bit: int, blocks: Sequence[int]) -> None:
        """One change that a journal noted: ``stored`` (promised), ``ready`` or ``gone``."""
        holders, promised = self.holders, self.promised
        for block in blocks:
            if what == "stored":
                if not holders.get(block, 0) & bit:
                    holders[block] = holders.get(block, 0) | bit
                    promised[block] = promised.get(block, 0) | bit
                continue
            _clear(promised, block, bit)
            if what == "gone":
                _clear(holders, block, bit)

    def _spread(self, key: tuple[int, ...]) -> Match:
        """The lengths that levels stand for, memoised: few patterns make up most of a trace."""
        if len(self._matches) >= _MEMO_LIMIT:
            self._matches.clear()
        lengths = [0] * (2 * self.instances)
        for mask, length in zip(key[::2], key[1::2], strict=True):
            for bit in self._positions(mask) if length else ():
                lengths[bit] = length
        found = self._matches[key] = Match(lengths, self.block_tokens)
        return found

    def _positions(self, mask: int) -> tuple[int, ...]:
        """The set bits of ``mask``, memoised: the same few groups of instances recur."""
        found = self._bits.get(mask)
        if found is None:
            if len(self._bits) >= _MEMO_LIMIT:
                self._bits.clear()
            size = (2 * self.instances + 7) // 8
            bits = np.unpackbits(np.frombuffer(mask.to_bytes(size, "little"), np.uint8), bitorder="little")
            found = self._bits[mask] = tuple(np.flatnonzero(bits).tolist())
        return found


def _clear(table: dict[int, int], block: int, bit: int) -> None:
    bits = table.pop(block, 0) & ~bit
    if bits:
        table[block] = bits


class Node:
    """One instance's store. Blocks in use are pinned; the policy names a victim among the others."""

    __slots__ = (
        "begins", "below", "capacity", "clock_ms", "eviction", "evictions", "expires", "extra_pins", "held", "index",
        "pinned", "refused", "resident",
    )  # fmt: skip

    def __init__(self, instance: int, capacity: int, index: PrefixIndex, eviction: Eviction) -> None:
        self.index = index
        self.capacity = capacity
        self.eviction = eviction
        self.resident = 0
        self.held = 1 << instance
        self.pinned: set[int] = set()
        self.extra_pins: dict[int, int] = {}  # pins beyond the first of a block pinned more than once
        self.evictions = 0
        self.refused = 0
        self.clock_ms = 0.0  # how long it had been kept before this replay
        self.below: Ssd | None = None  # where what is evicted goes
        self.begins = type(eviction).begin is not Eviction.begin  # whether it wants to be told or asked
        self.expires = type(eviction).expire is not Eviction.expire
        eviction.open(capacity)

    def pin(self, blocks: Sequence[int]) -> None:
        """Protect these stored blocks from eviction until :meth:`unpin`."""
        twice = self.pinned.intersection(blocks)
        self.pinned.update(blocks)
        for block in twice:
            self.extra_pins[block] = self.extra_pins.get(block, 0) + 1

    def unpin(self, blocks: Sequence[int]) -> None:
        """Undo one :meth:`pin` of each block."""
        extra = self.extra_pins
        again = extra.keys() & blocks if extra else ()
        for block in again:
            if extra[block] == 1:
                del extra[block]
            else:
                extra[block] -= 1
        self.pinned.difference_update(blocks)
        self.pinned.update(again)

    def missing(self, blocks: Sequence[int], start: int) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Blocks from ``start`` on that are not stored here (those before are known to be).

        Returns them, their positions, and their new entries in the index (empty when nobody has any of them).
        """
        rest = blocks[start:]
        found = list(map(self.index.holders.get, rest))
        if not any(found):  # the common case
            return rest, range(start, len(blocks)), ()
        held = self.held
        at = [i for i, bits in enumerate(found) if not (bits or 0) & held]
        return [rest[i] for i in at], [start + i for i in at], [(found[i] or 0) | held for i in at]

    def store(self, blocks: Sequence[int], entries: Sequence[int]) -> int:
        """Take slots for absent blocks, head first, promised; stop at the first refusal. How many it took.

        ``entries`` as :meth:`missing` gives them. The caller pins the blocks.
        """
        wanted = len(blocks)
        room = self.capacity - self.resident
        if room < wanted:
            room += self._make_room(wanted - room)
            if room < wanted:
                self.refused += wanted - room
                blocks = blocks[:room]
        held, promised = self.held, self.index.promised
        new = dict.fromkeys(blocks, held)
        self.index.holders.update(zip(blocks, entries) if entries else new)  # noqa: B905
        if not promised.keys().isdisjoint(blocks):
            new = {block: promised.get(block, 0) | held for block in blocks}
        promised.update(new)
        if self.index.journal is not None:
            self._note("stored", blocks)
        self.resident += len(blocks)
        self.index.slots += len(blocks)
        if self.resident > self.capacity:
            raise InvariantError(f"a node holds {self.resident} blocks of a capacity of {self.capacity}")
        return len(blocks)

    def _make_room(self, wanted: int) -> int:
        """Evict up to ``wanted`` unpinned blocks; how many slots that freed."""
        possible = min(wanted, self.resident - len(self.pinned))
        if possible <= 0:
            return 0
        victims = self.eviction.evict_many(possible, self.pinned)
        self._forget(victims, "evict")
        if self.below is not None:
            self.below.demote(victims)
        if len(victims) != possible:
            name = self.eviction.name
            raise PolicyError(f"policy {name!r}: evict_many() returned {len(victims)} blocks, not {possible}")
        return possible

    def expire(self, now_ms: float) -> None:
        """Let the policy give up blocks although there may be room; what is promised is pinned, so it stays."""
        victims = self.eviction.expire(now_ms, self.pinned)
        if victims:
            self._forget(victims, "expire")

    def _forget(self, victims: Sequence[int], method: str) -> None:
        """Take what the policy gave up out of the index."""
        holders, held, pinned = self.index.holders, self.held, self.pinned
        for victim in victims if not pinned.isdisjoint(victims) else ():
            if victim in pinned:
                self._reject_victim(victim, method)
        found = list(map(holders.pop, victims, repeat(0)))
        if found.count(held) != len(found):  # some are elsewhere too
            for victim, bits in zip(victims, found, strict=True):
                if not bits & held:
                    self._reject_victim(victim, method)
                if bits != held:
                    holders[victim] = bits ^ held
        if self.index.journal is not None:
            self._note("gone", victims)
        self.resident -= len(victims)
        self.index.slots -= len(victims)
        self.evictions += len(victims)

    def wipe(self, eviction: Eviction) -> None:
        """Everything here is gone, pinned or not; ``eviction`` starts anew with an empty node."""
        index, held = self.index, self.held
        gone = [block for block, bits in index.holders.items() if bits & held]
        if len(gone) != self.resident:
            raise InvariantError(f"a node counts {self.resident} blocks, but the index knows of {len(gone)}")
        for block in gone:
            _clear(index.promised, block, held)
            _clear(index.holders, block, held)
        if index.journal is not None:
            self._note("gone", gone)
        self.pinned.clear()
        self.extra_pins.clear()
        index.slots -= self.resident
        self.resident = 0
        self.eviction = eviction
        eviction.open(self.capacity)
        if self.below is not None:
            self.below.wipe()

    def _note(self, what: str, blocks: Sequence[int]) -> None:
        assert self.index.journal is not None
        self.index.journal.append((what, self.held, tuple(blocks)))

    def _reject_victim(self, victim: int, method: str) -> None:
        state = "pinned by a running request" if victim in self.pinned else "not stored on this node"
        name = self.eviction.name
        raise PolicyError(
            f"policy {name!r}: {method}() returned block {victim!r}, which is {state}; return a stored, unpinned block"
        )

    def set_ready(self, blocks: Sequence[int]) -> None:
        """These promised blocks can be fetched by others from now on."""
        promised, held = self.index.promised, self.held
        found = list(map(promised.pop, blocks, repeat(held)))
        if found.count(held) != len(found):  # some are promised elsewhere too
            promised.update((block, bits & ~held) for block, bits in zip(blocks, found, strict=True) if bits != held)
        if self.index.journal is not None:
            self._note("ready", blocks)

    def is_ready(self, block: int) -> bool:
        """Whether this node has the block's KV."""
        return bool(self.index.holders.get(block, 0) & ~self.index.promised.get(block, 0) & self.held)

    def ready_prefix(self, blocks: Sequence[int]) -> int:
        """Leading blocks of a prompt whose KV this node has."""
        get, late, held = self.index.holders.get, self.index.promised.get, self.held
        for position, block in enumerate(blocks):
            if not get(block, 0) & ~late(block, 0) & held:
                return position
        return len(blocks)

    def shrink(self, capacity: int) -> None:
        """Hold at most so many blocks from now on. What is pinned has to fit."""
        self.capacity = capacity
        excess = self.resident - capacity
        if excess > 0 and self._make_room(excess) < excess:
            raise InvariantError(f"a node has {len(self.pinned)} blocks in use and room for {capacity}")

    def drop(self, blocks: Sequence[int]) -> None:
        """Forget promised blocks that nobody will compute."""
        self.set_ready(blocks)
        holders, held = self.index.holders, self.held
        for block in blocks:
            bits = holders.pop(block) ^ held
            if bits:
                holders[block] = bits
            self.resident -= 1
            self.index.slots -= 1
            self.eviction.remove(block)
        if self.index.journal is not None:
            self._note("gone", blocks)

    def access(self, blocks: Sequence[int]) -> int:
        """Instant service in position order: touch what is stored, store what is not, pin nothing.

        The access pattern of single-pool cache studies (and of their published hit counts). Returns the leading
        blocks that were stored before.
        """
        get, held, policy = self.index.holders.get, self.held, self.eviction
        policy.begin(blocks, 0.0)
        hits = next((i for i, block in enumerate(blocks) if not get(block, 0) & held), len(blocks))
        for position, block in enumerate(blocks):
            if get(block, 0) & held:
                policy.touch((block,), (position,))
            elif self.store((block,), (get(block, 0) | held,)):
                policy.insert((block,), (position,))
                self.set_ready((block,))
        return hits


class Pool:
    """All nodes' stores behind one prefix index."""

    def __init__(
        self, index: PrefixIndex, capacities: Mapping[int, int], make: Callable[[], Eviction], touch_order: str
    ) -> None:
        """``capacities``: blocks that each instance with a store holds, by instance id."""
        self.index = index
        self.nodes = {i: Node(i, capacity, index, make()) for i, capacity in capacities.items()}
        self.expiring = [node for node in self.nodes.values() if node.expires]
        self.tail_first = touch_order == "tail-first"

    def add(self, instance: int, capacity: int, eviction: Eviction) -> None:
        """An instance that had no store gets an empty one, of so many blocks."""
        node = self.nodes[instance] = Node(instance, capacity, self.index, eviction)
        if node.expires:
            self.expiring.append(node)

    def claim(self, instance: int, blocks: Sequence[int], hit: int, now_ps: int) -> tuple[Sequence[int], Sequence[int]]:
        """Pin a routed request's stored blocks on its node and take slots for the others (rule 4).

        Returns the blocks newly stored, and all its stored blocks, which stay pinned until :meth:`Node.unpin`.
        """
        node = self.nodes[instance]
        if node.begins:
            node.eviction.begin(blocks, now_ps / PS_PER_MS + node.clock_ms)
        new, positions, entries = node.missing(blocks, hit)
        whole = len(new) == len(blocks) - hit
        present = blocks[:hit] if whole else _without(blocks, positions)
        node.pin(present)
        taken = node.store(new, entries)
        if taken < len(new):
            new, positions, whole = new[:taken], positions[:taken], False
        if new:
            node.pinned.update(new)
            node.eviction.insert(new, positions)
        stored = blocks if whole else _kept(blocks, present, new)
        self._touch(node, stored, blocks)
        return new, stored

    def claim_source(self, instance: int, blocks: Sequence[int], start: int, stop: int, now_ps: int) -> Sequence[int]:
        """Touch and pin the fetched range at its holder until the transfer ends."""
        node = self.nodes[instance]
        if node.begins:
            node.eviction.begin(blocks, now_ps / PS_PER_MS + node.clock_ms)
        fetched = blocks[start:stop]
        order = range(stop - 1, start - 1, -1) if self.tail_first else range(start, stop)
        node.eviction.touch(fetched[::-1] if self.tail_first else fetched, order)
        node.pin(fetched)
        return fetched

    def claim_copy(self, instance: int, blocks: Sequence[int], now_ps: int) -> Sequence[int]:
        """Take slots, pinned, for those leading blocks of a prompt that a node lacks; it keeps what it has of them.

        Returns the blocks newly stored, which stay pinned until :meth:`Node.unpin`.
        """
        node = self.nodes[instance]
        if node.begins:
            node.eviction.begin(blocks, now_ps / PS_PER_MS + node.clock_ms)
        new, positions, entries = node.missing(blocks, 0)
        present = _without(blocks, positions)
        node.pin(present)
        taken = node.store(new, entries) if new else 0
        node.unpin(present)
        new, positions = list(new[:taken]), positions[:taken]
        if new:
            node.pin(new)
            node.eviction.insert(new, positions)
            self._touch(node, new, blocks)
        return new

    def check_at_rest(self) -> None:
        """Raises InvariantError when anything is still pinned or promised."""
        for instance, node in self.nodes.items():
            if node.pinned or node.extra_pins:
                raise InvariantError(f"instance {instance} has {len(node.pinned)} blocks pinned at the end of the run")
        if self.index.promised:
            raise InvariantError(f"{len(self.index.promised)} blocks are still promised at the end of the run")

    def _touch(self, node: Node, stored: Sequence[int], blocks: Sequence[int]) -> None:
        positions: Sequence[int] = range(len(blocks))
        if len(stored) < len(blocks):
            where = {block: position for position, block in enumerate(blocks)}
            positions = [where[block] for block in stored]
        if self.tail_first:
            stored, positions = stored[::-1], positions[::-1]
        node.eviction.touch(stored, positions)

    def capacities(self) -> dict[int, int]:
        """Blocks that each node's store holds, by instance id."""
        return {i: node.capacity for i, node in self.nodes.items()}

    def counters(self) -> dict[str, int]:
        """Evictions and refused stores of all nodes."""
        return {
            "evictions": sum(node.evictions for node in self.nodes.values()),
            "refused_blocks": sum(node.refused for node in self.nodes.values()),
        }


def _without(blocks: Sequence[int], positions: Sequence[int]) -> list[int]:
    missing = set(positions)
    return [block for position, block in enumerate(blocks) if position not in missing]


def _kept(blocks: Sequence[int], present: Sequence[int], new: Sequence[int]) -> list[int]:
    kept = {*present, *new}
    return [block for block in blocks if block in kept]
