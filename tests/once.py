"""Work that several processes of a test run need is done by the first one that comes, and read by the others."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

Made = TypeVar("Made")


def once(folders: pytest.TempPathFactory, name: str, make: Callable[[], Made]) -> Made:
    """What ``make`` gives, from the folder that all workers of this run share, if one has left it there."""
    own = folders.getbasetemp()
    kept = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / f"{name}.pickle"
    if kept.exists():
        found: Made = pickle.loads(kept.read_bytes())
        return found
    made = make()
    written = own / f"{name}.new"
    written.write_bytes(pickle.dumps(made))
    written.replace(kept)  # at once: nobody reads half of it
    return made
