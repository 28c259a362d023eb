"""Where the files that ship with the package lie: beside it in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def bundled(kind: str) -> Path:
    """The folder of the bundled ``policies`` or ``traces``.

    Raises FileNotFoundError when the installation lacks it.
    """
    for folder in (_PACKAGE / "_bundled" / kind, _PACKAGE.parent / kind):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"the bundled folder {kind!r} is missing from this installation; reinstall mooncake-bench")
