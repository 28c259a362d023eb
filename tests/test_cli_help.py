"""Help pages: every option says its unit and default, every page ends with three examples, and the examples work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from mooncake_bench.cli.app import run
from mooncake_bench.cli.tree import build_app


def walk(command: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every command and group with the words that reach it."""
    inner = getattr(command, "commands", {})
    return [(path, command)] + [found for name, child in inner.items() for found in walk(child, (*path, name))]


PAGES = walk(typer.main.get_command(build_app()))
COMMANDS = [(path, command) for path, command in PAGES if not hasattr(command, "commands")]


def words(path: tuple[str, ...]) -> str:
    return " ".join(path) or "(top)"


def example_lines(text: str) -> list[str]:
    assert "\nExamples:\n" in text
    return re.findall(r"^  mooncake-bench (.+)$", text.split("\nExamples:\n")[1], re.MULTILINE)


def help_text(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    assert run([*path, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("path", "command"), PAGES, ids=lambda item: words(item) if isinstance(item, tuple) else "")
def test_a_help_page_fits_80_columns_and_ends_with_three_examples(
    path: tuple[str, ...], command: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = help_text(path, capsys)
    body, _, examples = text.partition("\nExamples:\n")
    assert max(map(len, body.splitlines())) <= 80
    assert text.isascii()
    assert len(example_lines(text)) == 3
    assert all(line.startswith(("  # ", "  mooncake-bench ")) for line in examples.splitlines())


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=lambda item: words(item) if isinstance(item, tuple) else "")
def test_every_option_says_its_default(path: tuple[str, ...], command: Any) -> None:
    options = [param for param in command.params if param.param_type_name == "option" and param.name != "help"]
    assert [param.name for param in options if not re.search(r"default: .+\]", param.help or "")] == []


TIMES = {"start_ms", "end_ms", "warmup_ms", "slo"}
SIZES = {"pool_blocks": "blocks", "vram_tokens": "tokens", "nic_gbytes_per_s": "GB/s", "block_tokens": "tokens"}


def test_options_with_a_unit_say_it() -> None:
    replay = dict(COMMANDS)[("replay",)]
    helps = {param.name: param.help for param in replay.params}
    assert all("[ms; default" in helps[name] for name in TIMES)
    assert all(f"[{unit}; default" in helps[name] for name, unit in SIZES.items())


def test_the_help_says_what_bounds_the_estimate_error_and_what_each_view_is() -> None:
    replay = dict(COMMANDS)[("replay",)]
    helps = {param.name: param.help for param in replay.params}
    # uniform around 1 of standard deviation sigma reaches down to 1 - sqrt(3) sigma: above 0 up to sigma = 0.577
    assert "0 to 0.57, for it is uniform around 1 and no time may be negative" in helps["estimate_error"]
    assert all(f"{view}: " in helps["view"] for view in ("exact", "delayed", "router-only"))


# What must have run before: `compare` needs two runs of the same work, `policies check` a file of one's own.
BEFORE = {
    "compare": ["replay conversation-like -p random -p kvcache-centric --max-requests 500"],
    "gate": ["replay conversation-like --max-requests 200"] * 2,
    "report": ["replay conversation-like -p random -p kvcache-centric --max-requests 200"],
    "export": ["replay conversation-like --max-requests 100"],
    "plot": ["replay conversation-like -p random -p kvcache-centric --max-requests 200"],
    "explain": ["replay conversation-like -p kvcache-centric --max-requests 200"],
    "artifact pack": ["replay conversation-like -p random -p kvcache-centric --max-requests 100"],
    "artifact verify": [
        "replay conversation-like -p random -p kvcache-centric --max-requests 100",
        "artifact pack @last:2 -o paper.tar.gz",
    ],
    "policies check": ["policies new router mine"],
}

# Their examples run real kernels and transfers: with the tests marked live, where torch is installed.
NEED_TORCH = ("calibrate live", "calibrate transfer")
WITH_EXAMPLES = [
    pytest.param(path, command, id=words(path), marks=[pytest.mark.live] if words(path) in NEED_TORCH else [])
    for path, command in PAGES
]


def shown_below(path: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether a page further down the tree has the same example, and so runs it."""
    below = [page for page, _ in PAGES if len(page) > len(path) and page[: len(path)] == path]
    return any(line in example_lines(help_text(page, capsys)) for page in below if line.startswith(words(page[:1])))


@pytest.mark.parametrize(("path", "command"), WITH_EXAMPLES)
def test_the_examples_of_a_page_work_as_printed(
    path: tuple[str, ...],
    command: Any,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if words(path) in NEED_TORCH:
        pytest.importorskip("torch", reason="needs torch; pip install '.[live]'")
    lines = [line for line in example_lines(help_text(path, capsys)) if not shown_below(path, line, capsys)]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MOONCAKE_BENCH_POLICIES", raising=False)
    for line in [*BEFORE.get(words(path), []), *lines]:
        code = run(shlex.split(line))
        shown = capsys.readouterr()
        assert code == 0, f"mooncake-bench {line}\n{shown.err}"
        assert shown.out, line
