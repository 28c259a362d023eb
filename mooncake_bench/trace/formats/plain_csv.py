"""Plain CSV: a header with a trace's own names ``arrival_ms,input_tokens,output_tokens``, or others with ``--column``.

``--column arrival=ts,input=prompt_len,output=gen_len[,blocks=hashes,session=conv,priority=p,id=name,delay=d]`` says
which column is what. Arrivals are numbers (``--timestamp-unit``, ms unless told) or dates; a block list is ids between
spaces, semicolons or (quoted) commas, brackets allowed: integers, or texts that are numbered by first appearance.
Without a block column each block gets an id of its own. Blocks have 512 tokens unless ``--block-size`` says so. Empty
sessions and delays are rows without one. The licence is that of whoever made the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.trace.formats import _csv
from mooncake_bench.trace.formats._csv import Column, Part, Table
from mooncake_bench.trace.formats._jsonl import shown
from mooncake_bench.trace.formats._mapping import EXPECTED, is_own, lacking, names_in, unread_blocks
from mooncake_bench.trace.formats._plain import Plain, request_ids
from mooncake_bench.trace.formats._texts import names_of, numbers_or_nothing
from mooncake_bench.trace.units import DATES

if TYPE_CHECKING:
    from mooncake_bench.trace.formats import Source
    from mooncake_bench.trace.schema import RawColumns

NAME = "plain-csv"
DESCRIPTION = "plain CSV: columns arrival_ms,input_tokens,output_tokens, or those --column names"
OPTIONS = frozenset({"columns"})
KINDS = {
    "arrival": _csv.TIME,
    "input": _csv.INTEGER,
    "output": _csv.INTEGER,
    "blocks": _csv.TEXT,
    "session": _csv.TEXT,
    "priority": _csv.INTEGER,
    "id": _csv.TEXT,
    "delay": _csv.TEXT,
}


def recognises(head: bytes) -> bool:
    """A header with a trace's own names."""
    return is_own(_csv.header(head))


def read(source: Source) -> RawColumns:
    """All rows of the text. Raises TraceError for the first row that is not of the format."""
    present = _csv.header(source.head)
    names = names_in(present, source.reading.columns)
    for key, name in names.items():
        if name not in present and len(present) > 1:
            raise lacking(f"{source.label}, line {source.head_line}", key, name, present)
    table = Table(source, [Column(name, KINDS[key], EXPECTED[key]) for key, name in names.items()])
    plain: Plain | None = None
    for part in table.parts():
        if plain is None:
            unit = DATES if table.kind(names["arrival"]) == _csv.DATE else "ms"
            plain = Plain(source, NAME, names, unit)
            plain.gathered.notices += [*table.notices, *unread_blocks(source.label, present, names)]
        _add(plain, part, names)
    return (plain or Plain(source, NAME, names, "ms")).columns()


def _add(plain: Plain, part: Part, names: dict[str, str]) -> None:
    def error(key: str) -> Any:
        return lambda row, text: part.error(row, names[key], shown(text))

    values = {key: part.values[name] for key, name in names.items()}
    plain.add(
        part.lines,
        values["arrival"],
        values["input"],
        values["output"],
        blocks=plain.blocks.split(values["blocks"], error("blocks")) if "blocks" in names else None,
        session=names_of(part, names["session"]) if "session" in names else None,
        priority=values.get("priority"),
        ids=request_ids(values["id"].to_pylist(), error("id")) if "id" in names else None,
        delay=numbers_or_nothing(values["delay"], error("delay")) if "delay" in names else None,
    )
