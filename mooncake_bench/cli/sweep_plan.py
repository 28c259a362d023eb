"""From a command line, or a TOML file, to the points of a sweep, every one of them checked before any is replayed."""

from __future__ import annotations

import re
import tomllib
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.cli.config import check_plan, check_policies, draws, refuse_idle_options, resolve_plan
from mooncake_bench.cli.options import SETUP_FLAGS
from mooncake_bench.cli.output import policies_print_to_stderr
from mooncake_bench.errors import BenchError, SetupError, TraceError, nearest
from mooncake_bench.plugins import build
from mooncake_bench.sim.parsing import parse_slo
from mooncake_bench.sim.setup import fields_from, flatten, settings
from mooncake_bench.studies.sweep.axes import POLICY, TRACE, axis_of, parse_axis
from mooncake_bench.studies.sweep.grid import Policies, choices, is_parameter
from mooncake_bench.studies.sweep.points import Point, definition_sha256, describe
from mooncake_bench.trace import load

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from mooncake_bench.cli.config import Plan
    from mooncake_bench.plugins import PolicySet
    from mooncake_bench.studies.sweep.axes import Axis
    from mooncake_bench.studies.sweep.grid import Choice
    from mooncake_bench.trace import Trace

_KEPT = re.compile(r"[^A-Za-z0-9_.+=,-]+")
DIGEST = 6  # letters of a sweep's hash that tell its folder from others


class Prepared(NamedTuple):
    """A sweep that can begin."""

    name: str
    points: list[Point]
    manifest: dict[str, Any]
    sources: dict[str, str]  # file of a policy -> SHA-256
    notices: list[str]


class SweepFile(NamedTuple):
    """What a TOML file says."""

    name: str | None = None
    axes: tuple[Axis, ...] = ()
    side_by_side: bool = False
    settings: Mapping[str, Any] = {}


def prepare(given: Mapping[str, Any]) -> Prepared:
    """Every point of the sweep, checked. Raises BenchError, one line, for the first thing that is wrong."""
    file = _read(given["sweep"]) if given["sweep"] else SweepFile()
    axes = [*file.axes, *(parse_axis(text) for text in given["vary"] or ())]
    side_by_side = given["list"] or file.side_by_side
    _refuse_idle(axes, given, side_by_side=side_by_side)
    base = _base(axes, file, given)
    plan = resolve_plan(base["trace"], base)
    with policies_print_to_stderr():
        policies = check_policies(plan.policies, given)
        specs = Policies(plan.policies, given["policy_dir"] or ())
        chosen = choices(specs, axes, side_by_side=side_by_side)
        checker = _Checker(plan, base)
        points = [checker.point(number, choice, axes) for number, choice in enumerate(chosen)]
    keys = [axis.key for axis in axes if axis.key != POLICY]
    sources = {path: digest for policy in (*policies, *checker.policies.values()) for path, digest in
               policy.sources.items()}  # fmt: skip
    oracles = dict.fromkeys(point.label for point in points if checker.policies[point.setup.policy].oracle)
    manifest = describe(
        points, keys, checker.traces.values(), sources, oracles=[*oracles], keep_runs=given["keep_runs"],
        meaning=specs.meaning,
    )  # fmt: skip
    trace = next(iter(checker.traces.values()))
    name = given["name"] or file.name or _name(given["out"], f"{trace.name}-{definition_sha256(manifest)[:DIGEST]}")
    notices = [*([plan.notice] if plan.notice else []), *trace.notices, *checker.notices]
    if "seed" in plan.asked:
        notices += _idle_seed(points, checker.policies, varied="seed" in keys)
    return Prepared(name, points, manifest, sources, list(dict.fromkeys(notices)))


def _idle_seed(points: Sequence[Point], policies: Mapping[str, PolicySet], *, varied: bool) -> Iterator[str]:
    """Say where a seed changes nothing."""
    drawing = {point.label for point in points if draws(point.setup, policies[point.setup.policy])}
    idle = [label for label in dict.fromkeys(point.label for point in points) if label not in drawing]
    if not drawing:
        seed = "seed is varied, but" if varied else "--seed"
        yield f"{seed} has no effect here: none of these policies draws random numbers"
    elif varied and idle:
        yield f"seed is varied, but has no effect on policies that draw no random numbers: {', '.join(idle)}"


def _name(out: Path | None, usual: str) -> str:
    """What a sweep is called that has no name: as its folder is."""
    return usual if out is None else out.absolute().name or usual


def folder_of(prepared: Prepared, given: Mapping[str, Any], results: Path) -> Path:
    """Where the dataset goes: the same for the same command."""
    shard = f"-{given['shard'].replace('/', 'of')}" if given["shard"] else ""
    return given["out"] or results / f"sweep-{_KEPT.sub('-', prepared.name)}{shard}"


