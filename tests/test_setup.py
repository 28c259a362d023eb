"""The setup: names, parsing of values, refusals."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.sim.costs import pool_blocks_of
from mooncake_bench.sim.parsing import (
    Size,
    parse_cluster,
    parse_duration_ms,
    parse_gbytes_per_s,
    parse_size,
    parse_slo,
    parse_view,
)
from mooncake_bench.sim.replay import run
from mooncake_bench.sim.setup import Setup, settings
from mooncake_bench.trace import Trace


def test_the_defaults_are_the_fast25_testbed() -> None:
    setup = Setup()
    assert (setup.cluster, setup.model, setup.node, setup.engine) == ("8P+8D", "llama-3-70b", "a800", "mooncake-a800")
    assert pool_blocks_of(setup, 512) == dict.fromkeys(range(8), 5859)  # 3,000,000 tokens / 512 = 5859.4
    assert (setup.pool_blocks, setup.slo_ttft_ms, setup.slo_tbt_ms) == (None, 30_000.0, 100.0)
    assert setup.instances == [("P", "a800")] * 8 + [("D", "a800")] * 8


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("30s", 30_000),
        ("100ms", 100),
        ("250us", 0.25),
        ("12", 12),
        ("1.5s", 1500),
        ("2min", 120_000),
        ("1h", 3_600_000),
    ],
)
def test_a_duration_is_read_in_its_unit_and_bare_numbers_are_ms(text: str, expected_ms: float) -> None:
    assert parse_duration_ms(text) == expected_ms


@pytest.mark.parametrize("text", ["", "s", "30 parsecs", "1e999s", "nan", "--3s", "3s4"])
def test_a_malformed_duration_is_refused_with_the_forms_that_work(text: str) -> None:
    with pytest.raises(SetupError, match="expected a duration such as 30s, 100ms"):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5859", Size(5859, "blocks")),
        ("3Mtok", Size(3_000_000, "tokens")),
        ("1TB", Size(10**12, "bytes")),
        ("64GiB", Size(64 * 2**30, "bytes")),
        ("2kB", Size(2000, "bytes")),
        ("100blocks", Size(100, "blocks")),
    ],
)
def test_a_size_says_whether_it_counts_blocks_tokens_or_bytes(text: str, expected: Size) -> None:
    assert parse_size(text, bare="blocks") == expected


def test_network_rates_read_bytes_and_bits() -> None:
    # 800 Gbps / 8 bits = 100 GB/s
    assert [parse_gbytes_per_s(text) for text in ("87", "87GB/s", "800Gbps")] == [87, 87, 100]
    with pytest.raises(SetupError, match="a rate such as 87"):
        parse_gbytes_per_s("87 furlongs")


def test_a_cluster_lists_role_and_node_of_each_instance() -> None:
    assert parse_cluster("2P@h800+1D@a100") == [("P", "h800"), ("P", "h800"), ("D", "a100")]
    assert parse_cluster("[1p+2d]", node="h200") == [("P", "h200"), ("D", "h200"), ("D", "h200")]
    assert parse_cluster("2M") == [("M", "a800"), ("M", "a800")]
    assert parse_cluster("1P+0D") == [("P", "a800")]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("8P+4M", "mixes coupled instances with others"),
        ("0M", "at least 1"),
        ("8P", "no decode instance"),
        ("8D", "no prefill instance"),
        ("0P+8D", "at least 1"),
        ("8P+", "expected groups such as 8P"),
        ("8Q+8D", "expected groups such as 8P"),
        ("", "expected"),
        ("8P+0D@h800", "'0D@h800' names a node, and has no instance of it"),
    ],
)
def test_a_cluster_that_cannot_serve_is_refused_with_the_reason(spec: str, reason: str) -> None:
    with pytest.raises(SetupError, match=reason):
        Setup(cluster=spec)


@pytest.mark.parametrize("text", ["ttft:30s,tbt:100ms", "ttft:30s tbt:100ms", "ttft:30000 tbt:100"])
def test_slos_are_read_with_commas_and_in_the_spaced_form(text: str) -> None:
    assert parse_slo(text) == {"slo_ttft_ms": 30_000.0, "slo_tbt_ms": 100.0}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ttft", "lacks its value"),
        ("tfft:3s", "did you mean 'ttft'"),
        ("e2e:3s", "not in this version"),
        ("ttft:10x", "relative and per-token forms"),
        ("ttft:1s+0.25ms/tok", "relative and per-token forms"),
        ("ttft:1s,ttft:2s", "given twice"),
        ("", "nothing given"),
    ],
)
def test_an_slo_that_would_judge_nothing_is_refused(text: str, reason: str) -> None:
    with pytest.raises(SetupError, match=reason):
        parse_slo(text)


def test_the_view_is_a_kind_and_a_delay() -> None:
    assert [parse_view(view) for view in ("exact", "router-only", "delayed:50ms")] == [
        ("exact", 0.0),
        ("router-only", 0.0),
        ("delayed", 50.0),
    ]
    for wrong in ("delayed", "delayed:0", "exact:3", "exakt"):
        with pytest.raises(SetupError, match="expected exact, delayed"):
            Setup(view=wrong)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("speedup", 0, "speedup: must be at least 1e-09"),
        ("speedup", float("nan"), "speedup: expected a number"),
        ("pool_blocks", 0, "pool.blocks: must be at least 1"),
        ("pool_blocks", 2.5, "pool.blocks: expected a whole number"),
        ("pool_blocks", True, "pool.blocks: expected a number"),
        ("seed", -1, "seed: must be at least 0"),
        ("slo_tbt_ms", 0, "slo.tbt_ms: must be at least 1e-06"),
        ("tbt_metric", "tail", "slo.tbt_metric: expected one of tail10"),
        ("first_gap", "no", "slo.first_gap: expected one of include, exclude"),
        ("estimate_error", -0.1, "estimate_error: must be at least 0"),
        ("estimate_error", 0.6, "estimate_error: must be at most 0.57"),
        ("speedup", 2e9, "speedup: must be at most 1e\\+09"),
        ("view", "delayed:1e15", "view: expected exact, delayed:<ms>"),
        ("cluster", "100001P+1D", "cluster: '100001P' has more than 100,000 instances"),
        ("warmup_ms", -1, "warmup_ms: must be at least 0"),
        ("model", "", "model: expected text"),
    ],
)
def test_a_value_out_of_range_names_the_setting_and_the_bound(field: str, value: object, reason: str) -> None:
    with pytest.raises(SetupError, match=reason):
        Setup(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cluster", "settings", "reason"),
    [
        ("10P+0D", {"vram_tokens": 1000}, r"vram.tokens: no effect on cluster 10P\+0D: nothing decodes"),
        ("1P+0D", {"nic_gbytes_per_s": 5.0}, "nic.gbytes_per_s: no effect .*: nothing is sent"),
        ("3P+0D", {"nic_gbytes_per_s": 5.0, "pool_scope": "local"}, "nic.gbytes_per_s: no effect"),
        ("1P+0D", {"pool_scope": "local"}, "pool.scope: no effect .*: one prefill instance"),
        ("1P+1D", {"events": ""}, "events: an empty one; expected TIME:ACTION:ROLE:N"),
    ],
)
def test_what_has_no_effect_on_a_cluster_is_refused(cluster: str, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(SetupError, match=reason):
        Setup(cluster=cluster, **settings)


def test_a_lone_prefill_instance_fetches_from_nobody_unless_roles_may_change() -> None:
    trace = Trace.of([(0.0, 4, 1, [1])], block_tokens=4)
    lone: dict[str, Any] = {"cluster": "1P+2D", "pool_scope": "local", "pool_blocks": 10}
    with pytest.raises(SetupError, match=r"pool\.scope: no effect on cluster 1P"):
        run(trace, Setup(**lone), cost=FakeCost(3))
    for more in ({"events": "1ms:switch:decode:0"}, {"policy": "kvcache-centric+elastic"}):
        run(trace, Setup(**lone, **more), cost=FakeCost(3))


def test_an_empty_window_of_arrivals_is_refused() -> None:
    with pytest.raises(SetupError, match=r"trace.end_ms: 5 must be above trace.start_ms 5"):
        Setup(start_ms=5, end_ms=5)


def test_an_unknown_key_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SetupError, match=r"run.toml: no setting 'slo.tfft_ms'; did you mean 'slo.ttft_ms'"):
        Setup.from_dict({"slo": {"tfft_ms": 3}}, where="run.toml")


def test_the_manifest_and_toml_give_the_same_setup_back() -> None:
    setup = Setup(cluster="4P@h800+8D@a100", speedup=1.5, slo_ttft_ms=1e-3, seed=2**60 + 1, view="delayed:3ms")
    assert Setup.from_dict(setup.to_dict()) == setup
    assert Setup.from_dict(tomllib.loads(setup.to_toml())) == setup


@given(st.builds(Setup, speedup=st.floats(1e-6, 1e6), seed=st.integers(0, 2**64), pool_blocks=st.integers(1, 10**9)))
def test_any_setup_survives_toml(setup: Setup) -> None:
    assert Setup.from_dict(tomllib.loads(setup.to_toml())) == setup


def test_every_setting_has_one_dotted_name_and_a_help_line() -> None:
    declared = settings()
    assert len({setting.dotted for setting in declared.values()}) == len(declared)
    assert all(setting.help for setting in declared.values())
    assert all(setting.unset for name, setting in declared.items() if getattr(Setup(), name) is None)
