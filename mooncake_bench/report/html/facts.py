"""What was replayed, as sheets of words: what differs between the runs, their policies, setup, trace and origin."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mooncake_bench.report.sheets import Sheet
from mooncake_bench.results.headline import hash_name, part_of
from mooncake_bench.results.words import DASH, counted, decimal, duration, integer
from mooncake_bench.sim.setup import Setup, settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mooncake_bench.results.compare import Comparison
    from mooncake_bench.results.run import Run

SHORT_HASH = 12
ALIKE = "All else is the same: trace, setup, cost model, versions."
PARTS = ("router", "admission", "eviction")


def differing(comparison: Comparison) -> list[Sheet]:
    """The settings, and whatever else was set up, in which the runs differ; none where there is one run."""
    if len(comparison.runs) < 2:
        return []
    rows = [row for row in _compared(comparison.runs) if len(set(row[1:])) > 1]
    return [Sheet("What differs between the runs", ("setting", *comparison.labels), tuple(rows), (ALIKE,))]


def _compared(runs: Sequence[Run]) -> Iterator[tuple[str, ...]]:
    """Everything that a reader would want to know to be the same: a name, and its value in each run."""
    manifests = [run.manifest for run in runs]
    yield ("policy", *(str(each["policy"]["spec"]) for each in manifests))
    yield ("trace", *(str(each["trace"]["name"]) for each in manifests))
    yield ("trace sha256", *(_short(each["trace"]["sha256"]) for each in manifests))
    yield from ((key, *values) for key, values in _setups(runs) if key != "policy")
    yield ("cost model", *(f"{each['cost']['name']} {each['cost']['version']}" for each in manifests))
    yield ("simulator version", *(str(each.get("simulator_version")) for each in manifests))
    yield ("status", *(str(each["status"]) for each in manifests))


def _setups(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Every setting of any run; a run that is older than the setting had its default."""
    setups, usual = [run.manifest["setup"] for run in runs], Setup().to_dict()
    keys = dict.fromkeys(key for setup in setups for key in setup)
    return [(key, [setting_text(key, setup.get(key, usual.get(key))) for setup in setups]) for key in keys]


def setting_text(key: str, value: Any) -> str:
    """A setting's value with its unit; what it means where it is not set."""
    declared = next((each for each in settings().values() if each.dotted == key), None)
    if value is None:
        return f"not set ({declared.unset})" if declared is not None and declared.unset else "not set"
    if declared is not None and declared.unit == "ms":
        return duration(value)
    unit = "" if declared is None or not declared.unit else "×" if declared.unit == "x" else f" {declared.unit}"
    return f"{value:,g}{unit}" if isinstance(value, int | float) and not isinstance(value, bool) else f"{value}{unit}"


def policies(comparison: Comparison) -> Sheet:
    """One row a run: the parts that its policy is made of, with every parameter."""
    found = [run.manifest["policy"] for run in comparison.runs]
    kinds = [*PARTS, *dict.fromkeys(kind for each in found for kind in each.get("parts") or {} if kind not in PARTS)]
    rows = [
        (label, *(_part((each.get("parts") or {}).get(kind)) for kind in kinds), _oracle(each))
        for label, each in zip(comparison.labels, found, strict=True)
    ]
    return Sheet("Policies", ("policy", *kinds, "oracle"), tuple(rows))


def _part(part: Mapping[str, Any] | None) -> str:
    if part is None:
        return DASH
    given = ", ".join(f"{key}={_plain(value)}" for key, value in part["parameters"].items())
    return f"{part['name']} ({given})" if given else str(part["name"])


def _plain(value: Any) -> str:
    """As a SPEC has it."""
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value


def _oracle(policy: Mapping[str, Any]) -> str:
    return "yes, it sees output lengths" if policy.get("oracle") else "no"


