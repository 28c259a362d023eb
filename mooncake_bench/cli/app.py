"""The command ``mooncake-bench``: which commands there are, and the one place that prints an error."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from mooncake_bench import __version__
from mooncake_bench.cli import compare, metrics, policies, replay, traces
from mooncake_bench.cli.options import Command, Example, examples, write_examples
from mooncake_bench.cli.output import answer, note
from mooncake_bench.errors import BenchError, InvariantError, SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.cli.options import Commands

PROGRAM = "mooncake-bench"
USAGE_ERROR, INTERRUPTED = 2, 130


class Group(TyperGroup):
    """A group of commands whose help ends with its examples, unwrapped."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        write_examples(self.epilog, formatter)


def build_app() -> typer.Typer:
    """The whole command line."""
    app = _group(
        "Replay real LLM request traces through scheduling policies on a simulated KVCache-centric cluster.",
        Example("replay -p predictive", "the bundled trace under overload, one policy"),
        Example("replay toolagent-like -p cache-aware -p kvcache-centric", "two policies, one table"),
        Example("policies list", "what can be given as -p"),
    )
    app.callback(invoke_without_command=True)(_root)
    _add(app, replay.COMMANDS)
    _add(app, compare.COMMANDS)
    for name, module in (("policies", policies), ("traces", traces), ("metrics", metrics)):
        group = _group(module.HELP, *module.EXAMPLES)
        group.callback(invoke_without_command=True)(_help_without_command)
        _add(group, module.COMMANDS)
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


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code. Errors become one line on stderr."""
    try:
        _refuse_unspellable(arguments)
        command = typer.main.get_command(build_app())
        code = command.main(join_spaced_slos(arguments), prog_name=PROGRAM, standalone_mode=False)
        if code == INTERRUPTED:  # Typer turns Ctrl-C into an exit without a word
            return _fail("interrupted", INTERRUPTED)
        return code if isinstance(code, int) else 0
    except (BenchError, InvariantError) as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read us has left, as `head` does
        return 0
    except Exception as error:
        if not hasattr(error, "format_message"):  # not a usage error of the parser: a bug, shown whole
            raise
        return _fail(_usage(error), USAGE_ERROR)


def _refuse_unspellable(arguments: Sequence[str]) -> None:
    """Bytes that the locale could not decode would end in every name and path that is written."""
    for word in arguments:
        if not word.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in word):
            shown = word.encode("ascii", "backslashreplace").decode("ascii")
            raise SetupError(f"{shown}: not text in this locale; set PYTHONUTF8=1, or LC_ALL=C.UTF-8")


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else PROGRAM
    return f"{error.format_message().rstrip('.')}; see {command} --help"


def _fail(message: str, code: int) -> int:
    note(f"{PROGRAM}: {' '.join(message.split())}")
    return code


def join_spaced_slos(arguments: Sequence[str]) -> list[str]:
    """vLLM writes ``--slo ttft:3000 tbt:50``; a parser would take the second value for a positional."""
    joined: list[str] = []
    for word in arguments:
        follows_slo = len(joined) > 1 and joined[-2] == "--slo"
        if follows_slo and word.split(":")[0] in ("ttft", "tbt", "tpot", "itl", "e2e", "e2el") and ":" in word:
            joined[-1] += f",{word}"
        else:
            joined.append(word)
    return joined


def main() -> None:
    """Entry point of the installed command."""
    sys.exit(run(sys.argv[1:]))
