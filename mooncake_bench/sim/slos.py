"""SLOs of priority classes, such as ``1=ttft:10s,tbt:50ms;2=ttft:60s``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import SetupError
from mooncake_bench.sim.parsing import parse_slo

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    from numpy import float64
    from numpy.typing import NDArray

    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.trace import Trace

    Slos: TypeAlias = tuple[NDArray[float64], NDArray[float64]]

FORM = "PRIORITY=ttft:..,tbt:.. such as 1=ttft:10s,tbt:50ms"


def class_list(value: Any, what: str) -> str | None:
    """Classes as one text, by priority. ``value``: a text joined by semicolons, or a list of texts."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
        raise SetupError(f"{what}: expected {FORM}, or a list of these, got {value!r}")
    texts = [text.replace(" ", "") for part in value for text in part.split(";") if text.strip()]
    found: dict[int, str] = {}
    for text in texts:
        priority = _class(text, what)[0]
        if priority in found:
            raise SetupError(f"{what}: priority {priority} has two classes, {found[priority]!r} and {text!r}; keep one")
        found[priority] = text
    return ";".join(found[priority] for priority in sorted(found)) or None


def parse_classes(text: str | None) -> dict[int, dict[str, float]]:
    """The SLOs of each class that has its own, as setup fields in ms, by priority."""
    return dict(_class(part, "slo.classes") for part in text.split(";")) if text else {}


def _class(text: str, what: str) -> tuple[int, dict[str, float]]:
    """One class: its priority and SLOs. Raises SetupError for anything else."""
    priority, equals, slos = text.partition("=")
    if not equals or not re.fullmatch(r"[+-]?\d+", priority):
        raise SetupError(f"{what}: expected {FORM}, got {text!r}")
    found = parse_slo(slos)
    for name, limit_ms in found.items():
        if limit_ms < 1e-6:
            raise SetupError(f"{what}: {name.split('_')[1]} in {text!r} must be at least 1e-06 ms, got {limit_ms:g}")
    return int(priority), found


def class_slos(trace: Trace, setup: Setup) -> Slos | None:
    """TTFT and TBT SLO in ms of each request, (n,) each, by its class; None where all have the same.

    Raises SetupError for a class that no request belongs to.
    """
    classes = setup.slo_by_priority
    if not classes:
        return None
    import numpy as np

    priorities = trace.priority
    check_priorities(classes, None if priorities is None else np.unique(priorities).tolist())
    assert priorities is not None
    ttft, tbt = (np.full(len(trace), general) for general in (setup.slo_ttft_ms, setup.slo_tbt_ms))
    for priority, (ttft_ms, tbt_ms) in classes.items():
        mine = priorities == priority
        ttft[mine], tbt[mine] = ttft_ms, tbt_ms
    return ttft, tbt


def check_priorities(classes: Iterable[int], there: Iterable[int] | None) -> None:
    """Raises SetupError for a class that no request belongs to. ``there``: the trace's priorities, None without any."""
    known = set() if there is None else set(there)
    for priority in classes:
        if priority not in known:
            has = f"its priorities are {_some(known)}" if known else "it has no priorities"
            raise SetupError(f"slo.classes: no request of this trace has priority {priority}; {has}")


def _some(numbers: set[int]) -> str:
    shown = ", ".join(map(str, sorted(numbers)[:8]))
    return f"{shown}, …" if len(numbers) > 8 else shown
