"""The setup of a run: one frozen dataclass whose fields are declared once.

Each field carries its dotted name (``slo_ttft_ms`` is ``slo.ttft_ms``), its help, its unit and its parser; flags,
TOML files, ``--set``, ``--dry-run`` and the manifest all read that declaration.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.errors import SetupError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST_INSTANCES = 100_000
READING = ("block_tokens", "timestamp_unit", "columns", "failures")  # fields that say how a trace is read
LIVE = ("live_repeat", "live_device", "live_dtype", "live_layers", "live_cache")  # of no effect unless cost is live
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
    """The instances of a cluster such as ``8P+8D`` or ``4P@h800+8D@a100``, as (role ``P`` or ``D``, node preset).

    Groups without ``@NODE`` use ``node``. Raises SetupError for a malformed spec or a missing role.
    """
    instances: list[tuple[str, str]] = []
    for group in spec.strip().removeprefix("[").removesuffix("]").split("+"):
        match = re.fullmatch(r"(\d+)([PDM])(?:@(\S+))?", group.strip(), re.IGNORECASE)
        if not match:
            raise SetupError(f"cluster: expected groups such as 8P+8D or 4P@h800+8D@a100, got {group!r} in {spec!r}")
        if match[2].upper() == "M":
            raise SetupError(
                f"cluster: coupled instances ({group.strip()!r}) are not in this version; "
                "write a disaggregated cluster such as 8P+8D"
            )
        if int(match[1]) > MOST_INSTANCES:
            raise SetupError(f"cluster: {group.strip()!r} has more than {MOST_INSTANCES:,} instances")
        if int(match[1]) < 1:
            raise SetupError(f"cluster: {group.strip()!r} has no instances; every group needs at least 1")
        instances += [(match[2].upper(), match[3] or node)] * int(match[1])
    for role, word in (("P", "prefill"), ("D", "decode")):
        if all(has != role for has, _ in instances):
            raise SetupError(f"cluster: {spec!r} has no {word} instance; write both roles, such as 8P+8D")
    return instances


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


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SetupError(f"{what}: expected text, got {value!r}")
    return value


def _number(value: Any, what: str) -> float:
    if isinstance(value, str):
        parts = _split(value)
        if parts and not parts[1]:
            return parts[0]
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise SetupError(f"{what}: expected a number, got {value!r}")


def _integer(value: Any, what: str) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+\s*", value):
        return int(value)  # not through float: seeds above 2^53 stay themselves
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = _number(value, what)
    if number != int(number):
        raise SetupError(f"{what}: expected a whole number, got {value!r}")
    return int(number)


def _duration(value: Any, what: str) -> float:
    return parse_duration_ms(value, what) if isinstance(value, str) else _number(value, what)


def _rate(value: Any, what: str) -> float:
    return parse_gbytes_per_s(value, what) if isinstance(value, str) else _number(value, what)


def _depths(value: Any, what: str) -> str:
    """Three or more rising numbers of layers, as text."""
    words = value.replace(" ", "").split(",") if isinstance(value, str) else []
    numbers = [int(word) for word in words if word.isdecimal()]
    if len(numbers) < max(3, len(words)) or numbers[0] < 1 or sorted(set(numbers)) != numbers:
        raise SetupError(f"{what}: expected three or more rising numbers of layers such as 1,2,4, got {value!r}")
    return ",".join(map(str, numbers))


def _one_of(*choices: str) -> Callable[[Any, str], str]:
    def parse(value: Any, what: str) -> str:
        if value not in choices:
            raise SetupError(
                f"{what}: expected one of {', '.join(choices)}, got {value!r}" + nearest(str(value), choices)
            )
        return str(value)

    return parse


@dataclass(frozen=True, slots=True)
class Setting:
    """How one field of :class:`Setup` is named, read and explained."""

    dotted: str
    parse: Callable[[Any, str], Any]
    help: str
    unit: str = ""
    least: float | None = None  # smallest allowed value
    above: float | None = None  # the value must exceed this
    most: float | None = None  # largest allowed value
    unset: str = ""  # what None means
    choices: tuple[str, ...] = ()  # the only values, where there are few


def _setting(default: Any, dotted: str, parse: Callable[[Any, str], Any], help: str, **more: Any) -> Any:  # noqa: A002
    return field(default=default, metadata={"setting": Setting(dotted, parse, help, **more)})


def _choice(default: str, dotted: str, choices: tuple[str, ...], help: str) -> Any:  # noqa: A002
    return _setting(default, dotted, _one_of(*choices), help, choices=choices)


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that a run depends on besides its trace and its policy's code. Raises SetupError for a bad value."""

    cluster: str = _setting("8P+8D", "cluster", _text, "instances by role, such as 8P+8D or 4P@h800+8D@a100")
    model: str = _setting("llama-3-70b", "model", _text, "model preset, a file.toml, or a config.json")
    node: str = _setting("a800", "node", _text, "node preset of the groups that name none, or a file.toml")
    engine: str = _setting("mooncake-a800", "engine", _text, "engine overhead preset, or a file.toml")
    cost: str = _choice(
        "analytic", "cost", ("analytic", "live"), "where durations come from: fitted formulas, or kernels that run here"
    )
    live_repeat: int = _setting(
        5, "live.repeat", _integer, "timed rounds of each shape that live kernels run", unit="rounds", least=1, most=999
    )
    live_device: str = _setting("auto", "live.device", _text, "device of live kernels: auto, cpu, cuda or cuda:N")
    live_dtype: str = _choice(
        "auto", "live.dtype", ("auto", "float32", "bfloat16", "float16"), "type of live weights and KVCache"
    )
    live_layers: str | None = _setting(
        None, "live.layers", _depths, "rising depths that live kernels run, such as 1,2,4", unset="1,2,4"
    )
    live_cache: str | None = _setting(
        None, "live.cache", _text, "folder of live measurements", unset="mooncake-bench/live in the user's cache folder"
    )
    pool_blocks: int | None = _setting(
        None,
        "pool.blocks",
        _integer,
        "KVCache pool of a prefill node",
        unit="blocks",
        least=1,
        unset="the node preset's tokens",
    )
    touch_order: str = _choice(
        "tail-first", "pool.touch_order", ("tail-first", "head-first"), "order in which a request's blocks are touched"
    )
    vram_tokens: int | None = _setting(
        None, "vram.tokens", _integer, "KV capacity of a decode node", unit="tokens", least=1, unset="the node preset's"
    )
    nic_gbytes_per_s: float | None = _setting(
        None, "nic.gbytes_per_s", _rate, "network of a node, each way", unit="GB/s", above=0, unset="the node preset's"
    )
    slo_ttft_ms: float = _setting(30000.0, "slo.ttft_ms", _duration, "time to first token SLO", unit="ms", least=1e-6)
    slo_tbt_ms: float = _setting(100.0, "slo.tbt_ms", _duration, "time between tokens SLO", unit="ms", least=1e-6)
    tbt_metric: str = _choice(
        "tail10", "slo.tbt_metric", ("tail10", "max", "mean", "p99"), "which TBT of a request its SLO judges"
    )
    first_gap: str = _choice(
        "include", "slo.first_gap", ("include", "exclude"), "count the gap from first to second token in every TBT"
    )
    speedup: float = _setting(
        1.0, "speedup", _number, "arrival rate over the trace's own (2: twice as fast)", unit="x", least=1e-9, most=1e9
    )
    view: str = _setting("exact", "view", _text, "what policies see: exact, delayed:<ms> or router-only")
    estimate_error: float = _setting(
        0.0, "estimate_error", _number, "sigma of the seeded error on the costs that policies see", least=0, most=0.57
    )
    policy: str = _setting("kvcache-centric", "policy", _text, "policy SPEC")
    seed: int = _setting(0, "seed", _integer, "seed of every random stream", least=0)
    block_tokens: int | None = _setting(
        None, "trace.block_tokens", _integer, "block size of the trace", unit="tokens", least=1, unset="the trace's own"
    )
    timestamp_unit: str = _choice(
        "auto", "trace.timestamp_unit", ("auto", "s", "ms", "us", "ns"), "unit of the trace's timestamps"
    )
    columns: str | None = _setting(
        None,
        "trace.columns",
        _text,
        "columns of a plain CSV, JSON lines or parquet trace, such as arrival=ts,input=prompt_len,output=gen_len",
        unset="arrival_ms,input_tokens,output_tokens",
    )
    failures: str = _choice(
        "exclude", "trace.failures", ("exclude", "error"), "requests that failed where the trace was taken (BurstGPT)"
    )
    max_requests: int | None = _setting(
        None, "trace.max_requests", _integer, "replay only the first requests", unit="requests", least=1, unset="all"
    )
    start_ms: float | None = _setting(
        None,
        "trace.start_ms",
        _duration,
        "leave out arrivals before this trace time",
        unit="ms",
        least=0,
        unset="the beginning",
    )
    end_ms: float | None = _setting(
        None,
        "trace.end_ms",
        _duration,
        "leave out arrivals from this trace time on",
        unit="ms",
        above=0,
        unset="the end",
    )
    warmup_ms: float = _setting(
        0.0, "warmup_ms", _duration, "leave requests that arrive before this out of the metrics", unit="ms", least=0
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None or item.default is not None:
                object.__setattr__(self, item.name, _checked(item.metadata["setting"], value))
        parse_view(self.view)
        parse_cluster(self.cluster, self.node)
        if self.start_ms is not None and self.end_ms is not None and self.start_ms >= self.end_ms:
            raise SetupError(f"trace.end_ms: {self.end_ms:g} must be above trace.start_ms {self.start_ms:g}")

    @property
    def instances(self) -> list[tuple[str, str]]:
        """(role ``P`` or ``D``, node preset) of every instance, by id."""
        return parse_cluster(self.cluster, self.node)

    @property
    def live_depths(self) -> tuple[int, ...] | None:
        """Layers that live kernels run; None: their own choice."""
        return tuple(map(int, self.live_layers.split(","))) if self.live_layers else None

    @property
    def reading(self) -> dict[str, Any]:
        """How the trace is read, as ``load`` wants to know it."""
        return {name: getattr(self, name) for name in READING}

    def to_dict(self) -> dict[str, Any]:
        """Every setting that has an effect by its dotted name, defaults and None included."""
        idle = () if self.cost == "live" else LIVE
        return {setting.dotted: getattr(self, name) for name, setting in settings().items() if name not in idle}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "setup") -> Setup:
        """A setup from dotted names (flat, or nested as TOML reads them); what is left out keeps its default.

        Raises SetupError for an unknown key (with the nearest known one) or a bad value.
        """
        return cls(**fields_from(values, where))

    def to_toml(self) -> str:
        """The setup as TOML, every setting on its own line; an unset one is a comment that says what it means."""
        return toml_lines(self.to_dict())


