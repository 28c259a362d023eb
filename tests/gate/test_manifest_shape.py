"""Files of ours that someone damaged: one line says what is wrong, and no traceback does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fault_tools import Tool
from gate_tools import P99, edit, manifest

from mooncake_bench import jsonfile
from mooncake_bench.errors import ResultError
from mooncake_bench.results import store, sweep
from mooncake_bench.studies.artifact import contents

DEEP = b"[" * 100_000
HUGE = b'{"format_version": 1' + b"0" * 400 + b"}"
BAD = {
    "deep": (DEEP, "nested too deep"),
    "deep in an object": (b'{"a":' * 100_000, "nested too deep"),
    "huge": (HUGE, "a number of 401 digits"),
    "huge float": (b'{"format_version": 1e400}', "beyond what can be computed with"),
    "NaN": (b'{"format_version": NaN}', "NaN, which is no number"),
    "minus infinity": (b"[-Infinity]", "-Infinity, which is no number"),
    "half a pair": (b'{"name": "\\uD800"}', "half of a surrogate pair"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
    "cut": (b'{"a": ', "not JSON"),
}


@pytest.mark.parametrize(("data", "words"), BAD.values(), ids=BAD.keys())
def test_what_is_no_strict_json_is_said_to_be_so(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        jsonfile.parse(data)


def test_a_byte_order_mark_and_the_largest_numbers_are_read() -> None:
    assert jsonfile.parse(b'\xef\xbb\xbf{"a": [1e308, null, "\\ud83d\\ude00"]}') == {"a": [1e308, None, "😀"]}
    assert jsonfile.parse(b"9" * 308) == 10**308 - 1


@pytest.mark.parametrize("data", [data for data, _ in BAD.values()], ids=BAD.keys())
def test_every_reader_of_our_files_refuses_it_in_one_line(data: bytes, tmp_path: Path) -> None:
    for name in ("run.json", "_sweep.json", "artifact.json"):
        (tmp_path / name).write_bytes(data)
    for read in (store.read_manifest, sweep.read_manifest, lambda folder: contents.read(folder, "x.tar.gz")):
        with pytest.raises(ResultError) as caught:
            read(tmp_path)
        assert "\n" not in str(caught.value)


WRONG = [
    ({"setup": None}, "setup: expected an object, got null"),
    ({"cost": None}, "cost: expected an object, got null"),
    ({"policy": []}, "policy: expected an object, got []"),
    ({"counters": "x"}, "counters: expected an object, got 'x'"),
    ({"counts__completed": None}, "counts.completed: expected a whole number, got null"),
    ({"trace__requests": "x"}, "trace.requests: expected a whole number, got 'x'"),
    ({"trace__sha256": 5}, "trace.sha256: expected a text, got 5"),
    ({"trace__notices": "x"}, "trace.notices: expected a list, got 'x'"),
    ({"horizon_ms": True}, "horizon_ms: expected a number, got True"),
    ({"content_sha256__requests": None}, "content_sha256.requests: expected a text, got null"),
    ({"setup__slo.ttft_ms": "soon"}, "setup.slo.ttft_ms: expected a number, got 'soon'"),
    ({"setup__speedup": [1]}, "setup.speedup: expected a number, got [1]"),
    ({"setup__vram.tokens": "many"}, "setup.vram.tokens: expected a whole number, got 'many'"),
    ({"setup__cluster": 8}, "setup.cluster: expected a text, got 8"),
    ({"cluster": {}}, "it lacks cluster.prefill_instances"),
    ({"policy__parts__router": {}}, "policy.parts.router: expected a name, got null"),
    ({"cluster__pool_blocks": 5}, "cluster.pool_blocks: expected an object, got 5"),
    ({"policy__sources": {"a.py": 1}}, "policy.sources.a.py: expected a text, got 1"),
    ({"setup__slo.ttft_ms": 10**400}, "a number of 401 digits"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG, ids=[words for _, words in WRONG])
def test_a_manifest_of_another_shape_names_the_key(runs: Path, changes: dict[str, Any], words: str) -> None:
    path = manifest(runs, 1)
    edit(path, **changes)
    with pytest.raises(ResultError) as caught:
        store.read_manifest(path.parent)
    assert words in str(caught.value)
    assert "is damaged" in str(caught.value)


def test_commands_that_read_a_run_end_in_one_line_and_exit_2(tool: Tool, runs: Path) -> None:
    path = manifest(runs, 1)
    whole = json.loads(path.read_text(encoding="utf-8"))
    for damaged in (json.dumps(whole | {"setup": None}).encode(), json.dumps(whole | {"cost": []}).encode(), DEEP):
        path.write_bytes(damaged)
        for words in (["compare", "1", "3"], ["report", "1"], ["explain", "1", "0"], ["gate", "1", "3", *P99]):
            done = tool(*words)
            assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
            assert "is damaged" in done.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"runs": 5}, "Expected `array`, got `int` - at `$.runs`"),
        ({"files": {"x": 5}}, "Expected `object`, got `int`"),
        ({"traces": [{"path": 5, "sha256": "", "bytes": 1, "included": True}]}, "at `$.traces[0].path`"),
    ],
)
def test_an_archive_of_a_stranger_with_other_types_is_damaged(
    tmp_path: Path, content: dict[str, Any], words: str
) -> None:
    whole = {"format_version": 1, "tool_version": "1", "simulator_version": "1", "runs": [], "traces": [], "files": {}}
    (tmp_path / "artifact.json").write_text(json.dumps(whole | content), encoding="utf-8")
    with pytest.raises(ResultError, match=re.escape(words)):
        contents.read(tmp_path, "x.tar.gz")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"varied": 5}, "Expected `array`, got `int` - at `$.varied`"),
        ({"points": None}, "Expected `array`, got `null` - at `$.points`"),
        ({"shard": [1]}, "at `$.shard`"),
        ({"types": {"seed": "complex"}}, "Invalid enum value 'complex'"),
        ({"types": {}}, "types lacks 'seed'"),
        ({"setup": "x"}, "at `$.setup`"),
    ],
)
def test_a_manifest_of_a_sweep_with_other_types_is_damaged(tmp_path: Path, content: dict[str, Any], words: str) -> None:
    whole: dict[str, Any] = {key: [] for key in ("points", "traces", "costs", "oracles")}
    whole |= {key: {} for key in ("metrics", "setup")} | {"format_version": 1, "name": None, "shard": None, "more": 1}
    whole |= {"varied": ["seed"], "types": {"seed": "int"}}
    (tmp_path / "_sweep.json").write_text(json.dumps(whole), encoding="utf-8")
    assert sweep.read_manifest(tmp_path) == whole
    (tmp_path / "_sweep.json").write_text(json.dumps(whole | content), encoding="utf-8")
    with pytest.raises(ResultError, match=re.escape(words)):
        sweep.read_manifest(tmp_path)
