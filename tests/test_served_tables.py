"""The nodes that real served logs ran on: their coefficients follow the kernel tables that they were fitted to."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from mooncake_bench.hardware.presets import load_model, load_node

TOOL = Path(__file__).resolve().parent.parent / "tools" / "derive_rtx.py"


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("derive_rtx", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["derive_rtx"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def table(shared: Path, name: str, **wanted: object) -> list[dict[str, Any]]:
    rows = pq.read_table(shared / "measurements" / "llmservingsim" / f"{name}.parquet").to_pylist()
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def test_a_decode_step_of_one_sequence_is_the_sum_of_its_kernels(shared: Path, tool: Any) -> None:
    wanted = {"hardware": "RTXPRO6000", "model": "meta-llama/Llama-3.1-8B", "tp": 1}
    dense = {row["layer"]: row["time_us"] for row in table(shared, "rtx_dense", tokens=1, **wanted)}
    once = dense.pop("embedding") + dense.pop("final_layernorm")
    head = table(shared, "rtx_per_sequence", layer="lm_head", sequences=1, **wanted)[0]["time_us"]
    sizes = {"prefill_chunk": 0, "n_decode": 1, "kv_decode": 1024}
    attention = table(shared, "rtx_attention", **sizes, **wanted)[0]["time_us"]
    # 32 layers, each with its two norms; what is outside the layers once
    by_hand = (32 * (sum(dense.values()) + dense["layernorm"] + attention) + once + head) / 1e3
    _, decode = tool.step_rows(shared / "measurements" / "llmservingsim", tool.NODES["rtxpro6000"][0])
    row = (decode.batch == 1) & (decode.tokens == 1024)
    assert decode.ms[row] == pytest.approx([by_hand])


@pytest.mark.parametrize("node", ["rtxpro6000", "rtxpro6000x2"])
def test_the_shipped_coefficients_follow_the_tables(shared: Path, tool: Any, node: str) -> None:
    for served in tool.NODES[node]:
        prefill, decode = tool.step_rows(shared / "measurements" / "llmservingsim", served)
        costs = load_node(node).costs[served.preset]
        c = costs.coefficients
        late = c.prefill_late_ms * prefill.n**2 / (prefill.n**2 + c.prefill_late_tokens**2)
        ours = np.hypot(c.prefill_floor_ms, c.prefill_token_ms * prefill.n) + c.prefill_constant_ms + late
        ours = ours + c.prefill_token2_ms * prefill.s
        steps = (c.decode_floor_ms**4 + (c.decode_roof_ms * decode.batch) ** 4) ** 0.25
        steps = steps + c.decode_sequence_ms * decode.batch + c.decode_token_ms * decode.tokens
        for heldout, found in (
            (costs.prefill_heldout, np.abs(ours / prefill.ms - 1)),
            (costs.decode_heldout, np.abs(steps / decode.ms - 1)),
        ):
            assert heldout is not None
            assert heldout.rows == len(found)
            # in-sample, so no worse than what the preset says of rows held out, but for noise
            assert 100 * np.median(found) < 1.2 * heldout.median
            assert 100 * np.percentile(found, 90) < 1.2 * heldout.p90


@pytest.mark.parametrize("node", ["rtxpro6000", "rtxpro6000x2"])
def test_their_memory_holds_what_is_left_of_it_beside_the_weights(tool: Any, node: str) -> None:
    for served in tool.NODES[node]:
        model, costs = load_model(served.preset), load_node(node).costs[served.preset]
        assert model.kv_bytes_per_token == served.kv_bytes
        assert model.layers == served.layers
        # 0.9 of 96 GiB a GPU, 2 bytes a weight
        free = 0.9 * served.gpus * 96 * 2**30 - 2 * served.parameters
        assert costs.vram_tokens == int(free / served.kv_bytes) // 1000 * 1000
