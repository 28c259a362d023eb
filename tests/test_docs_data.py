"""docs/data.md: its commands and code run in order, and pandas, polars and DuckDB find what the run's metrics say."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from mooncake_bench import open_run
from mooncake_bench.cli.line import run_line

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "data.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = [block for language, block in BLOCK.findall(PAGE) if language == "python"]
LINES = [line for language, block in BLOCK.findall(PAGE) if language == "sh" for line in block.splitlines()]
FOLDERS, NEEDING = CODE[0], {re.match(r"# needs (\w+)", block)[1]: block for block in CODE[1:]}  # type: ignore[index]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the page's first command was run."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run_line(shlex.split(LINES[0])[1:]) == 0
    return folder


@pytest.mark.parametrize("library", sorted(NEEDING))
def test_the_code_finds_what_the_metrics_say(
    library: str, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed: pip install {library}")
    monkeypatch.chdir(runs)
    names: dict[str, Any] = {}
    exec(compile(FOLDERS + NEEDING[library], "docs/data.md", "exec"), names)
    shown = capsys.readouterr().out
    done = [open_run(folder) for folder in names["folders"]]
    assert [run.label for run in done] == ["load-balancing", "kvcache-centric"]
    for run in done if library != "pyarrow" else done[:1]:
        metrics = run.metrics()
        mean, p99, count = (metrics[name].value for name in ("mean_ttft_ms", "p99_ttft_ms", "completed_requests"))
        assert run.label in shown
        if library == "pandas":
            row = names["ttft"].loc[run.label]
            assert (row["count"], row["mean"], row["99%"]) == pytest.approx((count, mean, p99))
        elif library == "polars":
            row = names["ttft"].row(by_predicate=names["pl"].col("policy") == run.label, named=True)
            assert (row["n"], row["mean"], row["p99"]) == pytest.approx((count, mean, p99))
        elif library == "duckdb":
            [row] = [one for one in names["ttft"].fetchall() if one[0] == run.label]
            assert row[1:] == pytest.approx((count, mean, p99))
        else:
            assert f"{count} {mean:.1f}" in shown


def test_tables_of_all_runs_have_the_same_types(runs: Path) -> None:
    first, second = (open_run(folder) for folder in sorted((runs / "results").iterdir()))
    for name in ("requests", "timeline", "segments", "stays"):
        assert getattr(first, name).schema == getattr(second, name).schema


def test_every_command_of_the_page_works(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(runs)
    for line in LINES[1:]:
        assert run_line(shlex.split(line)[1:]) == 0, capsys.readouterr().err
    assert len(LINES) == 5
