"""Cache sizes on the command line: ``1000,5859,3Mtok,1TB,inf`` as blocks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mooncake_bench.errors import SetupError, nearest
from mooncake_bench.results.cache_analysis import Capacity
from mooncake_bench.sim.parsing import Size, parse_size
from mooncake_bench.sim.setup import Setup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mooncake_bench.cache import Assignment, TouchOrder

INFINITE = "inf"
DEFAULT = ("1Mtok", "3Mtok", "5Mtok", "10Mtok", "50Mtok", INFINITE)  # of FAST'25, figure 9
FLAG = "--capacity"
MOST_BLOCKS = 2**40
TOUCH_ORDERS: dict[str, TouchOrder] = {
    "forward": "forward",
    "reverse": "reverse",
    "head-first": "forward",
    "tail-first": "reverse",
}


def read_sizes(given: Iterable[str]) -> dict[str, Size | None]:
    """Comma-separated sizes by their text; None: infinite. Raises SetupError for one that is none, or not above 0."""
    found: dict[str, Size | None] = {}
    for text in (text.strip() for part in given for text in part.split(",")):
        size = None if text == INFINITE else parse_size(text, "blocks", FLAG)
        if size is not None and size.amount <= 0:
            raise SetupError(f"{FLAG} {text}: must be above 0; {INFINITE} is a cache without limit")
        if size is not None and size.unit == "blocks" and size.amount != int(size.amount):
            raise SetupError(f"{FLAG} {text}: expected whole blocks")
        found[text] = size
    return found


def refuse_idle_model(sizes: Mapping[str, Size | None], model: str | None) -> None:
    """Raises SetupError for a model that no size needs."""
    if model is not None and not any(size is not None and size.unit == "bytes" for size in sizes.values()):
        raise SetupError(f"--model: no effect, no size of {FLAG} is in bytes; drop it")


def in_blocks(
    sizes: Mapping[str, Size | None], block_tokens: int, model: str | None = None
) -> tuple[list[Capacity], list[str]]:
    """Capacities in ascending order, and notices: what was given twice in other words is kept once.

    Tokens and bytes are rounded down to whole blocks; ``model`` (default: the setup's) says how many bytes a token
    takes. Raises SetupError for less than one block.
    """
    named = model or Setup().model
    kept: dict[int | None, Capacity] = {}
    notices = []
    for text, size in sizes.items():
        capacity = Capacity(text, None if size is None else _blocks(text, size, block_tokens, named))
        if capacity.blocks in kept:
            notices.append(f"{FLAG}: {capacity.text} is as many blocks as {kept[capacity.blocks].text}: shown once")
        kept.setdefault(capacity.blocks, capacity)
    return sorted(kept.values(), key=lambda each: (each.blocks is None, each.blocks)), notices


def _blocks(text: str, size: Size, block_tokens: int, model: str) -> int:
    blocks = size.amount if size.unit == "blocks" else _tokens(size, model) // block_tokens
    if blocks < 1:
        raise SetupError(f"{FLAG} {text}: holds less than one block of {block_tokens} tokens; give more")
    if blocks > MOST_BLOCKS:
        raise SetupError(f"{FLAG} {text}: more than {MOST_BLOCKS:,} blocks; {INFINITE} is a cache without limit")
    return int(blocks)


def _tokens(size: Size, model: str) -> float:
    if size.unit == "tokens":
        return size.amount
    from mooncake_bench.hardware.presets import load_model

    return size.amount / load_model(model).kv_bytes_per_token


def read_local(text: str | None) -> tuple[int, Assignment]:
    """``--local 16:hashed`` as (pools, assignment); one pool where it is not given. Raises SetupError."""
    from mooncake_bench.cache import ASSIGNMENTS

    if text is None:
        return 1, ASSIGNMENTS[0]
    match = re.fullmatch(r"\s*(\d{1,6})\s*(?::\s*([a-z-]+)\s*)?", text)
    how = next((each for each in ASSIGNMENTS if match and each == (match[2] or ASSIGNMENTS[0])), None)
    if match is None or how is None or int(match[1]) < 1:
        known = "|".join(ASSIGNMENTS)
        raise SetupError(f"--local {text!r}: expected N or N:{known} with N of at least 1, such as 16:hashed")
    return int(match[1]), how


def read_touch_order(text: str | None) -> TouchOrder:
    """``--touch-order``, which may also be written as for replay. Raises SetupError."""
    if text is not None and text not in TOUCH_ORDERS:
        raise SetupError(f"--touch-order: expected forward or reverse, got {text!r}{nearest(text, TOUCH_ORDERS)}")
    return TOUCH_ORDERS[text or "forward"]


def read_warm(text: str | None, requests: int) -> int:
    """``--warm-requests`` as a number of requests of a trace of so many. Raises SetupError where none would be left."""
    if text is None:
        return 0
    if text != "half" and not re.fullmatch(r"\d{1,18}", text):
        raise SetupError(f"--warm-requests {text!r}: expected a number of requests, or half")
    warm = requests // 2 if text == "half" else int(text)
    if warm >= requests:
        raise SetupError(
            f"--warm-requests {text}: leaves none of the trace's {requests:,} requests to count; give less"
        )
    return warm
