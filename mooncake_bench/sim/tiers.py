"""The SSD below each prefill node's pool: what is evicted goes there, and comes back when that beats recomputing.

A block that the pool evicts is written to the SSD, one block after another, behind the back of everything else; until
its write has ended it cannot be read. The SSD itself gives up what was used least recently. At routing the leading
prefix on the chosen instance is counted on over its SSD, and what only the SSD has is loaded if that takes less than
computing it. A load starts at once, takes slots in the pool as a fetch does, and shares the SSD with other loads; the
blocks stay on the SSD, so that evicting them again writes nothing. A node idles for the load of the head of its queue.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mooncake_bench.errors import InvariantError
from mooncake_bench.hardware.cost import PS_PER_MS
from mooncake_bench.sim.network import SCALE, Flow, Network

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mooncake_bench.api import Ints
    from mooncake_bench.sim.cluster import Cluster
    from mooncake_bench.sim.job import Job

NO_LIMIT = 1 << 62  # B/s: what is read arrives as fast as the SSD gives it
FIRST_NUMBER = 1 << 40  # of loads, among the numbers of flows: at equal times they end after all transfers


class Drive(NamedTuple):
    """What an instance's SSD can do."""

    blocks: int
    read_bytes_per_s: int
    write_bytes_per_s: int


class Load:
    """Blocks on their way from an instance's SSD to its pool, for one request."""

    __slots__ = ("blocks", "flow", "job", "prefill", "start", "tokens")

    def __init__(self, job: Job, start: int, blocks: Sequence[int], tokens: int) -> None:
        self.job = job
        self.prefill = job.prefill  # the instance
        self.start = start  # leading blocks that are there without it
        self.blocks = blocks
        self.tokens = tokens
        self.flow: Flow | None = None


