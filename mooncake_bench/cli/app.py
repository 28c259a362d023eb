"""The command ``mooncake-bench``. It loads the rest while it is running, so that Ctrl-C is caught meanwhile too."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code. Errors become one line on stderr."""
    from mooncake_bench.cli.line import run_line

    return run_line(arguments)


def main() -> None:
    """Entry point of the installed command."""
    try:
        from mooncake_bench.cli.interrupt import install

        install()
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        if sys.stderr is not None:
            print("mooncake-bench: interrupted", file=sys.stderr)
        code = INTERRUPTED
    if code == INTERRUPTED:
        import signal

        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C finds us leaving
    sys.exit(code)
