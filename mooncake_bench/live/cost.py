"""The cost model whose numbers are kernels that ran here: each shape on its first use, and from the disk afterwards.

Prefill is a surface over computed and cached tokens, a decode step f(B) + c_d T with one c_d of all steps
(:mod:`mooncake_bench.live.buckets`); the engine's own time is added as in the analytic model, and between several ranks
the all-reduces of their GPU's datasheet. Instances of the same number of GPUs share one rank's measurements: the device
here stands in for all of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.build import check_settings
from mooncake_bench.hardware.cost import PS_PER_MS, CostModel, float_column, int_column, to_ps
from mooncake_bench.hardware.presets import load_engine, load_model, load_node
from mooncake_bench.live import buckets
from mooncake_bench.live.bench import LiveSettings, TorchBench, place
from mooncake_bench.live.cache import MODE, Measured, cache_folder
from mooncake_bench.live.cachefile import digest
from mooncake_bench.live.communication import all_reduce
from mooncake_bench.live.dense import check_shape, depths_run
from mooncake_bench.live.measurement import in_words
from mooncake_bench.live.quality import quality

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from mooncake_bench.hardware.analytic import EngineOverhead
    from mooncake_bench.hardware.architecture import Architecture
    from mooncake_bench.hardware.cost import Column, FloatColumn
    from mooncake_bench.hardware.presets import Engine, Model, Node
    from mooncake_bench.live.bench import Bench
    from mooncake_bench.live.communication import AllReduce

LIVE_VERSION = "2"
"""Raise it when the same kernels' times would be used otherwise, or other kernels run: old measurements then rest."""
VRAM_SHARE = 0.9
"""Of a GPU's memory; weights and KVCache share it."""


class Shard:
    """What one rank's steps cost, engine and all-reduces included: measured when first asked for. Times in ms."""

    def __init__(self, measured: Measured, engine: Engine, vram_tokens: int, reduce: AllReduce | None = None) -> None:
        """``vram_tokens``: the KVCache [tokens] within which decode steps are measured."""
        self.measured = measured
        self._reduce = reduce
        self._engine = engine.overhead
        self._vram = vram_tokens
        self._prefill = buckets.Surface(self._prefill_corner, buckets.COMPUTED, buckets.PREFIX, "a prefill of tokens")
        self._step = buckets.Surface(self._step_corner, buckets.BATCH, (0,), "a decode batch of")
        self._slope: tuple[float, float] | None = None

    @property
    def overhead(self) -> EngineOverhead:
        """What the engine adds to a prompt and to a step."""
        return self._engine

    @property
    def token_ms(self) -> float:
        """c_d: what each context token adds to a step."""
        return self._fit()[0]

    @property
    def bend(self) -> float | None:
        """The largest relative error of a step's time as a straight line in its context; None: not looked at yet."""
        return None if self._slope is None else self._slope[1]

    def prefill(self, computed: Column, prefix: Column) -> FloatColumn:
        """(N,) prefill times."""
        time: FloatColumn = self._prefill.at(computed, prefix) + self._reduce_ms(computed) + self._engine.prefill_ms
        return _positive(time, "prefill", self._engine.prefill_ms)

    def step(self, batch: Column) -> FloatColumn:
        """(N,) the part f(B) of decode steps."""
        time: FloatColumn = self._step.at(batch, np.zeros(len(batch))) + self._reduce_ms(batch) + self._engine.decode_ms
        return _positive(time, "decode step", self._engine.decode_ms)

    def _reduce_ms(self, tokens: Column) -> FloatColumn | float:
        return 0.0 if self._reduce is None else self._reduce.ms(tokens)

    def _prefill_corner(self, computed: int, prefix: int) -> float:
        return self.measured.prefill(computed, prefix).ms

    def _step_corner(self, batch: int, _: int) -> float:
        context = buckets.reference_context(batch, self._vram)
        whole = self.measured.decode(batch, context).ms
        return max(whole - self.token_ms * batch * context, buckets.LEAST_TOKEN_MS)

    def _fit(self) -> tuple[float, float]:
        if self._slope is None:
            shapes = buckets.slope_shapes(self._vram)
            self._slope = buckets.token_slope((b, c, self.measured.decode(b, c).ms) for b, c in shapes)
        return self._slope


