"""A file that the tool writes is there whole or not at all, and nothing else is touched."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mooncake_bench import outfile
from mooncake_bench.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable


def check(path: Path | str, *, force: bool = False) -> None:
    outfile.check_target(path, force=force, label=repr(str(path)), error=TraceError, hint=" (- is stdout)")


def write(path: Path, text: str, *, force: bool = False) -> None:
    with outfile.writing(path, force=force, label=repr(str(path)), error=TraceError) as partial:
        partial.write_text(text)


def test_a_file_appears_with_the_usual_permissions_and_nothing_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "out", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_text() == "new"
    (tmp_path / "plain").touch()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_file_that_exists_needs_force_and_keeps_its_permissions(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_text("mine")
    target.chmod(0o640)
    with pytest.raises(TraceError, match="out' exists; choose another name, or --force to replace it"):
        write(target, "new")
    assert target.read_text() == "mine"
    write(target, "new", force=True)
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


@pytest.mark.parametrize("force", [False, True])
def test_a_pipe_is_never_replaced(tmp_path: Path, force: bool) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(TraceError, match="pipe' is a pipe; expected a file"):
        write(pipe, "new", force=force)
    with pytest.raises(TraceError, match=r"expected a file \(- is stdout\)$"):
        check(pipe, force=force)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize(
    ("mode", "what"), [(stat.S_IFCHR, "device"), (stat.S_IFBLK, "device"), (stat.S_IFSOCK, "socket")]
)
def test_devices_and_sockets_are_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, what: str
) -> None:
    target = tmp_path / "odd"
    target.touch()
    plain = Path.stat

    def odd(path: Path, **more: bool) -> os.stat_result:
        found = plain(path, **more)
        return os.stat_result((mode | 0o600, *found[1:])) if path == target else found

    monkeypatch.setattr(Path, "stat", odd)
    with pytest.raises(TraceError, match=f"is a {what}; expected a file"):
        check(target, force=True)


def test_a_persons_own_partial_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out.partial").write_text("mine")
    write(tmp_path / "out", "new")
    assert (tmp_path / "out.partial").read_text() == "mine"


def test_two_writers_do_not_meet_and_the_second_overwrites_nothing(tmp_path: Path) -> None:
    target = tmp_path / "out"

    def slowly() -> None:
        with outfile.writing(target, force=False, label=repr(str(target)), error=TraceError) as partial:
            partial.write_text("slow")
            write(target, "quick")

    with pytest.raises(TraceError, match="exists; choose another name"):
        slowly()
    assert target.read_text() == "quick"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_without_hard_links_a_file_is_moved_and_still_overwrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", fail)
    write(tmp_path / "out", "new")
    assert (tmp_path / "out").read_text() == "new"
    with pytest.raises(TraceError, match="exists; choose another name"):
        write(tmp_path / "out", "newer")


def test_a_link_to_nothing_counts_as_a_file_that_exists(tmp_path: Path) -> None:
    link = tmp_path / "out"
    link.symlink_to("elsewhere")
    with pytest.raises(TraceError, match="exists; choose another name"):
        write(link, "new")
    assert link.is_symlink()
    write(link, "new", force=True)
    assert link.read_text() == "new"


def test_a_live_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    file, link = tmp_path / "folder" / "file", tmp_path / "out"
    file.write_text("old")
    link.symlink_to(file)
    write(link, "new", force=True)
    assert link.is_symlink()
    assert file.read_text() == "new"


def fail(target: Path, reason: Callable[[Path], BaseException]) -> None:
    with outfile.writing(target, force=True, label="trace 'out'", error=TraceError) as partial:
        partial.write_text("half")
        raise reason(partial)


@pytest.mark.parametrize("reason", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("odd")])
def test_whatever_goes_wrong_nothing_is_left(tmp_path: Path, reason: BaseException) -> None:
    (tmp_path / "out").write_text("old")
    with pytest.raises(TraceError if isinstance(reason, OSError) else type(reason)) as found:
        fail(tmp_path / "out", lambda _: reason)
    if isinstance(reason, OSError):
        assert str(found.value) == "trace 'out' cannot be written: No space left on device"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_text() == "old"


def test_an_error_names_the_file_and_not_the_temporary_one(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as found:
        fail(tmp_path / "out", lambda partial: OSError(f"[Errno 28] Error writing bytes to file '{partial}'"))
    said = f"trace 'out' cannot be written: [Errno 28] Error writing bytes to file '{tmp_path / 'out'}'"
    assert str(found.value) == said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("x" * 300, "x…': File name too long"),
        ("a\0b", "embedded null byte"),
        ("absent/out", "there is no folder '.*absent'; make it first"),
        (".", "is a folder; expected a file"),
    ],
)
def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(TraceError, match=said) as found:
        check(tmp_path / name)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 500


def test_an_empty_name_is_said_to_be_empty() -> None:
    with pytest.raises(TraceError, match="the name is empty; expected the name of a file"):
        check("")
