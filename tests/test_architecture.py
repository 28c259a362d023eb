"""Dimensions of a model: read from its own config.json, and the sizes that follow from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.architecture import Architecture
from mooncake_bench.hardware.architecture_config import read_config
from mooncake_bench.hardware.presets import load_model

# As published, without the keys that no cost follows from.
LLAMA_3_70B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
    "num_attention_heads": 64, "num_hidden_layers": 80, "num_key_value_heads": 8, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 128256,
}  # fmt: skip
LLAMA_2_7B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
    "num_hidden_layers": 32, "torch_dtype": "float16", "vocab_size": 32000,
}  # fmt: skip
QWEN3_32B: dict[str, Any] = {
    "model_type": "qwen3", "head_dim": 128, "hidden_size": 5120, "intermediate_size": 25600,
    "num_attention_heads": 64, "num_hidden_layers": 64, "num_key_value_heads": 8, "sliding_window": None,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
    "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 32000,
}  # fmt: skip
QWEN3_30B_A3B: dict[str, Any] = {
    "model_type": "qwen3_moe", "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048,
    "intermediate_size": 6144, "mlp_only_layers": [], "moe_intermediate_size": 768, "num_attention_heads": 32,
    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 151936,
}  # fmt: skip
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3", "first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432,
    "kv_lora_rank": 512, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_key_value_heads": 128, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8"},
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
KIMI_K2 = DEEPSEEK_V3 | {
    "model_type": "kimi_k2", "first_k_dense_replace": 1, "n_routed_experts": 384, "num_attention_heads": 64,
    "num_key_value_heads": 64, "vocab_size": 163840,
}  # fmt: skip


def written(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def read(folder: Path, config: dict[str, Any], **changed: Any) -> Architecture:
    return read_config(written(folder, config | changed))


# name: config, all parameters as published [1e9], KVCache bytes a token
MODELS = {
    "llama-3-70b": (LLAMA_3_70B, 70.55, 2 * 80 * 8 * 128 * 2),  # 327,680
    "qwen3-32b": (QWEN3_32B, 32.76, 2 * 64 * 8 * 128 * 2),  # 262,144
    "deepseek-v3": (DEEPSEEK_V3, 671.0, 61 * (512 + 64) * 2),  # 70,272
    "kimi-k2": (KIMI_K2, 1026.4, 61 * (512 + 64) * 2),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_published_config_gives_the_bundled_model(tmp_path: Path, name: str) -> None:
    config, parameters, kv_bytes = MODELS[name]
    ours = load_model(name)
    assert ours.shape is not None
    shape = read(tmp_path, config)
    assert {**vars(shape), "name": "", "notes": ()} == {**vars(ours.shape), "name": "", "notes": ()}
    assert ours.shape.parameters / 1e9 == pytest.approx(parameters, rel=1e-3)
    assert ours.kv_bytes_per_token == kv_bytes
    assert ours.layers == config["num_hidden_layers"]


def test_sizes_of_a_dense_model_are_those_of_its_matrices() -> None:
    shape = load_model("llama-3-70b").shape
    assert shape is not None
    # a layer: Q and output 8192 x 8192 each, K and V 8192 x 1024 each, three matrices of 8192 x 28672, two norms
    attention = 2 * 8192 * 8192 + 2 * 8192 * 1024  # 150,994,944
    mlp = 3 * 8192 * 28672  # 704,643,072
    head = 128256 * 8192  # 1,050,673,152, as large as the embedding
    assert (shape.attention_parameters, shape.mlp_parameters, shape.head_parameters) == (attention, mlp, head)
    assert shape.parameters == 80 * (attention + mlp + 2 * 8192) + 8192 + 2 * head == 70_553_706_496
    assert shape.active_parameters == shape.parameters - head
    assert shape.total_weight_bytes == 2 * 70_553_706_496


def test_llama2_70b_differs_by_its_vocabulary_alone() -> None:
    old, new = load_model("llama2-70b").shape, load_model("llama-3-70b").shape
    assert old is not None
    assert new is not None
    assert new.parameters - old.parameters == 2 * (128256 - 32000) * 8192
    assert old.parameters == 68_976_648_192  # published: 68.98e9
    assert load_model("llama2-70b").kv_bytes_per_token == 327_680


def test_sizes_of_experts_and_latent_attention_are_deepseeks_published_ones() -> None:
    shape = load_model("deepseek-v3").shape
    assert shape is not None
    # Q: 7168 x 1536 and 1536 x 128 x 192; K and V: 7168 x 576 and 512 x 128 x 256; output: 128 x 128 x 7168
    assert shape.attention_parameters == 7168 * 1536 + 1536 * 24576 + 7168 * 576 + 512 * 32768 + 16384 * 7168
    assert shape.expert_parameters == 3 * 7168 * 2048
    assert shape.parameters == pytest.approx(671e9, rel=1e-3)
    assert shape.active_parameters == pytest.approx(36.6e9, rel=5e-3)  # "37B activated"
    assert shape.total_weight_bytes == shape.parameters  # fp8
    assert shape.kv_bytes_per_token == 70_272


def test_kimi_k2_has_a_trillion_parameters_of_which_32_billion_are_active() -> None:
    shape = load_model("kimi-k2").shape
    assert shape is not None
    assert shape.parameters == pytest.approx(1.03e12, rel=5e-3)
    assert shape.active_parameters == pytest.approx(32e9, rel=0.02)
    assert shape.kv_bytes_per_token == 70_272


def test_experts_of_fewer_bits_weigh_less(tmp_path: Path) -> None:
    shape, full = load_model("kimi-k2-int4").shape, load_model("kimi-k2").shape
    assert shape is not None
    assert full is not None
    experts = 60 * 384 * 3 * 7168 * 2048  # 60 layers have them
    assert shape.total_weight_bytes == experts / 2 + (full.parameters - experts) * 2


def test_the_tiny_model_for_cpus_has_the_dimensions_it_promises() -> None:
    shape = load_model("tiny-llama").shape
    assert shape == Architecture("tiny-llama", 4, 256, 8, 2, 32, 688, 1000, 4.0, 4.0)
    assert load_model("tiny-llama").kv_bytes_per_token == 2 * 4 * 2 * 32 * 4


def test_mixtral_names_an_experts_width_intermediate_size(tmp_path: Path) -> None:
    shape = read(tmp_path, MIXTRAL)
    assert shape.parameters / 1e9 == pytest.approx(46.70, rel=1e-3)  # published: 46.7B, 12.9B of them active
    assert (shape.active_parameters + 32000 * 4096) / 1e9 == pytest.approx(12.88, rel=1e-3)
    assert shape.head_dim == 128


def test_qwen_mixtures_name_experts_otherwise(tmp_path: Path) -> None:
    shape = read(tmp_path, QWEN3_30B_A3B)
    assert shape.parameters / 1e9 == pytest.approx(30.53, rel=1e-3)  # published: 30.5B, 3.3B of them active
    assert (shape.active_parameters + 151936 * 2048) / 1e9 == pytest.approx(3.35, rel=5e-3)
    assert read(tmp_path, QWEN3_30B_A3B, mlp_only_layers=[0, 1]).dense_layers == 2


def test_head_dim_is_read_not_divided(tmp_path: Path) -> None:
    assert read(tmp_path, QWEN3_32B).head_dim == 128  # 5120 / 64 is 80


def test_a_family_that_divides_is_divided_and_said_so(tmp_path: Path) -> None:
    shape = read(tmp_path, LLAMA_2_7B)
    assert (shape.head_dim, shape.kv_heads) == (4096 // 32, 32)
    assert shape.parameters / 1e9 == pytest.approx(6.738, rel=1e-3)  # published: 6.74B
    assert shape.notes == (
        "num_key_value_heads is not in the file: 32, as num_attention_heads",
        "head_dim is not in the file: 128, hidden_size / num_attention_heads, as llama does",
    )


def test_what_a_file_leaves_open_travels_with_the_model(tmp_path: Path) -> None:
    model = load_model(str(written(tmp_path, LLAMA_2_7B)))
    assert "head_dim is not in the file: 128" in model.error
    assert model.name == f"{tmp_path.name}/config.json"
    assert model.costs_of == model.name


def test_a_config_of_a_bundled_models_dimensions_uses_its_coefficients(tmp_path: Path) -> None:
    model = load_model(str(written(tmp_path, LLAMA_3_70B | {"head_dim": 128})))
    assert model.costs_of == "llama-3-70b"
    assert model.error == "its dimensions are those of llama-3-70b"


def test_a_nested_text_config_is_read_with_what_is_said_around_it(tmp_path: Path) -> None:
    inner = {key: value for key, value in QWEN3_32B.items() if key != "torch_dtype"}
    shape = read(tmp_path, {"model_type": "qwen3_vl", "dtype": "bfloat16", "text_config": inner})
    assert {**vars(shape), "name": ""} == {**vars(read(tmp_path, QWEN3_32B)), "name": ""}
    with pytest.raises(SetupError, match=r"key 'text_config.hidden_size' is missing"):
        read(tmp_path, {"dtype": "bfloat16", "text_config": {**inner, "hidden_size": None}})


def test_a_sliding_window_is_ignored_and_said_so(tmp_path: Path) -> None:
    shape = read(tmp_path, LLAMA_2_7B | {"model_type": "mistral", "head_dim": 128}, sliding_window=4096)
    assert "its sliding window of 4,096 tokens is ignored: attention is over all tokens" in shape.notes
    assert read(tmp_path, QWEN3_32B, sliding_window=4096).notes == ()  # it is switched off


@pytest.mark.parametrize(
    ("quantised", "weight", "cached"),
    [
        ({"quant_method": "fp8"}, 1.0, 2.0),
        ({"quant_method": "awq", "bits": 4}, 0.5, 2.0),
        ({"quant_method": "gptq", "bits": 8}, 1.0, 2.0),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4}}},
                "kv_cache_scheme": {"num_bits": 8},
            },
            0.5,
            1.0,
        ),
    ],
)
def test_quantised_weights_take_the_bytes_that_the_file_says(
    tmp_path: Path, quantised: dict[str, Any], weight: float, cached: float
) -> None:
    shape = read(tmp_path, LLAMA_3_70B, quantization_config=quantised)
    assert (shape.weight_bytes, shape.kv_value_bytes) == (weight, cached)


@pytest.mark.parametrize(
    ("config", "changed", "message"),
    [
        (LLAMA_3_70B, {"hidden_size": None}, "key 'hidden_size' is missing: expected a whole number above 0"),
        (LLAMA_3_70B, {"hidden_size": "8192"}, "key 'hidden_size' is '8192': expected a whole number above 0"),
        (LLAMA_3_70B, {"num_hidden_layers": 0}, "key 'num_hidden_layers' is 0: expected a whole number above 0"),
        (LLAMA_3_70B, {"num_key_value_heads": 7}, "is 7: expected a divisor of num_attention_heads, 64"),
        (LLAMA_3_70B, {"torch_dtype": "int3"}, "key 'torch_dtype' is 'int3': expected one of float32, bfloat16"),
        (LLAMA_3_70B, {"torch_dtype": None}, "key 'dtype' is missing: expected a text"),
        (LLAMA_3_70B, {"model_type": "gpt9"}, "key 'model_type' is 'gpt9': expected one whose layers are known: llama"),
        (LLAMA_3_70B, {"model_type": "llama4"}, "'llama4': expected one whose layers are known: llama, mistral, "
            "mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe, deepseek_v2, deepseek_v3, kimi_k2; costs of another family's "
            "layers cannot be predicted$"),
        (LLAMA_3_70B, {"model_type": "mamba"}, "'mamba': expected one whose layers are known: llama"),
        (LLAMA_3_70B, {"model_type": None}, "key 'model_type' is missing"),
        (QWEN3_32B, {"head_dim": None}, "key 'head_dim' is missing"),
        (LLAMA_3_70B, {"num_attention_heads": 48, "num_key_value_heads": 8}, "key 'head_dim' is missing"),
        (LLAMA_3_70B, {"quantization_config": {"quant_method": "odd"}}, "quantization_config.quant_method' is 'odd'"),
        (MIXTRAL, {"num_experts_per_tok": 9}, "is 9: expected at most num_local_experts, 8"),
        (QWEN3_30B_A3B, {"decoder_sparse_step": 2}, "key 'decoder_sparse_step' is 2: expected 1"),
        (QWEN3_30B_A3B, {"mlp_only_layers": [3]}, r"key 'mlp_only_layers' is \[3\]: expected none, or the first"),
        (DEEPSEEK_V3, {"kv_lora_rank": None}, "key 'kv_lora_rank' is missing"),
        (DEEPSEEK_V3, {"first_k_dense_replace": 62}, "key 'num_hidden_layers' is 61: expected at least the 62 dense"),
    ],
)  # fmt: skip
def test_a_faulty_config_is_named_with_key_found_and_expected(
    tmp_path: Path, config: dict[str, Any], changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(SetupError, match=message) as caught:
        read(tmp_path, config, **changed)
    assert str(caught.value).startswith(str(tmp_path / "config.json"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not valid JSON"), ("[1]", "holds a list: expected an object"), ("\xff", "not valid JSON")],
)
def test_a_file_that_is_no_config_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(SetupError, match=message):
        read_config(path)
    with pytest.raises(SetupError, match=r"no such file; a model ending in \.json is taken for its config\.json"):
        load_model(str(tmp_path / "none.json"))


def test_a_users_model_may_give_its_dimensions_and_not_contradict_them(tmp_path: Path) -> None:
    shape = "layers = 2\nhidden = 64\nheads = 4\nkv_heads = 2\nhead_dim = 16\nwidth = 128\nvocabulary = 100\n"
    text = f'description = "d"\nsource = "s"\n[shape]\n{shape}weight_bytes = 2\nkv_value_bytes = 2\n'
    path = tmp_path / "small.toml"
    path.write_text(text, encoding="utf-8")
    model = load_model(str(path))
    assert (model.layers, model.kv_bytes_per_token) == (2, 2 * 2 * 2 * 16 * 2)
    path.write_text("layers = 3\n" + text, encoding="utf-8")
    with pytest.raises(SetupError, match="key 'layers' is 3: expected 2, as the shape says"):
        load_model(str(path))
    path.write_text(text.replace("kv_heads = 2", "kv_heads = 3"), encoding="utf-8")
    with pytest.raises(SetupError, match=r"key 'shape\.kv_heads' is 3: expected a divisor of heads, 4"):
        load_model(str(path))
