"""``artifact pack`` and ``verify``: runs travel with all that replays them, and come back number by number."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fault_tools import Tool
from test_explain import trace_rows
from test_hardware_presets import ENGINE, MODEL, NODE
from test_results_tiny import tiny_run

from mooncake_bench.hardware.architecture_config import model_label
from mooncake_bench.results.run import Run
from mooncake_bench.results.store import TABLES
from mooncake_bench.studies.artifact.archive import ROOT
from mooncake_bench.studies.artifact.collect import Collected, _preset
from mooncake_bench.studies.artifact.outcome import DIFFERS, IDENTICAL, WITHIN, Outcome, compared

# Where it sends requests is told by a file beside it, which no archive knows of: it does not repeat.
FICKLE = """
from pathlib import Path
from mooncake_bench.api import Route, Router


class Fickle(Router):
    name = "fickle"

    def route(self, request, cluster):
        where = Path(HOME, "number")
        Path(HOME, "ran").touch()
        return Route(int(where.read_text()) if request.row >= 50 else 0)
"""
SMALL = ["--cluster", "3P+2D", "-q"]


@pytest.fixture
def bench(tool: Tool) -> Tool:
    """The command line, in a folder with a trace of 60 requests and a policy of one's own."""
    rows = trace_rows()
    Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    Path("own").mkdir()
    Path("own/mine+1.py").write_text(FICKLE.replace("HOME", repr(str(Path.cwd()))), encoding="utf-8")
    Path("number").write_text("1", encoding="utf-8")
    return tool


def packed(bench: Tool, *more: str, name: str = "a.tar.gz") -> None:
    found = bench("artifact", "pack", *(more or ("@last",)), "-o", name, "-q")
    assert found.code == 0, found.err


def members(name: str) -> dict[str, bytes]:
    with tarfile.open(name) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar}  # type: ignore[union-attr]


# packing


def test_runs_come_back_identical_with_their_own_policies_presets_and_trace(bench: Tool) -> None:
    for name, text in (("box.toml", NODE), ("tiny.toml", MODEL), ("quick.toml", ENGINE)):
        Path(name).write_text(text, encoding="utf-8")
    presets = [
        "--node",
        "box.toml",
        "--model",
        "tiny.toml",
        "--engine",
        "quick.toml",
        "--pool",
        "200",
        "--vram",
        "90000",
    ]
    assert bench("replay", "t.jsonl", "-p", "l=own/mine+1.py+predictive:td=5s", *SMALL, *presets).code in (0, 3)
    assert bench(
        "replay", "t.jsonl", "-p", "random", "--cluster", "2P@box.toml+2D@box.toml", *presets[2:], "-q"
    ).code in (0, 3)
    packed(bench, "@last:2", "--with-traces")
    for gone in ("box.toml", "tiny.toml", "quick.toml", "t.jsonl", "own", "results"):
        shutil.rmtree(gone) if Path(gone).is_dir() else Path(gone).unlink()
    outcomes = bench.json("artifact", "verify", "a.tar.gz")
    assert [(each["label"], each["verdict"], each["why"]) for each in outcomes] == [
        ("l", IDENTICAL, ""),
        ("random", IDENTICAL, ""),
    ]


def test_the_same_runs_are_the_same_bytes_and_no_path_of_this_machine_is_in_them(bench: Tool) -> None:
    trace = str(Path("t.jsonl").resolve())
    assert bench("replay", trace, "-p", str(Path("own/mine+1.py").resolve()), *SMALL).code == 0
    for ending in ("tar.gz", "zip"):
        packed(bench, name=f"a.{ending}")
        packed(bench, name=f"b.{ending}")
        assert Path(f"a.{ending}").read_bytes() == Path(f"b.{ending}").read_bytes()
    for name, content in members("a.tar.gz").items():
        if not name.endswith(".py"):  # this policy's code holds it itself
            assert str(Path.cwd()).encode() not in content, name
    with zipfile.ZipFile("a.zip") as file:
        assert sorted(file.namelist()) == sorted(members("a.tar.gz")) == file.namelist()


