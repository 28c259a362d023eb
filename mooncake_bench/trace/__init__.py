"""A trace's life: schema, store, foreign formats, statistics, synthesis.

``load(path_or_bundled_name)`` gives a :class:`Trace`; everything else of the tool works on that. Attributes are
imported on first use, so importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mooncake_bench.trace.loading import bundled_names, load
    from mooncake_bench.trace.model import Trace
    from mooncake_bench.trace.stats import ceiling_tokens, info
    from mooncake_bench.trace.store import save

__all__ = ["Trace", "bundled_names", "ceiling_tokens", "info", "load", "save"]

_HOMES = {
    "Trace": "model",
    "bundled_names": "loading",
    "ceiling_tokens": "stats",
    "info": "stats",
    "load": "loading",
    "save": "store",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
