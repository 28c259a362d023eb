"""Fetching public traces, from a server on this machine that misbehaves as servers do."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mooncake_bench.errors import SetupError, TraceError
from mooncake_bench.trace import fetch as module
from mooncake_bench.trace import load, public
from mooncake_bench.trace.fetch import fetch, partial_path
from mooncake_bench.trace.public import PublicTrace, default_folder, public_trace, public_traces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fault_tools import Tool

ROWS = 3_000
BODY = b"".join(
    b'{"timestamp": %d, "input_length": 600, "output_length": 3, "hash_ids": [%d, %d]}\n' % (row, 2 * row, 2 * row + 1)
    for row in range(ROWS)
)
SHA256 = hashlib.sha256(BODY).hexdigest()
# `git hash-object` is the sha1 of "blob SIZE\0" and the bytes
GIT_BLOB = hashlib.sha1(b"blob " + str(len(BODY)).encode() + b"\0" + BODY).hexdigest()
HALF = len(BODY) // 2


class Server(ThreadingHTTPServer):
    """Serves one body under every path, and remembers what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.body = BODY
        self.ranges = True  # honours Range
        self.cut_at: list[int] = []  # bytes of the whole after which each connection breaks off, one a request
        self.status = 200
        self.says_length = True
        self.redirect: str | None = None
        self.pause_s = 0.0
        self.asked: list[tuple[str, str | None]] = []  # path, Range

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"  # the end of the connection ends the body
    server: Server

    def do_GET(self) -> None:
        server, asked = self.server, self.headers.get("Range")
        server.asked.append((self.path, asked))
        if server.status != 200 or (server.redirect and not self.path.startswith("/moved")):
            self.send_response(server.status if server.status != 200 else 302)
            if server.redirect:
                self.send_header("Location", server.redirect)
            self.end_headers()
            return
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and server.ranges else 0  # type: ignore[index]
        if asked and server.ranges and start >= len(server.body):
            self.send_response(416)
            self.end_headers()
            return
        self.send_response(206 if asked and server.ranges else 200)
        if asked and server.ranges:
            self.send_header("Content-Range", f"bytes {start}-{len(server.body) - 1}/{len(server.body)}")
        if server.says_length:
            self.send_header("Content-Length", str(len(server.body) - start))
        self.end_headers()
        end = server.cut_at.pop(0) if server.cut_at else len(server.body)
        self.wfile.write(server.body[start:end])
        time.sleep(server.pause_s)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.fixture
def trace(server: Server) -> PublicTrace:
    return PublicTrace(
        name="tiny", file="tiny.jsonl", url=f"{server.url}/some/where/tiny.jsonl", format="Mooncake JSONL",
        licence="CC0", cite="nobody", about="a test", bytes=len(BODY), sha256=SHA256, git_blob=GIT_BLOB,
    )  # fmt: skip


def names(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir())


def start_partial(trace: PublicTrace, folder: Path, content: bytes) -> None:
    partial_path(folder / trace.file).write_bytes(content)


def test_a_whole_file_is_fetched_verified_and_can_be_loaded(trace: PublicTrace, server: Server, tmp_path: Path) -> None:
    found = fetch(trace, tmp_path / "new" / "folder")
    assert found.downloaded
    assert found.path.read_bytes() == BODY
    assert names(found.path.parent) == ["tiny.jsonl"]  # neither partial nor lock stays
    assert server.asked == [("/some/where/tiny.jsonl", None)]
    assert len(load(found.path)) == ROWS


def test_a_file_that_is_there_and_right_is_not_asked_for(trace: PublicTrace, server: Server, tmp_path: Path) -> None:
    (tmp_path / trace.file).write_bytes(BODY)
    found = fetch(trace, tmp_path)
    assert (found.downloaded, server.asked) == (False, [])


def test_another_file_in_its_place_is_refused_and_left_alone(
    trace: PublicTrace, server: Server, tmp_path: Path
) -> None:
    (tmp_path / trace.file).write_bytes(BODY[:-1] + b" ")
    with pytest.raises(TraceError, match=r"is not the public trace 'tiny': its sha256 is .*move it away"):
        fetch(trace, tmp_path)
    assert (tmp_path / trace.file).read_bytes() == BODY[:-1] + b" "
    assert server.asked == []


