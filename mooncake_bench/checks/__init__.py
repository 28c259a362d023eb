"""The generic suite that any policy can be put through, and what a new policy starts from."""

from __future__ import annotations

from mooncake_bench.checks.scene import Scene
from mooncake_bench.checks.suite import Check, check_file, check_policy
from mooncake_bench.checks.template import template

__all__ = ["Check", "Scene", "check_file", "check_policy", "template"]
