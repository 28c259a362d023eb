"""Policies at capacities on one trace, with the bound and the ceiling beside them."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mooncake_bench.cache import BOUNDS, lru_curve, optimum, study
from mooncake_bench.cache.spec import choose
from mooncake_bench.errors import NothingToConclude, PolicyError
from mooncake_bench.plugins import discover
from mooncake_bench.results.cache_analysis import BOUND, Analysis
from mooncake_bench.studies.reproduce import f25_f9

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from mooncake_bench.cache import Curve, Point
    from mooncake_bench.results.cache_analysis import Capacity, Model
    from mooncake_bench.trace import Trace

ALL = "all"
GRID = 16  # capacities at which the bound is computed for a picture
OTHER_NAMES = {"opt": BOUND}
ANY = "lru"  # without limit nothing is evicted: every policy finds the same


class Asked(NamedTuple):
    """A policy or bound that was asked for."""

    spec: str
    offline: bool  # sees the future


def eviction_specs(
    given: Sequence[str], policy_dirs: Sequence[Path] = (), warn: Callable[[str], None] | None = None
) -> dict[str, Asked]:
    """What is meant, by label: ``all`` is every eviction that needs no parameter, ``opt`` the offline optimum.

    ``warn`` is told why a policy file is no part of ``all``. Raises PolicyError for a SPEC that cannot be used, one
    that is no eviction, or a label given twice.
    """
    found: dict[str, Asked] = {}
    for text in given:
        for label, asked in _every(policy_dirs, warn) if text == ALL else [_named(text, policy_dirs)]:
            if label in found:
                raise PolicyError(f"-p: {label!r} is given twice; drop one, or name one of them: other={asked.spec}")
            found[label] = asked
    return found


def _every(policy_dirs: Sequence[Path], warn: Callable[[str], None] | None) -> list[tuple[str, Asked]]:
    found = discover(policy_dirs).values()
    for policy in found:
        if policy.error and warn is not None:
            warn(policy.error)
    usable = {policy.name: policy for policy in found if policy.error is None and policy.kinds == ("eviction",)}
    return [
        (name, Asked(name, policy.oracle))
        for name, policy in sorted(usable.items())
        if not any(each.required for each in policy.parameters.values())
    ]


def _named(text: str, policy_dirs: Sequence[Path]) -> tuple[str, Asked]:
    spec = OTHER_NAMES.get(text.strip(), text.strip())
    if spec in BOUNDS:
        return spec, Asked(spec, True)
    chosen = choose(spec, policy_dirs)
    return chosen.label, Asked(spec, chosen.policy.oracle)


def analyse(
    trace: Trace,
    asked: Mapping[str, Asked],
    capacities: Sequence[Capacity],
    model: Model,
    *,
    policy_dirs: Sequence[Path] = (),
    processes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Analysis:
    """Everything asked for (by label) at every capacity of each pool, with the bound and the ceiling.

    Raises NothingToConclude for a trace without prefix ids, and what :func:`mooncake_bench.cache.study` raises.
    """
    if not trace.has_prefix_ids:
        raise NothingToConclude(
            f"trace {trace.name!r}: the source has no prefix ids: no cache can hit, whatever its size and policy"
        )
    labels = [label for label in asked if label != BOUND]
    sizes = [capacity.blocks for capacity in capacities]
    together = [None if size is None else size * model.pools for size in sizes]
    count = _Count(progress, len(labels) * len(sizes) + len(together) + 1)
    bounds = study(  # here: each takes less time than starting a process
        trace, [BOUND], together, warm_requests=model.warm_requests, processes=1, progress=count.add
    )
    count.begin()
    [ceiling] = study(trace, [ANY], [None], **asdict(replace(model, pools=1)), processes=1, progress=count.add)
    count.begin()
    points = study(
        trace, [asked[label].spec for label in labels], sizes, **asdict(model), policy_dirs=policy_dirs,
        processes=processes, progress=count.add,
    )  # fmt: skip
    return Analysis(
        trace_name=trace.name,
        trace_sha256=trace.sha256,
        trace_requests=len(trace),
        model=model,
        capacities=tuple(capacities),
        labels=tuple(labels),
        offline=frozenset(label for label in labels if asked[label].offline),
        points=dict(zip([(label, size) for label in labels for size in sizes], points, strict=True)),
        bounds=dict(zip(sizes, bounds, strict=True)),
        ceiling=ceiling,
    )


def lru_line(trace: Trace, model: Model) -> Curve | None:
    """LRU at every capacity, for a picture; None where the model has more than one pool, or blocks that wait."""
    if model.pools > 1 or model.ready_after_ms:
        return None
    return lru_curve(trace, touch_order=model.touch_order, warm_requests=model.warm_requests)


def bound_line(trace: Trace, analysis: Analysis, further: Iterable[int] = ()) -> dict[int, Point]:
    """The bound by capacity of each pool, close enough for a line: its own points, and a grid from least to most.

    ``further``: capacities that the grid spans too. Empty where no capacity is finite.
    """
    found = {size.blocks: analysis.bounds[size.blocks] for size in analysis.finite() if size.blocks is not None}
    ends = [*found, *further]
    if not found:
        return {}
    grid = {round(blocks) for blocks in np.geomspace(min(ends), max(ends), GRID)}
    pools, warm = analysis.model.pools, analysis.model.warm_requests
    found |= {blocks: optimum(trace, blocks * pools, warm_requests=warm) for blocks in grid - set(found)}
    return dict(sorted(found.items()))


def published_points(trace: Trace, model: Model) -> tuple[dict[int, float] | None, str]:
    """Published hit ratios of one pool on this very trace by capacity in blocks, and where they are from.

    None for another trace, or several pools.
    """
    return f25_f9.points_of(trace) if model.pools == 1 else None, f25_f9.SOURCE


class _Count:
    """Points done over several studies."""

    def __init__(self, progress: Callable[[int, int], None] | None, total: int) -> None:
        self._progress, self._total, self._before, self._done = progress, total, 0, 0

    def begin(self) -> None:
        """Another study starts."""
        self._before += self._done

    def add(self, done: int, _: int) -> None:
        self._done = done
        if self._progress is not None:
            self._progress(self._before + done, self._total)
