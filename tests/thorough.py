"""How much of a long table a plain run takes: a spread of it, and all of it with ``MOONCAKE_BENCH_THOROUGH=1``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

Value = TypeVar("Value")
THOROUGH = bool(os.environ.get("MOONCAKE_BENCH_THOROUGH"))


def spread(values: Sequence[Value], row: int, every: int = 3) -> list[Value]:
    """One value in ``every``, from another one on in each row of a table, so that the rows together take all."""
    return list(values) if THOROUGH else list(values[row % every :: every])


def many(count: int, thorough: int) -> int:
    """``count`` examples in a plain run, ``thorough`` in a long one."""
    return thorough if THOROUGH else count
