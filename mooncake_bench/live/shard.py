"""One rank's part of a model with random weights: its dimensions, its tensors, and the memory that its steps take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mooncake_bench.live.dense import check_shape
from mooncake_bench.live.device import require_memory, without_exhaustion

if TYPE_CHECKING:
    from mooncake_bench.hardware.architecture import Architecture
    from mooncake_bench.live.device import Device

ROPE_BASE = 500_000.0
NORM_EPSILON = 1e-5
DRAWN = 16384
"""Tokens of KV that are drawn: a million at random take a CPU longer than the steps that read them."""


@dataclass(frozen=True)
class Layer:
    """Weights of one layer; every matrix is (out, in), as ``torch.nn.functional.linear`` takes it."""

    norm: Any
    qkv: Any
    """Query heads, then key heads, then value heads: ((heads + 2 kv_heads) head_dim, hidden)."""
    output: Any
    mlp_norm: Any
    gate_up: Any
    """Gate, then up: (2 width, hidden)."""
    down: Any


class Shard:
    """``layers_run`` layers and the head of one of ``tensor_parallel`` ranks: all are alike, none communicates."""

    def __init__(
        self, architecture: Architecture, tensor_parallel: int, layers_run: int, device: Device, seed: int = 0
    ) -> None:
        """Make the weights from ``seed``; ``SetupError`` for a shape that is not run or does not fit in memory."""
        check_shape(architecture, tensor_parallel)
        self.architecture = architecture
        self.device = device
        self.layers_run = layers_run
        self.hidden = architecture.hidden
        self.heads = architecture.heads // tensor_parallel
        self.kv_heads = max(1, architecture.kv_heads // tensor_parallel)
        self.head_dim = architecture.head_dim
        self.width = architecture.width // tensor_parallel
        self.vocabulary = -(-architecture.vocabulary // tensor_parallel)
        what = f"the weights of {layers_run} layers of {architecture.name} at TP{tensor_parallel}"
        require_memory(self.weight_bytes, device.free_bytes(), what, device.name)
        self.layers: list[Layer]
        without_exhaustion(lambda: self._fill(seed), what)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the layers that are run and the head."""
        attention = (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        layer = self.hidden * (attention + 3 * self.width + 2)
        return (self.layers_run * layer + self.hidden * (self.vocabulary + 1)) * self.device.value_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's K and V in one layer of this rank."""
        return 2 * self.kv_heads * self.head_dim * self.device.value_bytes

    def inputs(self, rows: int, seed: int = 1) -> Any:
        """Random hidden states (rows, hidden): what an embedding would give."""
        return self._random((rows, self.hidden), 1.0, self._generator(seed))

    def history(self, layers: int, tokens: int, seed: int = 2) -> Any:
        """Random KV of ``tokens`` tokens on the device, again and again the same ``DRAWN`` ones: (layers, tokens, 2,
        kv_heads, head_dim)."""
        rest = (2, self.kv_heads, self.head_dim)
        drawn = self._random((layers, min(tokens, DRAWN), *rest), 1.0, self._generator(seed))
        if tokens <= DRAWN:
            return drawn
        made = torch.empty((layers, tokens, *rest), device=drawn.device, dtype=drawn.dtype)
        for start in range(0, tokens, DRAWN):
            part = made[:, start : start + DRAWN]
            part.copy_(drawn[:, : part.shape[1]])
        return made

    def rotation(self, positions: Any) -> tuple[Any, Any]:
        """Cosine and sine of each position's rotary angles: two of (positions, 1, head_dim / 2)."""
        steps = torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim
        angles = positions.to(torch.float64)[:, None, None] / ROPE_BASE**steps
        target = {"device": self.device.torch, "dtype": self.device.torch_dtype}
        return angles.cos().to(**target), angles.sin().to(**target)

    def prefill_bytes(self, computed: int, prefix: int) -> tuple[int, int]:
        """About what a prefill takes beside the weights: (on the device, in host memory)."""
        history = self.layers_run * prefix * self.kv_bytes_per_token  # made on the device, kept on the host
        kv = self.layers_run * computed * self.kv_bytes_per_token + history
        if not self.device.cuda:  # the layer's KV once for each head, and two attentions to join
            heads = self.heads * self.head_dim
            kv_of_heads = 2 * (computed + prefix) * heads * self.device.value_bytes + 3 * computed * heads * 4
            return computed * self._row_bytes + kv + history + kv_of_heads, kv
        return computed * self._row_bytes + kv + history, kv

    def decode_bytes(self, batch: int, context_tokens: int) -> int:
        """About what a decode step takes beside the weights; ``context_tokens`` of all sequences together."""
        rows = batch * (self._row_bytes + self.vocabulary * self.device.value_bytes)
        return rows + self.layers_run * context_tokens * self.kv_bytes_per_token

    @property
    def _row_bytes(self) -> int:
        """About what one computed token takes within a layer."""
        projected = 2 * (self.heads + 2 * self.kv_heads) * self.head_dim
        return (4 * self.hidden + projected + 3 * self.width) * self.device.value_bytes

    def _fill(self, seed: int) -> None:
        """All weights, drawn in one order on the device."""
        draws = self._generator(seed)
        with torch.inference_mode():
            self.layers = [self._layer(draws) for _ in range(self.layers_run)]
            self.final_norm = self._norm(draws)
            self.head = self._matrix(self.vocabulary, self.hidden, draws)

    def _layer(self, draws: Any) -> Layer:
        return Layer(
            norm=self._norm(draws),
            qkv=self._matrix((self.heads + 2 * self.kv_heads) * self.head_dim, self.hidden, draws),
            output=self._matrix(self.hidden, self.heads * self.head_dim, draws),
            mlp_norm=self._norm(draws),
            gate_up=self._matrix(2 * self.width, self.hidden, draws),
            down=self._matrix(self.hidden, self.width, draws),
        )

    def _norm(self, draws: Any) -> Any:
        """Scales near 1."""
        return 1 + self._random((self.hidden,), 0.1, draws)

    def _matrix(self, rows: int, columns: int, draws: Any) -> Any:
        """Entries that keep the size of what they are applied to."""
        return self._random((rows, columns), columns**-0.5, draws)

    def _random(self, shape: tuple[int, ...], size: float, draws: Any) -> Any:
        made = torch.empty(shape, device=self.device.torch, dtype=self.device.torch_dtype)
        return made.normal_(0.0, size, generator=draws)

    def _generator(self, seed: int) -> Any:
        return torch.Generator(device=self.device.torch).manual_seed(seed)