def sources(comparison: Comparison) -> Sheet:
    """The hash of each policy file, and whose it is."""
    users: dict[tuple[str, str], list[str]] = {}
    for run, label in zip(comparison.runs, comparison.labels, strict=True):
        for name, digest in (run.manifest["policy"].get("sources") or {}).items():
            users.setdefault((name, digest), []).append(label)
    rows = tuple((name, digest, ", ".join(each)) for (name, digest), each in sorted(users.items()))
    return Sheet("Policy files", ("file", "sha256", "used by"), rows)


def setup(comparison: Comparison) -> Sheet:
    """Every setting; one column where all runs agree on all of them."""
    rows = _setups(comparison.runs)
    alike = all(len(set(values)) == 1 for key, values in rows if key != "policy")
    if alike:
        kept = tuple((key, values[0]) for key, values in rows if key != "policy")
        return Sheet("The whole setup", ("setting", "value"), kept)
    return Sheet("The whole setup", ("setting", *comparison.labels), tuple((key, *values) for key, values in rows))


def traces(comparison: Comparison) -> Sheet:
    """Each trace that was replayed, with where it comes from."""
    found = {run.manifest["trace"]["sha256"]: run for run in comparison.runs}
    rows = [row for run in found.values() for row in _trace(run)]
    return Sheet("Trace" if len(found) == 1 else "Traces", ("fact", "value"), tuple(rows))


def _trace(run: Run) -> Iterator[tuple[str, str]]:
    trace = run.manifest["trace"]
    arrivals_ms = run.requests.column("arrival_ms").to_numpy()
    yield "name", str(trace["name"])
    yield hash_name(trace), str(trace["sha256"])
    yield "requests", part_of(trace) or integer(trace["requests"])
    yield "arrivals span", f"{decimal(float(arrivals_ms.max()) / 1000, 1)} s, as replayed"
    yield "block", counted(trace["block_tokens"], "token")
    yield from ((str(key), str(value)) for key, value in (trace.get("metadata") or {}).items())


def costs(comparison: Comparison) -> Sheet:
    """Each cost model, with its measured error in full."""
    users: dict[tuple[str, str, str], list[str]] = {}
    for run, label in zip(comparison.runs, comparison.labels, strict=True):
        cost = run.manifest["cost"]
        users.setdefault((str(cost["name"]), str(cost["version"]), str(cost["error"])), []).append(label)
    if len(users) == 1:
        (name, version, error), _ = next(iter(users.items()))
        return Sheet("Cost model", ("fact", "value"), (("name", name), ("version", version), ("error", error)))
    rows = tuple((", ".join(each), f"{name} {version}", error) for (name, version, error), each in users.items())
    return Sheet("Cost models", ("runs", "model", "error"), rows)


def origins(comparison: Comparison) -> Sheet:
    """Where each run comes from: its folder's name, when, and by which version on what."""
    headers = ("policy", "run", "status", "made", "tool", "simulator", "replay took", "a decision took", "on")
    rows = [(label, *_origin(run)) for label, run in zip(comparison.labels, comparison.runs, strict=True)]
    return Sheet("Runs", headers, tuple(rows))


def _origin(run: Run) -> Iterator[str]:
    known = run.manifest
    wall_s, decision = known.get("wall_s"), known.get("policy_decision_us") or {}
    machine = known.get("machine") or {}
    yield DASH if run.path is None else run.path.name  # folders above it are private
    yield str(known["status"])
    yield str(known.get("created", DASH))
    yield str(known.get("tool_version", DASH))
    yield str(known.get("simulator_version", DASH))
    yield DASH if wall_s is None else f"{wall_s:.1f} s"
    yield DASH if decision.get("p50") is None else f"{decision['p50']:.0f} µs (p99 {decision['p99']:.0f})"
    yield ", ".join(str(machine[key]) for key in ("cpu", "platform") if machine.get(key)) or DASH


def _short(digest: Any) -> str:
    return str(digest)[:SHORT_HASH]
