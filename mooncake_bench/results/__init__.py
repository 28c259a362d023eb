"""One run's artefacts: records, folders, metrics, comparisons (:mod:`mooncake_bench.results.compare`).

Attributes are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mooncake_bench.results.run import Run, open_run, open_runs
    from mooncake_bench.results.store import resolve_runs

__all__ = ["Run", "open_run", "open_runs", "resolve_runs"]

_HOMES = {
    "Run": "run",
    "open_run": "run",
    "open_runs": "run",
    "resolve_runs": "store",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
