"""Where text leaves the program: the answer on stdout, all else on stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import Any, TextIO

from mooncake_bench.report.letters import shows_all

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
    """The answer of a command."""
    _write(sys.stdout, text)


def note(text: str) -> None:
    """Anything but the answer: notices, paths, progress in words."""
    _write(sys.stderr, text)


def screen() -> dict[str, Any]:
    """What stdout can show, as a table's renderer wants to know it."""
    return {
        "width": shutil.get_terminal_size().columns,
        "encoding": sys.stdout.encoding,
        "color": sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
    }


def json_answer(value: Any) -> str:
    """A value as strict JSON that stdout can carry: where it cannot show every letter, they are escaped."""
    return json.dumps(value, indent=2, ensure_ascii=not shows_all(sys.stdout.encoding), allow_nan=False)


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
