"""Links by name, from ``presets/links.toml``: what moving KVCache costs, as (E4) latency + bytes / bandwidth.

A replay takes a node's network bandwidth from the node's own preset; this table is for sizing and for comparison.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mooncake_bench.errors import SetupError, nearest
from mooncake_bench.hardware.tables import Table, read_toml

_FILE = Path(__file__).resolve().parent / "presets" / "links.toml"
KINDS = ("network", "pcie", "nvlink", "ssd", "loopback", "copy")
STATUSES = ("measured", "datasheet")
"""measured: fitted to, or read off, a measurement; datasheet: a line rate or a maker's figure that nobody measured."""


@dataclass(frozen=True)
class Link:
    """One way of moving bytes, one direction."""

    name: str
    kind: str
    description: str
    gbytes_per_s: float
    latency_ms: float | None
    """None where the source has bandwidths only."""
    status: str
    source: str
    error: str
    points: int
    """Measured points behind the numbers; 0 for a datasheet."""

    def transfer_ms(self, transferred_bytes: float) -> float:
        """Time of one transfer, uncontended [ms]; an unknown latency counts as 0."""
        return (self.latency_ms or 0.0) + transferred_bytes / self.gbytes_per_s / 1e6


HOST_LINKS = {"a800": "a800-h2d", "a100": "a800-h2d", "h100": "h100-h2d", "h800": "h100-h2d", "h200": "h100-h2d"}
"""The link between a bundled node's DRAM and its GPUs: A800 and A100 have the same PCIe, and so have the others."""
HOST_LINK = "a800-h2d"
"""Of any other node: the one that was measured."""


def host_gbytes_per_s(node: str) -> float:
    """Bandwidth between a node's DRAM and its GPUs, each way [1e9 bytes/s]."""
    return load_link(HOST_LINKS.get(node, HOST_LINK)).gbytes_per_s


def link_names() -> list[str]:
    """Bundled links, in the order of their file."""
    return list(read_toml(_FILE))


def load_link(name: str) -> Link:
    """A link by its name. Raises SetupError when it is unknown or its table is faulty."""
    known = read_toml(_FILE)
    if name not in known:
        raise SetupError(f"unknown link {name!r}{nearest(name, known)}; known: {', '.join(known)}")
    table = Table(known, _FILE.name).table(name)
    link = Link(
        name=name,
        kind=table.text("kind", one_of=KINDS),
        description=table.text("description"),
        gbytes_per_s=table.number("gbytes_per_s", above=0),
        latency_ms=table.number("latency_ms", least=0) if table.has("latency_ms") else None,
        status=table.text("status", one_of=STATUSES),
        source=table.text("source"),
        error=table.text("error"),
        points=int(table.number("points", least=0)),
    )
    table.done()
    return link
