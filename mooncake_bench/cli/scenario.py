"""What ``replay`` does when no trace is named."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Scenario(NamedTuple):
    """A trace, and the settings under which it shows something."""

    trace: str
    policies: tuple[str, ...]  # when none is given
    values: Mapping[str, Any]  # setup field -> value


# Overload, so that admissions differ and reject: the trace three times as fast, under a decode SLO that binds.
FIRST_RUN = Scenario(
    trace="conversation-like",
    policies=("baseline", "early", "predictive"),
    values=MappingProxyType({"cluster": "6P+4D", "speedup": 3.0, "slo_tbt_ms": 35.0}),
)
