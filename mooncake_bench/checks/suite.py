"""Checks that hold for every policy, bundled or a stranger's: what ``mooncake-bench policies check FILE`` runs."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mooncake_bench.checks import drive
from mooncake_bench.errors import BenchError, faults
from mooncake_bench.plugins import PolicyClass, discover, find, load_file, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Status = Literal["passed", "failed", "warning", "skipped"]

ALLOWED_IMPORTS = ("mooncake_bench.api", "numpy")
UNSEEDED = ("random", "secrets", "time", "uuid", "datetime")


@dataclass(frozen=True)
class Check:
    """One result: ``name`` reads as a sentence about the policy; ``detail`` says what was seen."""

    policy: str
    name: str
    status: Status
    detail: str = ""


def check_file(path_or_spec: str | Path, policy_dirs: Sequence[Path] = ()) -> list[Check]:
    """Put every policy of a file, or the one a SPEC names, through the suite.

    Never raises for a faulty policy: its fault is a result. Raises PolicyError for text that is no SPEC.
    """
    part = parse(str(path_or_spec)).parts[0]
    try:
        found = load_file(Path(part.target)) if part.is_file else [find(part.target, policy_dirs)]
        wanted = [one for one in found if part.class_name in (None, one.cls.__name__ if one.cls else "")]
    except BenchError as error:
        return [Check(part.target, "can be loaded", "failed", str(error))]
    parameters = ",".join(f"{key}={value}" for key, value in part.parameters.items())
    results = []
    for policy in wanted:
        target = f"{part.target}:{policy.cls.__name__}" if part.is_file and policy.cls else part.target
        results += check_policy(f"{target}:{parameters}" if parameters else target, policy, policy_dirs)
    return results or [Check(part.target, "can be loaded", "failed", f"{part.target} has no class {part.class_name!r}")]


def check_policy(spec: str, policy: PolicyClass, policy_dirs: Sequence[Path] = ()) -> list[Check]:
    """The suite for one policy; what depends on a failed step is left out."""
    trial = drive.Trial(spec, policy, tuple(policy_dirs))
    results = [_result(policy.name, "is documented", partial(_documented, policy)), *_imports(policy)]
    results += _names(policy, policy_dirs)
    for name, check in _steps(trial):
        results.append(_result(policy.name, name, check))
        if results[-1].status == "failed":
            break
    return results


def _steps(trial: drive.Trial) -> Iterator[tuple[str, Callable[[], str]]]:
    kinds = trial.policy.kinds
    yield "can be built", trial.build
    if "eviction" in kinds:
        yield "evicts only stored blocks that are not pinned", trial.evicts_validly
        yield "evicts alike when run twice", trial.evicts_alike
    if "router" in kinds or "admission" in kinds:
        yield "leaves what it sees alone", trial.leaves_the_view_alone
    yield "decides validly on a small trace", trial.decides_validly
    yield "accounts for every request under pressure", trial.survives_pressure
    yield "decides alike when run twice", trial.decides_alike
    yield "does not depend on output lengths before a finish", trial.is_blind_to_the_future


def _result(policy: str, name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(policy, name, "passed", check())
    except drive.Skipped as reason:
        return Check(policy, name, "skipped", str(reason))
    except (AssertionError, BenchError) as fault:
        return Check(policy, name, "failed", str(fault))
    except faults() as fault:  # a policy may raise anything
        return Check(policy, name, "failed", f"{type(fault).__name__}: {fault}{drive.where(fault)}")


def _documented(policy: PolicyClass) -> str:
    if not policy.doc:
        raise AssertionError("the class has no docstring: say in one sentence what it does")
    return policy.doc.splitlines()[0]


def _imports(policy: PolicyClass) -> list[Check]:
    """Warnings on imports that tie a policy to this machine or make its decisions unrepeatable."""
    tree = ast.parse(policy.file.read_bytes())
    modules = sorted({module for node in ast.walk(tree) for module in _imported(node)})
    foreign = [module for module in modules if not _allowed(module)]
    unseeded = [module for module in modules if module.split(".")[0] in UNSEEDED]
    found = []
    if foreign:
        advice = f"it imports {', '.join(foreign)}: a policy needs only {' and '.join(ALLOWED_IMPORTS)}"
        found.append(Check(policy.name, "imports only the policy API", "warning", advice))
    if unseeded:
        advice = f"it imports {', '.join(unseeded)}: use the rng given to start() and cluster.now_ms instead"
        found.append(Check(policy.name, "is repeatable", "warning", advice))
    return found or [Check(policy.name, "imports only the policy API", "passed")]


def _names(policy: PolicyClass, policy_dirs: Sequence[Path]) -> list[Check]:
    """A warning when a SPEC with the policy's name means another one."""
    owner = discover(policy_dirs).get(policy.name)
    if owner is None or owner.error or owner.file.resolve() == policy.file.resolve():
        return []
    advice = f"{policy.name!r} is also the name of {owner.file.name}, which -p {policy.name} means: choose another"
    return [Check(policy.name, "has a name of its own", "warning", advice)]


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return ["." * node.level + (node.module or "")]
    return []


def _allowed(module: str) -> bool:
    return module in ALLOWED_IMPORTS or module.startswith("numpy.") or module.split(".")[0] in sys.stdlib_module_names
