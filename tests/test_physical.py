"""The physical form (E5): its formula against numbers written out, its predictions, and what they say of themselves."""

from __future__ import annotations

import json
import random
import re
from dataclasses import fields, replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware import physical
from mooncake_bench.hardware.architecture import Architecture, Experts
from mooncake_bench.hardware.build import build_cost
from mooncake_bench.hardware.datasheets import gpu_names, load_fitted, load_gpu
from mooncake_bench.hardware.physical import Efficiencies, Gpu
from mooncake_bench.hardware.predict import QUANTISED_ERROR, predicted_costs
from mooncake_bench.hardware.presets import load_model, load_node
from mooncake_bench.studies.validate import h800_qwen3_8b, silicon_dense
from mooncake_bench.studies.validate.files import Measurements

# Round numbers, so that each part can be written out: 1 TFLOP/s, 1 GB/s of memory and of link.
PLAIN = Gpu("plain", "plain", "made up", 1e12, 2e12, 10e9, 1e9, 1e9, 1e9, "", "plain")
PERFECT = Efficiencies(
    memory=1, math=1, power=2, passes=0, split_passes=0, layer_us=0, reduce_us=0, link=1, reduce_root=0,
    score_math=1, score_tokens=0, score_us=0, cache=1, cache_unit_us=0, cache_us=0,
)  # fmt: skip
SMALL = Architecture("small", 3, 1000, 10, 2, 100, 2000, 5000, 2.0, 2.0)
# a layer: 1000 x 100 x 2 x (10 + 2) of attention and 3 x 1000 x 2000 of the MLP
WEIGHTS = 2_400_000 + 6_000_000


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def prefill_ms(model: Architecture, gpus: int, n: float, s: float, fitted: Efficiencies = PERFECT) -> float:
    return float(physical.step_ms(physical.prefill_work(model, PLAIN, gpus, column(n), column(s)), fitted)[0])


def decode_ms(model: Architecture, gpus: int, batch: float, tokens: float, fitted: Efficiencies = PERFECT) -> float:
    return float(physical.step_ms(physical.decode_work(model, PLAIN, gpus, column(batch), column(tokens)), fitted)[0])


def head_ms(gpus: int, sequences: float) -> float:
    """The output layer, 5000 x 1000 weights of 2 bytes: 10 ms to read, 0.01 ms to multiply with, on one GPU."""
    return sqrt((10 / gpus) ** 2 + (0.01 * sequences / gpus) ** 2)


def test_products_are_read_and_multiplied_with_the_corner_rounded() -> None:
    # 8.4 M weights of 2 bytes at 1 GB/s: 16.8 ms; 1,000 tokens x 2 x 8.4 M FLOP at 1 TFLOP/s: 16.8 ms; 3 layers
    assert prefill_ms(SMALL, 1, 1000, 0) == pytest.approx(3 * 16.8 * sqrt(2) + head_ms(1, 1))
    assert prefill_ms(SMALL, 2, 1000, 0, replace(PERFECT, power=4)) == pytest.approx(
        3 * (8.4 * 2**0.25 + 2 * reduce_ms(1000)) + head_ms(2, 1)
    )
    # at efficiencies of a half both take twice as long
    half = replace(PERFECT, memory=0.5, math=0.5)
    assert prefill_ms(SMALL, 1, 1000, 0, half) == pytest.approx(2 * (3 * 16.8 * sqrt(2) + head_ms(1, 1)))


def reduce_ms(n: float) -> float:
    """x on two GPUs: n x 1000 values of 2 bytes, 2 (2 - 1)/2 = 1 times, at 1 GB/s."""
    return n * 1000 * 2 / 1e9 * 1e3


def test_all_reduce_has_a_start_a_slope_and_a_root_and_one_gpu_needs_none() -> None:
    fitted = replace(PERFECT, reduce_us=5.0, link=0.5, reduce_root=0.25)
    # x = 4 ms: 0.005 + 4 / 0.5 + 0.25 x 2 = 8.505 ms, twice a layer
    reduced = prefill_ms(SMALL, 2, 2000, 0, fitted) - prefill_ms(SMALL, 2, 2000, 0, replace(PERFECT, link=1e12))
    assert reduced == pytest.approx(3 * 2 * 8.505)
    assert prefill_ms(SMALL, 1, 2000, 0, fitted) == prefill_ms(SMALL, 1, 2000, 0)


