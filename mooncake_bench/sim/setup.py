"""The setup of a run: one frozen dataclass whose fields are declared once.

Each field carries its dotted name (``slo_ttft_ms`` is ``slo.ttft_ms``), its help, its unit and its parser; flags,
TOML files, ``--set``, ``--dry-run`` and the manifest all read that declaration.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import SetupError, nearest
from mooncake_bench.sim.consistency import COUPLED, RETRIES, SSD_RATES, STAGES, check
from mooncake_bench.sim.events import event_list
from mooncake_bench.sim.parsing import (
    depths,
    duration,
    grouped,
    integer,
    number,
    parse_cluster,
    parse_view,
    rate,
    text,
)
from mooncake_bench.sim.setting import Setting, checked, choice, setting
from mooncake_bench.sim.slos import class_list, parse_classes

if TYPE_CHECKING:
    from collections.abc import Mapping

READING = ("block_tokens", "timestamp_unit", "columns", "failures")  # fields that say how a trace is read
SCHEDULES = ("prefill-first", "chunked", "one-at-a-time")
LIVE = ("live_repeat", "live_device", "live_dtype", "live_layers", "live_cache")  # of no effect unless cost is live
# mechanisms, told of only where they are not at their default, which is off
OFF: tuple[str, ...] = (
    "pool_scope", "events", "faults_requests", *STAGES, "slo_classes", "client_retries", *RETRIES, "client_loop",
    "client_think_speedup", "client_patience_ms", "ssd_blocks", "nic_core_gbytes_per_s", "warm_from",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that a run depends on besides its trace and its policy's code. Raises SetupError for a bad value."""

    cluster: str = setting("8P+8D", "cluster", text, "instances by role, such as 8P+8D, 4P@h800+8D@a100, 10P+0D or 16M")
    model: str = setting("llama-3-70b", "model", text, "model preset, a file.toml, or a config.json")
    node: str = setting("a800", "node", text, "node preset of the groups that name none, or a file.toml")
    engine: str = setting("mooncake-a800", "engine", text, "engine overhead preset, or a file.toml")
    cost: str = choice(
        "analytic", "cost", ("analytic", "live"), "where durations come from: fitted formulas, or kernels that run here"
    )
    live_repeat: int = setting(
        5,
        "live.repeat",
        integer,
        "timed rounds of each shape that live kernels run",
        unit="rounds",
        least=1,
        most=999,
    )
    live_device: str = setting("auto", "live.device", text, "device of live kernels: auto, cpu, cuda or cuda:N")
    live_dtype: str = choice(
        "auto", "live.dtype", ("auto", "float32", "bfloat16", "float16"), "type of live weights and KVCache"
    )
    live_layers: str | None = setting(
        None, "live.layers", depths, "rising depths that live kernels run, such as 1,2,4", unset="1,2,4"
    )
    live_cache: str | None = setting(
        None,
        "live.cache",
        text,
        "folder of live measurements",
        unset="mooncake-bench/live in the user's cache folder",
    )
    pool_blocks: int | None = setting(
        None,
        "pool.blocks",
        integer,
        "KVCache pool of a prefill node",
        unit="blocks",
        least=1,
        unset="the node preset's tokens",
    )
    pool_scope: str = choice(
        "global", "pool.scope", ("global", "local"), "whether a node may fetch KVCache from the pools of others"
    )
    ssd_blocks: int | None = setting(
        None,
        "ssd.blocks",
        integer,
        "SSD below the pool of a prefill node",
        unit="blocks",
        least=1,
        unset="none",
    )
    ssd_read_gbytes_per_s: float = setting(
        27.0, "ssd.read_gbytes_per_s", rate, "how fast a node's SSD is read (assumed)", unit="GB/s", least=0.001
    )
    ssd_write_gbytes_per_s: float = setting(
        13.5, "ssd.write_gbytes_per_s", rate, "how fast a node's SSD is written (assumed)", unit="GB/s", least=0.001
    )
    touch_order: str = choice(
        "tail-first", "pool.touch_order", ("tail-first", "head-first"), "order in which a request's blocks are touched"
    )
    vram_tokens: int | None = setting(
        None,
        "vram.tokens",
        integer,
        "KV capacity of a decode node",
        unit="tokens",
        least=1,
        unset="the node preset's",
    )
    nic_gbytes_per_s: float | None = setting(
        None,
        "nic.gbytes_per_s",
        rate,
        "network of a node, each way",
        unit="GB/s",
        above=0,
        unset="the node preset's",
    )
    prefill_group: int = setting(
        1, "prefill.group", integer, "prefill nodes that are one instance, a pipeline of stages", unit="nodes", least=1
    )
    prefill_chunk: int | None = setting(
        None,
        "prefill.chunk_tokens",
        integer,
        "most tokens that a prefill computes at once",
        unit="tokens",
        least=1,
        unset="the whole prompt",
    )
    prefill_layers: str = choice(
        "fitted",
        "prefill.layers",
        ("fitted", "overlapped", "serialised"),
        "how a prefill loads and stores KVCache",
    )
    dram_gbytes_per_s: float | None = setting(
        None,
        "dram.gbytes_per_s",
        rate,
        "between the DRAM and the GPUs of a prefill node, each way",
        unit="GB/s",
        above=0,
        unset="the link preset of the node, else 102",
    )
    decode_load_gbytes_per_s: float | None = setting(
        None,
        "decode.load_gbytes_per_s",
        rate,
        "from the DRAM to the GPUs of a decode node",
        unit="GB/s",
        above=0,
        unset="loading takes no time",
    )
    nic_core_gbytes_per_s: float | None = setting(
        None,
        "nic.core_gbytes_per_s",
        rate,
        "core of the network, shared by all that is sent between instances",
        unit="GB/s",
        least=0.001,
        unset="as wide as all NICs",
    )
    decode_preemption: str = choice(
        "swap", "decode.preemption", ("swap", "recompute"), "where preempted KVCache goes: to DRAM, or nowhere"
    )
    decode_inline: str = choice(
        "off", "decode.inline", ("off", "on"), "whether a decode node computes prompts in its steps"
    )
    slo_ttft_ms: float = setting(30000.0, "slo.ttft_ms", duration, "time to first token SLO", unit="ms", least=1e-6)
    slo_tbt_ms: float = setting(100.0, "slo.tbt_ms", duration, "time between tokens SLO", unit="ms", least=1e-6)
    slo_classes: str | None = setting(
        None,
        "slo.classes",
        class_list,
        "SLOs of requests of a priority: PRIORITY=ttft:..,tbt:..; what a class leaves out is as for all",
        unset="the same for all",
    )
    tbt_metric: str = choice(
        "tail10", "slo.tbt_metric", ("tail10", "max", "mean", "p99"), "which TBT of a request its SLO judges"
    )
    first_gap: str = choice(
        "include", "slo.first_gap", ("include", "exclude"), "count the gap from first to second token in every TBT"
    )
    speedup: float = setting(
        1.0,
        "speedup",
        number,
        "arrival rate over the trace's own (2: twice as fast)",
        unit="x",
        least=1e-9,
        most=1e9,
    )
    view: str = setting("exact", "view", text, "what policies see: exact, delayed:<ms> or router-only")
    estimate_error: float = setting(
        0.0,
        "estimate_error",
        number,
        "sigma of the seeded error on the costs that policies see",
        least=0,
        most=0.57,
    )
    schedule: str = choice(
        "prefill-first", "coupled.schedule", SCHEDULES, "what the steps of a coupled instance (M) hold"
    )
    step_tokens: int | None = setting(
        None,
        "coupled.step_tokens",
        integer,
        "new tokens that a step of a coupled instance computes at most",
        unit="tokens",
        least=1,
        unset="131072; chunked: 512",
    )
    sequences: int | None = setting(
        None,
        "coupled.sequences",
        integer,
        "requests that a coupled instance prefills and decodes at once",
        unit="requests",
        least=1,
        unset="256",
    )
    prefix_cache: str = choice(
        "on", "coupled.prefix_cache", ("on", "off"), "whether a coupled instance keeps prompts in the VRAM left over"
    )
    events: str | None = setting(
        None,
        "events",
        event_list,
        "what happens to instances: TIME:fail|recover|switch:prefill|decode|coupled:N",
        unset="nothing",
    )
    faults_requests: str = choice(
        "retry", "faults.requests", ("retry", "fail"), "what becomes of requests on an instance that fails"
    )
    client_retries: int = setting(
        0, "client.retries", integer, "how often a client asks again after a rejection", least=0, most=1000
    )
    client_backoff_ms: float = setting(
        1000.0, "client.backoff_ms", duration, "what a client waits before it asks again", unit="ms", least=1e-6
    )
    client_backoff_factor: float = setting(
        2.0, "client.backoff_factor", number, "by how much that grows each time", least=1
    )
    client_jitter: float = setting(
        0.0, "client.jitter", number, "seeded uniform error on that, as a share of it", least=0, most=1
    )
    client_loop: str = choice(
        "open", "client.loop", ("open", "closed"), "when a session's next turn arrives: by its timestamp, or its delay"
    )
    client_think_speedup: float = setting(
        1.0, "client.think_speedup", number, "how much faster sessions think in a closed loop", unit="x", least=1e-9
    )
    client_patience_ms: float | None = setting(
        None,
        "client.patience_ms",
        duration,
        "how long a client waits for its first token before it gives up",
        unit="ms",
        least=1e-6,
        unset="as long as it takes",
    )
    policy: str = setting("kvcache-centric", "policy", text, "policy SPEC")
    seed: int = setting(0, "seed", integer, "seed of every random stream", least=0)
    block_tokens: int | None = setting(
        None,
        "trace.block_tokens",
        integer,
        "block size of the trace",
        unit="tokens",
        least=1,
        unset="the trace's own",
    )
    timestamp_unit: str = choice(
        "auto", "trace.timestamp_unit", ("auto", "s", "ms", "us", "ns"), "unit of the trace's timestamps"
    )
    columns: str | None = setting(
        None,
        "trace.columns",
        text,
        "columns of a plain CSV, JSON lines or parquet trace, such as arrival=ts,input=prompt_len,output=gen_len",
        unset="arrival_ms,input_tokens,output_tokens",
    )
    failures: str = choice(
        "exclude", "trace.failures", ("exclude", "error"), "requests that failed where the trace was taken (BurstGPT)"
    )
    max_requests: int | None = setting(
        None,
        "trace.max_requests",
        integer,
        "replay only the first requests",
        unit="requests",
        least=1,
        unset="all",
    )
    start_ms: float | None = setting(
        None,
        "trace.start_ms",
        duration,
        "leave out arrivals before this trace time",
        unit="ms",
        least=0,
        unset="the beginning",
    )
    end_ms: float | None = setting(
        None,
        "trace.end_ms",
        duration,
        "leave out arrivals from this trace time on",
        unit="ms",
        above=0,
        unset="the end",
    )
    warm_from: str | None = setting(
        None,
        "warm_from",
        text,
        "start with the caches that a replay of this trace leaves, or those that this run left",
        unset="empty caches",
    )
    warmup_ms: float = setting(
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
                object.__setattr__(self, item.name, checked(item.metadata["setting"], value))
        parse_view(self.view)
        check(self)

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
        return {declared.dotted: getattr(self, name) for name, declared in settings().items() if name not in idle}

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
    names = {declared.dotted: name for name, declared in settings().items()}
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
    unset = {declared.dotted: declared.unset for declared in settings().values()}
    return "".join(
        f"# {key}: not set ({unset.get(key, 'none')})\n" if value is None else f"{key} = {_toml(value)}\n"
        for key, value in values.items()
    )


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | list | bool) else repr(value)
