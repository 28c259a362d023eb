"""The dimensions of a model that costs follow from: what the physical form (E5) and the live kernels both need."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of the MLP."""

    experts: int
    """Routed experts of a layer."""
    experts_per_token: int
    width: int
    """Intermediate size of one expert."""
    shared_width: int
    """Intermediate size that every token passes through, all shared experts together; 0 for none."""
    dense_layers: int
    """First layers, which have an ordinary MLP."""


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (MLA): one compressed vector a token is cached instead of K and V heads."""

    query_rank: int
    """Rank of the query's own compression; 0 for none."""
    kv_rank: int
    rope_dim: int
    """Dimensions of a head that carry the position, cached once for all heads."""
    plain_dim: int
    """Dimensions of a head's key that carry none."""
    value_dim: int


@dataclass(frozen=True)
class Architecture:
    """A decoder-only transformer."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    """Explicit: it is not hidden / heads in every model."""
    width: int
    """Intermediate size of the (gated, three-matrix) MLP."""
    vocabulary: int
    weight_bytes: float
    """Bytes of one weight."""
    kv_value_bytes: float
    """Bytes of one cached value."""
    tied_head: bool = False
    """The output layer is the embedding."""
    experts: Experts | None = None
    latent: Latent | None = None
