"""Plain JSON lines: keys ``arrival_ms, input_tokens, output_tokens``, a trace's own, or others with ``--column``.

``--column arrival=ts,input=prompt_len,output=gen_len[,blocks=hashes,session=conv,priority=p,id=name,delay=d]`` says
which key is what. Arrivals are numbers (``--timestamp-unit``, ms unless told) or dates; block ids are a list of
integers or, in every row, of texts, which are numbered by first appearance. Without block ids each block gets one of
its own. Blocks have 512 tokens unless ``--block-size`` says so. The licence is that of whoever made the file.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from mooncake_bench.trace.formats import _csv, _jsonl
from mooncake_bench.trace.formats._jsonl import Fields, Rows
from mooncake_bench.trace.formats._mapping import EXPECTED, OWN_NAMES, REQUIRED, names_in, unread_blocks
from mooncake_bench.trace.formats._plain import Plain, request_ids
from mooncake_bench.trace.units import DATES

if TYPE_CHECKING:
    from mooncake_bench.trace.formats import Source
    from mooncake_bench.trace.schema import RawColumns

NAME = "plain-jsonl"
DESCRIPTION = "plain JSON lines: keys arrival_ms, input_tokens, output_tokens, or those --column names"
OPTIONS = frozenset({"columns"})
KINDS = {
    "arrival": _jsonl.NUMBER,
    "blocks": _jsonl.IDS,
    "session": _jsonl.NAME,
    "id": _jsonl.NAME,
    "delay": _jsonl.NUMBER,
}
TYPES: dict[str, Any] = {
    "arrival": int | float,
    "input": int,
    "output": int,
    "blocks": list[int],
    "session": int | str | None,
    "priority": int,
    "id": int | str,
    "delay": int | float | None,
}


def recognises(head: bytes) -> bool:
    """A line that opens an object, with a trace's own names."""
    first = head.lstrip().split(b"\n", 1)[0]
    return first[:1] == b"{" and all(f'"{OWN_NAMES[key]}"'.encode() in first for key in REQUIRED)


def read(source: Source) -> RawColumns:
    """All rows of the text. Raises TraceError for the first row that is not of the format."""
    first = _jsonl.first_row(source.head)
    names = names_in(first, source.reading.columns)
    dates = isinstance(first.get(names["arrival"]), str)
    zoned = dates and _csv.has_zone(first[names["arrival"]])
    plain = Plain(source, NAME, names, DATES if dates else "ms")
    if "blocks" in names:
        plain.blocks.texts = _jsonl.ids_are_texts(source.head, names["blocks"])
    fields, decoder = _layout(names, dates, plain.blocks.texts is not None)
    counts: Counter[str] = Counter()
    for found in _jsonl.rows(source, decoder, fields):
        counts += _jsonl.counted_keys(found)
        _add(plain, found, names, zoned if dates else None)
    raw = plain.columns()
    _jsonl.tell_unknown(raw.notices, source.label, counts, fields)
    raw.notices += unread_blocks(source.label, counts, names)
    return raw


def _layout(names: dict[str, str], dates: bool, texts: bool) -> tuple[Fields, msgspec.json.Decoder[Any]]:
    """What is expected of each key, and the decoder of a row."""
    types = TYPES | ({"arrival": str} if dates else {}) | ({"blocks": list[str]} if texts else {})
    expected = EXPECTED | {"arrival": _csv.DATE_WANTED if dates else "a number >= 0"}
    expected["blocks"] = "a list of texts, as in the first row" if texts else "a list of integers from 0 to 2**63 - 1"
    needed = [key for key in names if key in REQUIRED or key in ("blocks", "priority", "id")]
    fields = Fields(
        required={names[key]: expected[key] for key in needed},
        optional={name: expected[key] for key, name in names.items() if key not in needed},
        kinds={name: KINDS[key] for key, name in names.items() if key in KINDS}
        | ({names["arrival"]: _jsonl.TEXT} if dates else {}),
    )
    layout: list[Any] = [(key, types[key]) for key in needed]
    layout += [(key, types[key], None) for key in names if key not in needed]
    row = msgspec.defstruct("Row", layout, rename=names, gc=False)
    return fields, msgspec.json.Decoder(row)


def _add(plain: Plain, found: Rows, names: dict[str, str], zoned: bool | None) -> None:
    rows = found.items
    values = {key: [getattr(row, key) for row in rows] for key in names}
    plain.add(
        found.lines,
        _jsonl.numbers(found, names["arrival"], values["arrival"])
        if zoned is None
        else _dates(found, names["arrival"], values["arrival"], zoned),
        _jsonl.integers(found, names["input"], values["input"]),
        _jsonl.integers(found, names["output"], values["output"]),
        blocks=_jsonl.block_ids(found, names["blocks"], values["blocks"], plain.blocks.texts)
        if "blocks" in names
        else None,
        session=_jsonl.sessions(found, names["session"], values["session"]) if "session" in names else None,
        priority=_jsonl.integers(found, names["priority"], values["priority"]) if "priority" in names else None,
        ids=request_ids(values["id"], lambda row, text: found.error(row, names["id"], "an empty text"))
        if "id" in names
        else None,
        delay=_jsonl.floats(found, names["delay"], values["delay"]) if "delay" in names else None,
    )


def _dates(found: Rows, name: str, texts: list[str], zoned: bool) -> Any:
    import pyarrow as pa

    try:
        return _csv.dates_to_ns(pa.array(texts, pa.string()), zoned).to_numpy()
    except pa.ArrowInvalid:
        row = next(row for row, text in enumerate(texts) if _csv.date_ns(text, zoned) is None)
        zone = f"{_csv.DATE_WANTED}, with{'' if zoned else 'out'} a zone as in the first row"
        wrong_zone = _csv.is_date(texts[row]) and _csv.has_zone(texts[row]) != zoned
        raise found.error(row, name, _jsonl.shown(texts[row]), zone if wrong_zone else None) from None
