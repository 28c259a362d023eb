"""What is to be replayed, as every command that replays reads it: trace, policies, setup; and where they come from."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.cli import options
from mooncake_bench.cli.options import argument, option

if TYPE_CHECKING:
    import inspect
    from collections.abc import Mapping

    from mooncake_bench.cli.config import Plan
    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.trace import Trace

source_option = partial(option, panel="Where settings come from")


class Planned(NamedTuple):
    """What a command line asks to replay: one setup a policy, checked."""

    plan: Plan
    trace: Trace  # as read: --start, --end and --max-requests are for the replay to apply
    setups: list[Setup]
    notices: list[str]


def plan_parameters() -> list[inspect.Parameter]:
    """TRACE, policies, SLOs, every setting of the setup, --from, --config and --set."""
    return [
        argument(
            "trace", str | None, "Trace file, or the name of a bundled trace [default: the first-run scenario]", None
        ),
        option(
            "policy",
            list[str] | None,
            ("-p", "--policy"),
            "Policy SPEC: [LABEL=]NAME or FILE.py[:Class], then :key=value,..., kinds joined by +; repeatable, the "
            "first is the reference [default: kvcache-centric]",
            panel="Policies",
            metavar="SPEC",
        ),
        options.policy_dir_option(),
        option(
            "slo",
            list[str] | None,
            ("--slo",),
            "SLOs, such as ttft:30s,tbt:100ms; repeatable; bare number: ms [ms; default: ttft:30s,tbt:100ms]",
            panel=options.SETUP_PANEL,
            metavar="SLOS",
        ),
        *options.setup_options(),
        source_option(
            "from_run",
            str | None,
            ("--from",),
            "Repeat a stored run: its trace and setup [default: none]",
            metavar="RUN",
        ),
        source_option(
            "config",
            Path | None,
            ("--config",),
            "TOML file of settings, as --dry-run prints them [default: none]",
            metavar="FILE",
        ),
        source_option(
            "set",
            list[str] | None,
            ("--set",),
            "One setting by its dotted name, such as slo.ttft_ms=10s; repeatable [default: none]",
            metavar="KEY=VALUE",
        ),
    ]


def resolve(given: Mapping[str, Any]) -> Planned:
    """Trace, setups and notices of a command line. Raises BenchError for what cannot be replayed, before any replay."""
    from mooncake_bench.cli.config import check_plan, refuse_idle_options, resolve_plan
    from mooncake_bench.cli.output import policies_print_to_stderr
    from mooncake_bench.trace import load

    plan = resolve_plan(given["trace"], given)
    refuse_idle_options(plan, given)
    trace = load(plan.path, **plan.draft().reading)
    setups = plan.setups(trace.block_tokens)
    with policies_print_to_stderr():
        notices = check_plan(plan, trace, setups, given)
    return Planned(plan, trace, setups, [*([plan.notice] if plan.notice else []), *trace.notices, *notices])
