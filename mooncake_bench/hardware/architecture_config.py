"""Dimensions read from a model's own ``config.json`` (as published on HuggingFace), or from a preset's ``shape`` table.

Only families whose layers are known are read: another may have the same keys and other matrices. What a file leaves to
its family's documented default is taken so and said in the notes; anything else that is missing is an error.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.architecture import Architecture, Experts, Latent
from mooncake_bench.hardware.tables import Table

if TYPE_CHECKING:
    from pathlib import Path

_PLAIN_HEAD = ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe")
"""Families whose code takes head_dim = hidden_size / num_attention_heads when the file gives none."""
_GIVEN_HEAD = ("qwen3", "qwen3_moe")
"""Families whose head_dim has a default that has nothing to do with hidden_size: it must be given."""
_LATENT = ("deepseek_v2", "deepseek_v3", "kimi_k2")
FAMILIES = (*_PLAIN_HEAD, *_GIVEN_HEAD, *_LATENT)
_DTYPES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "float8_e4m3fn": 1.0}
_QUANTISED = {"fp8": 8, "fbgemm_fp8": 8}
"""Methods whose name says the bits of a weight."""
_WITH_BITS = ("gptq", "awq", "compressed-tensors")


def read_config(path: Path) -> Architecture:
    """The dimensions in a ``config.json``. Raises SetupError with file, key, what was found and what was expected."""
    data = _without_nulls(_read_json(path))
    inner = data.get("text_config")
    if not isinstance(inner, dict):
        return _architecture(path, Table(data, str(path)))
    # A model that also sees: its language part is nested, its type and quantisation may be said outside.
    outside: dict[str, Any] = {key: data[key] for key in ("torch_dtype", "dtype", "quantization_config") if key in data}
    return _architecture(path, Table(outside | inner, str(path), "text_config"))


def read_shape(name: str, table: Table) -> Architecture:
    """The dimensions in the ``shape`` table of the model preset ``name``."""
    shape = Architecture(
        name=name,
        layers=table.whole("layers"),
        hidden=table.whole("hidden"),
        heads=table.whole("heads"),
        kv_heads=table.whole("kv_heads"),
        head_dim=table.whole("head_dim"),
        width=table.whole("width"),
        vocabulary=table.whole("vocabulary"),
        weight_bytes=table.number("weight_bytes", above=0),
        kv_value_bytes=table.number("kv_value_bytes", above=0),
        tied_head=table.has("tied_head") and table.flag("tied_head"),
        experts=_experts_shape(table.table("experts")) if table.has("experts") else None,
        latent=_latent_shape(table.table("latent")) if table.has("latent") else None,
    )
    _check(table, shape, "heads", "kv_heads", "layers")
    table.done()
    return shape


def _experts_shape(table: Table) -> Experts:
    experts = Experts(
        experts=table.whole("experts"),
        experts_per_token=table.whole("experts_per_token"),
        width=table.whole("width"),
        shared_width=table.whole("shared_width", least=0),
        dense_layers=table.whole("dense_layers", least=0),
        weight_bytes=table.number("weight_bytes", above=0) if table.has("weight_bytes") else None,
    )
    table.done()
    return experts


def _latent_shape(table: Table) -> Latent:
    latent = Latent(
        query_rank=table.whole("query_rank", least=0),
        kv_rank=table.whole("kv_rank"),
        rope_dim=table.whole("rope_dim"),
        plain_dim=table.whole("plain_dim"),
        value_dim=table.whole("value_dim"),
    )
    table.done()
    return latent


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SetupError(f"{path}: no such file; a model ending in .json is taken for its config.json") from None
    except OSError as error:
        raise SetupError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise SetupError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise SetupError(f"{path}: holds a {type(data).__name__}: expected an object, as in a model's config.json")
    return data


def _without_nulls(data: dict[str, Any]) -> dict[str, Any]:
    """Without the keys whose value is null: that is how these files say "none"."""
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in data.items()
        if value is not None
    }


def _architecture(path: Path, table: Table) -> Architecture:
    family = table.text("model_type")
    if family not in FAMILIES:
        raise SetupError(
            f"{path}: key 'model_type' is {family!r}: expected one whose layers are known: {', '.join(FAMILIES)}; "
            "costs of another family's layers cannot be predicted"
        )
    notes: list[str] = []
    latent = _latent(table) if family in _LATENT else None
    heads, hidden = table.whole("num_attention_heads"), table.whole("hidden_size")
    dtype_bytes = _dtype_bytes(table, "torch_dtype" if table.has("torch_dtype") else "dtype")
    weight_bytes, kv_value_bytes = _quantised(table, dtype_bytes)
    experts = _experts(family, table)
    _note_window(family, table, notes)
    shape = Architecture(
        name=model_label(path),
        layers=table.whole("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=_default(table, "num_key_value_heads", heads, "num_attention_heads", notes) if not latent else heads,
        head_dim=latent.plain_dim + latent.rope_dim if latent else _head_dim(family, table, hidden, heads, notes),
        width=table.whole("intermediate_size"),
        vocabulary=table.whole("vocab_size"),
        weight_bytes=weight_bytes,
        kv_value_bytes=kv_value_bytes,
        tied_head=table.has("tie_word_embeddings") and table.flag("tie_word_embeddings"),
        experts=experts,
        latent=latent,
        notes=tuple(notes),
    )
    _check(table, shape, "num_attention_heads", "num_key_value_heads", "num_hidden_layers")
    return shape


def model_label(path: Path) -> str:
    """What reports call the model of a config file: ``Qwen3-32B/config.json``, or the file's own name."""
    folder = path.parent.name
    return f"{folder}/{path.name}" if path.name == "config.json" and folder else path.name


