"""Presets: what is bundled, what a user's own file may hold, and what a fault in it says."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware import presets
from mooncake_bench.hardware.build import build_cost
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.hardware.presets import (
    engine_names,
    load_engine,
    load_model,
    load_node,
    model_names,
    node_names,
)

NODE = """
description = "mine"
gpus = 4
pool_tokens = 1000
pool_source = "counted"
nic_gbytes_per_s = 50
nic_status = "measured"
nic_source = "measured by me"

[costs.tiny]
status = "measured"
source = "my bench"
error = "5 % off"
vram_tokens = 2000
prefill = { floor_ms = 3, token_ms = 0.04, constant_ms = 1, token2_ms = 1e-4 }
decode = { floor_ms = 2, roof_ms = 0.5, sequence_ms = 0.5, token_ms = 0.001 }
"""
MODEL = """
description = "tiny"
source = "mine"
layers = 2
kv_bytes_per_token = 10
"""
ENGINE = """
description = "quick"
status = "measured"
source = "mine"
error = "1 % off"
fitted_on = []
prefill_ms = 2
decode_ms = -0.5
"""


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


SERVERS = ["a100", "a800", "h100", "h800", "h200"]
DENSE = ["llama-3-70b", "llama2-70b", "llama-3-8b", "qwen3-32b"]
EXPERTS = ["deepseek-v3", "kimi-k2", "kimi-k2-int4"]


def test_the_five_nodes_the_models_and_the_engines_are_bundled() -> None:
    assert node_names()[:5] == SERVERS
    assert set(model_names()) == {*DENSE, *EXPERTS, "tiny-llama"}
    fitted = ["vllm-h100", "vllm-h200", "trtllm-h200", "vllm-rtxpro6000", "vllm-rtxpro6000x2"]
    assert engine_names() == ["mooncake-a800", "none", *fitted]


def test_every_bundled_preset_is_valid_and_builds() -> None:
    for model in DENSE:
        for engine in engine_names():
            cost = build_cost(SERVERS, model, engine)
            assert len(cost) == 5
            assert all(cost.prefill_ps(i, 1, 0) > 0 and cost.decode_ps(i, 1) > 0 for i in range(5))


def test_only_a800_and_h800_are_derived() -> None:
    status = {name: load_node(name).costs["llama-3-70b"].status for name in SERVERS}
    assert status == {"a100": "measured", "a800": "derived", "h100": "measured", "h800": "derived", "h200": "measured"}


def test_paper_engine_adds_76_ms_a_prefill_and_7_8_a_step() -> None:
    # whole ms that leave the largest miss of FAST'25 Fig 14's ten prefill bars smallest: test_hardware_anchors.py
    overhead = load_engine("mooncake-a800").overhead
    assert (overhead.prefill_ms, overhead.decode_ms) == (76.0, 7.8)


def test_a_network_that_nobody_measured_is_said_to_be_at_line_rate() -> None:
    node = load_node("a100")
    assert node.nic_gbytes_per_s == 8 * 200 / 8  # eight links of 200 Gb/s
    assert "no measurement" in node.nic_source
    assert "network of a100 200 GB/s (line rate, not measured)" in build_cost(["a100"], "llama2-70b", "none").error


def test_defaults_are_the_papers_testbed() -> None:
    cost = build_cost(["a800"] * 16, "llama-3-70b", "mooncake-a800")
    assert cost.nic_bytes_per_s.tolist() == [87e9] * 16
    assert cost.vram_tokens.tolist() == [1_457_000] * 16
    assert load_node("a800").pool_tokens // 512 == 5859


def test_settings_replace_what_the_node_says() -> None:
    cost = build_cost(["a800", "h200"], "llama-3-70b", "none", vram_tokens=1000, nic_gbytes_per_s=12.5)
    assert cost.vram_tokens.tolist() == [1000, 1000]
    assert cost.nic_bytes_per_s.tolist() == [12.5e9, 12.5e9]
    assert "network 12.5 GB/s as set" in cost.error


def test_a_mixed_cluster_takes_each_column_from_its_own_node() -> None:
    mixed = build_cost(["h800"] * 4 + ["a100"] * 8, "llama-3-70b", "none")
    h800, a100 = (build_cost([name], "llama-3-70b", "none") for name in ("h800", "a100"))
    assert mixed.name == "analytic: llama-3-70b on 4 x h800 + 8 x a100, engine none"
    for instance, alone in ((0, h800), (3, h800), (4, a100), (11, a100)):
        assert mixed.prefill_ps(instance, 5000, 300) == alone.prefill_ps(0, 5000, 300)
        assert mixed.decode_ps(instance, 30) == alone.decode_ps(0, 30)
        assert mixed.token_ps(instance) == alone.token_ps(0)
        assert mixed.nic_bytes_per_s[instance] == alone.nic_bytes_per_s[0]
    assert h800.prefill_ps(0, 5000, 300) != a100.prefill_ps(0, 5000, 300)


def test_the_error_is_one_sentence_with_every_status_and_the_measured_error() -> None:
    error = build_cost(["a800"], "llama-3-70b", "mooncake-a800").error
    assert error.startswith("llama-3-70b on a800 is derived: ")
    for fact in ("+1.3 to +6.8 %", "-6.5 to +7.2 %", "0.9/6.7 %", "not independent", "87 GB/s (measured)"):
        assert fact in error
    assert error.endswith(".")
    assert "\n" not in error
    assert ". " not in error


def test_the_short_error_is_a_sentence_of_two_lines_for_every_bundled_pair() -> None:
    for node in SERVERS:
        for engine in engine_names():
            short = build_cost([node] * 16, "llama-3-70b", engine).error_short
            assert len(short) <= 180, short
            assert short.startswith(("measured: ", "derived, not measured: ")), short
            assert "\n" not in short
            assert not short.endswith(".")


def test_the_short_error_tells_whole_steps_where_the_engine_was_fitted_and_kernels_elsewhere() -> None:
    def short(nodes: list[str], engine: str, model: str = "llama-3-70b") -> str:
        return build_cost(nodes, model, engine).error_short

    assert short(["a800"], "mooncake-a800").startswith("derived, not measured: fitted to FAST'25 Fig 14, off by +1.3")
    assert short(["h100"], "none").startswith("measured: kernel sums off by 0.7/2.4 %")
    assert short(["h100"], "none").endswith("no engine time, so too short")
    assert short(["h100"], "mooncake-a800").endswith("engine fitted on a800, not on h100")
    assert "; a100 measured: " in short(["a800", "a100"], "mooncake-a800")
    assert short(["a800"], "mooncake-a800", "llama2-70b").endswith("; costs of llama-3-70b")


def test_without_a_short_form_the_whole_error_is_shown(tmp_path: Path) -> None:
    node, engine = written(tmp_path, "box.toml", NODE), written(tmp_path, "quick.toml", ENGINE)
    cost = build_cost([node], written(tmp_path, "tiny.toml", MODEL), engine)
    assert cost.error_short == "measured: 5 % off; 1 % off"
    assert FakeCost(error="invented").error_short == "invented"


def test_an_engine_on_a_node_it_was_not_fitted_on_is_named() -> None:
    error = build_cost(["a800", "h200", "h100"], "llama-3-70b", "mooncake-a800").error
    assert "fitted on a800, not on h200, h100" in error
    assert "not on" not in build_cost(["h100"], "llama-3-70b", "vllm-h100").error


def test_a_model_with_borrowed_coefficients_says_so() -> None:
    assert "llama2-70b: only the head differs" in build_cost(["h100"], "llama2-70b", "none").error


def test_the_version_follows_the_numbers_and_not_the_size_of_the_cluster() -> None:
    def version(nodes: list[str], engine: str = "none", **settings: float) -> str:
        return build_cost(nodes, "llama-3-70b", engine, **settings).version  # type: ignore[arg-type]

    assert version(["a800"]) == version(["a800"] * 9)
    assert version(["a800", "h100"]) == version(["h100", "a800", "a800"])
    assert len({
        version(["a800"]),
        version(["h100"]),
        version(["a800"], "mooncake-a800"),
        version(["a800"], nic_gbytes_per_s=50.0),
        version(["a800"], vram_tokens=5),
    }) == 5  # fmt: skip


@pytest.mark.parametrize(
    ("load", "name", "message"),
    [
        (load_node, "h8000", r"unknown node 'h8000'; did you mean 'h800'\?; known: a100, a800, h100, h800, h200"),
        (
            load_model,
            "lama-3-70b",
            r"unknown model 'lama-3-70b'; did you mean 'llama-3-70b'\?; known: llama-3-70b, llama2",
        ),
        (
            load_engine,
            "mooncake",
            r"unknown engine 'mooncake'.*known: mooncake-a800, none, vllm-h100, vllm-h200, trtllm-h200, vllm-rtx",
        ),
        (load_engine, "", r"unknown engine ''; known"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_and_the_known(load, name, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SetupError, match=message):
        load(name)


def test_users_files_make_a_cost_model(tmp_path: Path) -> None:
    node = written(tmp_path, "box.toml", NODE)
    model = written(tmp_path, "tiny.toml", MODEL)
    engine = written(tmp_path, "quick.toml", ENGINE)
    cost = build_cost([node, node], model, engine)
    # n = 100, p = 50: 5 + 1 + 1 + 2 = 9 ms; B = 4: 32^(1/4) + 2 - 0.5 = 3.878414230005442 ms
    assert cost.prefill_ps(1, 100, 50) == 9_000_000_000
    assert cost.decode_ps(1, 4) == 3_878_414_230
    assert (cost.layers, cost.kv_bytes_per_token) == (2, 10)
    assert (cost.nic_bytes_per_s.tolist(), cost.vram_tokens.tolist()) == ([50e9, 50e9], [2000, 2000])
    assert cost.name == "analytic: tiny.toml on 2 x box.toml, engine quick.toml"
    assert "tiny on box.toml is measured: 5 % off" in cost.error


def test_a_users_node_stands_beside_bundled_ones(tmp_path: Path) -> None:
    node = written(tmp_path, "box.toml", NODE.replace("[costs.tiny]", "[costs.llama-3-70b]"))
    cost = build_cost(["a800", node], "llama-3-70b", "none")
    assert cost.vram_tokens.tolist() == [1_457_000, 2000]


def test_a_node_without_the_models_coefficients_says_what_it_has(tmp_path: Path) -> None:
    model = written(tmp_path, "tiny.toml", MODEL)
    with pytest.raises(
        SetupError, match=r"'a800' has no cost coefficients for model 'tiny'; it has: llama-3-70b.* gives no dimensions"
    ):
        build_cost(["a800"], model, "none")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("gpus = 4\n", ""), "key 'gpus' is missing: expected a whole number above 0"),
        (("gpus = 4", 'gpus = "four"'), "key 'gpus' is 'four': expected a whole number above 0"),
        (("gpus = 4", "gpus = 4.0"), r"key 'gpus' is 4\.0: expected a whole number above 0"),
        (("gpus = 4", "gpus = true"), "key 'gpus' is True: expected a whole number above 0"),
        (("gpus = 4", "gpus = 0"), "key 'gpus' is 0: expected a whole number above 0"),
        (("= 50", "= 0"), "key 'nic_gbytes_per_s' is 0: expected a number of at least 0.001 and at most"),
        (("= 50", "= inf"), "key 'nic_gbytes_per_s' is inf: expected a number of at least 0.001"),
        (("= 50", "= nan"), "key 'nic_gbytes_per_s' is nan: expected a number of at least 0.001"),
        (("= 50", "= false"), "key 'nic_gbytes_per_s' is False: expected a number of at least 0.001"),
        (('"mine"', "3"), "key 'description' is 3: expected a text"),
        (('"mine"', '" "'), "key 'description' is ' ': expected a text"),
        (
            ('nic_status = "measured"', 'nic_status = "sure"'),
            "key 'nic_status' is 'sure': expected one of 'measured', ",
        ),
        (("floor_ms = 3, ", ""), "key 'costs.tiny.prefill.floor_ms' is missing: expected a number of at least 0"),
        (
            ("token_ms = 0.04", "token_ms = 0"),
            "key 'costs.tiny.prefill.token_ms' is 0: expected a number of at least 1e-09",
        ),
        (
            ("token_ms = 0.001", "token_ms = 1e-12"),
            "costs.tiny.decode.token_ms' is 1e-12: expected a number of at least",
        ),
        (("floor_ms = 2", "floor_ms = -2"), "key 'costs.tiny.decode.floor_ms' is -2: expected a number above 0"),
        (("token_ms = 0.04", "token_ms = 1e200"), r"prefill.token_ms' is 1e\+200: expected .* and at most 1e\+09"),
        (
            ("constant_ms = 1", "constant_ms = 1" + 400 * "0"),
            r"constant_ms' is 1000.*\.\.\. \(401 characters\): expected",
        ),
        (("constant_ms", "late_ms = 3, constant_ms"), "prefill.late_ms' is 3.0: expected late_tokens beside it"),
        (("constant_ms", "late_tokens = 3, constant_ms"), "prefill.late_tokens' is 3.0: expected late_ms beside it"),
        (("roof_ms", "rof_ms"), "key 'costs.tiny.decode.roof_ms' is missing"),
        (("roof_ms", "knee = 1, roof_ms"), "unknown key 'costs.tiny.decode.knee'; expected: floor_ms, roof_ms"),
        (("gpus", "gpu = 8\ngpus"), r"key 'gpu' is 8: expected a text"),
        (("gpus", 'gpu = "h10"\ngpus'), "key 'gpu' is 'h10': expected one of a100, a800, h100, h800, h200, or a"),
        (("[costs.tiny]", "[costs]"), r"key 'costs.status' is 'measured': expected a table \[costs.status\]"),
        (("gpus = 4", "gpus = "), "not valid TOML: .*line 3"),
    ],
)
def test_a_faulty_node_file_is_named_with_key_found_and_expected(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    assert change[0] in NODE
    path = written(tmp_path, "box.toml", NODE.replace(*change, 1))
    with pytest.raises(SetupError, match=message) as caught:
        load_node(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_faulty_model_and_engine_files_are_named_too(tmp_path: Path) -> None:
    model = written(tmp_path, "tiny.toml", MODEL.replace("layers = 2", "layers = -2"))
    with pytest.raises(SetupError, match=r"tiny\.toml: key 'layers' is -2: expected a whole number above 0"):
        load_model(model)
    engine = written(tmp_path, "quick.toml", ENGINE.replace("fitted_on = []", 'fitted_on = "a800"'))
    with pytest.raises(SetupError, match=r"quick\.toml: key 'fitted_on' is 'a800': expected a list of texts"):
        load_engine(engine)


def test_a_model_that_borrows_coefficients_must_say_what_that_costs(tmp_path: Path) -> None:
    path = written(tmp_path, "tiny.toml", MODEL + 'costs_of = "llama-3-70b"')
    with pytest.raises(SetupError, match=r"tiny\.toml: key 'error' is missing"):
        load_model(path)


def test_a_file_that_is_not_there_or_not_a_file_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"absent\.toml: no such file"):
        load_node(str(tmp_path / "absent.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(SetupError, match=r"folder\.toml: cannot be read: "):
        load_node(str(tmp_path / "folder.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SetupError, match=r"binary\.toml: not valid TOML"):
        load_node(str(tmp_path / "binary.toml"))


def test_an_engine_faster_than_nothing_is_refused(tmp_path: Path) -> None:
    engine = written(tmp_path, "quick.toml", ENGINE.replace("-0.5", "-19"))
    with pytest.raises(SetupError, match=r"engine 'quick\.toml' on node 'a800': .*shortest decode step -0\.16 ms"):
        build_cost(["a800"], "llama-3-70b", engine)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vram_tokens": 0}, "vram_tokens is 0: expected a whole number from 1 to 1e15"),
        ({"vram_tokens": 10**300}, r"vram_tokens is 1e\+300: expected a whole number from 1 to 1e15"),
        ({"nic_gbytes_per_s": -1.0}, "nic_gbytes_per_s is -1: expected a number from 0.001 to"),
        ({"nic_gbytes_per_s": float("nan")}, "nic_gbytes_per_s is nan: expected a number from 0.001 to"),
        ({"nic_gbytes_per_s": 1e308}, r"nic_gbytes_per_s is 1e\+308: expected a number from 0.001 to"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        build_cost(["a800"], "llama-3-70b", "none", **settings)  # type: ignore[arg-type]


def test_a_cluster_without_instances_is_refused() -> None:
    with pytest.raises(SetupError, match="no instance"):
        build_cost([], "llama-3-70b", "none")


def test_the_bundled_files_are_toml_that_ships_beside_the_module() -> None:
    folder = Path(presets.__file__).parent / "presets"
    for name in ("models", "nodes", "engines"):
        assert tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))


def test_errors_that_contradict_themselves_are_refused(tmp_path: Path) -> None:
    numbers = "rows = 9\nmedian = 50.0\np90 = 6.7\nworst = 80.0\nleft_out_median = 1.0\nleft_out_p90 = 2.0\n"
    path = written(tmp_path, "odd.toml", f"{NODE}\n[costs.tiny.prefill_heldout]\n{numbers}")
    with pytest.raises(SetupError, match=r"prefill_heldout\.median' is 50\.0: expected a number of at most p90, 6\.7"):
        load_node(path)


def test_a_file_of_thousands_of_brackets_or_digits_is_not_toml(tmp_path: Path) -> None:
    for text in ("x = " + 100_000 * "[", "x = " + 9_999 * "7"):
        with pytest.raises(SetupError, match=r"deep\.toml: not valid TOML"):
            load_node(written(tmp_path, "deep.toml", text))
