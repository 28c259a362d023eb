"""All that a policy imports.

A policy is a small class of one of three kinds (or of several at once): a :class:`Router` chooses instances,
an :class:`Admission` may turn requests away, an :class:`Eviction` names the block a full node gives up. Its
parameters are its dataclass fields. What it may know comes through :class:`Request` and :class:`Cluster`:
arrays over *all* instances of the setup, indexed by instance id. An instance of the wrong role, or a dead one,
reads ``inf`` for times and 0 for hits, so an ``argmin`` never picks it.

Nothing here holds an output length or the future: a policy that wants them declares ``oracle = True`` and
every report says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

__all__ = [
    "Action", "Admission", "Cluster", "Columns", "Eviction", "Policy", "Replicate", "Request", "Route", "Router",
    "SetRole",
]  # fmt: skip


class Request(NamedTuple):
    """What a scheduler knows of a request when it arrives."""

    row: int  # position in the trace, from 0
    arrival_ms: float
    input_tokens: int
    blocks: tuple[int, ...]  # ids of the prompt's KVCache blocks, head first; the last may be partial
    session_id: int | None = None
    priority: int = 0
    output_tokens: int | None = None  # None unless the policy declares oracle = True
    attempt: int = 0  # how often it came before: a client that was turned away may ask again
    ttft_slo_ms: float | None = None  # of its class; None: as for all, Cluster.ttft_slo_ms
    tbt_slo_ms: float | None = None


class Route(NamedTuple):
    """A router's decision."""

    prefill: int  # instance that prefills
    decode: int | None = None  # instance that decodes; None: least (context + routed) tokens, lowest id. Where
    # instances do both, it is always the one that prefills
    fetch_from: int | None = None  # prefill instance whose longer prefix is copied to `prefill` first
    ttft_ms: float | None = None  # the router's own prediction; None: the harness's estimate for this route
    tbt_ms: float | None = None


class SetRole(NamedTuple):
    """Let an instance prefill or decode. What it has to do is finished first; nothing new is routed to it meanwhile.

    One that has this role, or is on its way to it, is left alone.
    """

    instance: int
    role: str  # "prefill" or "decode"


class Replicate(NamedTuple):
    """Copy ready blocks, the leading ones of some prompt, head first, from one prefill instance's pool to another's.

    What the target has of them, or has been promised, is not copied.
    """

    source: int
    target: int
    blocks: Sequence[int]


Action: TypeAlias = SetRole | Replicate
"""What a policy may do at a tick."""


class Columns(NamedTuple):
    """Requests of one state, as parallel columns."""

    instance: Ints  # decode instance
    since_ms: Floats  # joined: when it joined; waiting: KV arrival; promised: (predicted) end of its prefill
    tokens: Ints  # context now (joined), or prompt + 1


class Cluster(Protocol):
    """A read-only view of the cluster at the moment of a decision. Arrays span all instances."""

    @property
    def now_ms(self) -> float: ...
    @property
    def is_prefill(self) -> Bools: ...
    @property
    def is_decode(self) -> Bools: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def ttft_slo_ms(self) -> float: ...
    @property
    def tbt_slo_ms(self) -> float: ...
    @property
    def vram_tokens(self) -> Ints:
        """KV capacity of each decode instance, tokens (0 on prefill instances)."""
        ...

    # prefill pool
    @property
    def queue_ms(self) -> Floats:
        """Estimated wait before a request routed now could start: the running prefill's remainder, the remaining
        fetch of a head the node idles for, and the prefill of everything queued. Exactly 0 when idle."""
        ...

    @property
    def queue_requests(self) -> Ints:
        """Requests routed to each prefill instance whose prefill has not ended (queued and running)."""
        ...

    def cached_tokens(self, request: Request) -> Ints:
        """Leading prompt tokens whose KV each instance holds or has been promised, at most ``input_tokens``."""
        ...

    def fetchable_tokens(self, request: Request) -> Ints:
        """Leading prompt tokens whose KV is ready on each instance, so that others may fetch it."""
        ...

    def fetch_ms(self, tokens: Ints, holder: int) -> Floats:
        """Uncontended time to copy ``tokens`` (per instance) from ``holder`` to each instance; 0 for 0 tokens."""
        ...

    def loadable_tokens(self, request: Request) -> Ints:
        """Leading prompt tokens whose KV each instance holds, has been promised, or could load from its SSD.

        At least ``cached_tokens``, and equal to it where there is no SSD or the view does not show it. Whether the
        difference is loaded is not the policy's to say: it is wherever loading takes less than computing.
        """
        ...

    def load_ms(self, tokens: Ints) -> Floats:
        """Time to load ``tokens`` (per instance) from each instance's SSD, behind what it is loading; 0 for 0 tokens.

        inf where there is no SSD.
        """
        ...

    def prefill_ms(self, request: Request, cached: Ints) -> Floats:
        """Prefill time of the request on each instance, ``cached`` of its tokens (per instance) not computed."""
        ...

    # decode pool
    @property
    def decode_batch(self) -> Ints:
        """Requests decoding in each instance's running batch."""
        ...

    @property
    def decode_tokens(self) -> Ints:
        """Sum of the contexts of that batch, tokens, at this moment."""
        ...

    @property
    def routed_tokens(self) -> Ints:
        """Context of the requests routed to each decode instance and not in its batch."""
        ...

    @property
    def joined(self) -> Columns:
        """Every request in a decode batch."""
        ...

    @property
    def waiting(self) -> Columns:
        """Every request whose KV has arrived (or was swapped out) and that is not in a batch."""
        ...

    @property
    def promised(self) -> Columns:
        """Every admitted request whose KV has not arrived at its decode instance yet."""
        ...

    def step_ms(self, batch: Ints | Floats, tokens: Ints | Floats) -> Floats:
        """Length of a decode step on each instance: ``batch`` requests, ``tokens`` contexts in all (per instance)."""
        ...


