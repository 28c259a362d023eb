"""From flags, ``--set``, ``--config``, ``--from`` and the first-run scenario to one plan.

Where several name a setting, the later of ``first run, --from, --config, --set, flags`` wins; a ``--set`` and a flag
for the same setting are refused.
"""

from __future__ import annotations

import shlex
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli.options import SETUP_FLAGS
from mooncake_bench.cli.scenario import FIRST_RUN
from mooncake_bench.cli.sizes import check_warmup, resolve_sizes, without_sizes
from mooncake_bench.errors import SetupError, TraceError
from mooncake_bench.sim.consistency import COUPLED, RETRIES, SSD_RATES, UNCOUPLED
from mooncake_bench.sim.parsing import parse_slo
from mooncake_bench.sim.setup import LIVE, READING, Setup, fields_from, flatten, settings, toml_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mooncake_bench.plugins import PolicySet
    from mooncake_bench.trace import Trace


@dataclass
class Plan:
    """What is to be replayed: a trace, policies, and the values given for setup fields."""

    trace: str | None = None
    policies: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    notice: str | None = None  # what the first-run scenario chose
    stored_sha256: str | None = None  # of the trace as replayed by the run that is repeated
    stored_trace: str = ""  # path or name of that trace
    stored_values: dict[str, Any] = field(default_factory=dict)  # setup fields of that run
    stored_policy: str = ""  # SPEC of that run
    stored_sources: frozenset[str] = frozenset()  # sha256 of its policy files
    asked: frozenset[str] = frozenset()  # setup fields that a flag or --set names: these must have an effect

    @property
    def path(self) -> str:
        """The trace's path or name, once resolved."""
        assert self.trace is not None
        return self.trace

    def update(self, trace: str | None, policies: Sequence[str], values: Mapping[str, Any]) -> None:
        """Lay what a later source gave over what is there."""
        self.trace = trace or self.trace
        self.policies = list(policies) or self.policies
        self.values.update(values)

    def draft(self) -> Setup:
        """The setup of the first policy before sizes are resolved, enough to load the trace. Raises SetupError."""
        return Setup(**without_sizes(self.values), policy=self.policies[0])

    def setups(self, block_tokens: int) -> list[Setup]:
        """One setup a policy, sizes resolved for a trace of this block size. Raises SetupError for a bad value."""
        values = resolve_sizes(self.values, block_tokens)
        return [Setup(**values, policy=policy) for policy in self.policies]


def resolve_plan(trace: str | None, given: Mapping[str, Any]) -> Plan:
    """The plan of a ``replay`` command line. Raises SetupError for what cannot be understood."""
    plan = Plan()
    if given.get("from_run"):
        _repeat(plan, given["from_run"], given.get("out"))
    if given.get("config"):
        plan.update(*_read(given["config"]))
    if given.get("settings"):  # of a file that holds more than these, and where they stood
        plan.update(*_split(*given["settings"]))
    flags = _flags(given)
    assigned = _assigned(given.get("set") or (), flags)
    plan.update(*assigned)
    plan.update(trace, given.get("policy") or (), flags)
    plan.asked = frozenset([*flags, *assigned[2]])
    if plan.values.get("warm_from"):
        plan.values["warm_from"] = _warm(plan.values["warm_from"], given.get("out"))
    if plan.trace is None:
        _first_run(plan)
    plan.policies = plan.policies or [Setup().policy]
    return plan


def refuse_idle_options(plan: Plan, given: Mapping[str, Any]) -> None:
    """Raises SetupError for an option that would have no effect beside the others."""
    cluster = plan.values.get("cluster", Setup().cluster)
    if "node" in plan.asked and all("@" in group for group in str(cluster).split("+")):
        raise SetupError(f"--node: no effect, every group of {cluster!r} names its node; drop one of the two")
    idle = [name for name in LIVE if name in plan.asked and plan.values.get("cost", Setup().cost) != "live"]
    if idle:
        raise SetupError(f"{_flag(idle[0])}: no effect without --cost live; add that, or drop this")
    _refuse_idle_roles(plan, str(cluster))
    idle = [name for name in SSD_RATES if name in plan.asked and not plan.values.get("ssd_blocks")]
    if idle:
        raise SetupError(f"{_flag(idle[0])}: no effect without --ssd; add that, or drop this")
    if "faults_requests" in plan.asked and "fail" not in str(plan.values.get("events")):
        raise SetupError("--fault-requests: no effect without a fail event; add --event, or drop this")
    _refuse_idle_clients(plan)
    if given.get("run_dir") and len(plan.policies) > 1:
        raise SetupError(f"--run-dir: holds one run, but {len(plan.policies)} policies are given; use --out DIR")
    if given.get("run_dir") and given.get("out") and not given.get("from_run"):
        raise SetupError("--out: no effect beside --run-dir, which is the whole path; drop one of the two")
    _check_name(given.get("name"))
    if given.get("by") and given.get("format") == "csv":
        raise SetupError("--by: no effect with --format csv, which lists the metrics of whole runs; use json")
    if given.get("quiet") and given.get("verbose"):
        raise SetupError("-q and -v contradict each other; drop one of the two")
    if given.get("dry_run"):
        locates = ("--out",) if given.get("from_run") else ()  # the run that --from names lies in it
        idle = [flag for flag, name in _RUN_ONLY.items() if given.get(name) and flag not in locates]
        if idle:
            raise SetupError(f"{idle[0]}: no effect with --dry-run, which replays nothing; drop one of the two")