def settings() -> dict[str, Setting]:
    """Field name to declaration, in order."""
    return {item.name: item.metadata["setting"] for item in fields(Setup)}


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one level of dotted names."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat.update(flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
    return flat


def fields_from(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Field name to value for dotted names, flat or nested. Raises SetupError naming ``where`` and an unknown key."""
    names = {setting.dotted: name for name, setting in settings().items()}
    found = {}
    for dotted, value in flatten(values).items():
        if dotted not in names:
            raise SetupError(
                f"{where}: no setting {dotted!r}" + (nearest(dotted, names) or f"; known: {', '.join(names)}")
            )
        found[names[dotted]] = value
    return found


def toml_lines(values: Mapping[str, Any]) -> str:
    """Dotted names and values as TOML, one a line; None becomes a comment that says what it means."""
    unset = {setting.dotted: setting.unset for setting in settings().values()}
    return "".join(
        f"# {key}: not set ({unset.get(key, 'none')})\n" if value is None else f"{key} = {_toml(value)}\n"
        for key, value in values.items()
    )


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | list | bool) else repr(value)


def _checked(setting: Setting, value: Any) -> Any:
    parsed = setting.parse(value, setting.dotted)
    if setting.least is not None and parsed < setting.least:
        raise SetupError(f"{setting.dotted}: must be at least {setting.least:g}, got {value!r}")
    if setting.most is not None and parsed > setting.most:
        raise SetupError(f"{setting.dotted}: must be at most {setting.most:g}, got {value!r}")
    if setting.above is not None and parsed <= setting.above:
        raise SetupError(f"{setting.dotted}: must be above {setting.above:g}, got {value!r}")
    return parsed
