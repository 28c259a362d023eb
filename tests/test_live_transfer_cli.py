"""``calibrate transfer`` where nothing is moved: wrong use, what is not installed, and what is printed and written."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mooncake_bench.live.transfer import copies, engine, gloo, measure
from mooncake_bench.live.transfer.fit import by_size, fit_link
from mooncake_bench.live.transfer.link import Link

if TYPE_CHECKING:
    from fault_tools import Tool

PROGRAM = "mooncake-bench: "
WORDS = ("calibrate", "transfer")


def refused(tool: Tool, *words: str) -> str:
    code, out, err = tool(*WORDS, *words)
    assert (code, out) == (2, "")
    assert err.startswith(PROGRAM)
    assert err.count("\n") == 1
    return err.removeprefix(PROGRAM).rstrip("\n")


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (copies, gloo, engine):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setattr(engine.sys, "platform", "linux")


@pytest.fixture
def two_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two links, of which one is 1 ms + bytes at 1 GB/s and the other takes 2 ms whatever its size."""
    nbytes = np.repeat([1_000_000, 2_000_000, 4_000_000], 3)

    def one(name: str, ms: np.ndarray) -> measure.Measured:
        link = Link(name, "loopback", "a description", "a CPU", "torch 1", tuple(nbytes.tolist()), tuple(ms.tolist()))
        fit = fit_link(nbytes, ms) if ms.std() else None
        return measure.Measured(link, tuple(by_size(nbytes, ms)), fit, "" if fit else f"{name}: no growth")

    links = [one("gloo", 1 + nbytes / 1e6), one("copy", np.full(9, 2.0))]
    monkeypatch.setattr(measure, "usable", lambda via: (["gloo"], ["engine: not measured: it is not installed"]))
    monkeypatch.setattr(measure, "measure", lambda *given: links)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--via", "glo"), "--via: expected one of copy, gloo, engine, all, got 'glo'; did you mean 'gloo'?"),
        (("--sizes", "1MiB,2MiB"), "--sizes: 2 given; a fit that is tested on a size left out needs 3"),
        (("--sizes", "1MiB,2MiB,1MiB"), "--sizes: a size is given twice; keep one"),
        (("--sizes", "1Mtok,2,3"), "--sizes: expected whole bytes above 0, such as 65536 or 64KiB, got '1Mtok'"),
        (("--sizes", "0,2,3"), "--sizes: expected whole bytes above 0, such as 65536 or 64KiB, got '0'"),
        (("--repeat", "2"), "--repeat: 2 given; at least 3 are needed to tell how noisy they are"),
        (("--force",), "--force: no effect without -o FILE; drop it, or name a file"),
        (("--via", "gloo", "--device", "cpu"), "--device: no effect with --via gloo, which moves bytes between the "
         "memories of processes"),
        (("-o", "no/such.toml"), "-o 'no/such.toml': there is no folder 'no'; make it first"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line_that_says_what_to_do(tool: Tool, words: tuple[str, ...], told: str) -> None:
    assert refused(tool, *words) == told


def test_sizes_beyond_the_memory_are_refused_before_anything_starts(tool: Tool) -> None:
    assert "free; give smaller ones" in refused(tool, "--sizes", "1KiB,1MiB,900TB")


def test_an_existing_file_is_not_measured_for(tool: Tool) -> None:
    Path("links.toml").write_text("mine", encoding="utf-8")
    assert "exists" in refused(tool, "-o", "links.toml")
    assert Path("links.toml").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("via", ["copy", "gloo"])
def test_without_torch_one_line_says_what_to_install(tool: Tool, nothing_installed: None, via: str) -> None:
    told = f"--via {via}: torch is not installed; pip install 'mooncake-bench[live]'"
    assert refused(tool, "--via", via) == told


def test_without_anything_both_extras_are_named(tool: Tool, nothing_installed: None) -> None:
    assert refused(tool) == (
        "--via all: torch is not installed; pip install 'mooncake-bench[live]'; the transfer engine's Python package "
        "is not installed; pip install 'mooncake-bench[mooncake]'"
    )


def test_system_libraries_that_lack_are_named_with_their_packages(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda name: name)
    monkeypatch.setattr(engine.sys, "platform", "linux")
    monkeypatch.setattr(engine, "_loads", lambda library: library == "libcurl.so.4")
    assert refused(tool, "--via", "engine") == (
        "--via engine: the transfer engine needs libibverbs.so.1 and libnuma.so.1, which this system lacks; on Debian "
        "or Ubuntu: apt-get install libibverbs1 libnuma1"
    )


def test_the_loaders_own_complaint_becomes_the_same_line() -> None:
    told = engine._unloadable("libnuma.so.1: cannot open shared object file: No such file or directory")
    assert told.endswith("on Debian or Ubuntu: apt-get install libnuma1")
    assert "undefined symbol: x" in engine._unloadable("undefined symbol: x")


def test_the_engine_is_for_linux(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.sys, "platform", "darwin")
    assert "runs on Linux only, and this is darwin; use --via copy or --via gloo" in refused(tool, "--via", "engine")


def test_the_table_shows_both_numbers_and_what_was_not_measured(tool: Tool, two_links: None) -> None:
    code, out, err = tool(*WORDS, "-o", "links.toml")
    assert (code, err) == (0, "written: links.toml\n")
    rows = [line.split() for line in out.splitlines() if line.startswith(("gloo ", "copy "))]
    assert rows[0][:3] == ["gloo", "1", "1"]  # 1 ms and 1 GB/s
    assert rows[1][:3] == ["copy", "–", "–"]
    assert rows[2] == ["gloo", "2", "3", "5"]  # ms: 1 + 1, 1 + 2, 1 + 4
    assert "! engine: not measured: it is not installed" in out
    assert "[gloo]" in Path("links.toml").read_text(encoding="utf-8")


def test_every_format_holds_the_same_numbers(tool: Tool, two_links: None) -> None:
    code, out, err = tool(*WORDS, "--format", "json")
    value = json.loads(out)
    assert (code, err) == (0, "engine: not measured: it is not installed\n")
    assert value["links"][0]["gbytes_per_s"] == pytest.approx(1.0)
    assert value["not_measured"] == ["engine: not measured: it is not installed"]
    table = list(csv.DictReader(io.StringIO(tool(*WORDS, "--format", "csv", "-q")[1])))
    assert [(row["link"], row["bytes"], float(row["median_ms"])) for row in table[:3]] == [
        ("gloo", "1000000", 2.0), ("gloo", "2000000", 3.0), ("gloo", "4000000", 5.0),
    ]  # fmt: skip
    assert "| gloo |" in tool(*WORDS, "--format", "markdown")[1]
    assert "\\toprule" in tool(*WORDS, "--format", "latex")[1]
