"""The setup of a run: one frozen dataclass whose fields are declared once.

Each field carries its dotted name (``slo_ttft_ms`` is ``slo.ttft_ms``), its help, its unit and its parser; flags,
TOML files, ``--set``, ``--dry-run`` and the manifest all read that declaration.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import SetupError, nearest
from mooncake_bench.sim.parsing import depths, duration, integer, number, one_of, parse_cluster, parse_view, rate, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

READING = ("block_tokens", "timestamp_unit", "columns", "failures")  # fields that say how a trace is read
LIVE = ("live_repeat", "live_device", "live_dtype", "live_layers", "live_cache")  # of no effect unless cost is live
OFF: tuple[str, ...] = ("pool_scope",)  # mechanisms, told of only where they are not at their default, which is off


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
    return _setting(default, dotted, one_of(*choices), help, choices=choices)


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that a run depends on besides its trace and its policy's code. Raises SetupError for a bad value."""

    cluster: str = _setting(
        "8P+8D", "cluster", text, "instances by role, such as 8P+8D, 4P@h800+8D@a100, 10P+0D or 16M"
    )
    model: str = _setting("llama-3-70b", "model", text, "model preset, a file.toml, or a config.json")
    node: str = _setting("a800", "node", text, "node preset of the groups that name none, or a file.toml")
    engine: str = _setting("mooncake-a800", "engine", text, "engine overhead preset, or a file.toml")
    cost: str = _choice(
        "analytic", "cost", ("analytic", "live"), "where durations come from: fitted formulas, or kernels that run here"
    )
    live_repeat: int = _setting(
        5,
        "live.repeat",
        integer,
        "timed rounds of each shape that live kernels run",
        unit="rounds",
        least=1,
        most=999,
    )
    live_device: str = _setting("auto", "live.device", text, "device of live kernels: auto, cpu, cuda or cuda:N")
    live_dtype: str = _choice(
        "auto", "live.dtype", ("auto", "float32", "bfloat16", "float16"), "type of live weights and KVCache"
    )
    live_layers: str | None = _setting(
        None, "live.layers", depths, "rising depths that live kernels run, such as 1,2,4", unset="1,2,4"
    )
    live_cache: str | None = _setting(
        None,
        "live.cache",
        text,
        "folder of live measurements",
        unset="mooncake-bench/live in the user's cache folder",
    )
    pool_blocks: int | None = _setting(
        None,
        "pool.blocks",
        integer,
        "KVCache pool of a prefill node",
        unit="blocks",
        least=1,
        unset="the node preset's tokens",
    )
    pool_scope: str = _choice(
        "global", "pool.scope", ("global", "local"), "whether a node may fetch KVCache from the pools of others"
    )
    touch_order: str = _choice(
        "tail-first", "pool.touch_order", ("tail-first", "head-first"), "order in which a request's blocks are touched"
    )
    vram_tokens: int | None = _setting(
        None,
        "vram.tokens",
        integer,
        "KV capacity of a decode node",
        unit="tokens",
        least=1,
        unset="the node preset's",
    )
    nic_gbytes_per_s: float | None = _setting(
        None,
        "nic.gbytes_per_s",
        rate,
        "network of a node, each way",
        unit="GB/s",
        above=0,
        unset="the node preset's",
    )
    slo_ttft_ms: float = _setting(30000.0, "slo.ttft_ms", duration, "time to first token SLO", unit="ms", least=1e-6)
    slo_tbt_ms: float = _setting(100.0, "slo.tbt_ms", duration, "time between tokens SLO", unit="ms", least=1e-6)
    tbt_metric: str = _choice(
        "tail10", "slo.tbt_metric", ("tail10", "max", "mean", "p99"), "which TBT of a request its SLO judges"
    )
    first_gap: str = _choice(
        "include", "slo.first_gap", ("include", "exclude"), "count the gap from first to second token in every TBT"
    )
    speedup: float = _setting(
        1.0,
        "speedup",
        number,
        "arrival rate over the trace's own (2: twice as fast)",
        unit="x",
        least=1e-9,
        most=1e9,
    )
    view: str = _setting("exact", "view", text, "what policies see: exact, delayed:<ms> or router-only")
    estimate_error: float = _setting(
        0.0,
        "estimate_error",
        number,
        "sigma of the seeded error on the costs that policies see",
        least=0,
        most=0.57,
    )
    policy: str = _setting("kvcache-centric", "policy", text, "policy SPEC")
    seed: int = _setting(0, "seed", integer, "seed of every random stream", least=0)
    block_tokens: int | None = _setting(
        None,
        "trace.block_tokens",
        integer,
        "block size of the trace",
        unit="tokens",
        least=1,
        unset="the trace's own",
    )
    timestamp_unit: str = _choice(
        "auto", "trace.timestamp_unit", ("auto", "s", "ms", "us", "ns"), "unit of the trace's timestamps"
    )
    columns: str | None = _setting(
        None,
        "trace.columns",
        text,
        "columns of a plain CSV, JSON lines or parquet trace, such as arrival=ts,input=prompt_len,output=gen_len",
        unset="arrival_ms,input_tokens,output_tokens",
    )
    failures: str = _choice(
        "exclude", "trace.failures", ("exclude", "error"), "requests that failed where the trace was taken (BurstGPT)"
    )
    max_requests: int | None = _setting(
        None,
        "trace.max_requests",
        integer,
        "replay only the first requests",
        unit="requests",
        least=1,
        unset="all",
    )
    start_ms: float | None = _setting(
        None,
        "trace.start_ms",
        duration,
        "leave out arrivals before this trace time",
        unit="ms",
        least=0,
        unset="the beginning",
    )
    end_ms: float | None = _setting(
        None,
        "trace.end_ms",
        duration,
        "leave out arrivals from this trace time on",
        unit="ms",
        above=0,
        unset="the end",
    )
    warmup_ms: float = _setting(
        0.0,
        "warmup_ms",
        duration,
        "leave requests that arrive before this out of the metrics",
        unit="ms",
        least=0,
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
        idle = [] if self.cost == "live" else [*LIVE]
        idle += [name for name in OFF if getattr(self, name) == Setup.__dataclass_fields__[name].default]
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