class LiveCost(CostModel):
    """One shard an instance, some of them shared."""

    def __init__(
        self,
        shards: Sequence[Shard],
        *,
        place: str,
        also: Sequence[str] = (),
        also_short: Sequence[str] = (),
        **facts: Any,
    ) -> None:
        """``shards``: one an instance. ``place``: what it was measured on. ``also``: what else is to be said of the
        error, and in short. ``facts``: the other fields of a cost model."""
        super().__init__(error="", error_short="", **facts)
        self._shards = tuple(shards)
        self._different = list(dict.fromkeys(shards))
        self._measured = list(dict.fromkeys(shard.measured for shard in shards))
        self._groups = [np.flatnonzero([each is shard for each in shards]) for shard in self._different]
        self._place, self._also, self._also_short = place, tuple(also), tuple(also_short)
        self._prefills: dict[tuple[Shard, int, int], int] = {}
        self._steps: dict[tuple[Shard, int], int] = {}
        self._settled = self.version
        self._said = -1
        self._tell()

    def prefill_ps(self, instance: int, computed: int, prefix: int) -> int:
        """The prefill's time [ps]. Raises SetupError where a shape cannot be run."""
        key = (self._shards[instance], computed, prefix)
        found = self._prefills.get(key)
        if found is None:
            time = key[0].prefill(np.array([computed]), np.array([prefix]))
            found = self._prefills[key] = to_ps(float(time[0]))
            self._tell()
        return found

    def prefill_ms(self, computed: Column, prefix: Column) -> FloatColumn:
        """(N,) the same [ms]."""
        return self._gathered(lambda shard, mine: shard.prefill(computed[mine], prefix[mine]))

    def behind_ms(self, instance: int, computed: float, prefixes: Sequence[float]) -> list[float]:
        """The same at one instance, one behind each prefix [ms]."""
        shard = self._shards[instance]
        times: list[float] = shard.prefill(np.full(len(prefixes), computed), np.array(prefixes)).tolist()
        self._tell()
        return times

    @property
    def alike(self) -> Sequence[int]:
        """Instances with the same measurements and NIC are."""
        first: dict[tuple[Shard, float], int] = {}
        rows = zip(self._shards, self.nic_bytes_per_s.tolist(), strict=True)
        return [first.setdefault(row, i) for i, row in enumerate(rows)]

    def prefill_overhead_ps(self, instance: int) -> int:
        """o_pre [ps]."""
        return to_ps(self._shards[instance].overhead.prefill_ms)

    def prefills_ps(self, instance: int, parts: Sequence[tuple[int, int]]) -> int:
        """Composed as the base does: a prefill of all the tokens, and the overhead of the other prompts [ps]."""
        more = (len(parts) - 1) * to_ps(self._shards[instance].overhead.prefill_ms)
        return super().prefills_ps(instance, parts) + more

    def chunks_ps(self, instance: int, batch: int, chunks: Sequence[int], starting: int) -> int:
        """Composed: a prefill of chunks and decoding tokens together, at least the batch's own step [ps]."""
        overhead = self._shards[instance].overhead
        time = self.prefill_ps(instance, sum(chunks) + batch, 0) + (starting - 1) * to_ps(overhead.prefill_ms)
        if not batch:
            return time
        time += to_ps(overhead.decode_ms)
        return max(time, self.decode_ps(instance, batch) + starting * to_ps(overhead.prefill_ms))

    def decode_ps(self, instance: int, batch: int) -> int:
        """f(B) + o_dec [ps]. Raises SetupError where a shape cannot be run."""
        key = (self._shards[instance], batch)
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = to_ps(float(key[0].step(np.array([batch]))[0]))
            self._tell()
        return found

    def token_ps(self, instance: int) -> int:
        """c_d [ps per context token]."""
        found = to_ps(self._shards[instance].token_ms)
        self._tell()
        return found

    def step_ms(self, batch: Column, tokens: Column) -> FloatColumn:
        """(N,) f(B) + o_dec + c_d T [ms]; the clock counts whole picoseconds a token, so does this."""

        def steps(shard: Shard, mine: Any) -> FloatColumn:
            time = shard.step(batch[mine])
            time += tokens[mine] * (to_ps(shard.token_ms) / PS_PER_MS)
            return time

        return self._gathered(steps)

    def _gathered(self, times: Callable[[Shard, Any], FloatColumn]) -> FloatColumn:
        """(N,) each shard's times at its own instances."""
        if len(self._different) == 1:
            whole = times(self._different[0], slice(None))
        else:
            whole = np.empty(len(self))
            for shard, mine in zip(self._different, self._groups, strict=True):
                whole[mine] = times(shard, mine)
        self._tell()
        return whole

    def summary(self) -> str:
        """How many shapes were run for this cost, how long that took, and how many had been before."""
        ran, seconds = sum(one.ran for one in self._measured), sum(one.ran_s for one in self._measured)
        known = sum(len(one.used) for one in self._measured) - ran
        places = ", ".join(str(one.path) for one in self._measured)
        others = "".join(_others(one) for one in self._measured if one.own)
        told = f"live: {ran} shapes measured in {seconds:.0f} s, {known} from earlier measurements; kept in {places}"
        return told + others

    def _tell(self) -> None:
        """Bring error and version up to what has been measured; they are read when a replay ends."""
        shapes = sum(len(measured.used) for measured in self._measured)
        if shapes != self._said:
            self._said = shapes
            used = [one for measured in self._measured for one in measured.used.values()]
            bends = [shard.bend for shard in self._different if shard.bend is not None]
            told = f"measured on {self._place}: {quality(used, bends)}"
            notices = sorted({one.notice for one in used} - {""})
            object.__setattr__(self, "error", "; ".join((f"live: {told}", *notices, *self._also)) + ".")
            object.__setattr__(self, "error_short", "; ".join((told, *notices, *self._also_short)))
            object.__setattr__(self, "version", self._version())

    def _version(self) -> str:
        """Of all that is settled beforehand, and of the times in use.

        Those count by the identity of their file: policies ask for different shapes, which is no other cost.
        """
        used = [one.identity for one in self._measured if one.used]
        return f"{self._settled}-{digest(used)[:8]}" if used else self._settled