class Ssd:
    """One instance's SSD. Blocks that are being loaded are pinned."""

    __slots__ = ("_tiers", "_write_ps", "blocks", "busy_ps", "capacity", "demotions", "evictions", "free_ps", "held",
                 "instance", "pins", "read", "refused", "spared")  # fmt: skip

    def __init__(self, tiers: Tiers, instance: int, drive: Drive, block_bytes: int) -> None:
        self._tiers = tiers
        self.instance = instance
        self.held = 1 << instance
        self.capacity = drive.blocks
        self.read = drive.read_bytes_per_s
        self._write_ps = -(-block_bytes * SCALE // drive.write_bytes_per_s)
        # block: when its write ends (ps); least recently used first
        self.blocks: OrderedDict[int, int] = OrderedDict()
        self.pins: dict[int, int] = {}
        self.free_ps = 0  # when all writes so far have ended
        self.busy_ps = 0  # when all reads so far would have ended
        self.demotions = self.spared = self.evictions = self.refused = 0

    def demote(self, blocks: Sequence[int]) -> None:
        """The pool gave these blocks up: write those that are not here."""
        mine, ends = self.blocks, max(self._tiers.cluster.now, self.free_ps)
        new: list[int] = []
        if len(mine) + len(blocks) <= self.capacity and mine.keys().isdisjoint(blocks):  # mostly
            new.extend(blocks)
            for block in blocks:
                ends += self._write_ps
                mine[block] = ends
            blocks = ()
        for block in blocks:
            if block in mine:
                mine.move_to_end(block)
                self.spared += 1
            elif len(mine) < self.capacity or self._evict():
                ends += self._write_ps
                mine[block] = ends
                new.append(block)
            else:
                self.refused += 1
        if new:
            self.free_ps = ends
            self.demotions += len(new)
            self._tiers.note(new, self.held)
        if len(mine) > self.capacity:
            raise InvariantError(f"an SSD holds {len(mine)} blocks of a capacity of {self.capacity}")

    def _evict(self) -> bool:
        """Give up the least recently used block; False when all are being loaded."""
        victim = next(iter(self.blocks))
        if victim in self.pins:
            victim = next((block for block in self.blocks if block not in self.pins), -1)
            if victim < 0:
                return False
        del self.blocks[victim]
        if self._tiers.index is not None:
            self._tiers.forget((victim,), self.held)
        self.evictions += 1
        return True

    def pin(self, blocks: Sequence[int], *, tail_first: bool) -> None:
        """These blocks are used, and stay until :meth:`unpin`."""
        now = self._tiers.cluster.now
        for block in reversed(blocks) if tail_first else blocks:
            ready = self.blocks[block]
            if ready > now:
                raise InvariantError(f"block {block} is to be read at {now} ps, and its write ends at {ready} ps")
            self.blocks.move_to_end(block)
            self.pins[block] = self.pins.get(block, 0) + 1

    def unpin(self, blocks: Sequence[int]) -> None:
        """Undo one :meth:`pin`."""
        for block in blocks:
            left = self.pins.pop(block) - 1
            if left:
                self.pins[block] = left

    def wipe(self) -> None:
        """Everything here is gone."""
        self._tiers.forget(self.blocks, self.held)
        self.blocks.clear()
        self.pins.clear()
        self.free_ps = self.busy_ps = 0

    def load_ps(self, size: int) -> int:
        """How long it takes until ``size`` (bytes x 10^12) more are read, behind all that is being read (ps)."""
        return max(0, self.busy_ps - self._tiers.cluster.now) - (-size // self.read)


class Tiers:
    """The SSDs of all prefill instances, and one index over them."""

    def __init__(self, cluster: Cluster, drives: Mapping[int, Drive], spare: Drive) -> None:
        """``drives``: by instance id; ``spare``: of one that comes to prefill later."""
        self.cluster = cluster
        self._spare = spare
        self._kv = cluster.cost.kv_bytes_per_token * SCALE
        self._block_tokens = cluster.pool.index.block_tokens
        self._instances = cluster.state.instances
        # block: bit set of the instances on whose SSD it is, written or being written; made when a policy looks
        self.index: dict[int, int] | None = None
        self.nodes: dict[int, Ssd] = {}
        self.tokens: dict[int, int] = {}  # request row: tokens that were loaded for it
        self.loads = self.loaded_tokens = self.promotions = self.declined = 0
        reads = [drives.get(i, spare).read_bytes_per_s for i in range(self._instances)]
        self.network = Network([*reads, *[NO_LIMIT] * self._instances], self._post, self._rate_changed)
        self.network.started = FIRST_NUMBER
        self._on_end = self._ended
        for instance, drive in drives.items():
            self.add(instance, drive)
        cluster.tiers = cluster.brain.tiers = cluster.prefilling.tiers = self

    def add(self, instance: int, drive: Drive | None = None) -> None:
        """An instance that prefills gets an empty SSD below its pool."""
        block_bytes = self._block_tokens * self.cluster.cost.kv_bytes_per_token
        ssd = self.nodes[instance] = Ssd(self, instance, drive or self._spare, block_bytes)
        self.cluster.pool.nodes[instance].below = ssd

    def take_over(self, other: Tiers) -> None:
        """Hold what the SSDs of another cluster held when nothing was under way there any more."""
        then = other.cluster.now
        for instance, left in other.nodes.items():
            ssd = self.nodes[instance]
            ssd.free_ps = max(0, left.free_ps - then)
            for block, ready in left.blocks.items():
                ssd.blocks[block] = max(0, ready - then)

    # what can be read

    def note(self, blocks: Iterable[int], held: int) -> None:
        """An instance's SSD has these blocks from now on."""
        index = self.index
        if index is not None:
            for block in blocks:
                index[block] = index.get(block, 0) | held

    def forget(self, blocks: Iterable[int], held: int) -> None:
        """An instance's SSD has these blocks no longer."""
        index = self.index
        if index is None:
            return
        for block in blocks:
            bits = index.pop(block) & ~held
            if bits:
                index[block] = bits

    def lengths(self, blocks: Sequence[int], now: int) -> Ints:
        """(N,) leading blocks that each instance has in its pool or can read from its SSD."""
        if self.index is None:
            self.index = {}
            for ssd in self.nodes.values():
                self.note(ssd.blocks, ssd.held)
        writing = [ssd for ssd in self.nodes.values() if ssd.free_ps > now]
        pool, on_ssd = self.cluster.pool.index.holders.get, self.index.get
        found = np.zeros(self._instances, np.int64)
        alive = (1 << self._instances) - 1
        for position, block in enumerate(blocks):
            there, here = on_ssd(block, 0), pool(block, 0)
            for ssd in writing if there & ~here else ():
                if there & ssd.held and ssd.blocks[block] > now:
                    there ^= ssd.held
            held = (here | there) & alive
            if held != alive:
                for instance in _bits(alive ^ held):
                    found[instance] = position
                if not held:
                    break
                alive = held
        else:
            for instance in _bits(alive):
                found[instance] = len(blocks)
        return found

    def load_ms(self, tokens: Ints) -> Sequence[float]:
        """Time to load so many tokens (N,) on each instance, behind what is being loaded; inf where there is no SSD."""
        times = [float("inf") if count else 0.0 for count in tokens.tolist()]
        for instance, ssd in self.nodes.items():
            if tokens[instance]:
                times[instance] = ssd.load_ps(int(tokens[instance]) * self._kv) / PS_PER_MS
        return times

    # what a request loads

    def plan(self, job: Job) -> None:
        """Let a request that is being routed load what only its instance's SSD has, if that beats recomputing it."""
        job.load = None
        self.tokens.pop(job.row, None)  # of an attempt before
        start, blocks = job.hit_blocks, job.request.blocks
        ssd, pool, now = self.nodes[job.prefill], self.cluster.pool.index.holders.get, self.cluster.now
        written, wanted = ssd.blocks.get, []
        stop = start
        while stop < len(blocks):
            block = blocks[stop]
            if not pool(block, 0) & ssd.held:
                ready = written(block)
                if ready is None or ready > now:
                    break
                wanted.append(block)
            stop += 1
        if not wanted:
            return
        tokens = len(wanted) * self._block_tokens
        if wanted[-1] == blocks[-1]:  # it may be partial
            tokens -= len(blocks) * self._block_tokens - job.input_tokens
        without = job.prefill_ps
        self.cluster.brain.set_hits(job, stop)
        if ssd.load_ps(tokens * self._kv) < without - job.prefill_ps:
            job.load = Load(job, start, wanted, tokens)
        else:
            self.declined += 1
            self.cluster.brain.set_hits(job, start)

    def planned_ms(self, load: Load) -> float:
        """How long it takes, were it started now."""
        return self.nodes[load.prefill].load_ps(load.tokens * self._kv) / PS_PER_MS

    def pin(self, load: Load) -> None:
        """Before slots are taken, which may evict: what is loaded stays."""
        self.nodes[load.prefill].pin(load.blocks, tail_first=self.cluster.pool.tail_first)

    def start(self, load: Load, now: int) -> None:
        """Its request is in the queue."""
        ssd, size = self.nodes[load.prefill], load.tokens * self._kv
        ssd.busy_ps = now + ssd.load_ps(size)
        target = self._instances + load.prefill
        load.flow = self.network.start(now, load.prefill, target, size, done=self._loaded, owner=load)
        load.job.awaits = (*load.job.awaits, load.flow)
        self.loads += 1
        self.loaded_tokens += load.tokens
        self.tokens[load.job.row] = load.tokens

    def _loaded(self, now: int, load: Load) -> None:
        job, flow = load.job, load.flow
        load.flow = None
        self.nodes[load.prefill].unpin(load.blocks)
        loaded = set(load.blocks)
        promoted = [block for block in job.stored if block in loaded]
        self.promotions += len(promoted)
        self.cluster.pool.nodes[load.prefill].set_ready(promoted)
        assert flow is not None
        self.cluster.prefilling.arrived(job, flow, now)

    def stop(self, job: Job, now: int) -> None:
        """Its load, if it has one, brings nothing more."""
        load, job.load = job.load, None
        if load is None:
            return
        self.tokens.pop(job.row, None)
        flow = load.flow
        if flow is None:
            return
        load.flow = flow.owner = None
        self.network.stop(now, flow)
        ssd = self.nodes[load.prefill]
        ssd.busy_ps -= (flow.size - flow.sent) // ssd.read
        ssd.unpin(load.blocks)
        job.awaits = tuple(other for other in job.awaits if other is not flow)

    def recounted(self, job: Job) -> None:
        """Its hits were counted anew: of what was loaded only what is part of them counts."""
        load = job.load
        if load is None or job.row not in self.tokens:
            return
        hits = set(job.request.blocks[: job.hit_blocks])
        kept = sum(block in hits for block in load.blocks) * self._block_tokens
        self.tokens[job.row] = min(kept, load.tokens)

    # events

    def _post(self, time: int, flow: Flow, epoch: int) -> None:
        self.cluster.post_transfer(time, flow, epoch, self._on_end)

    def _ended(self, flow: Flow, now: int) -> None:
        self.network.stop(now, flow)
        done, owner = flow.done, flow.owner
        flow.owner = None
        assert done is not None
        done(now, owner)

    def _rate_changed(self, now: int, flow: Flow) -> None:
        self.cluster.prefilling.fetch_rate_changed(now, flow)

    # accounts

    def check_at_rest(self) -> None:
        """Raises InvariantError when anything is still pinned."""
        for instance, ssd in self.nodes.items():
            if ssd.pins:
                raise InvariantError(f"the SSD of instance {instance} has {len(ssd.pins)} blocks pinned at the end")

    def counters(self) -> dict[str, int | float]:
        """What happened, over all SSDs."""
        ssds, each = self.nodes.values(), self.cluster.cost.kv_bytes_per_token
        written = sum(ssd.demotions for ssd in ssds)
        return {
            "demotions": written,
            "demotions_spared": sum(ssd.spared for ssd in ssds),
            "demotions_refused": sum(ssd.refused for ssd in ssds),
            "ssd_written_bytes": written * self._block_tokens * each,
            "ssd_evictions": sum(ssd.evictions for ssd in ssds),
            "loads": self.loads,
            "loads_declined": self.declined,
            "loaded_bytes": self.loaded_tokens * each,
            "promotions": self.promotions,
        }


def _bits(mask: int) -> Iterable[int]:
    """The set bits of a mask."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
