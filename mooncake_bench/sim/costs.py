"""What the presets of a setup come to: its cost model, and the pool of each prefill instance."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.build import build_cost
from mooncake_bench.hardware.links import host_gbytes_per_s
from mooncake_bench.hardware.presets import load_model, load_node
from mooncake_bench.sim.tiers import Drive

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_bench.hardware.cost import CostModel
    from mooncake_bench.live.cost import LiveCost
    from mooncake_bench.sim.setup import Setup


def pool_blocks_of(setup: Setup, block_tokens: int) -> dict[int, int]:
    """Blocks that the pool of each prefill instance holds, by instance id: as set, else its node's own tokens.

    Raises SetupError for a node that cannot be used, or whose tokens are less than one block.
    """
    nodes = {i: node for i, (role, node) in enumerate(setup.instances) if role == "P"}
    if setup.pool_blocks is not None:
        return dict.fromkeys(nodes, setup.pool_blocks * setup.prefill_group)
    blocks = {node: _own_blocks(node, block_tokens) for node in dict.fromkeys(nodes.values())}
    return {i: blocks[node] * setup.prefill_group for i, node in nodes.items()}


def pool_blocks_at(setup: Setup, block_tokens: int, instance: int) -> int:
    """Blocks that the pool of any one instance holds, should it prefill. Raises SetupError as above."""
    return setup.pool_blocks or _own_blocks(setup.instances[instance][1], block_tokens)


def drive_of(setup: Setup, role: str = "P") -> Drive | None:
    """The SSD below the pool of an instance, if there are any: a group has one a node."""
    if setup.ssd_blocks is None:
        return None
    rates = (setup.ssd_read_gbytes_per_s, setup.ssd_write_gbytes_per_s)
    nodes = setup.nodes_of(role)
    return Drive(setup.ssd_blocks * nodes, *[round(rate * nodes * 1e9) for rate in rates])


def core_of(setup: Setup) -> int | None:
    """What the core of the network carries in bytes a second, if it is narrower than all NICs."""
    return None if setup.nic_core_gbytes_per_s is None else round(setup.nic_core_gbytes_per_s * 1e9)


def _own_blocks(node: str, block_tokens: int) -> int:
    tokens = load_node(node).pool_tokens
    if tokens < block_tokens:
        raise SetupError(
            f"node {node!r}: its pool_tokens, {tokens:,}, are less than one block of {block_tokens:,} tokens; "
            "raise them, or give --pool"
        )
    return tokens // block_tokens


def cost_of(setup: Setup) -> CostModel:
    """What things cost under a setup. Raises SetupError for presets, a device or a cache that cannot be used."""
    if setup.cost == "live":
        return with_mechanics(live_cost_of(setup), setup)
    nodes = [node for _, node in setup.instances]
    cost = build_cost(nodes, setup.model, setup.engine, setup.vram_tokens, setup.nic_gbytes_per_s)
    return with_mechanics(cost, setup)


def with_mechanics(cost: CostModel, setup: Setup) -> CostModel:
    """The costs of a setup's instances, given those of one node of each: chunks, pipelines, loads and stores."""
    if setup.prefill_chunk or setup.prefill_group > 1:
        from mooncake_bench.hardware.pipeline import PipelinedCost

        cost = PipelinedCost(
            cost,
            group=setup.prefill_group,
            chunk_tokens=setup.prefill_chunk,
            hop_bytes_per_token=activation_bytes(setup.model) if setup.prefill_group > 1 else 0,
            prefill=[role == "P" for role, _ in setup.instances],
        )
    if setup.prefill_layers != "fitted":
        from mooncake_bench.hardware.layerwise import LayeredCost

        rates = [1e9 * (setup.dram_gbytes_per_s or host_gbytes_per_s(node)) for _, node in setup.instances]
        cost = LayeredCost(cost, rates, overlapped=setup.prefill_layers == "overlapped")
    return cost


def activation_bytes(model: str) -> int:
    """What one token's activations take between two layers, 2 bytes a value; 0 where the model has no dimensions."""
    shape = load_model(model).shape
    return 2 * shape.hidden if shape else 0


def check_cost(setup: Setup, *, dry_run: bool) -> list[str]:
    """Raises what :func:`cost_of` does; returns notices. A dry run does not need torch: no device is tried then."""
    if setup.cost != "live" or not dry_run or find_spec("torch") is not None:
        cost_of(setup)
        return []
    from mooncake_bench.live.cost import live_presets

    nodes = [node for _, node in setup.instances]
    live_presets(nodes, setup.model, setup.engine, setup.vram_tokens, setup.nic_gbytes_per_s)
    return ["--cost live: torch is not here, so no device was tried; a replay needs pip install 'mooncake-bench[live]'"]


def live_cost_of(setup: Setup, watch: Callable[[str | None], None] = lambda _: None) -> LiveCost:
    """The same by kernels; ``watch`` is told what is being measured, and None once it is."""
    from mooncake_bench.live.bench import LiveSettings
    from mooncake_bench.live.cost import build_live_cost

    how = (setup.live_repeat, setup.live_device, setup.live_dtype, setup.live_depths, setup.live_cache)
    return build_live_cost(
        [node for _, node in setup.instances],
        setup.model,
        setup.engine,
        setup.vram_tokens,
        setup.nic_gbytes_per_s,
        LiveSettings(*how),
        watch=watch,
    )