def _others(measured: Measured) -> str:
    """That a file keeps other times than those in use."""
    shapes = ", ".join(map(in_words, measured.own))
    return f"; {measured.path} now keeps another process's time of what this run had measured itself ({shapes})"


def _positive(time: FloatColumn, what: str, overhead_ms: float) -> FloatColumn:
    if len(time) and float(time.min()) <= 0:
        raise SetupError(
            f"a {what} would take {float(time.min()):g} ms: the engine's {overhead_ms:g} ms is more than this device "
            "needs; choose another --engine"
        )
    return time


def build_live_cost(
    instance_nodes: Sequence[str],
    model: str,
    engine: str,
    vram_tokens: int | None = None,
    nic_gbytes_per_s: float | None = None,
    settings: LiveSettings | None = None,
    open_kernels: Callable[[LiveSettings], Bench] | None = None,
    watch: Callable[[str | None], None] = lambda _: None,
) -> LiveCost:
    """The cost of ``model`` served by ``engine``, by kernels on the device of ``settings``.

    ``instance_nodes``: a preset's name or .toml file an instance; of a node the GPUs (the tensor parallelism), the
    network, the KVCache that fits and the all-reduce count, its fitted costs do not. Nothing is run before a time is
    asked for; ``watch`` is then told what is being measured, and None once it is. Raises SetupError for unknown
    presets, a model without dimensions, missing torch, an unusable device or a damaged cache.
    """
    settings = settings or LiveSettings()
    the_model, the_engine, nodes = live_presets(instance_nodes, model, engine, vram_tokens, nic_gbytes_per_s)
    shape = shape_of(the_model)
    bench = (open_kernels or TorchBench)(settings)
    vram = {name: vram_tokens or _vram_tokens(node, the_model, shape, bench) for name, node in nodes.items()}
    most = {gpus: max(vram[n] for n, node in nodes.items() if node.gpus == gpus) for gpus in _gpus(nodes)}
    folder = cache_folder(settings.cache)
    measured = {gpus: _measured(bench, shape, gpus, settings, folder, watch) for gpus in most}
    reduces = {(node.gpus, node.gpu): all_reduce(shape, node.gpus, node.gpu) for node in nodes.values()}
    shards = {key: Shard(measured[key[0]], the_engine, most[key[0]], reduce) for key, reduce in reduces.items()}
    nic = [1e9 * (nic_gbytes_per_s or nodes[name].nic_gbytes_per_s) for name in instance_nodes]
    also, also_short = _strangers(shape, bench, the_engine, nodes, nic_gbytes_per_s)
    keys = [[measured[gpus].key for gpus in sorted(measured)], sorted(map(repr, reduces.values()))]
    kinds = sorted({(nodes[n].gpus, vram[n], rate) for n, rate in zip(instance_nodes, nic, strict=True)})
    return LiveCost(
        [shards[nodes[name].gpus, nodes[name].gpu] for name in instance_nodes],
        place=place(bench.facts),
        also=also,
        also_short=also_short,
        name=f"live: {the_model.name} at {_counted(instance_nodes, nodes)}, engine {the_engine.name}",
        version=f"{LIVE_VERSION}-{digest([keys, kinds, astuple(the_engine.overhead), buckets_key()])[:8]}",
        layers=the_model.layers,
        kv_bytes_per_token=the_model.kv_bytes_per_token,
        nic_bytes_per_s=float_column(nic, len(nic)),
        vram_tokens=int_column([vram[name] for name in instance_nodes], len(nic)),
    )


