"""The README's commands run, its code works, and its output is what the tool prints.

``pytest tests/test_readme.py --update-golden`` writes the printed output into the README anew.
"""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from mooncake_bench.checks import check_file
from mooncake_bench.cli.app import run

README = Path(__file__).resolve().parent.parent / "README.md"
TEXT = README.read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"<!-- output of: mooncake-bench (.*?) -->\n```text\n(.*?)```\n", re.DOTALL)
NEEDS = re.compile(r"# needs (.+)\n")


def test_the_first_code_block_is_two_commands_to_install_and_to_test() -> None:
    language, first = BLOCK.findall(TEXT)[0]
    assert language == "sh"
    assert first.splitlines() == [
        "pip install . && mooncake-bench replay --policy predictive",
        "pip install '.[test]' && pytest",
    ]


@pytest.mark.parametrize(("name", "least"), [("traces", 13), ("calibration", 8), ("reproduce", 2)])
def test_every_command_of_a_page_works_in_order(
    name: str, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (README.parent / "docs" / f"{name}.md").read_text(encoding="utf-8")
    lines = [line for language, block in BLOCK.findall(page) if language == "sh" for line in block.splitlines()]
    for line in lines:
        assert run(shlex.split(line.removeprefix("mooncake-bench "))) == 0, capsys.readouterr().err
    assert len(lines) >= least


def quick(words: list[str]) -> list[str]:
    """A replay of 2,000 requests where the README's takes all 12,031; shown output is that of whole replays, below."""
    whole = words[0] == "replay" and not {"--max-requests", "--dry-run"} & set(words)
    return [*words, "--max-requests", "2000"] if whole else words


def test_every_command_and_every_piece_of_code_works_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = 0
    for language, block in BLOCK.findall(TEXT):
        if language == "sh":
            for line in re.findall(r"^(?:pip .* && )?mooncake-bench (.+)$", block, re.MULTILINE):
                assert run(quick(shlex.split(line, comments=True))) == 0, capsys.readouterr().err
                ran += 1
        elif language == "python" and block.startswith("# patient.py\n"):
            Path("patient.py").write_text(block, encoding="utf-8")
        elif language == "python" and not NEEDS.match(block):
            exec(compile(block, "README.md", "exec"), {})
    assert ran > 10
    assert "1_conversation-like_predictive" in [folder.name for folder in Path("results").iterdir()]


@pytest.mark.parametrize("block", [block for _, block in BLOCK.findall(TEXT) if NEEDS.match(block)])
def test_other_tools_read_the_tables(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = [name for name in NEEDS.match(block)[1].split(", ") if find_spec(name) is None]  # type: ignore[index]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}, which the package does not install")
    monkeypatch.chdir(tmp_path)
    assert run(["replay", "-p", "predictive", "--max-requests", "500", "-q"]) == 0
    exec(compile(block, "README.md", "exec"), {})


def test_a_policy_in_ten_lines_is_ten_lines() -> None:
    (block,) = (block for _, block in BLOCK.findall(TEXT) if block.startswith("# patient.py\n"))
    lines = [line for line in block.splitlines()[1:] if line.strip()]
    assert len([line for line in lines if not line.startswith(("from ", "import "))]) <= 10


@pytest.mark.parametrize(("command", "shown"), OUTPUT.findall(TEXT))
def test_the_output_shown_is_what_the_tool_prints(
    command: str,
    shown: str,
    update_golden: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*shlex.split(command), "-q"]) == 0
    printed = capsys.readouterr().out
    if update_golden:
        text = README.read_text(encoding="utf-8")
        fresh = f"<!-- output of: mooncake-bench {command} -->\n```text\n{printed}```\n"
        README.write_text(OUTPUT.sub(lambda found: fresh if found[1] == command else found[0], text), encoding="utf-8")
        return
    assert shown == printed


@pytest.mark.benchmark  # each replays for some seconds
@pytest.mark.parametrize("page", ["capacity", "robust"])
def test_the_output_that_a_page_shows_is_what_the_tool_prints(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    ((command, shown),) = OUTPUT.findall((README.parent / "docs" / f"{page}.md").read_text(encoding="utf-8"))
    assert run([*shlex.split(command), "-q"]) == 0
    assert capsys.readouterr().out == shown


def test_links_point_at_files_that_are_there() -> None:
    for target in re.findall(r"\]\((?!http)([^)]+)\)", TEXT):
        assert (README.parent / target).exists(), target


def test_the_short_admission_and_eviction_pass_the_generic_suite(tmp_path: Path) -> None:
    (block,) = (block for _, block in BLOCK.findall(TEXT) if "class ShortQueues" in block)
    file = tmp_path / "short.py"
    file.write_text(f'"""From the README."""\n\n{block}', encoding="utf-8")
    checks = check_file(file)
    assert {check.policy for check in checks} == {"short-queues", "oldest"}
    assert [check for check in checks if check.status not in ("passed", "skipped")] == []
