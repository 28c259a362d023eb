"""Where policies are looked for by name, and what is found there."""

from __future__ import annotations

import inspect
import os
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from mooncake_bench.api import Policy
from mooncake_bench.errors import PolicyError, nearest
from mooncake_bench.paths import bundled
from mooncake_bench.plugins.load import PolicyClass, describe_class, load_file, sha256_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ENVIRONMENT = "MOONCAKE_BENCH_POLICIES"
ENTRY_POINTS = "mooncake_bench.policies"


def discover(policy_dirs: Sequence[Path] = ()) -> dict[str, PolicyClass]:
    """Every policy by name: bundled, in ``policy_dirs``, in the folders of ``MOONCAKE_BENCH_POLICIES``, entry points.

    A file that cannot be used is listed under its stem with the reason in ``error``, and hides nothing. So is a second
    policy of a name: the first keeps it. Raises PolicyError when a folder is missing.
    """
    found: dict[str, PolicyClass] = {}
    for policy in _everything(policy_dirs):
        if policy.name not in found:
            found[policy.name] = policy
        elif policy.error is None:
            taken = (
                f"policy file {policy.file}: the name {policy.name!r} is taken by {found[policy.name].file}; rename one"
            )
            found[f"{policy.name} ({policy.file})"] = PolicyClass(policy.name, policy.file, error=taken)
        else:
            found[f"{policy.name} ({policy.file})"] = policy
    return found


def find(name: str, policy_dirs: Sequence[Path] = ()) -> PolicyClass:
    """The policy called ``name``. Raises PolicyError when there is none, it is broken, or two share the name."""
    return pick(name, discover(policy_dirs))


def pick(name: str, found: Mapping[str, PolicyClass]) -> PolicyClass:
    """The policy called ``name`` among those that ``discover`` found. Raises PolicyError as ``find`` does."""
    for policy in found.values():
        if policy.name == name and policy.error:
            raise PolicyError(policy.error)
    if name not in found:
        hint = nearest(name, (known for known, policy in found.items() if not policy.error))
        raise PolicyError(
            f"unknown policy {name!r}{hint}; `mooncake-bench policies list` shows all; a policy file's name ends in .py"
        )
    return found[name]


def file_of(name: str, policy_dirs: Sequence[Path] = ()) -> Path | None:
    """The file in a searched folder that defines the policy called ``name``; None where ``find`` has more to say.

    Which file has which name is remembered while no file changes: a study that builds a policy for each of its runs
    runs that policy's file anew, so that no state is shared, and leaves the others alone.
    """
    paths = [path for folder in _folders(policy_dirs) for path in sorted(folder.glob("*.py"))]
    facts = [(path, path.stat()) for path in paths]
    seen = tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in facts)
    return _index(seen, tuple(policy_dirs)).get(name)


@lru_cache(maxsize=16)
def _index(seen: tuple[tuple[Path, int, int], ...], policy_dirs: tuple[Path, ...]) -> dict[str, Path]:
    """Names that one usable policy has, and nothing unusable: in which file of a folder."""
    found = discover(policy_dirs)
    broken = {policy.name for policy in found.values() if policy.error}
    files = {path for path, _, _ in seen}
    return {name: policy.file for name, policy in found.items() if policy.file in files and policy.name not in broken}


def _everything(policy_dirs: Sequence[Path]) -> Iterator[PolicyClass]:
    for folder in _folders(policy_dirs):
        for path in sorted(folder.glob("*.py")):
            yield from _usable_or_not(path)
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        yield from _from_entry_point(entry)


def _folders(policy_dirs: Sequence[Path]) -> list[Path]:
    named = [(Path(folder), "--policy-dir") for folder in policy_dirs]
    named += [(Path(text), ENVIRONMENT) for text in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if text]
    for folder, origin in named:
        if not folder.is_dir():
            raise PolicyError(f"{origin}: {folder} is not a folder of policy files")
    return list(
        {folder.resolve(): folder for folder in (bundled("policies"), *(folder for folder, _ in named))}.values()
    )


def _usable_or_not(path: Path) -> list[PolicyClass]:
    if path.name.startswith("_"):
        return []
    try:
        return load_file(path)
    except PolicyError as error:
        return [PolicyClass(path.stem, path, error=str(error))]


def _from_entry_point(entry: EntryPoint) -> list[PolicyClass]:
    where = Path(f"entry point {entry.name} = {entry.value}")
    try:
        loaded = entry.load()
        if not (isinstance(loaded, type) and issubclass(loaded, Policy)):
            raise PolicyError(f"{where} is no policy class")
        path = Path(inspect.getfile(loaded))
        module = inspect.getmodule(loaded)
        return [describe_class(loaded, path, sha256_of(path), inspect.getdoc(module) or "")]
    except Exception as error:  # a broken package must not hide the others
        reason = str(error) if isinstance(error, PolicyError) else f"{where}: {type(error).__name__}: {error}"
        return [PolicyClass(entry.name, where, error=reason)]
