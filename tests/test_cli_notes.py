"""What is said on stderr: names move no cursor, and lines fit a terminal."""

from __future__ import annotations

import io

import pytest

from mooncake_bench.cli.output import note


class Terminal(io.StringIO):
    """A stderr that somebody watches."""

    def isatty(self) -> bool:
        return True


def said(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, text: str) -> str:
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("COLUMNS", "40")
    note(text)
    return stream.getvalue()


def test_no_name_colours_the_terminal_or_moves_its_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        said(monkeypatch, io.StringIO(), "trace 'a\x1b[31mb\rc': bad\nnext line")
        == "trace 'a?[31mb?c': bad\nnext line\n"
    )


def test_a_long_line_is_wrapped_on_a_terminal_and_left_alone_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "arrivals lie on a coarse grid: 1,180 distinct times for 12,031 requests"
    shown = said(monkeypatch, Terminal(), text)
    assert max(map(len, shown.splitlines())) <= 40
    assert shown.split() == text.split()
    assert shown.splitlines()[1].startswith("  ")
    assert said(monkeypatch, io.StringIO(), text) == text + "\n"