def test_attention_of_a_prefill_grows_with_s_and_a_little_with_n() -> None:
    fitted = replace(PERFECT, score_math=0.5, score_tokens=100.0, score_us=10.0)
    # 4 x 10 heads x 100 x (S + 100 n) FLOP over 0.5 TFLOP/s: 8e-9 s a unit; S = 1e6, n = 1e3: 1.1e6 units, 8.8 ms
    more = prefill_ms(SMALL, 1, 1000, 1e6, fitted) - prefill_ms(SMALL, 1, 1000, 0)
    assert more == pytest.approx(3 * (8.8 + 0.01))


def test_attention_of_a_decode_step_reads_the_cache_of_its_own_heads() -> None:
    fitted = replace(PERFECT, cache=0.5, cache_unit_us=1.0, cache_us=10.0)
    plain = replace(PERFECT, cache=1e12)
    # one GPU: 2 x 2 heads x 100 values of 2 bytes over 0.5 GB/s: 1.6 us a token; 4 sequences x 2 heads x 1 us
    more = decode_ms(SMALL, 1, 4, 10_000, fitted) - decode_ms(SMALL, 1, 4, 10_000, plain)
    assert more == pytest.approx(3 * (16.0 + 0.008 + 0.01))
    # two GPUs have a head each, and five of them still have one each: heads are not cut
    for gpus, reduction in ((2, 1.0), (5, 1.0)):
        more = decode_ms(SMALL, gpus, 4, 10_000, fitted) - decode_ms(SMALL, gpus, 4, 10_000, plain)
        assert more == pytest.approx(3 * (8.0 * reduction + 0.004 + 0.01))


def test_elementwise_passes_are_whole_or_split() -> None:
    fitted = replace(PERFECT, passes=3.0, split_passes=2.0, layer_us=50.0)
    # 1,000 tokens x 2 bytes at 1 GB/s: 0.002 ms a value; 1000 hidden ones 3 times; 14 x 100 + 3 x 2000 split ones twice
    one = prefill_ms(SMALL, 1, 1000, 0, fitted) - prefill_ms(SMALL, 1, 1000, 0)
    assert one == pytest.approx(3 * (0.002 * (3 * 1000 + 2 * 7400) + 0.05))
    two = prefill_ms(SMALL, 2, 1000, 0, fitted) - prefill_ms(SMALL, 2, 1000, 0)
    assert two == pytest.approx(3 * (0.002 * (3 * 1000 + 7400) + 0.05))


def test_the_expected_number_of_experts_awake_is_that_of_random_choices() -> None:
    draw = random.Random(7)
    for tokens in (1, 4, 30):
        awake = [len({e for _ in range(tokens) for e in draw.sample(range(16), 3)}) for _ in range(1000)]
        expected = float(physical.woken_experts(16, 3, column(tokens))[0])
        assert expected == pytest.approx(sum(awake) / len(awake), rel=0.02)  # a standard error is below 0.5 %


def test_a_layer_with_experts_reads_those_awake_and_multiplies_with_those_taken() -> None:
    model = replace(SMALL, layers=2, experts=Experts(4, 2, 500, 100, 1))
    # an expert 1.5 M weights, 3 ms to read; shared 0.3 M and router 4,000 and attention 2.4 M: 5.408 ms
    # one token wakes 2; the dense layer reads 16.8 ms; multiplications: under 0.02 ms
    assert decode_ms(model, 1, 1, 0) == pytest.approx(16.8 + 5.408 + 2 * 3 + head_ms(1, 1), rel=1e-5)
    # 10 tokens wake 4 (1 - 1/2^10)
    ten = decode_ms(model, 1, 10, 0)
    assert ten == pytest.approx(16.8 + 5.408 + 4 * (1 - 2**-10) * 3 + head_ms(1, 10), rel=1e-4)
    assert decode_ms(model, 1, 10, 0, replace(PERFECT, expert_us=77.0)) == pytest.approx(ten + 0.077)
    # 1e6 tokens in a prefill: 2 x (2.4 M + 0.304 M + 2 x 1.5 M) FLOP each, beside 2 x 8.4 M of the dense layer
    assert prefill_ms(model, 1, 1e6, 0) == pytest.approx(1e6 * (2 * 5.704e6 + 2 * 8.4e6) / 1e12 * 1e3, rel=1e-3)


