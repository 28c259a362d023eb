"""docs/ci.md: its commands run as written, its output is what the tool prints, its workflows are whole.

``pytest tests/test_gate_docs.py --update-golden`` writes the output anew.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from fault_tools import Tool, strict
from gate_tools import FAST, benchmark_file

from mooncake_bench.cli.app import run

yaml = pytest.importorskip("yaml", reason="needs pyyaml, which comes with the extra 'hash'")

PAGE = Path(__file__).resolve().parent.parent / "docs" / "ci.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"(<!-- output -->\n```text\n)(.*?)(```\n)", re.DOTALL)
COMMANDS = [line.strip() for kind, block in BLOCK.findall(TEXT) if kind == "sh" for line in block.splitlines()]
WORKFLOWS = {
    name: yaml.safe_load(block)
    for name, (_, block) in zip(
        ("github", "gitlab"), (found for found in BLOCK.findall(TEXT) if found[0] == "yaml"), strict=True
    )
}
EXIT_CODE = re.compile(r"  # exit code (\d)$")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the page's first two commands have run."""
    folder = tmp_path_factory.mktemp("docs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in COMMANDS[:2]:
            assert run(shlex.split(line)[1:]) == 0, line
    return folder


@pytest.fixture
def folder(first: Path, tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, in which the command line runs."""
    shutil.copytree(first, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("MOONCAKE_BENCH_WORKERS", "1")
    return tmp_path


def test_every_command_of_the_page_does_what_it_says(folder: Path, tool: Tool, update_golden: bool) -> None:
    benchmark_file("bench_old.json", a=FAST)
    benchmark_file("bench_new.json", a=FAST)
    for line in COMMANDS[2:]:
        expected = EXIT_CODE.search(line)
        done = tool(*shlex.split(EXIT_CODE.sub("", line))[1:])
        assert done.code == (int(expected[1]) if expected else 0), f"{line}\n{done.err}"
        if expected:
            if update_golden:
                PAGE.write_text(
                    OUTPUT.sub(lambda found, out=done.out: found[1] + out + found[3], TEXT), encoding="utf-8"
                )
            else:
                assert [found[1] for found in OUTPUT.findall(TEXT)] == [done.out]
    assert len(COMMANDS) >= 8


def scripts(name: str) -> list[str]:
    """The command lines of a workflow, in order."""
    if name == "github":
        steps = WORKFLOWS[name]["jobs"]["gate"]["steps"]
        return [line for step in steps if "run" in step for line in joined(step["run"])]
    return [line for text in WORKFLOWS[name]["gate"]["script"] for line in joined(text)]


def joined(script: str) -> list[str]:
    """Lines of a script, those that end in a backslash put together."""
    return re.sub(r"\\\n\s*", "", script).strip().splitlines()


@pytest.mark.parametrize("name", ["github", "gitlab"])
def test_a_workflow_runs_as_written(name: str, folder: Path, tool: Tool) -> None:
    lines = scripts(name)
    assert lines[0] == 'pip install "$MOONCAKE_BENCH"'
    for line in lines[1:]:
        program, *words = shlex.split(line.replace("$GITHUB_STEP_SUMMARY", "gate.md"))
        if program == "mkdir":
            Path(words[-1]).mkdir()
            continue
        assert program == "mooncake-bench", line
        done = tool(*words)
        assert done.code == 0, f"{line}\n{done.err}"
    assert Path("gate.xml").read_text(encoding="utf-8").startswith("<?xml")
    assert "gate passed" in Path("gate.md").read_text(encoding="utf-8")


def test_the_workflows_name_the_files_that_the_gate_writes(folder: Path, tool: Tool) -> None:
    steps = WORKFLOWS["github"]["jobs"]["gate"]["steps"]
    (chart,) = (step for step in steps if "benchmark-action" in step.get("uses", ""))
    name = chart["with"]["output-file-path"]
    Path("charts").mkdir()
    for line in scripts("github")[3:]:
        tool(*shlex.split(line.replace("$GITHUB_STEP_SUMMARY", "gate.md").replace(" change ", " main "))[1:])
    assert {entry["unit"] for entry in strict(Path(name).read_text(encoding="utf-8"))} == {"ms", "ratio"}
    assert WORKFLOWS["gitlab"]["gate"]["artifacts"]["reports"]["junit"] == "gate.xml"
    assert True in WORKFLOWS["github"] or "on" in WORKFLOWS["github"]  # YAML 1.1 reads `on` as true
