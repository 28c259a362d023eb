"""What the tests of known faults share: the command line run in this process, and traces and policies to try."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mooncake_bench import open_run
from mooncake_bench.cli.app import run
from mooncake_bench.results.run import Run
from mooncake_bench.trace import load, save

GATE = """
from mooncake_bench.api import Admission

class Gate(Admission):
    name = "gate"

    def reject(self, request, route, cluster):
        return {at_arrival}

    def reject_decode(self, request, route, cluster):
        return {at_decode}
"""


class Answer(NamedTuple):
    """What a command line gave."""

    code: int
    out: str
    err: str


class Tool:
    """The command line, run in this process, in a folder of the test's own."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: str) -> Answer:
        code = run(words)
        return Answer(code, *self.capsys.readouterr())

    def json(self, *words: str, code: int = 0) -> Any:
        """The answer with ``--format json``, read strictly."""
        found = self(*words, "--format", "json")
        assert found.code == code, found.err
        return strict(found.out)


def strict(text: str | bytes) -> Any:
    """JSON without the NaN and Infinity that Python would let pass."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def line(at: float, tokens: int = 600, answer: int = 3, first: int | None = None, **more: Any) -> dict[str, Any]:
    """A row whose blocks are its own: numbered from ``first``, or from a number that follows from its time."""
    start = round(at * 1000) * 10_000 if first is None else first
    ids = list(range(start, start - (-tokens // 512)))
    return {"timestamp": at, "input_length": tokens, "output_length": answer, "hash_ids": ids} | more


TWENTY = [line(100.0 * i, 600 + i, 3 + i % 5) for i in range(20)]


def written(name: str, rows: list[dict[str, Any]]) -> str:
    """The rows as a file; the name's ending chooses jsonl, jsonl.gz or arrow."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if name.endswith(".arrow"):
        save(load(written(f"{name}.jsonl", rows)), name)
    elif name.endswith(".gz"):
        Path(name).write_bytes(gzip.compress(text.encode()))
    else:
        Path(name).write_text(text, encoding="utf-8")
    return name


def gate(at_arrival: str = "None", at_decode: str = "None", name: str = "gate.py") -> str:
    """A policy file that turns requests away for these reasons, given as code."""
    Path(name).write_text(GATE.format(at_arrival=at_arrival, at_decode=at_decode), encoding="utf-8")
    return name


def latest() -> Run:
    """The run that was stored last."""
    return open_run(max(Path("results").iterdir(), key=lambda folder: int(folder.name.split("_")[0])))