def test_latent_attention_reads_one_vector_a_token_on_every_gpu() -> None:
    shape = load_model("deepseek-v3").shape
    assert shape is not None
    for gpus in (1, 8):
        more = decode_ms(shape, gpus, 1, 1e6) - decode_ms(shape, gpus, 1, 0)
        assert more == pytest.approx(61 * 1e6 * 576 * 2 / 1e9 * 1e3)
    # a pair of tokens: 128 heads x (192 of the key + 128 of the value) x 2 FLOP, half of S counted
    more = prefill_ms(shape, 8, 1, 1e9) - prefill_ms(shape, 8, 1, 0)
    assert more == pytest.approx(61 * 128 * 320 * 2 * 1e9 / 8 / 1e12 * 1e3)


def test_weights_of_8_bits_multiply_at_the_8_bit_rate_and_of_4_at_the_16_bit_one() -> None:
    assert (PLAIN.flops(1), PLAIN.flops(0.5), PLAIN.flops(2), PLAIN.flops(4)) == (2e12, 1e12, 1e12, 0.5e12)
    assert load_gpu("a100").flops(1) == 312e12  # it has no 8-bit floating-point units


def test_datasheets_hold_what_their_makers_say() -> None:
    assert gpu_names() == ["a100", "a800", "h100", "h800", "h200"]
    for name, tflops, memory, nvlink in (("a100", 312, 2039, 300), ("h100", 989, 3350, 450), ("h200", 989, 4800, 450)):
        gpu = load_gpu(name)
        assert gpu.bf16_flops == tflops * 1e12
        assert gpu.memory_bytes_per_s == memory * 1e9
        assert gpu.link_bytes_per_s == nvlink * 1e9
        assert gpu.reduce_source == ""
    for name, base in (("a800", "a100"), ("h800", "h100")):
        cut, whole = load_gpu(name), load_gpu(base)
        assert cut.link_bytes_per_s == 200e9
        assert cut.efficiencies == base
        assert cut.reduce_source
        # COST_MODEL: 143 of 215 GB/s and 215 of about 320
        assert cut.reduce_link_bytes_per_s / whole.reduce_link_bytes_per_s == pytest.approx(0.67, abs=0.01)


COMPOSED = {"llama-70b": "llama-3-70b", "llama2-70b": "llama2-70b", "llama3-8b": "llama-3-8b", "qwen3-32b": "qwen3-32b"}


@pytest.mark.parametrize(
    ("name", "prefill", "decode"),
    [("a100", (4.5, 10.5), (3.5, 9.5)), ("h100", (4.5, 9.5), (3.5, 8.0)), ("h200", (5.0, 10.0), (3.5, 7.5))],
)
def test_the_shipped_parameters_reproduce_composed_steps(
    shared: Path, name: str, prefill: tuple[float, float], decode: tuple[float, float]
) -> None:
    """In sample, on the tables that others composed: median and 90th percentile of all models and parallelisms [%]."""
    gpu, fitted = load_gpu(name), load_fitted(name).efficiencies
    for phase, bars in (("prefill", prefill), ("decode", decode)):
        path = shared / "measurements" / "derived" / f"composed_{phase}_ms.parquet"
        if not path.is_file():
            pytest.skip(f"needs the composed steps ({path.name})")
        rows = pq.read_table(path, filters=[("hw", "=", f"{name}_sxm")]).to_pydict()
        off = []
        for model, tp in sorted(set(zip(rows["model"], rows["tp"], strict=True))):
            at = [i for i in range(len(rows["t"])) if (rows["model"][i], rows["tp"][i]) == (model, tp)]
            shape = load_model(COMPOSED[model]).shape
            assert shape is not None
            pick = {key: column(*(rows[key][i] for i in at)) for key in rows if key not in ("hw", "model")}
            work = (
                physical.prefill_work(shape, gpu, tp, pick["n"], pick["S2"], pick["b"])
                if phase == "prefill"
                else physical.decode_work(shape, gpu, tp, pick["B"], pick["T"])
            )
            off.append(100 * np.abs(physical.step_ms(work, fitted) / pick["t"] - 1))
        found = np.percentile(np.concatenate(off), [50, 90])
        assert found[0] <= bars[0]
        assert found[1] <= bars[1]


def test_left_out_errors_are_recorded_for_every_kind_of_gpu() -> None:
    for name in ("a100", "h100", "h200"):
        fitted = load_fitted(name)
        for errors in (fitted.left_out_model, fitted.left_out_tp8):
            assert all(0 < getattr(errors, field.name) < 15 for field in fields(errors))


