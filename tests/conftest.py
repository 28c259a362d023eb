"""What every test file may use."""

from __future__ import annotations

import gc
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from fault_tools import Tool
from hypothesis import HealthCheck, settings

PLAIN = "not benchmark and not live and not ray and not browser"  # what pyproject.toml asks for
REPO = Path(__file__).resolve().parent.parent

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("MOONCAKE_BENCH_WORKERS", "1")  # every core has a worker already
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the live device does, before any test imports torch

gc.disable()  # until all tests are collected: nothing of theirs is ever freed, and looking for it took half the time

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what the code gives now")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads it
def pytest_cmdline_main(config: pytest.Config) -> None:
    """A whole run takes every core; what is named, marked (-m), shown (-s) or written anew stays in one process."""
    option = config.option
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    marked = any(word.startswith("-m") for word in config.invocation_params.args)
    worker = "PYTEST_XDIST_WORKER" in os.environ
    alone = worker or named or marked or option.capture == "no" or option.usepdb or option.update_golden
    if not alone and getattr(option, "numprocesses", 0) is None:  # pytest-xdist is there, and -n was not given
        option.numprocesses, option.dist = "auto", "worksteal"  # neighbours, which share fixtures, stay together
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads would contend with the other workers
    if worker or getattr(option, "dist", "no") != "no":
        option.benchmark_disable = True  # else pytest-benchmark warns that nothing can be measured so


def pytest_collection_finish() -> None:
    """Collect garbage again, and never search the thousands of tests for it."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which tests a plain run leaves out, and why."""
    if config.option.markexpr == PLAIN and config.args_source is not pytest.Config.ArgsSource.ARGS:
        missing = "" if find_spec("torch") else "torch is not installed; "
        terminalreporter.write_line(
            f"live tests were skipped: {missing}they run by pip install '.[test,live]' && pytest -m live -n0"
        )


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten instead of compared."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real traces and oracles beside the checkout; the test is skipped where it is absent."""
    folder = REPO.parent / "shared"
    if not (folder / "traces").is_dir():
        pytest.skip(f"needs the real traces and oracles, which are not beside this checkout ({folder.name}/ is absent)")
    return folder


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tool:
    """The command line, run in a folder of the test's own on a screen of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return Tool(capsys)