def test_an_unpacked_archive_is_a_folder_of_runs_that_replay(bench: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench("replay", "t.jsonl", "-p", "x=own/mine+1.py+lru", *SMALL).code == 0
    packed(bench, "--with-traces", "@last")
    with tarfile.open("a.tar.gz") as tar:
        tar.extractall("out", filter="data")
    monkeypatch.chdir(f"out/{ROOT}")
    assert "verify" in Path("README.md").read_text(encoding="utf-8")
    assert bench("replay", "--from", "runs/1_t_x", "-q").code == 0
    hashes = [
        json.loads(Path(folder, "run.json").read_text(encoding="utf-8"))["content_sha256"]
        for folder in ("runs/1_t_x", "results/1_t_x")
    ]
    assert hashes[0] == hashes[1]


def test_a_run_keeps_its_folders_name_where_that_is_safe(bench: Tool) -> None:
    folders = ("1_t_blend+w=1,v=2-x", "2 é")
    for folder in folders:
        assert bench("replay", "t.jsonl", "-p", "random", "--run-dir", folder, *SMALL).code == 0
    packed(bench, *folders)
    outcomes = bench.json("artifact", "verify", "a.tar.gz", "--traces", ".")
    kept = ("runs/1_t_blend+w=1,v=2-x", "runs/2")
    assert [(each["folder"], each["verdict"]) for each in outcomes] == [(name, IDENTICAL) for name in kept]


def test_verify_names_the_policy_where_the_folder_does_not(bench: Tool) -> None:
    for words in ([], ["--run-dir", "mine"]):
        assert bench("replay", "t.jsonl", "-p", "a-rather-long-name-of=random", *words, *SMALL).code == 0
    for run, shown in (("@last", 0), ("mine", 1)):
        packed(bench, run, name=f"{shown}.tar.gz")
        out = bench("artifact", "verify", f"{shown}.tar.gz", "--traces", ".").out
        assert max(map(len, out.splitlines())) <= 80
        assert out.count(" policy ") == shown, out


def test_a_run_whose_caches_were_warm_takes_along_the_run_that_warmed_them(bench: Tool) -> None:
    assert bench("replay", "t.jsonl", "-p", "random", *SMALL).code == 0
    assert bench("replay", "t.jsonl", "-p", "cache-aware", "--warm-from", "results/1_t_random", *SMALL).code == 0
    packed(bench, "2", "--with-traces")
    shutil.rmtree("results")
    Path("t.jsonl").unlink()
    outcomes = bench.json("artifact", "verify", "a.tar.gz")
    assert [(each["folder"], each["verdict"]) for each in outcomes] == [
        ("runs/1_t_random", IDENTICAL),
        ("runs/2_t_cache-aware", IDENTICAL),
    ]


def test_presets_keep_the_names_that_reports_call_them_by_and_bring_what_they_name(bench: Tool) -> None:
    collected = Collected()
    for name in ("config.json", "Qwen3-32B/config.json"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("{}", encoding="utf-8")
        assert model_label(Path(_preset(collected, name))) == model_label(Path(name)) == name
    Path("gpu.toml").write_text("tflops = 1\n", encoding="utf-8")
    Path("box.toml").write_text('gpus = 1\ngpu = "gpu.toml"  # mine\n', encoding="utf-8")
    packed_as = _preset(collected, "box.toml")
    content = collected.files[packed_as]
    assert isinstance(content, bytes)
    gpu = tomllib.loads(content.decode())["gpu"]
    assert collected.files[gpu] == b"tflops = 1\n"
    assert content == f'gpus = 1\ngpu = "{gpu}"  # mine\n'.encode()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["@last"], "-o: name the archive to write"),
        (["@last", "-o", "a.rar"], "expected a name that ends in .tar.gz or .zip"),
        (["@last", "-o", "nowhere/a.zip"], "there is no folder 'nowhere'"),
        (["@last", "@last", "-o", "a.zip"], "is named twice"),
        (["7", "-o", "a.zip"], "no run 7"),
        (["@last", "-o", "a.zip", "--policy-dir", "own"], "--policy-dir own: no effect"),
    ],
)
def test_what_cannot_be_packed_is_said_in_one_line(bench: Tool, words: list[str], said: str) -> None:
    bench("replay", "t.jsonl", "-p", "random", *SMALL)
    found = bench("artifact", "pack", *words)
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert said in found.err
    assert not list(Path().glob("*a.*"))