def live_presets(
    instance_nodes: Sequence[str],
    model: str,
    engine: str,
    vram_tokens: int | None = None,
    nic_gbytes_per_s: float | None = None,
) -> tuple[Model, Engine, dict[str, Node]]:
    """Model, engine and nodes by name: all that can be looked at without a device.

    Raises SetupError for unknown presets, and for a model that kernels cannot be run of.
    """
    check_settings(instance_nodes, vram_tokens, nic_gbytes_per_s)
    the_model, the_engine = load_model(model), load_engine(engine)
    shape = shape_of(the_model)
    nodes = {name: load_node(name) for name in dict.fromkeys(instance_nodes)}
    for gpus in _gpus(nodes):
        check_shape(shape, gpus)
    return the_model, the_engine, nodes


def shape_of(model: Model) -> Architecture:
    """A model's dimensions. Raises SetupError where its preset gives none."""
    if model.shape is None:
        raise SetupError(
            f"model {model.name!r} has no dimensions to run kernels of; add a table [shape] to its file, or give the "
            "model's config.json"
        )
    return model.shape


def kernels_key(bench: Bench, shape: Architecture, tensor_parallel: int, settings: LiveSettings) -> dict[str, Any]:
    """All that a measured time depends on besides its own shape."""
    return {
        "version": LIVE_VERSION,
        **bench.facts,
        "model": shape.name,
        "dimensions": repr(shape),
        "tensor_parallel": tensor_parallel,
        "layers": list(depths_run(shape.layers, settings.layers)),
        "repeat": settings.repeat,
        "mode": MODE,
    }


