"""What plain CSV, JSON lines and parquet share: columns by a trace's own names, or by those ``--column`` gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.trace.formats._mapping import COLUMNS, OWN_NAMES
from mooncake_bench.trace.formats._rows import Gathered
from mooncake_bench.trace.formats._texts import BlockLists
from mooncake_bench.trace.formats._turns import place_by_delay, tell_sessions
from mooncake_bench.trace.model import DEFAULT_BLOCK_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.trace.formats import Source
    from mooncake_bench.trace.model import Floats, Ints
    from mooncake_bench.trace.schema import RawColumns
    from mooncake_bench.trace.units import Timestamps


class Plain:
    """The columns of a plain file in the making; ``names`` says what the file calls them."""

    def __init__(
        self,
        source: Source,
        format_name: str,
        names: dict[str, str],
        unit: str,
        block_tokens: int = DEFAULT_BLOCK_TOKENS,
        has_lines: bool = True,
    ) -> None:
        fields = {column: names.get(key, OWN_NAMES[key]) for column, key in COLUMNS.items()}
        self.gathered = Gathered(
            source,
            format_name,
            fields,
            block_tokens=block_tokens,
            unit=unit,
            has_ids="blocks" in names,
            has_lines=has_lines,
        )
        self.blocks = BlockLists()
        self.gathered.metadata["columns"] = ", ".join(f"{key}={name}" for key, name in names.items())

    def add(
        self, lines: int | Ints, timestamp: Timestamps, input_tokens: Ints, output_tokens: Ints, *,
        blocks: tuple[Ints, Ints] | None = None, session: Sequence[int | str | None] | Ints | None = None,
        priority: Ints | None = None, ids: Sequence[str] | None = None, delay: Floats | None = None,
    ) -> None:  # fmt: skip
        """The next rows. Raises TraceError for the first bad one."""
        lists = (None,) if blocks is None else blocks
        part = self.gathered.add(lines, timestamp, input_tokens, output_tokens, *lists)
        if session is not None:
            self.gathered.add_names("session_id", session)
        if priority is not None:
            self.gathered.add_optional("priority", priority)
        if ids is not None:
            self.gathered.add_request_ids(ids)
        if delay is not None:
            bad = ~(np.isnan(delay) | ((delay >= 0) & np.isfinite(delay)))
            if bad.any():
                row = int(bad.argmax())
                raise part.error(row, "delay_ms", delay[row], "a number >= 0 (ms after the session's previous answer)")
            self.gathered.add_optional("delay_ms", delay, np.nan)

    def columns(self) -> RawColumns:
        """All rows, with the notices on what is optional. Raises TraceError when there are none."""
        if self.blocks.texts is not None:
            count = len(self.blocks.texts)
            self.gathered.metadata["block_ids"] = f"{count} texts numbered by first appearance"
            self.gathered.notices.append(
                f"{self.gathered.label}: block ids are texts: {count:,} numbered by first appearance"
            )
        raw = tell_sessions(self.gathered, self.gathered.columns())
        if raw.delay_ms is not None:
            place_by_delay(raw)
        return raw


def request_ids(values: Sequence[Any], error: Any) -> list[str]:
    """Ids of requests as texts. Raises ``error(row, text)`` for a row without one."""
    texts = ["" if value is None else str(value).strip() for value in values]
    if "" in texts:
        raise error(texts.index(""), "")
    return texts