def _head_dim(family: str, table: Table, hidden: int, heads: int, notes: list[str]) -> int:
    if table.has("head_dim"):
        return table.whole("head_dim")
    if family in _GIVEN_HEAD or hidden % heads:
        return table.whole("head_dim")  # raises: it is missing
    notes.append(f"head_dim is not in the file: {hidden // heads}, hidden_size / num_attention_heads, as {family} does")
    return hidden // heads


def _default(table: Table, key: str, value: int, why: str, notes: list[str]) -> int:
    if table.has(key):
        return table.whole(key)
    notes.append(f"{key} is not in the file: {value}, as {why}")
    return value


def _note_window(family: str, table: Table, notes: list[str]) -> None:
    switched_off = family.startswith("qwen") and not (
        table.has("use_sliding_window") and table.flag("use_sliding_window")
    )
    if table.has("sliding_window") and not switched_off:
        window = table.whole("sliding_window")
        notes.append(f"its sliding window of {window:,} tokens is ignored: attention is over all tokens")


def _latent(table: Table) -> Latent:
    return Latent(
        query_rank=table.whole("q_lora_rank") if table.has("q_lora_rank") else 0,
        kv_rank=table.whole("kv_lora_rank"),
        rope_dim=table.whole("qk_rope_head_dim"),
        plain_dim=table.whole("qk_nope_head_dim"),
        value_dim=table.whole("v_head_dim"),
    )


def _experts(family: str, table: Table) -> Experts | None:
    if family == "mixtral":  # its intermediate_size is an expert's
        return _Mixture(table, "num_local_experts", "intermediate_size").experts(shared_width=0, dense_layers=0)
    if family in ("qwen2_moe", "qwen3_moe"):
        shared = "shared_expert_intermediate_size"
        return _Mixture(table, "num_experts", "moe_intermediate_size").experts(
            shared_width=table.whole(shared) if family == "qwen2_moe" else 0, dense_layers=_first_dense(table)
        )
    if family in _LATENT and table.has("n_routed_experts"):
        _must_be_one(table, "moe_layer_freq")
        shared_experts = table.whole("n_shared_experts", least=0) if table.has("n_shared_experts") else 0
        return _Mixture(table, "n_routed_experts", "moe_intermediate_size").experts(
            shared_width=shared_experts * table.whole("moe_intermediate_size"),
            dense_layers=table.whole("first_k_dense_replace", least=0),
        )
    return None


class _Mixture:
    """The keys that a family gives its routed experts in."""

    def __init__(self, table: Table, count: str, width: str) -> None:
        self.table, self.count, self.width = table, count, width

    def experts(self, shared_width: int, dense_layers: int) -> Experts:
        table = self.table
        experts = Experts(
            experts=table.whole(self.count),
            experts_per_token=table.whole("num_experts_per_tok"),
            width=table.whole(self.width),
            shared_width=shared_width,
            dense_layers=dense_layers,
        )
        if experts.experts_per_token > experts.experts:
            expected = f"at most {self.count}, {experts.experts}"
            raise table.wrong("num_experts_per_tok", experts.experts_per_token, expected)
        return experts


def _first_dense(table: Table) -> int:
    """Qwen names its dense layers; only the first ones can be, here."""
    _must_be_one(table, "decoder_sparse_step")
    layers = table.whole_list("mlp_only_layers") if table.has("mlp_only_layers") else ()
    if sorted(layers) != list(range(len(layers))):
        raise table.wrong("mlp_only_layers", list(layers), "none, or the first layers: only those may be dense here")
    return len(layers)


def _must_be_one(table: Table, key: str) -> None:
    if table.has(key) and table.whole(key) != 1:
        raise table.wrong(key, table.whole(key), "1: experts in every layer after the first dense ones")


def _dtype_bytes(table: Table, key: str) -> float:
    dtype = table.text(key)
    if dtype not in _DTYPES:
        raise table.wrong(key, dtype, f"one of {', '.join(_DTYPES)}")
    return _DTYPES[dtype]


def _quantised(table: Table, dtype_bytes: float) -> tuple[float, float]:
    """Bytes of a weight and of a cached value: the checkpoint's type, unless ``quantization_config`` says less."""
    if not table.has("quantization_config"):
        return dtype_bytes, dtype_bytes
    how = table.table("quantization_config")
    method = how.text("quant_method")
    if method in _QUANTISED:
        return _QUANTISED[method] / 8, dtype_bytes
    if method not in _WITH_BITS:
        raise how.wrong("quant_method", method, f"one of {', '.join((*_QUANTISED, *_WITH_BITS))}")
    if method != "compressed-tensors":
        return how.whole("bits") / 8, dtype_bytes
    cache_scheme = how.table("kv_cache_scheme") if how.has("kv_cache_scheme") else None
    groups = list(how.table("config_groups").tables().values())
    bits = {group.table("weights").whole("num_bits") for group in groups}
    if len(bits) != 1:
        raise how.wrong("config_groups", sorted(bits), "one number of bits for all weights")
    return bits.pop() / 8, cache_scheme.whole("num_bits") / 8 if cache_scheme else dtype_bytes


def _check(table: Table, shape: Architecture, heads: str, kv_heads: str, layers: str) -> None:
    if shape.heads % shape.kv_heads:
        raise table.wrong(kv_heads, shape.kv_heads, f"a divisor of {heads}, {shape.heads}")
    if shape.dense_layers > shape.layers:
        raise table.wrong(layers, shape.layers, f"at least the {shape.dense_layers} dense layers")