def test_a_partial_file_is_continued(trace: PublicTrace, server: Server, tmp_path: Path) -> None:
    start_partial(trace, tmp_path, BODY[:1000])
    seen: list[tuple[int, int | None]] = []
    found = fetch(trace, tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert found.path.read_bytes() == BODY
    assert server.asked == [("/some/where/tiny.jsonl", "bytes=1000-")]
    assert seen[0] == (1000, len(BODY))
    assert seen[-1] == (len(BODY), len(BODY))


def test_a_complete_partial_file_is_only_verified(trace: PublicTrace, server: Server, tmp_path: Path) -> None:
    start_partial(trace, tmp_path, BODY)
    assert fetch(trace, tmp_path).path.read_bytes() == BODY
    assert server.asked == []


def test_a_complete_partial_file_of_unknown_size_is_verified_when_the_server_has_no_more(
    trace: PublicTrace, server: Server, tmp_path: Path
) -> None:
    start_partial(trace, tmp_path, BODY)
    assert fetch(replace(trace, bytes=None), tmp_path).path.read_bytes() == BODY
    assert [asked for _, asked in server.asked] == [f"bytes={len(BODY)}-"]  # answered 416


def test_a_server_without_ranges_sends_all_of_it_again(trace: PublicTrace, server: Server, tmp_path: Path) -> None:
    server.ranges = False
    start_partial(trace, tmp_path, b"x" * 1000)
    assert fetch(trace, tmp_path).path.read_bytes() == BODY
    assert len(server.asked) == 1


@pytest.mark.parametrize("content", [b"x" * 1000, b"x" * len(BODY), b"x" * (len(BODY) + 5)])
def test_a_partial_file_of_something_else_is_given_up_once(
    content: bytes, trace: PublicTrace, server: Server, tmp_path: Path
) -> None:
    start_partial(trace, tmp_path, content)
    assert fetch(trace, tmp_path).path.read_bytes() == BODY
    assert server.asked[-1][1] is None  # from the beginning


def test_a_connection_that_breaks_off_is_taken_up_again(trace: PublicTrace, server: Server, tmp_path: Path) -> None:
    server.cut_at = [100, HALF]
    assert fetch(trace, tmp_path).path.read_bytes() == BODY
    assert [asked for _, asked in server.asked] == [None, "bytes=100-", f"bytes={HALF}-"]


def test_a_truncated_body_is_said_and_kept_to_be_continued(trace: PublicTrace, server: Server, tmp_path: Path) -> None:
    server.cut_at = [HALF] * 10
    with pytest.raises(TraceError, match=rf"broke off after {HALF:,} of {len(BODY):,} bytes; run the same again"):
        fetch(trace, tmp_path)
    assert names(tmp_path) == ["tiny.jsonl.partial"]
    assert partial_path(tmp_path / trace.file).read_bytes() == BODY[:HALF]
    server.cut_at = []
    assert fetch(trace, tmp_path).path.read_bytes() == BODY


@pytest.mark.parametrize(
    ("pins", "fault"),
    [
        ({}, "its sha256 is"),
        ({"git_blob": None}, "its sha256 is"),
        ({"sha256": None}, "its git blob is"),
    ],
)
def test_a_tampered_file_is_removed(
    pins: dict[str, Any], fault: str, trace: PublicTrace, server: Server, tmp_path: Path
) -> None:
    server.body = BODY.replace(b"600", b"601", 1)
    with pytest.raises(TraceError, match=rf"is not the right one \({fault} .*; it was removed") as found:
        fetch(replace(trace, **pins), tmp_path)
    assert names(tmp_path) == []
    assert "\n" not in str(found.value)


def test_a_git_blob_alone_verifies_a_file(trace: PublicTrace, tmp_path: Path) -> None:
    assert fetch(replace(trace, sha256=None, bytes=None), tmp_path).path.read_bytes() == BODY


def test_a_file_longer_than_announced_is_refused_before_it_fills_the_disk(
    trace: PublicTrace, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.body = BODY * 2
    with pytest.raises(TraceError, match=rf"has {2 * len(BODY):,} bytes; expected {len(BODY):,} bytes"):
        fetch(trace, tmp_path)
    server.says_length = False
    with pytest.raises(TraceError, match=rf"sends more than {len(BODY):,} bytes; what had come was removed"):
        fetch(trace, tmp_path)
    monkeypatch.setattr(module, "LIMIT_BYTES", 5000)  # of a trace whose size is not known
    with pytest.raises(TraceError, match="sends more than at most 5,000 bytes"):
        fetch(replace(trace, bytes=None), tmp_path)
    assert names(tmp_path) == []


def test_a_server_that_does_not_say_the_length_is_believed_when_the_hash_is_right(
    trace: PublicTrace, server: Server, tmp_path: Path
) -> None:
    server.says_length = False
    assert fetch(replace(trace, bytes=None), tmp_path).path.read_bytes() == BODY


@pytest.mark.parametrize("status", [403, 404, 500])
def test_an_answer_that_is_no_file_is_said_with_how_to_do_it_by_hand(
    status: int, trace: PublicTrace, server: Server, tmp_path: Path
) -> None:
    server.status = status
    with pytest.raises(
        TraceError, match=rf"answers {status} .*; or put the file at .*tiny\.jsonl by hand \(sha256 {SHA256}"
    ):
        fetch(trace, tmp_path)
    assert names(tmp_path) == []


def test_a_server_that_is_not_there_is_said_with_how_to_do_it_by_hand(
    trace: PublicTrace, server: Server, tmp_path: Path
) -> None:
    closed = Server()
    closed.server_close()
    with pytest.raises(TraceError, match=r"cannot be reached \(Connection refused\); or put the file at"):
        fetch(trace, tmp_path, url_base=closed.url)


def test_a_redirect_is_followed_but_not_to_a_file(trace: PublicTrace, server: Server, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(BODY)
    server.redirect = secret.as_uri()
    with pytest.raises(TraceError, match="tiny"):
        fetch(trace, tmp_path / "a")
    server.redirect = f"{server.url}/moved"
    assert fetch(trace, tmp_path / "a").path.read_bytes() == BODY


def test_a_mirror_is_asked_for_the_file_name(trace: PublicTrace, server: Server, tmp_path: Path) -> None:
    fetch(trace, tmp_path, url_base=f"{server.url}/mirror/")
    assert server.asked == [("/mirror/tiny.jsonl", None)]


@pytest.mark.parametrize(
    "base", ["", "mirror", "file:///etc", "ftp://127.0.0.1/x", "http://", "http://a b/", "http://[", "http://ü/"]
)
def test_an_address_that_is_none_is_refused(base: str, trace: PublicTrace, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"--url-base .*: expected an address"):
        fetch(trace, tmp_path, url_base=base)


def test_a_folder_that_cannot_be_written_is_one_line(trace: PublicTrace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match=r"cannot be written: .*; choose another folder with --cache-dir"):
        fetch(trace, tmp_path / "file" / "folder")


def test_many_at_once_ask_for_the_file_once(trace: PublicTrace, server: Server, tmp_path: Path) -> None:
    server.pause_s = 0.1
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(fetch(trace, tmp_path))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.downloaded for each in found) == [False] * 5 + [True]
    assert len(server.asked) == 1
    assert names(tmp_path) == ["tiny.jsonl"]


def test_a_lock_left_behind_does_not_block(trace: PublicTrace, tmp_path: Path) -> None:
    (tmp_path / ".tiny.jsonl.lock").write_text("")  # as a killed process leaves it: nobody holds it
    assert fetch(trace, tmp_path).downloaded


def test_an_interrupt_keeps_what_has_come(trace: PublicTrace, server: Server, tmp_path: Path) -> None:
    def interrupt(done: int, total: int | None) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(trace, tmp_path, progress=interrupt)
    assert 0 < partial_path(tmp_path / trace.file).stat().st_size <= len(BODY)
    assert names(tmp_path) == ["tiny.jsonl.partial"]
    assert fetch(trace, tmp_path).path.read_bytes() == BODY


# ---- the table


def test_every_public_trace_has_an_address_a_licence_and_well_formed_hashes() -> None:
    traces = public_traces()
    assert len({trace.file for trace in traces.values()}) == len(traces)  # they share one folder
    for trace in traces.values():
        assert trace.url.startswith("https://")
        assert trace.url.endswith(f"/{trace.file}")
        assert trace.licence
        assert trace.cite
        assert trace.pinned == (trace.pinned_by is not None)
        assert trace.sha256 is None or re.fullmatch("[0-9a-f]{64}", trace.sha256)
        assert trace.git_blob is None or re.fullmatch("[0-9a-f]{40}", trace.git_blob)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mooncake-conversation", "mooncake-fast25"),
        ("mooncake-synthetic", "mooncake-fast25"),
        ("azure-2023-code", "azure-llm-2023"),
        ("azure-2023-conv", "azure-llm-2023"),
    ],
)
def test_the_hashes_of_the_table_are_those_of_the_published_files(name: str, folder: str, shared: Path) -> None:
    trace = public_trace(name)
    assert trace.fault(shared / "traces" / folder / trace.file) is None


