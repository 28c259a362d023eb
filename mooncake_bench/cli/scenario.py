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


# Overload that shows the papers' point: decode nodes with a ninth of their KV memory fill up, admissions reject at both
# stages, and the later they look ahead the fewer they reject and the more requests complete within their SLOs. A first
# gap that includes a wait for memory would drown every other gap, so the TBT is judged without it (docs/overload.md).
FIRST_RUN = Scenario(
    trace="conversation-like",
    policies=("baseline", "early", "predictive"),
    values=MappingProxyType({"speedup": 2.5, "vram_tokens": 160_000, "first_gap": "exclude"}),
)