@pytest.mark.parametrize("gpu_name", ["a100", "h100", "h200"])
@pytest.mark.parametrize("name", ["llama-3-70b", "llama-3-8b"])
def test_e1_and_e2_stay_close_to_the_physical_form_between_the_points_they_are_fitted_to(
    name: str, gpu_name: str
) -> None:
    shape = load_model(name).shape
    assert shape is not None
    gpu = load_gpu(gpu_name)
    fitted = load_fitted(gpu.efficiencies).efficiencies
    c = predicted_costs(shape, gpu_name, 8).coefficients
    n, prefix = column(37, 700, 5000, 90_000), column(0, 9000, 300, 20_000)
    s = n * prefix + n * n / 2
    late = c.prefill_late_ms * n**2 / (n**2 + c.prefill_late_tokens**2)
    e1 = (
        np.sqrt(c.prefill_floor_ms**2 + (c.prefill_token_ms * n) ** 2) + c.prefill_constant_ms + c.prefill_token2_ms * s
    )
    assert e1 + late == pytest.approx(physical.step_ms(physical.prefill_work(shape, gpu, 8, n, s), fitted), rel=0.04)
    b, t = column(1, 7, 50, 300), column(9000, 20_000, 90_000, 400_000)
    e2 = (c.decode_floor_ms**4 + (c.decode_roof_ms * b) ** 4) ** 0.25 + c.decode_sequence_ms * b
    e2 = e2 + c.decode_root_ms * np.sqrt(b) + c.decode_token_ms * t
    assert e2 == pytest.approx(physical.step_ms(physical.decode_work(shape, gpu, 8, b, t), fitted), rel=0.04)


def test_a_prediction_agrees_with_a_node_that_was_measured_as_well_as_it_says() -> None:
    """70B on H100 at TP 8 has coefficients of its own: E5 is within its own 90th percentile of them, and some."""
    shape = load_model("llama-3-70b").shape
    assert shape is not None
    for name in ("a100", "h100", "h200"):
        ours, theirs = predicted_costs(shape, name, 8), load_node(name).costs["llama-3-70b"]
        assert ours.vram_tokens == pytest.approx(theirs.vram_tokens, rel=1e-3)  # 1,457,000 and 2,668,000
        assert ours.coefficients.prefill_token_ms == pytest.approx(theirs.coefficients.prefill_token_ms, rel=0.15)
        assert ours.coefficients.decode_token_ms == pytest.approx(theirs.coefficients.decode_token_ms, rel=0.15)


def test_room_for_kvcache_is_nine_tenths_less_the_weights_over_a_token() -> None:
    shape = load_model("qwen3-32b").shape
    assert shape is not None
    # (0.9 x 8 x 85.89934592e9 - 2 x 32,762,106,880) / 262,144 = 2,109,340
    assert predicted_costs(shape, "h100", 8).vram_tokens == 2_109_340
    # 2 GPUs: 8 KV heads split by two; (0.9 x 2 x 85.89934592e9 - 65,524,213,760) / 262,144 = 339,868
    assert predicted_costs(shape, "h100", 2).vram_tokens == 339_868


def test_latent_attention_keeps_its_cache_on_every_gpu_and_says_so() -> None:
    cost = build_cost(["h200"], "deepseek-v3", "none")
    # (0.9 x 8 x 141e9 - 671.03e9) / (8 x 70,272) = 612,217
    assert int(cost.vram_tokens[0]) == pytest.approx(612_217, abs=1)
    assert "a token's KVCache is held 8 times" in cost.error
    assert cost.kv_bytes_per_token == 70_272


def test_experts_bring_the_square_root_of_the_batch() -> None:
    for name in ("deepseek-v3", "kimi-k2-int4"):
        shape = load_model(name).shape
        assert shape is not None
        assert predicted_costs(shape, "h200", 8).coefficients.decode_root_ms > 1.0


