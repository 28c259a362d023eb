"""Files that the tool writes: looked at beforehand, written under a name of their own, there whole or not at all.

An existing file is replaced only with ``force``, and only where it is a regular file: a device or a pipe never is. A
live symbolic link stays, and the file it leads to is replaced.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_bench.errors import BenchError

EXISTS = "exists; choose another name, or --force to replace it"
SHOWN_CHARS = 200  # of a name that the system refuses
KINDS = ((stat.S_ISDIR, "folder"), (stat.S_ISFIFO, "pipe"), (stat.S_ISSOCK, "socket"), (stat.S_ISCHR, "device"),
         (stat.S_ISBLK, "device"))  # fmt: skip


def check_target(path: str | Path, *, force: bool, label: str, error: type[BenchError], hint: str = "") -> None:
    """Raises ``error`` for a path that :func:`writing` would refuse for certain; ``label`` names it in the message.

    ``hint`` follows where the path is something else than a file.
    """
    fault = _fault(Path(path), force, hint) if str(path) else ": the name is empty; expected the name of a file"
    if fault:
        shown = label.replace(str(path), f"{str(path)[:SHOWN_CHARS]}…") if len(str(path)) > SHOWN_CHARS else label
        raise error(f"{shown}{fault}")


@contextlib.contextmanager
def writing(path: str | Path, *, force: bool, label: str, error: type[BenchError], hint: str = "") -> Iterator[Path]:
    """The path of an empty temporary file beside ``path``, to be filled inside; it is moved there at the end.

    Whatever goes wrong inside, a Ctrl-C among it, the temporary file is gone afterwards and what was there still is.
    Raises ``error`` as :func:`check_target` does, and for an OSError inside.
    """
    check_target(path, force=force, label=label, error=error, hint=hint)
    target = _followed(Path(path))
    partial: Path | None = None
    try:
        partial = _beside(target)
        yield partial
        partial.chmod(_mode(target))
        _move(partial, target, force)
    except FileExistsError:
        raise error(f"{label} {EXISTS}") from None
    except OSError as reason:
        raise error(f"{label} cannot be written: {_named(reason, partial, target)}") from None
    finally:
        if partial is not None:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def _fault(target: Path, force: bool, hint: str) -> str:
    """What keeps a file from being written there; empty where nothing does, as far as can be told."""
    try:
        if not target.parent.is_dir():
            return f": there is no folder {str(target.parent)!r}; make it first"
        os.lstat(target)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:  # a name that is too long, or holds a null byte
        return f": {getattr(error, 'strerror', None) or error}"
    try:
        mode = target.stat().st_mode
    except OSError:  # a link to nothing
        mode = stat.S_IFREG
    what = next((name for test, name in KINDS if test(mode)), None)
    if what is not None:
        return f" is a {what}; expected a file{hint}"
    return "" if force else f" {EXISTS}"


def _followed(target: Path) -> Path:
    """The file itself where ``target`` is a live link to one."""
    return target.resolve() if target.is_symlink() and target.exists() else target


def _beside(target: Path) -> Path:
    """A new empty file in the same folder, hidden, of a name that nobody else has."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", suffix=".partial", dir=target.parent)
    os.close(handle)
    return Path(name)


def _mode(target: Path) -> int:
    """The permissions of the file that is replaced, or those that a new one gets."""
    try:
        return stat.S_IMODE(target.stat().st_mode)
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def _move(partial: Path, target: Path, force: bool) -> None:
    """Give a file its name. Raises FileExistsError where someone else took it meanwhile, unless ``force``."""
    if force:
        partial.replace(target)
        return
    try:
        os.link(partial, target)  # in one step, and never over another file
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(target):
            raise FileExistsError from None
        partial.replace(target)


def _named(reason: OSError, partial: Path | None, target: Path) -> str:
    """Why something failed, under the name that the user knows."""
    text = " ".join((reason.strerror or str(reason)).split())
    return text if partial is None else text.replace(str(partial), str(target)).replace(partial.name, target.name)
