"""One pool with instant service, one block at a time: what cache studies and published hit counts do."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from mooncake_bench import plugins

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.api import Eviction


class Hits(NamedTuple):
    """``blocks``: one a reference, in order of access; ``prefix``: leading stored blocks, one a request."""

    blocks: list[bool]
    prefix: list[int]


_found = cache(plugins.discover)


def policy(spec: str) -> Eviction:
    """A fresh eviction object of a one-part SPEC."""
    (part,) = plugins.parse(spec).parts
    made: Eviction = _found()[part.target].make(part.parameters)  # type: ignore[assignment]
    return made


def serve(
    eviction: Eviction,
    capacity: int,
    prompts: Sequence[Sequence[int]],
    times_ms: Sequence[float] | None = None,
    reverse: bool = False,
) -> Hits:
    """Look every block of every prompt up in order of position, or from the tail; store it if absent."""
    stored: set[int] = set()
    hits, prefix = [], []
    eviction.open(capacity)
    for row, prompt in enumerate(prompts):
        now_ms = times_ms[row] if times_ms else float(row)
        stored.difference_update(eviction.expire(now_ms, frozenset()))
        prefix.append(next((place for place, block in enumerate(prompt) if block not in stored), len(prompt)))
        eviction.begin(prompt, now_ms)
        for place in range(len(prompt))[:: -1 if reverse else 1]:
            block = prompt[place]
            hits.append(block in stored)
            if block in stored:
                eviction.touch((block,), (place,))
                continue
            if len(stored) == capacity:
                stored.remove(eviction.evict(frozenset()))
            eviction.insert((block,), (place,))
            stored.add(block)
    return Hits(hits, prefix)
