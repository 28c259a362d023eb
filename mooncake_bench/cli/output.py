"""Where text leaves the program: the answer on stdout, all else on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import textwrap
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from mooncake_bench.errors import SetupError
from mooncake_bench.report.letters import shows_all
from mooncake_bench.results.words import clean

if TYPE_CHECKING:
    from collections.abc import Mapping

NARROWEST = 20  # columns: text is wrapped to no less
# What a terminal that knows ASCII only gets instead.
_ASCII = str.maketrans(
    {
        "×": "x", "–": "-", "—": "-", "−": "-", "±": "+-", "≥": ">=", "≤": "<=", "µ": "u", "σ": "sigma", "·": "*",
        "…": "...", "→": "->", "▲": "^", "▼": "v", "✓": "ok", "’": "'", "“": '"', "”": '"', "°": " deg",
        "─": "-", "━": "-", "│": "|", "┃": "|", "═": "=", "║": "|",
    }
    | dict.fromkeys("┌┐└┘├┤┬┴┼┏┓┗┛┡┩┢┪╇╈╰╯╭╮╞╡╪╤╧╔╗╚╝╠╣╦╩╬╸╺╶╴", "+")
)  # fmt: skip


def answer(text: str) -> None:
    """The answer of a command. Raises SetupError where stdout cannot take it."""
    stream: TextIO | None = sys.stdout
    if stream is None:  # closed by whoever started us
        raise SetupError("the answer cannot be written: stdout is closed; redirect it to a file, or to /dev/null")
    try:
        _write(stream, text)
    except BrokenPipeError:
        raise
    except OSError as error:
        silence(stream)
        raise SetupError(f"the answer cannot be written to stdout: {error.strerror or error}") from None


def note(text: str) -> None:
    """Anything but the answer: notices, paths, progress in words. Lost, without harm, where stderr takes nothing."""
    stream: TextIO | None = sys.stderr
    if stream is None:
        return
    try:
        _write(stream, _lines(text, shutil.get_terminal_size().columns if stream.isatty() else None))
    except OSError:
        silence(stream)


def _lines(text: str, width: int | None) -> str:
    """Text whose names move no cursor; wrapped to a terminal's ``width``, and as it is where there is none."""
    lines = [clean(line) for line in text.split("\n")]
    if width is None:
        return "\n".join(lines)
    wrap = partial(textwrap.wrap, width=max(width, NARROWEST), subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(part for line in lines for part in (wrap(line) or [""]))


def tell(given: Mapping[str, Any], text: str) -> None:
    """A note, unless the command was asked to be quiet (``-q``)."""
    if not given["quiet"]:
        note(text)


def silence(stream: TextIO) -> None:
    """Let what is still in a broken stream's buffer go nowhere, rather than fail once more when Python ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def policies_print_to_stderr() -> contextlib.AbstractContextManager[Any]:
    """While a policy's code runs: what it prints must not end in the answer."""
    return contextlib.redirect_stdout(sys.stderr)


def screen() -> dict[str, Any]:
    """What stdout can show, as a table's renderer wants to know it."""
    return {
        "width": shutil.get_terminal_size().columns,
        "encoding": _encoding(),
        "color": sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
    }


def json_answer(value: Any) -> str:
    """A value as strict JSON that stdout can carry: where it cannot show every letter, they are escaped."""
    return json.dumps(value, indent=2, ensure_ascii=not shows_all(_encoding()), allow_nan=False)


def _encoding() -> str:
    return sys.stdout.encoding if sys.stdout is not None else "utf-8"


def _write(stream: TextIO, text: str) -> None:
    stream.write(_fit(text if text.endswith("\n") else text + "\n", stream.encoding))
    stream.flush()


def _fit(text: str, encoding: str | None) -> str:
    """``text`` as the stream can carry it: unchanged, or in ASCII where it cannot show every character."""
    encoding = encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")
    return text
