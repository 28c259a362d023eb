"""tools/live_check.sh: what it says where it cannot run, and its own small parts; whole, it takes minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from conftest import REPO

from mooncake_bench.hardware.presets import load_node
from mooncake_bench.trace import load


def tool() -> Any:
    spec = spec_from_file_location("live_check", REPO / "tools" / "live_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_names_the_packages_that_are_missing(tmp_path: Path) -> None:
    python = tmp_path / "bare"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n', encoding="utf-8")  # the standard library
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", str(REPO / "tools" / "live_check.sh"), str(tmp_path / "out")],
        env={**os.environ, "PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "lacks: torch numpy scipy pyarrow typer rich msgspec; install them" in done.stderr
    assert "lacks: torch" in (tmp_path / "out" / "summary.txt").read_text(encoding="utf-8")


def test_the_short_trace_and_the_node_are_read_by_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check = tool()
    assert check.main(["trace", "50", str(tmp_path / "short.jsonl")]) == 0
    assert check.main(["node", "2", str(tmp_path / "node.toml")]) == 0
    trace = load(str(tmp_path / "short.jsonl"))
    assert len(trace) == 50
    assert trace.input_tokens.max() <= 512  # one block each
    assert load_node(str(tmp_path / "node.toml")).gpus == 2
    assert capsys.readouterr().out == ""


def test_without_torch_the_first_step_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert tool().main(["environment", "auto", "auto", str(tmp_path / "environment.json")]) == 2
    assert "live_check: live kernels need torch" in capsys.readouterr().err