def test_a_run_that_does_not_repeat_any_more_is_not_packed(bench: Tool) -> None:
    bench("replay", "t.jsonl", "-p", "own/mine+1.py", *SMALL)
    code = Path("own/mine+1.py").read_text(encoding="utf-8")
    Path("own/mine+1.py").write_text(code + "\n", encoding="utf-8")
    assert "the policy changed" in bench("artifact", "pack", "@last", "-o", "a.zip").err
    Path("own/mine+1.py").write_text(code, encoding="utf-8")
    Path("t.jsonl").unlink()
    assert "its trace cannot be read again" in bench("artifact", "pack", "@last", "-o", "a.zip").err
    assert not Path("a.zip").exists()


def test_bundled_traces_stay_where_they_are(bench: Tool) -> None:
    bench("replay", "conversation-like", "--max-requests", "40", "-q")
    found = bench("artifact", "pack", "@last", "-o", "a.zip", "--with-traces")
    assert "--with-traces: no effect" in found.err
    packed(bench)
    assert not [name for name in members("a.tar.gz") if "/traces/" in name]
    assert bench.json("artifact", "verify", "a.tar.gz")[0]["verdict"] == IDENTICAL


# verifying


def test_a_trace_that_is_not_at_hand_is_nothing_to_conclude_and_is_found_by_its_hash(bench: Tool) -> None:
    bench("replay", "t.jsonl", "-p", "random", *SMALL)
    packed(bench)
    found = bench("artifact", "verify", "a.tar.gz")
    assert found.code == 3
    assert "trace t.jsonl" in " ".join(found.out.split())
    assert "1 of 1 runs could not be verified" in found.err
    Path("deep/er").mkdir(parents=True)
    Path("deep/same-size").write_bytes(b"x" * Path("t.jsonl").stat().st_size)
    shutil.move("t.jsonl", "deep/er/another-name")
    assert bench("artifact", "verify", "a.tar.gz", "--traces", "deep").code == 0
    assert "no folder 'no'" in bench("artifact", "verify", "a.tar.gz", "--traces", "no").err


def test_decisions_that_differ_are_named_and_fail(bench: Tool) -> None:
    bench("replay", "t.jsonl", "-p", "own/mine+1.py", *SMALL)
    packed(bench, "--with-traces", "@last")
    Path("number").write_text("2", encoding="utf-8")
    (outcome,) = bench.json("artifact", "verify", "a.tar.gz", code=1)
    assert outcome["verdict"] == DIFFERS
    assert outcome["differing_requests"] == 10  # rows 50 to 59
    assert outcome["decisions"][0] == {
        "request_id": "50", "what": "prefill_instance", "stored": 1, "replayed": 2,
    }  # fmt: skip
    shown = bench("artifact", "verify", "a.tar.gz")
    assert shown.code == 1
    assert "request 50" in shown.out
    assert "and 5 requests more" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80


def test_code_of_the_archive_is_run_by_verify_alone_and_that_is_said(bench: Tool) -> None:
    bench("replay", "t.jsonl", "-p", "own/mine+1.py", "-p", "random", *SMALL)
    packed(bench, "--with-traces", "@last:2")
    Path("ran").unlink()
    listed = bench("artifact", "verify", "a.tar.gz", "--list")
    assert (listed.code, listed.err) == (0, "")
    assert "its authors" in listed.out
    assert not Path("ran").exists()
    verified = bench("artifact", "verify", "a.tar.gz", "-q")
    assert "! this runs policy code out of the archive, with your rights: policies/" in verified.err
    assert "mine-1.py" in verified.err
    assert "uniform_random.py" not in verified.err  # the very same is installed
    assert Path("ran").exists()