class Policy:
    """What every kind shares."""

    name: ClassVar[str]
    oracle: ClassVar[bool] = False  # True: sees output lengths; every report says so
    tick_ms: float = 1000.0  # how often on_tick is asked, of replayed time; may be a parameter

    def start(self, cluster: Cluster, rng: np.random.Generator) -> None:
        """Called once before the first request. ``rng`` is this policy's own seeded stream."""

    def on_event(self, kind: str, row: int, cluster: Cluster) -> None:
        """``first_token``, ``joined``, ``finished``, ``rejected`` or ``failed`` happened to request ``row``.

        ``lost``: the instance it was on died; it is routed anew, or fails next.
        """

    def on_tick(self, cluster: Cluster) -> Sequence[Action]:
        """What to change about the cluster now. Only routers and admissions that override it are asked.

        The first time ``tick_ms`` after the first arrival, then every ``tick_ms`` as long as anything happens.
        """
        return ()


class Router(Policy):
    """Chooses where a request is prefilled and decoded. One method to write: :meth:`route`."""

    def route(self, request: Request, cluster: Cluster) -> Route:
        """Where this request goes."""
        raise NotImplementedError

    def order(self, instance: int, queue: Sequence[Request], cluster: Cluster) -> int:
        """Index in ``queue`` of the request ``instance`` prefills next; the default is first come, first served."""
        return 0

    def late_decode(self, request: Request, route: Route, cluster: Cluster) -> int | None:
        """A decode instance chosen when the prefill ends; None keeps the one chosen at arrival."""
        return None


class Admission(Policy):
    """May turn a request away. One method to write: :meth:`reject`; a returned reason rejects, None admits."""

    def reject(self, request: Request, route: Route, cluster: Cluster) -> str | None:
        """At arrival, with the route (predictions filled in)."""
        raise NotImplementedError

    def reject_prefill(self, request: Request, route: Route, cluster: Cluster) -> str | None:
        """When the request's turn to prefill has come."""
        return None

    def reject_decode(self, request: Request, route: Route, cluster: Cluster) -> str | None:
        """When its KV has arrived at the decode instance (the prefill is then wasted)."""
        return None

    def retry_after_ms(self, request: Request, cluster: Cluster) -> float | None:
        """When a client that was just turned away, and will ask again, should do so; None: when it likes to."""
        return None


class Eviction(Policy):
    """Names the block that a full node gives up. One instance a node. One method to write: :meth:`evict`."""

    def open(self, capacity_blocks: int) -> None:
        """Called once, before the first block."""

    def begin(self, blocks: Sequence[int], now_ms: float) -> None:
        """A request with this whole prompt, head first, will use this node: told before ``insert`` and ``touch``."""

    def expire(self, now_ms: float, pinned: Container[int]) -> Sequence[int]:
        """Stored, unpinned blocks to give up now although there may be room; the policy forgets them.

        Asked before a request's hits are counted. Only policies that override it are asked.
        """
        return ()

    def insert(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        """These blocks were stored, in this order; ``positions`` are their places in the prompt (0 = head)."""

    def touch(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        """These stored blocks were used by a request, in this order."""

    def evict(self, pinned: Container[int]) -> int:
        """The stored block to give up, not one of ``pinned``; the policy forgets it."""
        raise NotImplementedError

    def evict_many(self, count: int, pinned: Container[int]) -> Sequence[int]:
        """``count`` blocks to give up, as so many calls of :meth:`evict` would name them (a shortcut for speed)."""
        return [self.evict(pinned) for _ in range(count)]

    def replace(self, blocks: Sequence[int], positions: Sequence[int], pinned: Container[int]) -> Sequence[int]:
        """For each of these blocks in turn, give up one block and store this one (a shortcut for speed).

        The victims in order, as so many calls of :meth:`evict` and :meth:`insert` would name them.
        """
        victims = []
        for block, position in zip(blocks, positions, strict=True):
            victims.append(self.evict(pinned))
            self.insert((block,), (position,))
        return victims

    def remove(self, block: int) -> None:
        """This block left without being evicted (its computation was dropped)."""


def describe(policy: Policy) -> dict[str, Any]:
    """The policy's parameters: its dataclass fields, by name."""
    return {key: getattr(policy, key) for key in getattr(policy, "__dataclass_fields__", {})}
