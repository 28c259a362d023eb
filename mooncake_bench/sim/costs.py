"""What the presets of a setup come to: its cost model, and the pool of each prefill instance."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.build import build_cost
from mooncake_bench.hardware.presets import load_node

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
        return dict.fromkeys(nodes, setup.pool_blocks)
    blocks = {node: _own_blocks(node, block_tokens) for node in dict.fromkeys(nodes.values())}
    return {i: blocks[node] for i, node in nodes.items()}


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
        return live_cost_of(setup)
    nodes = [node for _, node in setup.instances]
    return build_cost(nodes, setup.model, setup.engine, setup.vram_tokens, setup.nic_gbytes_per_s)


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