def test_a_bundled_policy_that_has_changed_since_is_taken_from_the_archive(
    bench: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench("replay", "t.jsonl", "-p", "named=random", *SMALL)
    packed(bench, "--with-traces", "@last")
    monkeypatch.setattr("mooncake_bench.studies.artifact.verify.installed", frozenset)  # as in another version
    found = bench("artifact", "verify", "a.tar.gz")
    assert found.code == 0
    assert "uniform_random.py" in found.err
    assert "lru.py" in found.err  # a default that the SPEC does not name


def test_a_policy_that_fails_fails_its_run_and_not_the_others(bench: Tool) -> None:
    bench("replay", "t.jsonl", "-p", "own/mine+1.py", "-p", "random", *SMALL)
    packed(bench, "--with-traces", "@last:2")
    Path("number").unlink()
    outcomes = bench.json("artifact", "verify", "a.tar.gz", code=1)
    assert [each["verdict"] for each in outcomes] == ["failed", IDENTICAL]
    assert "it raised FileNotFoundError" in outcomes[0]["why"]


# what differs, and by how much


def changed(column: str, change: Any) -> Run:
    run = tiny_run()
    table = run.requests
    at = table.schema.get_field_index(column)
    values = [change(value) for value in table.column(column).to_pylist()]
    field = table.schema.field(at)
    return Run(run.manifest, run._tables | {"requests": table.set_column(at, field, pa.array(values, field.type))})


def outcome(replayed: Run) -> Outcome:
    stored = tiny_run()
    return compared("runs/1", stored, replayed, {name: getattr(stored, name).schema.names for name in TABLES}, ())


def test_a_verdict_is_identical_within_1e_9_or_differs() -> None:
    assert outcome(tiny_run()).verdict == IDENTICAL
    close = outcome(changed("ttft_ms", lambda ms: None if ms is None else ms * (1 + 1e-12)))
    assert (close.verdict, close.columns[0].column, close.columns[0].values) == (WITHIN, "ttft_ms", 3)
    assert close.worst == pytest.approx(1e-12, rel=1e-3)
    far = outcome(changed("ttft_ms", lambda ms: None if ms is None else ms * (1 + 1e-6)))
    assert (far.verdict, far.differing_requests) == (DIFFERS, 0)
    assert outcome(changed("ttft_ms", lambda ms: None)).verdict == DIFFERS
    assert outcome(changed("status", lambda status: "failed")).differing_requests == 4


def test_a_column_that_came_later_does_not_count() -> None:
    stored = tiny_run()
    columns = {name: getattr(stored, name).schema.names for name in TABLES}
    older = stored.requests.drop_columns(["loaded_tokens"])
    columns["requests"] = older.schema.names
    from mooncake_bench.results.content import content_sha256

    hashes = stored.manifest["content_sha256"] | {"requests": content_sha256(older)}
    was = Run(stored.manifest | {"content_sha256": hashes}, stored._tables)
    assert compared("runs/1", was, tiny_run(), columns, ()).verdict == IDENTICAL


def test_the_page_on_artifacts_works_as_printed(tool: Tool, update_golden: bool) -> None:
    page = Path(__file__).resolve().parent.parent / "docs" / "artifact.md"
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"^mooncake-bench (.+)$", text.split("```sh\n")[1].split("```")[0], re.MULTILINE):
        found = tool(*shlex.split(line))
        assert found.code == 0, found.err
    shown = re.search(
        r"<!-- output of: mooncake-bench artifact verify paper.tar.gz -->\n```text\n(.*?)```\n", text, re.S
    )
    assert shown is not None
    if update_golden:
        page.write_text(text.replace(shown[1], found.out), encoding="utf-8")
    else:
        assert shown[1] == found.out