@pytest.mark.parametrize(
    ("model", "node", "numbers"),
    [
        ("deepseek-v3", "h100", r"weights are 671\.0 GB, and 0\.9 of 8 x h100 \(85\.9 GB each\) is 618\.5 GB"),
        ("kimi-k2", "h200", r"weights are 1,026\.4 GB, and 0\.9 of 8 x h200 \(141\.0 GB each\) is 1,015\.2 GB"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_numbers_and_what_would(model: str, node: str, numbers: str) -> None:
    with pytest.raises(SetupError, match=f"{model} does not fit: its {numbers}; it would take 9 such GPUs"):
        build_cost([node], model, "none")


NODE = """
description = "my box"
gpus = {gpus}
gpu = "{gpu}"
pool_tokens = 1000
pool_source = "counted"
nic_gbytes_per_s = 50
nic_status = "measured"
nic_source = "measured by me"
"""


def node_file(folder: Path, gpus: int, gpu: str = "h100") -> str:
    path = folder / "box.toml"
    path.write_text(NODE.format(gpus=gpus, gpu=gpu), encoding="utf-8")
    return str(path)


def test_a_node_file_without_costs_predicts_them_at_its_own_parallelism(tmp_path: Path) -> None:
    four = build_cost([node_file(tmp_path, 4)], "qwen3-32b", "none")
    eight = build_cost([node_file(tmp_path, 8)], "qwen3-32b", "none")
    assert four.prefill_ps(0, 8192, 0) > 1.4 * eight.prefill_ps(0, 8192, 0)
    assert four.token_ps(0) == pytest.approx(2 * eight.token_ps(0), rel=5e-3)
    assert four.error.startswith("qwen3-32b on box.toml is predicted: on dense models left out")
    worst = load_fitted("h100").left_out_model
    for number in (worst.prefill_median, worst.prefill_p90, worst.decode_median, worst.decode_p90):
        assert f"{number:.1f}" in four.error
        assert f"{number:.1f}" in four.error_short
    assert four.error_short.startswith("predicted, not measured: from dimensions and datasheet, off by ")
    with pytest.raises(SetupError, match=r"on 16 x h100: no cost can be predicted beyond 8 GPUs"):
        build_cost([node_file(tmp_path, 16)], "qwen3-32b", "none")
    with pytest.raises(SetupError, match=r"qwen3-32b has 64 heads, which 7 GPUs cannot share"):
        build_cost([node_file(tmp_path, 7)], "qwen3-32b", "none")


def config_file(folder: Path, **changes: Any) -> str:
    """Qwen2.5-7B's config.json, changed."""
    config = {
        "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
        "num_hidden_layers": 28, "num_key_value_heads": 4, "torch_dtype": "bfloat16", "vocab_size": 152064,
    }  # fmt: skip
    path = folder / "Qwen2.5-7B" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(config | changes), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("node", ["h100", "h200"])
def test_weights_of_more_than_two_bytes_are_refused_with_what_servers_do(tmp_path: Path, node: str) -> None:
    box = node_file(tmp_path, 4, node)
    with pytest.raises(
        SetupError, match=r"^Qwen2\.5-7B/config\.json has weights of 4 bytes: .*set torch_dtype to bfloat16"
    ):
        build_cost([box], config_file(tmp_path, torch_dtype="float32"), "none")
    shape = load_model("kimi-k2-int4").shape
    assert shape is not None
    assert shape.experts is not None
    wide = replace(shape, experts=replace(shape.experts, weight_bytes=4.0))
    with pytest.raises(SetupError, match="has weights of 4 bytes"):
        predicted_costs(wide, "h200", 8)
    assert build_cost([box], config_file(tmp_path, torch_dtype="float16"), "none").error  # two bytes are fine


def test_an_engine_on_predicted_experts_is_refused_for_its_time_is_in_them(tmp_path: Path) -> None:
    with pytest.raises(
        SetupError, match=r"^deepseek-v3 on h200: .*'mooncake-a800' would add another; give --engine none$"
    ):
        build_cost(["h200"], "deepseek-v3", "mooncake-a800")
    # a dense prediction has none in it, and a file of one's own may be fitted on top, to what is still missing
    assert "engine vllm-h200" in build_cost(["h200"], config_file(tmp_path, num_attention_heads=32), "vllm-h200").name
    own = tmp_path / "own.toml"
    texts = 'description = "mine"\nstatus = "measured"\nsource = "a log"\nerror = "2 %"\nfitted_on = ["h200"]\n'
    own.write_text(f"{texts}prefill_ms = -0.5\ndecode_ms = 0.25\n", encoding="utf-8")
    bare, fitted = (build_cost(["h200"], "deepseek-v3", name) for name in ("none", str(own)))
    assert fitted.decode_ps(0, 8) - bare.decode_ps(0, 8) == 250_000_000  # 0.25 ms
    assert (
        "too short" not in bare.error + bare.error_short
    )  # as engine none says where no engine's time is in the costs
    assert "so only engine none, or one fitted on top, goes with it" in fitted.error


@pytest.mark.parametrize(
    "quantised",
    [{"quant_method": "fp8"}, {"quant_method": "awq", "bits": 4}, {"quant_method": "gptq", "bits": 8}],
)
def test_a_quantised_dense_model_is_said_to_be_outside_the_fit(tmp_path: Path, quantised: dict[str, Any]) -> None:
    box = node_file(tmp_path, 4)
    cost = build_cost([box], config_file(tmp_path, quantization_config=quantised), "none")
    assert "no quantised model was among those fitted" in cost.error
    assert "2 to 17 % in the median for Llama-3.1-70B" in cost.error
    assert "69 to 183 % for Llama-3.1-8B" in cost.error
    assert "none of them quantised" in cost.error_short
    plain = build_cost([box], config_file(tmp_path), "none")
    assert "quantised" not in plain.error + plain.error_short
    assert "no quantised" not in build_cost(["h200"], "deepseek-v3", "none").error  # its own served errors are there


def test_what_is_said_of_quantised_and_of_h800_predictions_is_what_the_validation_finds(shared: Path) -> None:
    measurements = Measurements(shared / "measurements")
    medians: dict[tuple[str, str], list[float]] = {}
    for row in silicon_dense.run(measurements).rows:
        if row.engine == "none" and " vLLM " in row.name:
            medians.setdefault((row.model.removesuffix("-FP8"), row.node), []).append(row.errors.median)
    of_70b = medians["Llama-3.1-70B", "h100"] + medians["Llama-3.1-70B", "h200"]
    of_8b = medians["Llama-3.1-8B-Instruct", "h200"]
    found = [round(each) for each in (min(of_70b), max(of_70b), min(of_8b), max(of_8b))]
    said = re.findall(r"(\d+) to (\d+) %", QUANTISED_ERROR)
    assert found == [int(number) for pair in said for number in pair] == [2, 17, 69, 183]
    first = h800_qwen3_8b.run(measurements).rows[0]
    errors = [100 * (1 - point.predicted / point.measured) for point in first.points]
    assert f"{min(errors):.0f} to {max(errors):.0f} % too short" in load_gpu("h800").served


def test_predictions_on_an_h800_say_that_whole_steps_there_were_far_slower(tmp_path: Path) -> None:
    config = config_file(tmp_path)
    there, elsewhere = (build_cost([node_file(tmp_path, 4, gpu)], config, "none") for gpu in ("h800", "h100"))
    assert "Qwen3-8B at TP8 was predicted 56 to 92 % too short" in there.error
    assert there.error_short.split("; ")[0].endswith("whole steps of one small model there were far slower")
    assert "Qwen3-8B" not in elsewhere.error
    assert "slower" not in elsewhere.error_short


def test_a_config_json_is_a_model_wherever_a_name_is(tmp_path: Path) -> None:
    cost = build_cost([node_file(tmp_path, 4, "h800")], config_file(tmp_path), "none")
    assert cost.kv_bytes_per_token == 2 * 28 * 4 * 128 * 2
    assert cost.name == "analytic: Qwen2.5-7B/config.json on 1 x box.toml, engine none"
    assert "head_dim is not in the file: 128" in cost.error
    assert "its all-reduce is one user's measurement" in cost.error


def test_an_engine_fitted_on_the_node_is_not_taken_for_a_fit_of_a_predicted_model(tmp_path: Path) -> None:
    predicted = build_cost(
        ["a800"], config_file(tmp_path, num_attention_heads=32, num_key_value_heads=8), "mooncake-a800"
    ).error_short
    assert predicted.startswith("predicted, not measured: from dimensions and datasheet, off by ")
    assert predicted.endswith("; engine fitted on a800 with another model")


def test_a_datasheet_of_ones_own_is_a_file(tmp_path: Path) -> None:
    sheet = tmp_path / "fast.toml"
    sheet.write_text(
        'description = "twice an H100"\nsource = "dreamt"\nbf16_tflops = 1978\nmemory_gbytes = 160\n'
        'memory_gbytes_per_s = 6700\nnvlink_gbytes_per_s = 900\nefficiencies = "h100"\n',
        encoding="utf-8",
    )
    cost = build_cost([node_file(tmp_path, 8, str(sheet))], "qwen3-32b", "none")
    slow = build_cost([node_file(tmp_path, 8)], "qwen3-32b", "none")
    assert 0.4 < cost.prefill_ps(0, 30_000, 0) / slow.prefill_ps(0, 30_000, 0) < 0.6
    sheet.write_text(sheet.read_text(encoding="utf-8").replace("160", "-1"), encoding="utf-8")
    with pytest.raises(SetupError, match=r"fast\.toml: key 'memory_gbytes' is -1: expected a number above 0"):
        build_cost([node_file(tmp_path, 8, str(sheet))], "llama-3-8b", "none")