class _Checker:
    """Makes points, checks each, and reads each trace once."""

    def __init__(self, plan: Plan, given: Mapping[str, Any]) -> None:
        self._plan, self._given = plan, given
        self._seen: set[Any] = set()
        self.traces: dict[tuple[Any, ...], Trace] = {}
        self.policies: dict[str, PolicySet] = {}
        self.notices: list[str] = []

    def point(self, number: int, choice: Choice, axes: Sequence[Axis]) -> Point:
        """One point, with the values of all axes as they are held."""
        with _saying(choice):
            plan = self._plan_of(choice)
            refuse_idle_options(plan, self._given)
            trace = self._trace(plan)
            setup = plan.setups(trace.block_tokens)[0]
            if choice.spec not in self.policies:
                self.policies[choice.spec] = build(choice.spec, self._given["policy_dir"] or ())
            alike = (plan.path, replace(setup, seed=0))
            if alike not in self._seen:  # a seed changes nothing that is checked
                self._seen.add(alike)
                unseeded = replace(plan, asked=plan.asked - {"seed"})  # of which _idle_seed tells
                self.notices += check_plan(unseeded, trace, [setup], self._given, [self.policies[choice.spec]])
        return Point(number, plan.path, trace.sha256, setup, choice.label, _varied(choice, plan.path, setup, axes))

    def _plan_of(self, choice: Choice) -> Plan:
        given = {key: value for key, value in choice.given.items() if key != TRACE}
        values = self._plan.values | fields_from(given, "--vary")
        trace = choice.given.get(TRACE, self._plan.trace)
        return replace(self._plan, trace=str(trace), policies=[choice.spec], values=values)

    def _trace(self, plan: Plan) -> Trace:
        reading = plan.draft().reading
        key = (plan.path, *reading.values())
        if key not in self.traces:
            self.traces[key] = load(plan.path, **reading)
        return self.traces[key]


def _varied(choice: Choice, trace: str, setup: Any, axes: Sequence[Axis]) -> dict[str, Any]:
    fields = {declared.dotted: name for name, declared in settings().items()}
    found: dict[str, Any] = {}
    for axis in axes:
        if axis.key == TRACE:
            found[axis.key] = trace
        elif is_parameter(axis.key):
            found[axis.key] = choice.parameters.get(axis.key)
        elif axis.key != POLICY:
            found[axis.key] = getattr(setup, fields[axis.key])
    return found


@contextmanager
def _saying(choice: Choice) -> Iterator[None]:
    """Say at which values something is wrong."""
    try:
        yield
    except BenchError as error:
        values = {**choice.given, **choice.parameters}
        elsewhere = isinstance(error, TraceError) and not any(key.startswith("trace.") for key in values)
        if elsewhere or not values:
            raise
        where = " ".join(f"{key}={value}" for key, value in values.items())
        raise type(error)(f"{error} (at {where}, policy {choice.label})") from None


def _base(axes: Sequence[Axis], file: SweepFile, given: Mapping[str, Any]) -> dict[str, Any]:
    """The command line with the first value of every axis, which a plan is made from."""
    firsts = [
        f"{axis.key}={axis.values[0]}"
        for axis in axes
        if axis.key not in (POLICY, TRACE) and not is_parameter(axis.key)
    ]
    policies = next((axis.values for axis in axes if axis.key == POLICY), None)
    traces = next((axis.values for axis in axes if axis.key == TRACE), None)
    return {
        **given,
        "out": None,  # the folder of the dataset, not of runs
        "set": [*(given["set"] or ()), *firsts],
        "settings": (file.settings, f"--sweep {given['sweep']}") if file.settings else None,
        "policy": list(map(str, policies)) if policies else given["policy"],
        "trace": str(traces[0]) if traces else given["trace"],
    }


def _refuse_idle(axes: Sequence[Axis], given: Mapping[str, Any], *, side_by_side: bool) -> None:
    """Raises SetupError for what has no effect beside what is varied."""
    if side_by_side and not axes:
        raise SetupError("--list: no effect without --vary; add that, or drop this")
    if given["seed"] is not None and any(axis.key == "seed" for axis in axes):
        raise SetupError("--seed: no effect beside --vary seed; drop one of the two")
    slos = {name for text in given["slo"] or () for name in parse_slo(text)}
    assigned = {text.partition("=")[0].strip() for text in given["set"] or ()}
    fields = {declared.dotted: name for name, declared in settings().items()} | {POLICY: "policy", TRACE: "trace"}
    for axis in axes:
        option = _given_by(axis.key, fields.get(axis.key, ""), given, slos, assigned)
        if option:
            raise SetupError(
                f"--vary {axis.key}: the same setting is given once more, by {option}; drop one of the two"
            )


def _given_by(
    key: str, name: str, given: Mapping[str, Any], slos: Collection[str], assigned: Collection[str]
) -> str | None:
    """The option that gives a setting, of which ``name`` is the field."""
    if key in assigned:
        return f"--set {key}"
    if name in slos:
        return "--slo"
    if not given.get(name):
        return None
    flags = {**{field: flags[0] for field, (flags, _) in SETUP_FLAGS.items()}, "policy": "-p"}
    return f"TRACE ({given[name]})" if name == "trace" else flags[name]


def _read(path: Path) -> SweepFile:
    """A TOML file: ``[vary]``, and beside it ``name``, ``list``, and settings as --config has them."""
    where = f"--sweep {path}"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SetupError(f"{where}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SetupError(f"{where}: not TOML: {error}") from None
    name, side_by_side = content.pop("name", None), content.pop("list", False)
    vary = content.pop("vary", {})
    if not isinstance(vary, dict) or not vary:
        hint = "" if vary else nearest("vary", content)
        raise SetupError(f"{where}: expected a table [vary] of settings and their values{hint}")
    if not isinstance(side_by_side, bool) or not isinstance(name, str | None):
        raise SetupError(f"{where}: expected list = true or false, and a name that is text")
    axes = tuple(axis_of(key, values, f"{where}: vary.{key}") for key, values in flatten(vary).items())
    return SweepFile(name, axes, side_by_side, content)
