"""Which models the live kernels run, and how deep: known without torch, before a device is looked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.hardware.architecture import Architecture

DEPTHS = (1, 2, 4)
"""Layers that are run by default."""


def depths_run(whole: int, layers: Sequence[int] | None) -> tuple[int, ...]:
    """The depths that are run of a model of ``whole`` layers: ``layers``, or all of it where it is not deeper."""
    depths = tuple(layers or DEPTHS)
    return depths if whole > depths[-1] else (whole,)


def check_shape(model: Architecture, ranks: int) -> None:
    """``SetupError`` for what these kernels do not run, or what does not split into ``ranks`` equal parts."""
    kind = "a mixture of experts" if model.experts else "latent attention (MLA)" if model.latent else None
    if kind:
        raise SetupError(
            f"model {model.name!r} has {kind}: the live kernels run dense models with grouped-query attention only; "
            "use --cost analytic"
        )
    if ranks < 1 or model.heads % ranks or model.width % ranks or (model.kv_heads % ranks and ranks % model.kv_heads):
        raise SetupError(
            f"model {model.name!r} does not split over {ranks} ranks: {model.heads} heads, {model.kv_heads} KV heads "
            f"and width {model.width} must divide; choose another tensor parallelism"
        )
    if model.head_dim % 2 or model.heads % model.kv_heads:
        raise SetupError(
            f"model {model.name!r}: head_dim {model.head_dim} must be even, and {model.heads} heads a multiple of "
            f"{model.kv_heads} KV heads; correct its dimensions"
        )