def buckets_key() -> list[Any]:
    """The corners, which the times between them depend on."""
    return [buckets.COMPUTED, buckets.PREFIX, buckets.BATCH, buckets.SLOPE_BATCHES, buckets.SLOPE_CONTEXTS]


def _measured(
    bench: Bench,
    shape: Architecture,
    gpus: int,
    settings: LiveSettings,
    folder: Path,
    watch: Callable[[str | None], None],
) -> Measured:
    return Measured(kernels_key(bench, shape, gpus, settings), lambda: bench.kernels(shape, gpus), folder, watch)


def _vram_tokens(node: Node, model: Model, shape: Architecture, bench: Bench) -> int:
    """The KVCache [tokens] that fits on an instance: as the node's preset says, else as this device's memory does."""
    if model.costs_of in node.costs:
        return node.costs[model.costs_of].vram_tokens
    if not bench.is_gpu:
        raise SetupError(
            f"node {node.name!r} does not say how much KVCache of {model.name!r} fits, and a CPU's memory does not "
            "either; give --vram, as in --vram 64Ktok"
        )
    return device_vram_tokens(shape, node.gpus, bench.memory_bytes)


def device_vram_tokens(shape: Architecture, gpus: int, memory_bytes: int) -> int:
    """The KVCache [tokens] that fits beside the weights in 0.9 of the memory of ``gpus`` such devices."""
    free = VRAM_SHARE * gpus * memory_bytes - shape.total_weight_bytes
    tokens = int(free / shape.kv_bytes_per_token)
    if tokens < 1:
        raise SetupError(
            f"{shape.name} does not fit on {gpus} x {memory_bytes / 1e9:.0f} GB ({shape.total_weight_bytes / 1e9:.0f} "
            "GB of weights); choose a node of more GPUs, or a smaller model"
        )
    return tokens


def _strangers(
    shape: Architecture, bench: Bench, engine: Engine, nodes: Mapping[str, Node], nic_gbytes_per_s: float | None
) -> tuple[list[str], list[str]]:
    """What besides the kernels makes the costs, in full and in short."""
    also = [f"engine {engine.name} is {engine.status}: {engine.error}"]
    also += [f"that engine was fitted on {', '.join(engine.fitted_on)}, not here"] * bool(engine.fitted_on)
    if nic_gbytes_per_s is not None:
        also.append(f"network {nic_gbytes_per_s:g} GB/s as set")
    else:
        also += [f"network of {n.name} {n.nic_gbytes_per_s:g} GB/s ({n.nic_status})" for n in nodes.values()]
    fitted = f"engine fitted on {', '.join(engine.fitted_on)}, not here" if engine.fitted_on else engine.short
    ranks = sorted({(node.gpus, node.gpu) for node in nodes.values()})
    missing = list(dict.fromkeys(line for each in ranks for line in not_modelled(shape, bench, *each)))
    return also + missing, [fitted, *missing]


def not_modelled(shape: Architecture, bench: Bench, tensor_parallel: int, gpu: str = "") -> list[str]:
    """What the times of one rank on this device do not show; ``gpu``: whose datasheet stands in, if any does."""
    missing = []
    if tensor_parallel > 1:
        known = all_reduce(shape, tensor_parallel, gpu) is not None
        how = f"from the datasheet of {gpu}, not measured" if known else "not included"
        missing.append(f"all-reduces between {tensor_parallel} ranks are {how}")
    for what, size in (("weights", shape.weight_bytes), ("KVCache", shape.kv_value_bytes)):
        if size != bench.value_bytes:
            missing.append(f"{what} of {bench.value_bytes} bytes a value are run, of {size:g} modelled")
    return missing


def _gpus(nodes: Mapping[str, Node]) -> list[int]:
    return sorted({node.gpus for node in nodes.values()})


def _counted(instance_nodes: Sequence[str], nodes: Mapping[str, Node]) -> str:
    counts = Counter(nodes[name].gpus for name in instance_nodes)
    return " + ".join(f"{count} x tensor parallelism {gpus}" for gpus, count in counts.items())
