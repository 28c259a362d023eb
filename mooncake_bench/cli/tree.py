"""Which commands there are. Loaded by :mod:`mooncake_bench.cli.line` once it can catch Ctrl-C."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from mooncake_bench import __version__
from mooncake_bench.cli import (
    artifact,
    cache,
    calibrate,
    calibrate_fit,
    calibrate_live,
    calibrate_transfer,
    calibrate_validate,
    capacity,
    compare,
    explain,
    export,
    gate,
    hardware,
    metrics,
    plot,
    policies,
    replay,
    report,
    reproduce,
    robust,
    sweep,
    traces,
    traces_edit,
    traces_fetch,
    traces_make,
)
from mooncake_bench.cli.options import Command, Example, examples, write_examples
from mooncake_bench.cli.output import answer

if TYPE_CHECKING:
    from mooncake_bench.cli.options import Commands

PROGRAM = "mooncake-bench"
USAGE_ERROR = 2


class Group(TyperGroup):
    """A group of commands whose help ends with its examples, unwrapped."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        write_examples(self.epilog, formatter)


def build_app() -> typer.Typer:
    """The whole command line."""
    app = _group(
        "Replay real LLM request traces through scheduling policies on a simulated KVCache-centric cluster.",
        Example("replay -p predictive", "the bundled trace under overload, one policy"),
        Example(
            "replay toolagent-like -p cache-aware -p kvcache-centric --max-requests 2000", "two policies, one table"
        ),
        Example("policies list", "what can be given as -p"),
    )
    app.callback(invoke_without_command=True)(_root)
    _add(app, replay.COMMANDS)
    for top in (
        compare,
        explain,
        report,
        plot,
        export,
        gate,
        capacity,
        robust,
        cache,
        reproduce,
    ):
        _add(app, top.COMMANDS)
    for name, module, rooms in (
        ("sweep", sweep, (sweep,)),
        ("artifact", artifact, (artifact,)),
        ("policies", policies, (policies,)),
        ("traces", traces, (traces, traces_edit, traces_make, traces_fetch)),
        ("calibrate", calibrate, (calibrate_fit, calibrate_live, calibrate_transfer, calibrate_validate)),
        ("hardware", hardware, (hardware,)),
        ("metrics", metrics, (metrics,)),
    ):
        group = _group(module.HELP, *module.EXAMPLES)
        group.callback(invoke_without_command=True)(_help_without_command)
        for each in rooms:
            _add(group, each.COMMANDS)
        app.add_typer(group, name=name)
    return app


def _group(text: str, *lines: Example) -> typer.Typer:
    return typer.Typer(
        cls=Group,
        help=text,
        epilog=examples(*lines),
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _add(app: typer.Typer, commands: Commands) -> None:
    for name, function, lines in commands:
        app.command(name, cls=Command, epilog=examples(*lines))(function)


def _root(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and leave [default: off].", is_eager=True),
) -> None:
    if version:
        answer(f"{PROGRAM} {__version__}")
        raise typer.Exit
    _help_without_command(ctx)


def _help_without_command(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        answer(ctx.get_help())
        raise typer.Exit(USAGE_ERROR)
