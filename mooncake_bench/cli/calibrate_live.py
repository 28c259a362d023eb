"""``calibrate live``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mooncake_bench.cli.options import Commands

COMMANDS: Commands = []
