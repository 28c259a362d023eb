"""Runs one command line, and is the one place that prints an error."""

from __future__ import annotations

import errno
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli.interrupt import requested
from mooncake_bench.cli.output import note, silence
from mooncake_bench.errors import BenchError, InvariantError, SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "mooncake-bench"
USAGE_ERROR, INTERRUPTED = 2, 130


def run_line(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code. Errors become one line on stderr."""
    try:
        _refuse_unspellable(arguments)
        code = _command().main(join_spaced_slos(arguments), prog_name=PROGRAM, standalone_mode=False)
        if code == INTERRUPTED:  # Typer turns Ctrl-C into an exit without a word
            return _fail("interrupted", INTERRUPTED)
        return code if isinstance(code, int) else 0
    except (BenchError, InvariantError) as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        silence(sys.stdout)  # whoever read us has left, as `head` does
        return 0
    except OSError as error:  # the parser prints help pages itself
        if error.errno != errno.ENOSPC:
            raise
        silence(sys.stdout)
        return _fail(f"the answer cannot be written to stdout: {error.strerror}", USAGE_ERROR)
    except Exception as error:
        # "Abort" is the parser's word for Ctrl-C; anything may break when it strikes in the middle of an import
        if type(error).__name__ == "Abort" or requested():
            return _fail("interrupted", INTERRUPTED)
        if not hasattr(error, "format_message"):  # not a usage error of the parser: a bug, shown whole
            raise
        return _fail(_usage(error), USAGE_ERROR)


@cache
def _command() -> Any:
    """The command tree, built once: a caller from Python may run many command lines."""
    import typer

    from mooncake_bench.cli.tree import build_app

    return typer.main.get_command(build_app())


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
