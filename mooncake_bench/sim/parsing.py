"""What a person writes in a setup, read: durations, sizes, rates, clusters, SLOs, and plain values."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.errors import SetupError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_INSTANCES = 100_000
LONGEST_DELAY_MS = 1e9  # about 11 days

_NUMBER = r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_UNIT_PER_MS = {"ns": 1e6, "us": 1e3, "µs": 1e3, "ms": 1.0, "": 1.0}  # divide
_MS_PER_UNIT = {"s": 1e3, "min": 60e3, "h": 3600e3}  # multiply
_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BYTES = {f"{p}B": n for p, n in _DECIMAL.items()} | {f"{p}iB": 1024**i for i, p in enumerate("KMGT", start=1)}
_BYTES["KB"] = 1000
_TOKENS = {f"{p}{word}": n for p, n in _DECIMAL.items() for word in ("tok", "tokens")} | {"Ktok": 1000}
_BLOCKS = {f"{p}{word}": n for p, n in _DECIMAL.items() for word in ("blocks", "block")}
_RATES = {"": 1.0, "GB/s": 1.0, "MB/s": 1e-3, "Gbps": 1 / 8, "Gbit/s": 1 / 8}  # GB/s in one unit


class Size(NamedTuple):
    """An amount of KVCache as it was written."""

    amount: float
    unit: str  # "blocks", "tokens" or "bytes"


def _split(text: str) -> tuple[float, str] | None:
    match = re.fullmatch(_NUMBER + r"\s*([A-Za-zµ/]*)", text.strip())
    return (float(match[1]), match[2]) if match and math.isfinite(float(match[1])) else None


def parse_duration_ms(text: str, what: str = "duration") -> float:
    """A duration such as ``30s``, ``100ms``, ``250us`` or ``12`` (bare: ms), in ms.

    Raises SetupError when it is not one.
    """
    parts = _split(text)
    if parts and parts[1] in _UNIT_PER_MS:
        return parts[0] / _UNIT_PER_MS[parts[1]]
    if parts and parts[1] in _MS_PER_UNIT:
        return parts[0] * _MS_PER_UNIT[parts[1]]
    raise SetupError(
        f"{what}: expected a duration such as 30s, 100ms, 250us or 2min (a bare number is ms), got {text!r}"
    )


def parse_size(text: str, bare: str, what: str = "size") -> Size:
    """A size such as ``5859blocks``, ``3Mtok``, ``1TB`` or ``64GiB``; a bare number is in the unit ``bare``.

    Raises SetupError when it is not one.
    """
    parts = _split(text)
    if parts and parts[1] == "":
        return Size(parts[0], bare)
    for unit, table in (("bytes", _BYTES), ("tokens", _TOKENS), ("blocks", _BLOCKS)):
        if parts and parts[1] in table:
            return Size(parts[0] * table[parts[1]], unit)
    raise SetupError(
        f"{what}: expected a size such as 5859blocks, 3Mtok, 1TB or 64GiB (a bare number is {bare}), got {text!r}"
    )


def parse_gbytes_per_s(text: str, what: str = "rate") -> float:
    """A transfer rate such as ``87``, ``87GB/s`` or ``800Gbps``, in GB/s (10^9 bytes).

    Raises SetupError when it is not one.
    """
    parts = _split(text)
    if parts and parts[1] in _RATES:
        return parts[0] * _RATES[parts[1]]
    raise SetupError(f"{what}: expected a rate such as 87, 87GB/s or 800Gbps (a bare number is GB/s), got {text!r}")


def parse_view(text: str) -> tuple[str, float]:
    """What policies see, as (kind, delay in ms): ``exact``, ``delayed:<ms>`` or ``router-only``.

    Raises SetupError for anything else.
    """
    kind, colon, delay = text.partition(":")
    if kind in ("exact", "router-only") and not colon:
        return kind, 0.0
    if kind == "delayed" and delay:
        delay_ms = parse_duration_ms(delay, "view delayed:<ms>")
        if 0 < delay_ms <= LONGEST_DELAY_MS:
            return kind, delay_ms
    raise SetupError(
        f"view: expected exact, delayed:<ms> (above 0 to 11 days, such as delayed:50ms) or router-only, got {text!r}"
        + ("" if kind in ("exact", "delayed", "router-only") else nearest(kind, ("exact", "router-only")))
    )


def parse_cluster(spec: str, node: str = "a800") -> list[tuple[str, str]]:
    """The instances of a cluster such as ``8P+8D``, ``4P@h800+8D@a100``, ``10P+0D`` or ``16M``: (role, node preset).

    Roles: ``P`` prefills, ``D`` decodes, ``M`` does both (coupled). Groups without ``@NODE`` use ``node``. ``0D`` says
    that nothing decodes: requests end at their first token. Raises SetupError for a malformed spec, a missing role,
    or coupled instances beside others.
    """
    instances: list[tuple[str, str]] = []
    given: set[str] = set()
    for group in spec.strip().removeprefix("[").removesuffix("]").split("+"):
        match = re.fullmatch(r"(\d+)([PDM])(?:@(\S+))?", group.strip(), re.IGNORECASE)
        if not match:
            raise SetupError(
                f"cluster: expected groups such as 8P+8D, 4P@h800+8D@a100 or 16M, got {group!r} in {spec!r}"
            )
        role = match[2].upper()
        given.add(role)
        if int(match[1]) > MOST_INSTANCES:
            raise SetupError(f"cluster: {group.strip()!r} has more than {MOST_INSTANCES:,} instances")
        if int(match[1]) < 1 and role != "D":
            raise SetupError(f"cluster: {group.strip()!r} has no instances; every group but 0D needs at least 1")
        if int(match[1]) < 1 and match[3]:
            raise SetupError(f"cluster: {group.strip()!r} names a node, and has no instance of it; write 0D")
        instances += [(role, match[3] or node)] * int(match[1])
    if "M" in given and len(given) > 1:
        raise SetupError(
            f"cluster: {spec!r} mixes coupled instances with others; write 16M alone, or P and D such as 8P+8D"
        )
    for role, word in () if "M" in given else (("P", "prefill"), ("D", "decode")):
        if role not in given:
            raise SetupError(
                f"cluster: {spec!r} has no {word} instance; write both roles, such as 8P+8D, or "
                "8P+0D where nothing decodes"
            )
    return instances


def grouped(nodes: list[tuple[str, str]], size: int, spec: str) -> list[tuple[str, str]]:
    """The instances where ``size`` prefill nodes are one: (role, node preset) of each.

    Raises SetupError for coupled nodes, for a number of prefill nodes that leaves one over, and for a group of unlike
    nodes.
    """
    if size == 1:
        return nodes
    prefill = [node for role, node in nodes if role == "P"]
    if not prefill:
        raise SetupError(f"prefill.group: no effect on cluster {spec}: coupled instances prefill alone; drop it")
    if len(prefill) % size:
        raise SetupError(
            f"prefill.group: {len(prefill)} prefill nodes of {spec!r} do not make whole groups of {size}; give a "
            f"multiple of {size}, such as {size * -(-len(prefill) // size)}P, or another group"
        )
    groups = [prefill[first : first + size] for first in range(0, len(prefill), size)]
    for number, group in enumerate(groups):
        if len(set(group)) > 1:
            raise SetupError(
                f"prefill.group: group {number} of {spec!r} would mix nodes {' and '.join(dict.fromkeys(group))}; a "
                f"pipeline needs like nodes: give each kind a multiple of {size}"
            )
    return [("P", group[0]) for group in groups] + [node for node in nodes if node[0] != "P"]


def parse_slo(text: str) -> dict[str, float]:
    """SLOs such as ``ttft:30s,tbt:100ms`` as setup fields in ms: ``{"slo_ttft_ms": 30000.0, "slo_tbt_ms": 100.0}``.

    Raises SetupError for another metric, a missing value, a relative form or one given twice.
    """
    found: dict[str, float] = {}
    for part in text.replace(",", " ").split():
        metric, colon, value = part.partition(":")
        if metric not in ("ttft", "tbt"):
            raise SetupError(_no_such_slo(metric, text))
        if not colon or not value:
            raise SetupError(f"slo: {part!r} in {text!r} lacks its value; write ttft:30s,tbt:100ms")
        if f"slo_{metric}_ms" in found:
            raise SetupError(f"slo: {metric} is given twice in {text!r}; keep one")
        if re.fullmatch(_NUMBER + "x", value) or "tok" in value:
            raise SetupError(
                f"slo: relative and per-token forms ({part!r}) are not in this version; "
                f"give a duration such as {metric}:30s"
            )
        found[f"slo_{metric}_ms"] = parse_duration_ms(value, f"slo {metric}")
    if not found:
        raise SetupError("slo: nothing given; write ttft:30s,tbt:100ms")
    return found


def _no_such_slo(metric: str, text: str) -> str:
    if metric in ("tpot", "itl", "e2e", "e2el"):
        return f"slo: an SLO on {metric} is not in this version; ttft and tbt are (--tbt-metric chooses what tbt means)"
    return f"slo: no metric {metric!r} in {text!r}; known: ttft, tbt, as in ttft:30s,tbt:100ms" + nearest(
        metric, ("ttft", "tbt")
    )


# ---- parsers of field values: text (a flag, --set) or a native value (TOML, Python) to the field's type


def text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SetupError(f"{what}: expected text, got {value!r}")
    return value


def number(value: Any, what: str) -> float:
    if isinstance(value, str):
        parts = _split(value)
        if parts and not parts[1]:
            return parts[0]
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise SetupError(f"{what}: expected a number, got {value!r}")


def integer(value: Any, what: str) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+\s*", value):
        return int(value)  # not through float: seeds above 2^53 stay themselves
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = number(value, what)
    if found != int(found):
        raise SetupError(f"{what}: expected a whole number, got {value!r}")
    return int(found)


def duration(value: Any, what: str) -> float:
    return parse_duration_ms(value, what) if isinstance(value, str) else number(value, what)


def rate(value: Any, what: str) -> float:
    return parse_gbytes_per_s(value, what) if isinstance(value, str) else number(value, what)


def depths(value: Any, what: str) -> str:
    """Three or more rising numbers of layers, as text."""
    words = value.replace(" ", "").split(",") if isinstance(value, str) else []
    numbers = [int(word) for word in words if word.isdecimal()]
    if len(numbers) < max(3, len(words)) or numbers[0] < 1 or sorted(set(numbers)) != numbers:
        raise SetupError(f"{what}: expected three or more rising numbers of layers such as 1,2,4, got {value!r}")
    return ",".join(map(str, numbers))


def one_of(*choices: str) -> Callable[[Any, str], str]:
    def parse(value: Any, what: str) -> str:
        if value not in choices:
            raise SetupError(
                f"{what}: expected one of {', '.join(choices)}, got {value!r}" + nearest(str(value), choices)
            )
        return str(value)

    return parse