def test_a_trace_without_a_known_hash_is_not_downloaded(trace: PublicTrace, server: Server, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"no hash of it is known.*get it from http.* yourself"):
        fetch(replace(trace, sha256=None, git_blob=None), tmp_path)
    assert server.asked == []


def test_the_cache_folder_is_the_platforms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "mooncake-bench" / "traces"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the specification: to be ignored
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert default_folder() == tmp_path / "me" / ".cache" / "mooncake-bench" / "traces"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert default_folder() == tmp_path / "me" / "Library" / "Caches" / "mooncake-bench" / "traces"


# ---- the command


@pytest.fixture
def table(trace: PublicTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of the test's own, and a cache folder of its own."""
    fields = {key: value for key, value in vars(trace).items() if value is not None and key != "name"} | {
        "pinned_by": "us"
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
    loose = [line for line in lines if not line.startswith(("bytes", "sha256", "git_blob", "pinned_by", "file"))]
    text = "\n".join(["[tiny]", *lines, "[loose]", 'file = "loose.csv"', *loose])
    (tmp_path / "public.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(public, "TABLE", tmp_path / "public.toml")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("table")
def test_the_command_prints_the_path_which_can_be_given_as_a_trace(tool: Tool, tmp_path: Path) -> None:
    first = tool("traces", "fetch", "tiny")
    path = tmp_path / "cache" / "mooncake-bench" / "traces" / "tiny.jsonl"
    assert (first.code, first.out) == (0, f"{path}\n")
    assert "fetched and verified; licence CC0, cite nobody" in first.err
    again = tool.json("traces", "fetch", "tiny", "tiny")
    assert again == [{"name": "tiny", "path": str(path), "bytes": len(BODY), "sha256": SHA256, "downloaded": False}]
    assert tool.json("traces", "info", str(path))["requests"] == ROWS


@pytest.mark.usefixtures("table")
def test_the_list_says_what_is_here_and_what_has_to_be_placed_by_hand(tool: Tool) -> None:
    states = {row["name"]: row["state"] for row in tool.json("traces", "fetch", "--list")}
    assert states == {"tiny": "to fetch", "loose": "by hand"}
    tool("traces", "fetch", "tiny")
    shown = tool("traces", "fetch", "--list").out
    assert re.search(r"^tiny .* here ", shown, re.MULTILINE)
    assert re.search(r"^loose: http://127", shown, re.MULTILINE)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tine"], "public trace 'tine': not known; did you mean 'tiny'?"),
        (["loose"], "no hash of it is known"),
        ([], "name at least one public trace"),
        (["tiny", "--list"], "drop one of them"),
        (["--list", "--url-base", "http://x"], "--url-base: no effect with --list"),
        (["tiny", "--url-base", "file:///x"], "expected an address"),
    ],
)
def test_wrong_use_is_one_line(words: list[str], message: str, tool: Tool) -> None:
    found = tool("traces", "fetch", *words)
    assert (found.code, found.out) == (2, "")
    assert message in found.err
    assert found.err.count("\n") == 1


def test_ctrl_c_in_the_middle_says_what_is_kept_and_ends_with_130(
    trace: PublicTrace, server: Server, tmp_path: Path
) -> None:
    if os.name == "nt":
        pytest.skip("needs signals as POSIX has them")
    server.cut_at, server.pause_s = [HALF], 30.0  # half of it, then silence
    fields = {key: value for key, value in vars(trace).items() if value is not None and key != "name"}
    (tmp_path / "public.toml").write_text(
        "\n".join(["[tiny]", *(f"{key} = {json.dumps(value)}" for key, value in fields.items())]), encoding="utf-8"
    )
    code = (
        "from pathlib import Path; from mooncake_bench.trace import public; "
        f"public.TABLE = Path({str(tmp_path / 'public.toml')!r}); "
        "from mooncake_bench.cli.app import main; main()"
    )
    command = [sys.executable, "-c", code, "traces", "fetch", "tiny", "--cache-dir", str(tmp_path / "c")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    partial = partial_path(tmp_path / "c" / trace.file)
    deadline = time.monotonic() + 20
    while not (partial.is_file() and partial.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(2)  # SIGINT
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "run the same again to continue from there" in errors
    assert 0 < partial.stat().st_size <= HALF
