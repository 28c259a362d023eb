"""Find, check and build policies from a SPEC such as ``kvcache-centric:threshold=2+predictive:td=12s+lru``."""

from __future__ import annotations

from mooncake_bench.plugins.assemble import DEFAULTS, PolicySet, build
from mooncake_bench.plugins.catalogue import ENTRY_POINTS, ENVIRONMENT, discover, find
from mooncake_bench.plugins.load import Parameter, PolicyClass, load_file
from mooncake_bench.plugins.spec import Part, Spec, parse

__all__ = [
    "DEFAULTS",
    "ENTRY_POINTS",
    "ENVIRONMENT",
    "Parameter",
    "Part",
    "PolicyClass",
    "PolicySet",
    "Spec",
    "build",
    "discover",
    "find",
    "load_file",
    "parse",
]
