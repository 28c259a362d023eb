"""An archive from somebody else: nothing leaves its folder, nothing runs unsaid, nothing fills the disk."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fault_tools import Answer, Tool
from test_artifact import bench, members, packed  # noqa: F401 - bench is a fixture

from mooncake_bench.studies.artifact.archive import ROOT

EVIL = b"""
from pathlib import Path
from mooncake_bench.api import Route, Router
Path(__file__).parents[2].joinpath("ran").touch()
raise SystemExit("evil ran")
"""


def tar_of(*entries: tarfile.TarInfo | tuple[str, bytes]) -> None:
    """An archive ``x.tar.gz`` of plain files, or of entries as they are."""
    with tarfile.open("x.tar.gz", "w:gz") as tar:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                tar.addfile(entry)
            else:
                info = tarfile.TarInfo(entry[0])
                info.size = len(entry[1])
                tar.addfile(info, io.BytesIO(entry[1]))


def linked(kind: bytes, target: str = "/etc/passwd") -> tarfile.TarInfo:
    info = tarfile.TarInfo(f"{ROOT}/link")
    info.type, info.linkname = kind, target
    return info


def refused(tool: Tool, said: str, name: str = "x.tar.gz", *more: str) -> Answer:
    before = {str(path) for path in Path().rglob("*")}
    for words in (["--list"], []):
        found = tool("artifact", "verify", name, *more, *words)
        assert (found.code, found.out, found.err.count("\n")) == (2, "", 1), found
        assert said in found.err
    assert {str(path) for path in Path().rglob("*")} == before
    return found


@pytest.mark.parametrize(
    "name",
    [
        f"{ROOT}/../../evil", "../evil", "/tmp/evil", f"{ROOT}/a\\..\\..\\evil", f"{ROOT}/C:evil", f"{ROOT}/a\nb",
        f"{ROOT}/" + "x" * 300,
    ],
)  # fmt: skip
def test_a_name_that_leads_elsewhere_is_refused(tool: Tool, name: str) -> None:
    tar_of((name, b"x"))
    refused(tool, "could lead out of its folder")
    with zipfile.ZipFile("x.zip", "w") as file:
        file.writestr(name, b"x")
    if "\n" not in name:
        refused(tool, "could lead out of its folder", "x.zip")


def test_what_lies_beside_the_one_folder_is_no_artifact(tool: Tool) -> None:
    tar_of(("artifact.json", b"{}"))
    refused(tool, f"expected everything below {ROOT}/")


@pytest.mark.parametrize(
    ("kind", "what"), [(tarfile.SYMTYPE, "link"), (tarfile.LNKTYPE, "link"), (tarfile.FIFOTYPE, "device")]
)
def test_links_and_devices_are_refused(tool: Tool, kind: bytes, what: str) -> None:
    tar_of(linked(kind))
    refused(tool, f"which is a {what}")


def test_a_link_in_a_zip_file_is_refused(tool: Tool) -> None:
    info = zipfile.ZipInfo(f"{ROOT}/link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile("x.zip", "w") as file:
        file.writestr(info, "/etc/passwd")
    refused(tool, "which is a link", "x.zip")


def test_a_second_file_of_a_name_is_refused(tool: Tool) -> None:
    tar_of((f"{ROOT}/a", b"x"), (f"{ROOT}/a", b"y"))
    refused(tool, "twice")


def test_more_bytes_than_wanted_are_refused_however_well_they_are_packed(tool: Tool) -> None:
    tar_of((f"{ROOT}/zeros", bytes(3_000_000)))
    assert Path("x.tar.gz").stat().st_size < 10_000
    refused(tool, "unpacks to more than 0.001 GB", "x.tar.gz", "--max-size", "0.001")
    assert "holds no artifact.json" in tool("artifact", "verify", "x.tar.gz", "--max-size", "0.004").err


def test_a_zip_file_that_lies_about_a_size_is_refused(tool: Tool) -> None:
    with zipfile.ZipFile("x.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(f"{ROOT}/zeros", bytes(3_000_000))
    content = Path("x.zip").read_bytes()
    assert content.count((3_000_000).to_bytes(4, "little")) == 2
    Path("x.zip").write_bytes(content.replace((3_000_000).to_bytes(4, "little"), (500).to_bytes(4, "little")))
    found = tool("artifact", "verify", "x.zip", "--max-size", "0.001")
    assert (found.code, found.err.count("\n")) == (2, 1)


def test_too_many_files_are_refused(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooncake_bench.studies.artifact.archive.MOST_FILES", 3)
    tar_of(*((f"{ROOT}/{i}", b"") for i in range(4)))
    refused(tool, "more than 3 files")


@pytest.mark.parametrize("content", [b"", b"text", b"\x1f\x8b\x08\x00broken", b"PK\x03\x04broken"])
def test_what_is_no_archive_or_is_cut_off_is_said_in_one_line(tool: Tool, content: bytes) -> None:
    Path("x.tar.gz").write_bytes(content)
    found = tool("artifact", "verify", "x.tar.gz")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "no such file" in tool("artifact", "verify", "y.tar.gz").err


# archives of this tool that were changed


@pytest.fixture
def stored(bench: Tool) -> Tool:  # noqa: F811
    bench("replay", "t.jsonl", "-p", "random", "--cluster", "3P+2D", "-q")
    packed(bench, "--with-traces", "@last")
    return bench


def rewritten(change: Callable[[dict[str, bytes]], None], *, hashes: bool = True) -> None:
    """``x.tar.gz``: the archive with other files, and with hashes that fit them."""
    files = {name.removeprefix(f"{ROOT}/"): content for name, content in members("a.tar.gz").items()}
    change(files)
    manifest = json.loads(files.pop("artifact.json"))
    if hashes:
        manifest["files"] = {
            name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
            for name, content in files.items()
        }
    files["artifact.json"] = json.dumps(manifest).encode()
    tar_of(*((f"{ROOT}/{name}", content) for name, content in files.items()))


def edited(files: dict[str, bytes], name: str, change: Callable[[Any], None]) -> None:
    content = json.loads(files[name])
    change(content)
    files[name] = json.dumps(content).encode()


def test_one_changed_byte_is_found(stored: Tool) -> None:
    def change(files: dict[str, bytes]) -> None:
        name = next(name for name in files if name.endswith("requests.parquet"))
        files[name] = files[name][:-1] + bytes([files[name][-1] ^ 1])

    rewritten(change, hashes=False)
    refused(stored, "is not what artifact.json says")
    rewritten(lambda files: files.update(more=b"x"), hashes=False)
    refused(stored, "holds, besides what it lists, 'more'")
    rewritten(lambda files: None)
    assert stored("artifact", "verify", "x.tar.gz").code == 0


@pytest.mark.parametrize("place", ["../../evil", "/tmp/evil", "runs/evil", "traces/../../evil"])
def test_a_trace_is_never_put_outside(stored: Tool, place: str) -> None:
    def change(files: dict[str, bytes]) -> None:
        del files[next(name for name in files if name.startswith("traces/"))]
        edited(files, "artifact.json", lambda it: it["traces"][0].update(path=place, included=False))

    rewritten(change)
    refused(stored, "not to be trusted", "x.tar.gz")


def evil(files: dict[str, bytes]) -> None:
    files["policies/evil.py"] = EVIL


def in_run(files: dict[str, bytes], change: Callable[[Any], None]) -> None:
    evil(files)
    edited(files, "runs/1_t_random/run.json", change)


def in_part(files: dict[str, bytes], **changes: Any) -> None:
    evil(files)
    edited(files, "artifact.json", lambda it: it["runs"][0]["parts"][0].update(changes))


CODE = {
    "a setup that names it": lambda files: in_run(
        files, lambda it: it["setup"].update(policy="policies/evil.py")
    ),
    "a setup that names code of this machine": lambda files: in_run(
        files, lambda it: it["setup"].update(policy="own/mine+1.py")
    ),
    "a name that is a file": lambda files: in_part(files, name="policies/evil.py"),
    "a name with more": lambda files: in_part(files, name="random+policies/evil.py"),
    "a class with more": lambda files: in_part(files, class_name="Random+policies/evil.py", bundled=False),
    "parameters with more": lambda files: in_part(files, parameters="a=1+policies/evil.py"),
    "a label with more": lambda files: (
        evil(files), edited(files, "artifact.json", lambda it: it["runs"][0].update(spec_label="policies/evil.py+a")),
    ),
    "a file under another's hash": lambda files: in_part(files, file="policies/evil.py", bundled=False),
    "caches warm from a run of this machine": lambda files: in_run(
        files, lambda it: it["setup"].update(warm_from="results/1_t_random")
    ),
    "a preset of this machine": lambda files: in_run(files, lambda it: it["setup"].update(node="/etc/node.toml")),
    "a trace of this machine": lambda files: in_run(files, lambda it: it["trace"].update(path="/etc/passwd")),
}  # fmt: skip


@pytest.mark.parametrize("how", list(CODE))
def test_no_code_or_file_is_used_that_the_archive_does_not_tell_of(stored: Tool, how: str) -> None:
    rewritten(CODE[how])
    found = stored("artifact", "verify", "x.tar.gz")
    assert (found.code, found.out) == (2, ""), how
    assert found.err.count("\n") == 1
    assert "evil ran" not in found.err
    assert "! this runs" not in found.err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format_version": 9}', '{"format_version": 1, "runs": 3}'])
def test_a_damaged_manifest_is_said_in_one_line(stored: Tool, text: str) -> None:
    tar_of((f"{ROOT}/artifact.json", text.encode()))
    found = stored("artifact", "verify", "x.tar.gz")
    assert (found.code, found.err.count("\n")) == (2, 1)
