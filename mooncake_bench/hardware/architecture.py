"""The dimensions of a model that costs follow from: what the physical form (E5) and the live kernels both need.

Sizes count matrices and the norms over the hidden vector; biases and norms within a head, under a millionth of a model,
are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil


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
    weight_bytes: float | None = None
    """Bytes of a routed expert's weight, where they differ from the model's others."""


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
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What was not in the model's own file and taken as its family does, a sentence each."""

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's attention: Q, K, V and output, or MLA's compressions and expansions."""
        if self.latent is None:
            return self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        latent = self.latent
        key = latent.plain_dim + latent.rope_dim
        query = (self.hidden + self.heads * key) * latent.query_rank or self.hidden * self.heads * key
        down = self.hidden * (latent.kv_rank + latent.rope_dim)
        up = latent.kv_rank * self.heads * (latent.plain_dim + latent.value_dim)
        return query + down + up + self.heads * latent.value_dim * self.hidden

    @property
    def mlp_parameters(self) -> int:
        """Weights of one ordinary MLP."""
        return 3 * self.hidden * self.width

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert; 0 without experts."""
        return 3 * self.hidden * self.experts.width if self.experts else 0

    @property
    def expert_weight_bytes(self) -> float:
        """Bytes of one weight of a routed expert."""
        own = self.experts.weight_bytes if self.experts else None
        return self.weight_bytes if own is None else own

    @property
    def always_on_parameters(self) -> int:
        """Weights of one layer with experts that every token passes through, beside attention: shared ones, router."""
        return self.hidden * (3 * self.experts.shared_width + self.experts.experts) if self.experts else 0

    @property
    def dense_layers(self) -> int:
        """Layers with an ordinary MLP."""
        return self.experts.dense_layers if self.experts else self.layers

    @property
    def head_parameters(self) -> int:
        """Weights of the output layer."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All weights."""
        return self._parameters(self.experts.experts if self.experts else 0) + self._embedding

    @property
    def active_parameters(self) -> int:
        """Weights that one token is multiplied with: its own experts, and not the embedding, which is looked up."""
        return self._parameters(self.experts.experts_per_token if self.experts else 0)

    @property
    def total_weight_bytes(self) -> float:
        """Bytes of all weights."""
        routed = (self.layers - self.dense_layers) * self.expert_parameters
        routed *= self.experts.experts if self.experts else 0
        return (self.parameters - routed) * self.weight_bytes + routed * self.expert_weight_bytes

    @property
    def kv_values_per_token(self) -> int:
        """Values that one layer caches of one token."""
        if self.latent is None:
            return 2 * self.kv_heads * self.head_dim
        return self.latent.kv_rank + self.latent.rope_dim

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of KVCache that one token takes, over all layers."""
        return self.layers * self.kv_values_per_token * self.kv_value_bytes

    @property
    def whole_kv_bytes_per_token(self) -> int:
        """The same as a whole number, rounded up: what a cache of whole bytes takes."""
        return ceil(self.kv_bytes_per_token)

    @property
    def _embedding(self) -> int:
        return 0 if self.tied_head else self.vocabulary * self.hidden

    def _parameters(self, experts: int) -> int:
        """All but the embedding, with ``experts`` routed ones in each layer that has any."""
        with_experts = self.always_on_parameters + experts * self.expert_parameters
        mlps = self.dense_layers * self.mlp_parameters + (self.layers - self.dense_layers) * with_experts
        norms = (2 * self.layers + 1) * self.hidden
        return self.layers * self.attention_parameters + mlps + norms + self.head_parameters