def _refuse_idle_clients(plan: Plan) -> None:
    """How clients come back, where they do not."""
    idle = next((name for name in RETRIES if name in plan.asked), None)
    if idle is not None and not plan.values.get("client_retries"):
        raise SetupError(f"{_flag(idle)}: no effect without --retries; add that, or drop this")
    if "client_think_speedup" in plan.asked and plan.values.get("client_loop") != "closed":
        raise SetupError("--think-speedup: no effect without --loop closed; add that, or drop this")


def _refuse_idle_roles(plan: Plan, cluster: str) -> None:
    """What one kind of instances has no use for; a setup refuses it where it is not at its default."""
    coupled = "m" in {group.partition("@")[0].strip("[] ")[-1:].lower() for group in cluster.split("+")}
    idle = next((name for name in (UNCOUPLED if coupled else COUPLED) if name in plan.asked), None)
    if idle is not None:
        raise SetupError(f"{_flag(idle)}: no effect on cluster {cluster}; drop it, or choose another --cluster")
    if coupled and "touch_order" in plan.asked and plan.values.get("prefix_cache") == "off":
        raise SetupError("--touch-order: no effect with --prefix-cache off; drop one of the two")


def _check_name(name: str | None) -> None:
    """A --name that could not be told from a run's number, ``@last``, or nothing, would name nothing."""
    if name is not None and (not name.strip() or name.isdecimal() or name.startswith("@") or not name.isprintable()):
        raise SetupError(f"--name: expected a word that is no number and has no @ in front, got {name!r}")


def check_plan(
    plan: Plan,
    trace: Trace,
    setups: Sequence[Setup],
    given: Mapping[str, Any],
    policies: Sequence[PolicySet] | None = None,
) -> list[str]:
    """Find what is wrong before the first replay rather than after it. Raises BenchError; returns notices.

    Every policy and preset loads, labels differ, a repeated run's trace and code are the same, the window holds
    requests. ``policies`` of the setups, where they have been checked.
    """
    from mooncake_bench.sim.costs import check_cost, pool_blocks_of

    setup = setups[0]
    notices = check_cost(setup, dry_run=bool(given.get("dry_run")))
    pool_blocks_of(setup, trace.block_tokens)
    if policies is None:
        policies = check_policies([each.policy for each in setups], given)
    selected = trace.select(setup.max_requests, setup.start_ms, setup.end_ms)
    _check_repeats(plan, trace, given)
    _check_same_code(plan, policies, given)
    check_warmup(setup, selected)
    _check_split(given.get("by"), selected)
    _check_tbt(plan, selected, setup)
    if setup.warm_from is not None:
        from mooncake_bench.sim.replay import SIMULATOR_VERSION
        from mooncake_bench.sim.warm import source_of

        source_of(setup, trace.block_tokens, SIMULATOR_VERSION)
    if "seed" in plan.asked and not any(draws(setup, policy) for policy in policies):
        notices.append("--seed has no effect here: none of these policies draws random numbers")
    return notices


def check_policies(specs: Sequence[str], given: Mapping[str, Any]) -> list[PolicySet]:
    """The policies, built. Raises BenchError where one does not load, two have one label, or a folder has none."""
    from mooncake_bench import plugins

    folders = given.get("policy_dir") or ()
    policies = [plugins.build(spec, folders) for spec in specs]
    _check_labels(policies)
    _check_folders(folders, policies)
    return policies


def _check_labels(policies: Sequence[PolicySet]) -> None:
    from mooncake_bench.plugins.spec import unlabelled

    specs: dict[str, str] = {}
    for policy in policies:
        if policy.label in specs:
            how = f"label them, as in a={specs[policy.label]} and b={unlabelled(policy.spec)}"
            raise SetupError(f"--policy: {policy.label!r} is given twice; {how}")
        specs[policy.label] = unlabelled(policy.spec)


