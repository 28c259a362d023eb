"""The cost model of a setup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.hardware.build import build_cost

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_bench.hardware.cost import CostModel
    from mooncake_bench.live.cost import LiveCost
    from mooncake_bench.sim.setup import Setup


def cost_of(setup: Setup) -> CostModel:
    """What things cost under a setup. Raises SetupError for presets, a device or a cache that cannot be used."""
    if setup.cost == "live":
        return live_cost_of(setup)
    nodes = [node for _, node in setup.instances]
    return build_cost(nodes, setup.model, setup.engine, setup.vram_tokens, setup.nic_gbytes_per_s)


def live_cost_of(setup: Setup, watch: Callable[[str | None], None] = lambda _: None) -> LiveCost:
    """The same by kernels; ``watch`` is told what is being measured, and None once it is."""
    from mooncake_bench.live.cost import LiveSettings, build_live_cost

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
