"""What a new policy starts from: a working policy of a few lines, and a test of it that passes as written."""

from __future__ import annotations

import keyword
import re
import sys

from mooncake_bench.errors import PolicyError, nearest

KINDS = ("router", "admission", "eviction")

_POLICIES = {
    "router": '''"""{name}: say here what it does, and where the idea comes from."""

from dataclasses import dataclass

from mooncake_bench.api import Route, Router


@dataclass
class {cls}(Router):
    """The instance with the least wait, less a credit for each prompt token it has cached."""

    name = "{name}"
    credit_ms: float = 0.1  # a cached token is worth this much waiting

    def route(self, request, cluster):
        cost = cluster.queue_ms - self.credit_ms * cluster.cached_tokens(request)
        return Route(prefill=int(cost.argmin()))
''',
    "admission": '''"""{name}: say here what it does, and where the idea comes from."""

from dataclasses import dataclass

from mooncake_bench.api import Admission


@dataclass
class {cls}(Admission):
    """Turns away a request whose prefill instance would keep it waiting too long."""

    name = "{name}"
    wait_ms: float = 10_000.0

    def reject(self, request, route, cluster):
        return "wait" if cluster.queue_ms[route.prefill] > self.wait_ms else None
''',
    "eviction": '''"""{name}: say here what it does, and where the idea comes from."""

from mooncake_bench.api import Eviction


class {cls}(Eviction):
    """Gives up the block used longest ago; of one request's blocks, in the order they were touched."""

    name = "{name}"

    def open(self, capacity_blocks):
        self.order = {{}}  # block: nothing; the oldest use first

    def insert(self, blocks, positions):
        self.order.update(dict.fromkeys(blocks))

    def touch(self, blocks, positions):
        for block in blocks:
            self.order[block] = self.order.pop(block)

    def evict(self, pinned):
        victim = next(block for block in self.order if block not in pinned)
        del self.order[victim]
        return victim

    def remove(self, block):
        del self.order[block]
''',
}

_TEST = '''"""Tests of the {kind} {name}: run pytest in this folder."""

from pathlib import Path

from mooncake_bench.api import {imports}
from mooncake_bench.checks import {helpers}
from mooncake_bench.plugins import build

FILE = Path(__file__).with_name("{file}")


def test_passes_the_generic_suite():
    assert [check for check in check_file(FILE) if check.status == "failed"] == []

'''

_TESTS = {
    "router": """
def test_goes_where_cached_tokens_outweigh_the_longer_wait():
    router = build(f"{{FILE}}:credit_ms=0.1").router
    request = Request(row=0, arrival_ms=0.0, input_tokens=1024, blocks=(1, 2))
    # instance 0: 30 - 0.1 * 0 = 30; instance 1: 50 - 0.1 * 512 = -1.2
    assert router.route(request, Scene(queue=[30, 50], cached=[0, 512])).prefill == 1
""",
    "admission": """
def test_rejects_what_would_wait_longer_than_allowed():
    admission = build(f"{{FILE}}:wait_ms=10s").admission
    request, route = Request(row=0, arrival_ms=0.0, input_tokens=1024, blocks=(1, 2)), Route(prefill=0, decode=2)
    assert admission.reject(request, route, Scene(queue=[10_000, 0])) is None
    assert admission.reject(request, route, Scene(queue=[10_001, 0])) == "wait"
""",
    "eviction": """
def test_gives_up_the_oldest_use_that_is_not_pinned():
    eviction: Eviction = build(str(FILE)).evictions()
    eviction.open(3)
    eviction.insert([1, 2, 3], [0, 1, 2])
    eviction.touch([1], [0])  # oldest use first: 2, 3, 1
    assert [eviction.evict({{2}}), eviction.evict(set())] == [3, 2]
""",
}
_IMPORTS = {
    "router": ("Request", "Scene, check_file"),
    "admission": ("Request, Route", "Scene, check_file"),
    "eviction": ("Eviction", "check_file"),
}


def file_name(name: str) -> str:
    """The file a policy called ``name`` goes to; its test is ``test_`` and this."""
    stem = re.sub(r"[^0-9a-z]", "_", name.lower())
    if stem in sys.stdlib_module_names or stem in ("numpy", "pytest", "mooncake_bench"):
        stem += "_policy"  # a random.py beside a test would be imported in place of Python's own
    return f"{stem}.py"


def template(kind: str, name: str) -> tuple[str, str]:
    """Source of a policy of this kind and of its test, to lie side by side under ``file_name(name)``.

    Raises PolicyError for an unknown kind or a name that no SPEC could hold.
    """
    if kind not in KINDS:
        raise PolicyError(f"unknown policy kind {kind!r}{nearest(kind, KINDS)}; the kinds are {', '.join(KINDS)}")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        raise PolicyError(f"policy name {name!r}: use a letter, then letters, digits, '-' and '_'")
    words = {"kind": kind, "name": name, "cls": _class_name(name), "file": file_name(name)}
    words["imports"], words["helpers"] = _IMPORTS[kind]
    return _POLICIES[kind].format(**words), (_TEST + _TESTS[kind]).format(**words)


def _class_name(name: str) -> str:
    words = "".join(word[:1].upper() + word[1:] for word in re.split(r"[-_]+", name))
    taken = keyword.iskeyword(words) or words in ("Route", "Router", "Admission", "Eviction", "Request", "Scene")
    return f"{words}Policy" if taken else words
