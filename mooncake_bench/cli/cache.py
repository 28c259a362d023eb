"""cache: what any cache could get out of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mooncake_bench.cli.options import Commands

COMMANDS: Commands = ()
