"""Imports point one way, and heavy ones stay where they belong: read from the source, then checked in a process."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
PACKAGE = REPO / "mooncake_bench"

# Each room may import from the rooms of a smaller number, and from itself.
RANK = {
    room: rank
    for rank, rooms in enumerate(
        (
            ("errors", "paths"),
            ("collector", "filelock", "jsonfile", "outfile", "spool"),
            ("api",),
            ("hardware", "trace", "plugins"),
            ("live",),
            ("sim", "cache"),
            ("checks",),
            ("results",),
            ("report",),
            ("studies",),
            ("cli",),
            ("__init__", "__main__"),
        )
    )
    for room in rooms
}
ALL_MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "_bundled" not in path.parts)
POLICIES = sorted((REPO / "policies").glob("*.py"))


def room(path: Path) -> str:
    """The first part of a module's path inside the package."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> set[str]:
    """Every module named by an import statement, wherever it stands."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def rooms_used(tree: ast.AST) -> set[str]:
    """Rooms that a module imports from; the version number is nobody's room."""
    ours = imported(tree) - {"mooncake_bench.__version__"}
    parts = (name.split(".") for name in ours if name.split(".")[0] == "mooncake_bench")
    return {part[1] if len(part) > 1 and part[1] in RANK else "__init__" for part in parts}


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@pytest.mark.parametrize("path", ALL_MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_the_rooms_below_its_own(path: Path) -> None:
    own = room(path)
    assert own in RANK, f"{own} is in no layer; add it to RANK"
    assert {name for name in rooms_used(parse(path)) if name != own and RANK[name] >= RANK[own]} == set()


@pytest.mark.parametrize("path", ALL_MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_live_imports_torch(path: Path) -> None:
    heavy = {name.split(".")[0] for name in imported(parse(path))} & {"torch", "mooncake"}
    assert room(path) == "live" or not heavy


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.name)
def test_a_policy_imports_only_the_api_numpy_and_the_standard_library(path: Path) -> None:
    for name in imported(parse(path)):
        top = name.split(".")[0]
        assert name.startswith("mooncake_bench.api.") or top == "numpy" or top in sys.stdlib_module_names, name


def test_there_are_modules_and_policies_to_look_at() -> None:
    assert len(ALL_MODULES) > 20
    assert len(POLICIES) > 10


def modules_after(code: str) -> set[str]:
    """Top-level and dotted names of what is loaded in a fresh interpreter after ``code``."""
    report = f"import sys\n{code}\nprint('\\n<modules>', *sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True, encoding="utf-8")
    return set(done.stdout.split("<modules>")[1].split())


HEAVY = {"numpy", "pyarrow", "scipy", "torch", "msgspec", "rich", "rich.table"}


@pytest.mark.parametrize(
    "code",
    [
        "import mooncake_bench; mooncake_bench.__version__",
        "import mooncake_bench.api",
        "from mooncake_bench.cli.app import run; run(['--help'])",
        "from mooncake_bench.cli.app import run; run(['replay', '--help'])",
        "from mooncake_bench.cli.app import run; run(['--version'])",
    ],
)
def test_light_work_loads_nothing_heavy(code: str) -> None:
    assert not modules_after(code) & HEAVY