def _check_same_code(plan: Plan, policies: Sequence[PolicySet], given: Mapping[str, Any]) -> None:
    """A run is not repeated with other code than it had, unless the policy is named anew."""
    if given.get("policy") or not plan.stored_sources or plan.policies != [plan.stored_policy]:
        return
    for file, digest in policies[0].sources.items():
        if digest not in plan.stored_sources:
            raise SetupError(
                f"--from {given['from_run']}: policy file {file} is not what that run used (its sha256 is now "
                f"{digest[:12]}); restore it, or add -p {shlex.quote(policies[0].spec)} to replay it as it is now"
            )


def _check_folders(folders: Sequence[Path], policies: Sequence[PolicySet]) -> None:
    used = [Path(file).resolve() for policy in policies for file in policy.sources]
    for folder in folders:
        if not any(file.is_relative_to(folder.resolve()) for file in used):
            raise SetupError(f"--policy-dir {folder}: no effect, none of these policies lies in it; drop it")


def _check_repeats(plan: Plan, trace: Trace, given: Mapping[str, Any]) -> None:
    """A run is not repeated on another trace, whoever names it; other requests of the same trace may be chosen."""
    if plan.stored_sha256 is None:
        return
    from mooncake_bench.sim.replay import as_replayed

    stored = Setup(**plan.stored_values)
    if any(plan.values.get(name) != plan.stored_values.get(name) for name in READING):
        from mooncake_bench.trace import load

        trace = load(plan.path, **stored.reading)  # as that run read it
    try:
        found = as_replayed(trace.select(stored.max_requests, stored.start_ms, stored.end_ms), stored).sha256
    except TraceError:  # none of its requests arrives when that run's did
        found = trace.sha256
    if found != plan.stored_sha256:
        raise SetupError(
            f"--from {given['from_run']}: {plan.path!r} (sha256 {found[:12]}) is not the trace of that run, "
            f"{plan.stored_trace!r} (sha256 {plan.stored_sha256[:12]}); give that one as TRACE, or drop --from"
        )


def _check_split(by: str | None, selected: Trace) -> None:
    if by is None:
        return
    from mooncake_bench.results.split import KEYS, check_key

    check_key(by)
    column = KEYS[by].column
    values = None if column is None else getattr(selected, column)
    if column is not None and (values is None or (column == "session_id" and (values < 0).all())):
        raise SetupError(f"--by {by}: the requests of trace {selected.name!r} have none")


def _check_tbt(plan: Plan, selected: Trace, setup: Setup) -> None:
    """An SLO that no request has a number for judges nothing."""
    from mooncake_bench.results.words import counted

    asked = [name for name in ("slo_tbt_ms", "tbt_metric", "first_gap") if name in plan.asked]
    needed = 3 if setup.first_gap == "exclude" else 2
    longest = int(selected.output_tokens.max())
    if asked and longest < needed:
        option = "--slo tbt" if asked[0] == "slo_tbt_ms" else _flag(asked[0])
        raise SetupError(
            f"{option}: no effect, no request of trace {selected.name!r} has a token gap to judge: the longest answer "
            f"has {counted(longest, 'token')}, expected at least {needed}; drop it"
        )


def draws(setup: Setup, policies: PolicySet) -> bool:
    """Whether the seed matters: an estimate is drawn, or a policy may use its random stream.

    Only ``start`` receives that, as its last argument.
    """
    return bool(setup.estimate_error) or any(
        _uses_last_argument(type(policy).start) for policy in (policies.router, policies.admission)
    )


def _uses_last_argument(function: Any) -> bool:
    """Whether a function's code mentions its third argument; True where that cannot be seen."""
    import dis

    code = getattr(function, "__code__", None)
    if code is None or code.co_argcount != 3:
        return True
    name = code.co_varnames[2]
    mentioned = (item.argval for item in dis.get_instructions(code))  # from 3.13 on, two names at once as a tuple
    return any(name in (found if isinstance(found, tuple) else (found,)) for found in mentioned)


_RUN_ONLY = {
    "--out": "out",
    "--run-dir": "run_dir",
    "--name": "name",
    "--by": "by",
    "--profile": "profile",
    "--verbose": "verbose",
    "--quiet": "quiet",
    "--format": "format",
}


def plan_toml(trace: str, setups: Sequence[Setup]) -> str:
    """The resolved setup as TOML that ``--config`` reads back."""
    policies = [setup.policy for setup in setups]
    values = {"trace.path": trace, **setups[0].to_dict(), "policy": policies[0] if len(policies) == 1 else policies}
    return toml_lines(values)


