"""The setup of a run: one frozen dataclass whose fields are declared once.

Each field carries its dotted name (``slo_ttft_ms`` is ``slo.ttft_ms``), its help, its unit and its parser; flags,
TOML files, ``--set``, ``--dry-run`` and the manifest all read that declaration.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import SetupError, nearest
from mooncake_bench.sim.events import check_events, event_list, parse_events
from mooncake_bench.sim.parsing import (
    depths,
    duration,
    grouped,
    integer,
    number,
    one_of,
    parse_cluster,
    parse_view,
    rate,
    text,
)
from mooncake_bench.sim.slos import class_list, parse_classes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

READING = ("block_tokens", "timestamp_unit", "columns", "failures")  # fields that say how a trace is read
LIVE = ("live_repeat", "live_device", "live_dtype", "live_layers", "live_cache")  # of no effect unless cost is live
COUPLED = ("schedule", "step_tokens", "sequences", "prefix_cache")  # of no effect without coupled instances
DECODING = ("decode_load_gbytes_per_s", "decode_preemption")
STAGES = ("prefill_group", "prefill_chunk", "prefill_layers", "dram_gbytes_per_s", *DECODING)
SSD_RATES = ("ssd_read_gbytes_per_s", "ssd_write_gbytes_per_s")  # of no effect without ssd.blocks
UNCOUPLED = (
    "pool_blocks", "pool_scope", "nic_gbytes_per_s", "nic_core_gbytes_per_s", "ssd_blocks", *SSD_RATES
)  # fmt: skip  # of no effect on them
SCHEDULES = ("prefill-first", "chunked", "one-at-a-time")
# mechanisms, told of only where they are not at their default, which is off
RETRIES = ("client_backoff_ms", "client_backoff_factor", "client_jitter")  # of no effect without client.retries
OFF: tuple[str, ...] = (
    "pool_scope", "events", "faults_requests", *STAGES, "slo_classes", "client_retries", *RETRIES, "client_loop",
    "client_think_speedup", "client_patience_ms", "ssd_blocks", "nic_core_gbytes_per_s", "warm_from",
)  # fmt: skip


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
    ssd_blocks: int | None = _setting(
        None,
        "ssd.blocks",
        integer,
        "SSD below the pool of a prefill node",
        unit="blocks",
        least=1,
        unset="none",
    )
    ssd_read_gbytes_per_s: float = _setting(
        27.0, "ssd.read_gbytes_per_s", rate, "how fast a node's SSD is read (assumed)", unit="GB/s", least=0.001
    )
    ssd_write_gbytes_per_s: float = _setting(
        13.5, "ssd.write_gbytes_per_s", rate, "how fast a node's SSD is written (assumed)", unit="GB/s", least=0.001
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
    prefill_group: int = _setting(
        1, "prefill.group", integer, "prefill nodes that are one instance, a pipeline of stages", unit="nodes", least=1
    )
    prefill_chunk: int | None = _setting(
        None,
        "prefill.chunk_tokens",
        integer,
        "most tokens that a prefill computes at once",
        unit="tokens",
        least=1,
        unset="the whole prompt",
    )
    prefill_layers: str = _choice(
        "fitted",
        "prefill.layers",
        ("fitted", "overlapped", "serialised"),
        "how a prefill loads and stores KVCache",
    )
    dram_gbytes_per_s: float | None = _setting(
        None,
        "dram.gbytes_per_s",
        rate,
        "between the DRAM and the GPUs of a prefill node, each way",
        unit="GB/s",
        above=0,
        unset="the link preset of the node, else 102",
    )
    decode_load_gbytes_per_s: float | None = _setting(
        None,
        "decode.load_gbytes_per_s",
        rate,
        "from the DRAM to the GPUs of a decode node",
        unit="GB/s",
        above=0,
        unset="loading takes no time",
    )
    nic_core_gbytes_per_s: float | None = _setting(
        None,
        "nic.core_gbytes_per_s",
        rate,
        "core of the network, shared by all that is sent between instances",
        unit="GB/s",
        least=0.001,
        unset="as wide as all NICs",
    )
    decode_preemption: str = _choice(
        "swap", "decode.preemption", ("swap", "recompute"), "where preempted KVCache goes: to DRAM, or nowhere"
    )
    slo_ttft_ms: float = _setting(30000.0, "slo.ttft_ms", duration, "time to first token SLO", unit="ms", least=1e-6)
    slo_tbt_ms: float = _setting(100.0, "slo.tbt_ms", duration, "time between tokens SLO", unit="ms", least=1e-6)
    slo_classes: str | None = _setting(
        None,
        "slo.classes",
        class_list,
        "SLOs of requests of a priority: PRIORITY=ttft:..,tbt:..; what a class leaves out is as for all",
        unset="the same for all",
    )
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
    schedule: str = _choice(
        "prefill-first", "coupled.schedule", SCHEDULES, "what the steps of a coupled instance (M) hold"
    )
    step_tokens: int | None = _setting(
        None,
        "coupled.step_tokens",
        integer,
        "new tokens that a step of a coupled instance computes at most",
        unit="tokens",
        least=1,
        unset="131072; chunked: 512",
    )
    sequences: int | None = _setting(
        None,
        "coupled.sequences",
        integer,
        "requests that a coupled instance prefills and decodes at once",
        unit="requests",
        least=1,
        unset="256",
    )
    prefix_cache: str = _choice(
        "on", "coupled.prefix_cache", ("on", "off"), "whether a coupled instance keeps prompts in the VRAM left over"
    )
    events: str | None = _setting(
        None,
        "events",
        event_list,
        "what happens to instances: TIME:fail|recover|switch:prefill|decode|coupled:N",
        unset="nothing",
    )
    faults_requests: str = _choice(
        "retry", "faults.requests", ("retry", "fail"), "what becomes of requests on an instance that fails"
    )
    client_retries: int = _setting(
        0, "client.retries", integer, "how often a client asks again after a rejection", least=0, most=1000
    )
    client_backoff_ms: float = _setting(
        1000.0, "client.backoff_ms", duration, "what a client waits before it asks again", unit="ms", least=1e-6
    )
    client_backoff_factor: float = _setting(
        2.0, "client.backoff_factor", number, "by how much that grows each time", least=1
    )
    client_jitter: float = _setting(
        0.0, "client.jitter", number, "seeded uniform error on that, as a share of it", least=0, most=1
    )
    client_loop: str = _choice(
        "open", "client.loop", ("open", "closed"), "when a session's next turn arrives: by its timestamp, or its delay"
    )
    client_think_speedup: float = _setting(
        1.0, "client.think_speedup", number, "how much faster sessions think in a closed loop", unit="x", least=1e-9
    )
    client_patience_ms: float | None = _setting(
        None,
        "client.patience_ms",
        duration,
        "how long a client waits for its first token before it gives up",
        unit="ms",
        least=1e-6,
        unset="as long as it takes",
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
    warm_from: str | None = _setting(
        None,
        "warm_from",
        text,
        "start with the caches that a replay of this trace leaves, or those that this run left",
        unset="empty caches",
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
        roles = [role for role, _ in self.instances]
        self._check_events(roles)
        self._check_clients()
        self._check_coupled(coupled="M" in roles)
        self._check_prefill(roles)
        self._check_tiers(roles)
        if self.start_ms is not None and self.end_ms is not None and self.start_ms >= self.end_ms:
            raise SetupError(f"trace.end_ms: {self.end_ms:g} must be above trace.start_ms {self.start_ms:g}")

    def _check_clients(self) -> None:
        idle = next((name for name in RETRIES if getattr(self, name) != _default(name)), None)
        if idle is not None and not self.client_retries:
            raise SetupError(f"{settings()[idle].dotted}: no effect without client.retries; give that, or drop this")
        if self.client_think_speedup != 1 and self.client_loop != "closed":
            raise SetupError("client.think_speedup: no effect without client.loop = closed; give that, or drop this")

    def _check_events(self, roles: list[str]) -> None:
        events = parse_events(self.events)
        check_events(events, roles)
        if self.faults_requests != "retry" and not any(event.action == "fail" for event in events):
            raise SetupError("faults.requests: no effect without a fail event; add --event, or drop this")

    def _check_tiers(self, roles: list[str]) -> None:
        idle = next((name for name in SSD_RATES if getattr(self, name) != _default(name)), None)
        if idle is not None and self.ssd_blocks is None:
            raise SetupError(f"{settings()[idle].dotted}: no effect without ssd.blocks; give that, or drop this")
        sends = "D" in roles or (roles.count("P") > 1 and self.pool_scope == "global")
        if self.nic_core_gbytes_per_s is not None and not sends:
            how = "nothing is sent between its instances; drop it"
            raise SetupError(f"nic.core_gbytes_per_s: no effect on cluster {self.cluster}: {how}")
        if self.warm_from is not None and "M" in roles and self.prefix_cache == "off":
            raise SetupError("warm_from: no effect where coupled.prefix_cache is off; drop it")

    def _check_prefill(self, roles: list[str]) -> None:
        given = [name for name in STAGES if getattr(self, name) != _default(name)]
        if given and "M" in roles:
            how = "its instances prefill and decode in steps of their own, see coupled.schedule; drop it"
            raise SetupError(f"{settings()[given[0]].dotted}: no effect on cluster {self.cluster}: {how}")
        if given and given[-1] in DECODING and "D" not in roles:
            dotted = settings()[given[-1]].dotted
            raise SetupError(f"{dotted}: no effect on cluster {self.cluster}: nothing decodes; drop it")
        if self.dram_gbytes_per_s is not None and self.prefill_layers == "fitted":
            raise SetupError(
                "dram.gbytes_per_s: no effect where prefill.layers is fitted, whose times hold the load as measured; "
                "set that to overlapped or serialised, or drop this"
            )
        if self.prefill_group == 1:
            return
        if self.prefill_layers != "fitted":
            raise SetupError(
                f"prefill.layers: {self.prefill_layers} is known for single nodes only; drop it, or prefill.group"
            )
        if any(event.action == "switch" for event in parse_events(self.events)):
            raise SetupError(
                f"events: a switch changes the role of one node, and a prefill instance here is "
                f"{self.prefill_group} of them; drop it, or prefill.group"
            )

    def _check_coupled(self, *, coupled: bool) -> None:
        given = [name for name in (*COUPLED, *UNCOUPLED) if getattr(self, name) != _default(name)]
        idle = next((name for name in given if coupled != (name in COUPLED)), None)
        if idle is not None:
            raise SetupError(f"{settings()[idle].dotted}: no effect on cluster {self.cluster}: {_IDLE_ON[coupled]}")
        if self.schedule == "one-at-a-time" and (self.step_tokens or self.sequences):
            name = "step_tokens" if self.step_tokens else "sequences"
            raise SetupError(f"coupled.{name}: no effect where requests run one at a time; drop it")
        if coupled and self.schedule == "chunked" and self.step_limits[0] < self.step_limits[1]:
            raise SetupError(
                f"coupled.step_tokens: a chunked step of {self.step_limits[0]} tokens cannot decode "
                f"{self.step_limits[1]} requests; give as many tokens, or a lower coupled.sequences"
            )

    @property
    def step_limits(self) -> tuple[int, int]:
        """Most new tokens of a coupled instance's step, and most requests in it."""
        if self.schedule == "one-at-a-time":
            return 1, 1  # one prompt, however long, goes alone
        return self.step_tokens or (512 if self.schedule == "chunked" else 131_072), self.sequences or 256

    @property
    def slo_by_priority(self) -> dict[int, tuple[float, float]]:
        """TTFT and TBT SLO in ms of each class that has its own, by priority."""
        own = (self.slo_ttft_ms, self.slo_tbt_ms)
        return {
            priority: (slos.get("slo_ttft_ms", own[0]), slos.get("slo_tbt_ms", own[1]))
            for priority, slos in parse_classes(self.slo_classes).items()
        }

    @property
    def instances(self) -> list[tuple[str, str]]:
        """(role ``P``, ``D`` or ``M``, node preset) of every instance, by id; a prefill group is one instance."""
        return grouped(parse_cluster(self.cluster, self.node), self.prefill_group, self.cluster)

    def nodes_of(self, role: str) -> int:
        """How many nodes an instance of a role is."""
        return self.prefill_group if role == "P" else 1

    @property
    def coupled(self) -> bool:
        """Whether its instances prefill and decode."""
        return any(role == "M" for role, _ in self.instances)

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
        idle += [name for name in OFF if getattr(self, name) == _default(name)]
        idle += () if self.coupled else COUPLED
        idle += () if self.ssd_blocks is not None else SSD_RATES
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


def _default(name: str) -> Any:
    return Setup.__dataclass_fields__[name].default


_IDLE_ON = {
    True: "a coupled instance's cache is what its VRAM leaves, and nothing is sent; see vram.tokens, or drop it",
    False: "it has no coupled instance; give one such as 16M, or drop it",
}


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
