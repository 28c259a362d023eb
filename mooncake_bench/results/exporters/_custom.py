"""Entries of github-action-benchmark's custom tools: ``[{"name", "unit", "value", "extra"}, …]``.

That action draws each name over the commits of a repository and alerts where a value got worse. It takes numbers
only: an undefined metric has no entry.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import ResultError
from mooncake_bench.results.compare import distinct_labels

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from mooncake_bench.results.run import Run


def entries(runs: Sequence[Run], better: str, metrics: Collection[str] = ()) -> str:
    """All metrics of which more (``higher``) or less (``lower``) is better, named ``label: metric``.

    ``metrics`` keeps these only. Raises ResultError where no such metric is defined.
    """
    named = zip(distinct_labels(runs), runs, strict=True)
    found = [entry for label, run in named for entry in _of(label, run, better, metrics)]
    if not found:
        raise ResultError(f"none of these runs has a defined metric of which {better} is better")
    return json.dumps(found, indent=2, allow_nan=False) + "\n"


def _of(label: str, run: Run, better: str, metrics: Collection[str]) -> Iterator[dict[str, Any]]:
    for name, value in run.metrics().items():
        if value.better == better and value.value is not None and (not metrics or name in metrics):
            extra = f"trace {run.manifest['trace']['name']}" + ("" if value.n is None else f", n = {value.n}")
            yield {"name": f"{label}: {name}", "unit": value.unit or "1", "value": value.value, "extra": extra}