def _warm(reference: str, out: Path | None) -> str:
    """A trace as it was named; a run, however it was named, as its folder. Raises ResultError for one that is none."""
    from mooncake_bench.results.store import MANIFEST, OUT, resolve_runs
    from mooncake_bench.trace import bundled_names

    path = Path(reference)
    if path.is_file() or (path / MANIFEST).is_file() or reference in bundled_names():
        return reference
    if path.suffix and not reference.isdecimal():
        return reference  # a file that is not there: reading it says so
    folders = resolve_runs([reference], out or OUT)
    if len(folders) != 1:
        raise SetupError(f"--warm-from {reference}: means {len(folders)} runs; name one of them")
    return str(folders[0])


def _first_run(plan: Plan) -> None:
    taken = {name: value for name, value in FIRST_RUN.values.items() if name not in plan.values}
    plan.values = taken | plan.values
    plan.trace = FIRST_RUN.trace
    plan.policies = plan.policies or list(FIRST_RUN.policies)
    shown = " ".join(_as_flag(name, value) for name, value in taken.items())
    plan.notice = f"no TRACE given: replaying the bundled {FIRST_RUN.trace}" + (
        f" with {shown}; name a TRACE for the usual defaults, or give these options to change them" if shown else ""
    )


def _as_flag(name: str, value: Any) -> str:
    shown = f"{value:g}" if isinstance(value, float) else value
    return f"--slo {name.split('_')[1]}:{shown}ms" if name.startswith("slo_") else f"{_flag(name)} {shown}"


def _flag(name: str) -> str:
    return SETUP_FLAGS[name][0][0] if name in SETUP_FLAGS else "--slo" if name.startswith("slo_") else f"--{name}"


def _dotted(name: str) -> str:
    return settings()[name].dotted


def _flags(given: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: given[name] for name in SETUP_FLAGS if given.get(name) not in (None, [])}
    slos = [parse_slo(text) for text in given.get("slo") or ()]
    for slo in slos:
        for name, value in slo.items():
            if name in values:
                raise SetupError(f"--slo: {name.split('_')[1]} is given twice; keep one")
            values[name] = value
    return values


def _assigned(assignments: Iterable[str], flags: Mapping[str, Any]) -> tuple[str | None, list[str], dict[str, Any]]:
    pairs: dict[str, Any] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise SetupError(f"--set: expected key=value such as slo.ttft_ms=10s, got {text!r}")
        if key.strip() in pairs:
            raise SetupError(f"--set: {key.strip()!r} is given twice; keep one")
        pairs[key.strip()] = value.strip()
    trace, policies, values = _split(pairs, "--set")
    if trace or policies:
        raise SetupError("--set: name the trace as TRACE and policies with --policy")
    for name in values:
        if name in flags:
            raise SetupError(f"--set {_dotted(name)}: no effect beside {_flag(name)}; drop one of the two")
    return trace, policies, values


def _read(path: Path) -> tuple[str | None, list[str], dict[str, Any]]:
    try:
        return _split(tomllib.loads(path.read_text(encoding="utf-8")), f"--config {path}")
    except OSError as error:
        raise SetupError(f"--config {path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SetupError(f"--config {path}: not TOML: {error}") from None


def _repeat(plan: Plan, reference: str, out: Path | None) -> None:
    from mooncake_bench.results.run import open_runs

    runs = open_runs([reference], *([out] if out else []))
    if len(runs) != 1:
        raise SetupError(f"--from {reference}: means {len(runs)} runs; name one of them")
    manifest = runs[0].manifest
    plan.update(*_split({"trace.path": manifest["trace"]["path"], **manifest["setup"]}, f"--from {reference}"))
    plan.stored_sha256 = manifest["trace"]["sha256"]
    plan.stored_trace, plan.stored_values = plan.path, dict(plan.values)
    plan.stored_policy = manifest["policy"].get("spec", "")
    plan.stored_sources = frozenset(manifest["policy"].get("sources", {}).values())


def _split(values: Mapping[str, Any], where: str) -> tuple[str | None, list[str], dict[str, Any]]:
    """Trace, policies and setup fields of a mapping of dotted names."""
    flat = flatten(values)
    trace, policy = flat.pop("trace.path", None), flat.pop("policy", [])
    policies = [policy] if isinstance(policy, str) else policy
    if not isinstance(policies, list) or not all(isinstance(spec, str) for spec in policies):
        raise SetupError(f"{where}: policy: expected a SPEC or a list of them, got {policy!r}")
    if trace is not None and not isinstance(trace, str):
        raise SetupError(f"{where}: trace.path: expected text, got {trace!r}")
    fields = fields_from(flat, where)
    return trace, policies, {name: value for name, value in fields.items() if value is not None}
