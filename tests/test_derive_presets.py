"""The script that derives the node presets: kernel sums, fits, what it writes, and that the shipped file is that."""

from __future__ import annotations

import sys
import tomllib
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import REPO

from mooncake_bench.hardware.calibrate.forms import Decode, Prefill
from mooncake_bench.hardware.calibrate.heldout import heldout
from mooncake_bench.hardware.calibrate.rows import DecodeRows, PrefillRows
from mooncake_bench.hardware.presets import HeldOut, NodeCosts, load_node


def tool(name):
    """A script of tools/, as a module."""
    spec = spec_from_file_location(name, REPO / "tools" / f"{name}.py")
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


script = tool("derive_presets")
from derive import cause, compose, errors, fits, linear, nodes  # noqa: E402  (the script knows where they are)

MEASURED = [(gpu, model) for gpu in compose.GPUS for model in nodes.SHIPPED]
LARGE = "llama-3-70b"


@pytest.fixture(scope="module")
def measurements(shared: Path) -> Path:
    return shared / "measurements"


@cache
def kernels(measurements: Path, gpu: str) -> compose.Kernels:
    return compose.Kernels(measurements, compose.GPUS[gpu])


def shipped(node: str, model: str) -> NodeCosts:
    return load_node(node).costs[model]


def shipped_prefill(costs: NodeCosts) -> Prefill:
    c = costs.coefficients
    return Prefill(c.prefill_floor_ms, c.prefill_token_ms, c.prefill_constant_ms, c.prefill_token2_ms,
                   c.prefill_late_ms, c.prefill_late_tokens)  # fmt: skip


def shipped_decode(costs: NodeCosts) -> Decode:
    c = costs.coefficients
    return Decode(c.decode_floor_ms, c.decode_roof_ms, c.decode_sequence_ms, c.decode_token_ms, c.decode_root_ms)


# kernel sums


def test_the_products_of_a_rank_have_the_shapes_of_the_model() -> None:
    # 8 of 64 query heads and 1 of 8 KV heads of 128 a GPU: (8 + 2*1)*128 = 1280; 2*28672/8 = 7168; 28672/8 = 3584
    assert list(cause.products(nodes.shape(LARGE), 8).values()) == [
        (1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584),
    ]  # fmt: skip


def test_between_measured_sizes_times_go_straight_and_beyond_them_in_proportion() -> None:
    curve = (np.array([1.0, 4.0]), np.array([10.0, 40.0]))
    assert compose._along(curve, 2.0) == pytest.approx(20.0)  # straight on logarithmic axes
    assert compose._along(curve, 8.0) == pytest.approx(80.0)
    assert compose._shares(1280, [1024, 1536]) == [(1024, 0.5), (1536, 0.5)]
    assert compose._shares(3072, [1024, 1536]) == [(1536, 2.0)]


@pytest.mark.parametrize(("phase", "count"), [("prefill", 60), ("decode", 147)])
def test_our_sums_are_the_composed_tables_in_every_part(measurements: Path, phase: str, count: int) -> None:
    table = pq.read_table(measurements / "derived" / f"composed_{phase}_ms.parquet")
    rows = compose.where(table, hw="a100_sxm", model="llama-70b", tp=8).to_pylist()
    assert len(rows) == count
    for row in rows:
        ours = script._parts(kernels(measurements, "a100"), phase, LARGE, 8, row)
        theirs = [row[name] for name in ("g", "e", "ar", "att", "lm")]
        assert ours == pytest.approx(theirs, rel=2e-7)  # they are kept as float32
        assert sum(ours) == pytest.approx(row["t"], rel=2e-7)


def test_our_grid_is_that_of_the_composed_tables(measurements: Path) -> None:
    known = {
        phase: pq.read_table(measurements / "derived" / f"composed_{phase}_ms.parquet")
        for phase in ("prefill", "decode")
    }
    for gpu in compose.GPUS:
        chosen = {"hw": compose.GPUS[gpu].name, "model": "llama-70b", "tp": 8}
        each, model = kernels(measurements, gpu), nodes.shape(LARGE)
        assert len(fits.prefill_rows(each, model)) == len(compose.where(known["prefill"], **chosen))
        assert len(fits.decode_rows(each, model, least_context=2)) == len(compose.where(known["decode"], **chosen))


# the cause of the jump


def test_two_thirds_of_the_jump_are_products_and_a_third_is_the_all_reduce(measurements: Path) -> None:
    # aiconfigurator, A100: an all-reduce of 2 Mi elements takes 45.37 us, of 4 Mi 128.0 us; 160 of them: 13.2 ms more.
    # MLP down, 3584 x 8192: 84.9 us at 256 and 180.5 us at 512 tokens.
    each, model = kernels(measurements, "a100"), nodes.shape(LARGE)
    before, after = (np.array(compose.prefill_parts_ms(each, model, 8, 1, n)) for n in (256, 512))
    more = dict(zip(compose.PARTS, after - before, strict=True))
    assert more["all_reduce"] == pytest.approx(160 * (0.1280 - 0.04537), rel=1e-3)
    assert each.product_ms(256, 8192, 3584) == pytest.approx(0.0849, abs=5e-5)
    assert each.product_ms(512, 8192, 3584) == pytest.approx(0.1805, abs=5e-5)
    assert more["gemm"] + more["all_reduce"] > 0.9 * sum(more.values())
    assert 0.55 < more["gemm"] / sum(more.values()) < 0.67


def test_products_take_as_long_as_their_waves_of_128_by_256_tiles_on_a100(measurements: Path) -> None:
    # 8192 columns are 32 tiles: 256 and 384 tokens 64 and 96 of them, one wave of 108; 512 and 768 two; 1024 three.
    each = kernels(measurements, "a100")
    waves = {256: 1, 384: 1, 512: 2, 768: 2, 1024: 3}
    for inner in (1024, 3584):
        one = each.product_ms(256, 8192, inner)
        for tokens, count in waves.items():
            assert each.product_ms(tokens, 8192, inner) / one == pytest.approx(count, rel=0.1)


def test_where_the_all_reduce_is_handed_over_the_late_term_sets_in() -> None:
    # 8 MiB of two-byte values: 4,194,304 / 8192 = 512 tokens, / 4096 = 1024, / 5120 = 819.2
    late = {model: shipped("a100", model).coefficients.prefill_late_tokens for model in nodes.SHIPPED}
    assert late == {"llama-3-70b": 512.0, "llama-3-8b": 1024.0, "qwen3-32b": 819.2}
    assert all(shipped("h100", model).coefficients.prefill_late_ms == 0 for model in nodes.SHIPPED)


# forms that are only compared


def rows_of(batch: list[float], tokens: list[float], ms: list[float]) -> DecodeRows:
    return DecodeRows(*(np.array(column, dtype=float) for column in (batch, tokens, ms)))


def test_linear_forms_find_what_made_exact_rows() -> None:
    batch, tokens = [1.0, 2, 4, 8, 16, 32], [100.0, 50, 400, 900, 100, 6400]
    plain = rows_of(batch, tokens, [5 + 0.5 * b + 0.01 * t for b, t in zip(batch, tokens, strict=True)])
    assert linear.fit(linear.affine)(plain).weights == pytest.approx([5, 0.5, 0.01])
    bent = rows_of(batch, tokens, [5 + 0.5 * max(0, b - 8) + 0.01 * t for b, t in zip(batch, tokens, strict=True)])
    found = linear.best([linear.two_slopes(knee) for knee in (4, 8, 16)])(bent)
    assert found.predict(bent) == pytest.approx(bent.ms)
    n = np.array([10.0, 20, 40])
    prompts = PrefillRows(n, n * n / 2, 3 + 0.1 * n + 0.01 * n * n / 2)
    assert linear.fit(linear.with_attention)(prompts).weights == pytest.approx([3, 0.1, 0.01])


def test_a_tabulated_form_is_straight_between_its_batches() -> None:
    known = rows_of([1, 1, 3, 3], [0, 100, 0, 100], [2, 3, 4, 5])
    assert linear.table_of(known).predict(rows_of([2], [50], [1])) == pytest.approx([3.5])  # (2 + 4)/2 + 0.01*50


def test_every_row_of_the_notes_table_is_there() -> None:
    notes = [row.notes for row in errors.ROWS if row.notes]
    # COST_MODEL.md section 3: E1 mean and worst, a+bn+cS, a+bn, affine, roof, 2 affine, tabulated, on A100
    assert {row[0] for row in notes} >= {
        (1.6, 6.6), (4.7, 13.5), (1.9, 8.6), (2.1, 9.9), (2.3, 8.0), (2.0, 5.2), (1.8, 3.4), (0.9, 3.2),
    }  # fmt: skip


# the shipped file


@pytest.mark.parametrize(("gpu", "model"), MEASURED)
def test_the_shipped_coefficients_are_what_the_tables_give(measurements: Path, gpu: str, model: str) -> None:
    each, dimensions, costs = kernels(measurements, gpu), nodes.shape(model), shipped(gpu, model)
    prefill, decode = fits.prefill_rows(each, dimensions), fits.decode_rows(each, dimensions)
    ours = fits.prefill_fit(each, dimensions)(prefill), fits.decode_fit(each)(decode)
    theirs = shipped_prefill(costs), shipped_decode(costs)
    for rows, one, other in zip((prefill, decode), ours, theirs, strict=True):
        assert other.predict(rows) == pytest.approx(one.predict(rows), rel=5e-3)  # scipy's versions differ a little


def test_the_shipped_errors_are_those_of_the_weakest_preset_computed_again(measurements: Path) -> None:
    each, dimensions = kernels(measurements, "a100"), nodes.shape(LARGE)
    rows = fits.prefill_rows(each, dimensions)
    again = heldout(rows, fits.prefill_fit(each, dimensions), rows.n, halves=4)
    said = shipped("a100", LARGE).prefill_heldout
    assert said is not None
    assert (again.left_out_median, again.left_out_p90) == pytest.approx(
        (said.left_out_median, said.left_out_p90), abs=0.3
    )
    assert (again.median, again.p90) == pytest.approx((said.median, said.p90), rel=0.3)  # of 4 halves, not of 20


def within(error: HeldOut | None, median: float, p90: float) -> bool:
    assert error is not None
    return error.median < median and error.p90 < p90


@pytest.mark.parametrize(("gpu", "model"), MEASURED)
def test_every_shipped_dense_preset_is_within_5_and_10_percent(gpu: str, model: str) -> None:
    costs = shipped(gpu, model)
    assert within(costs.decode_heldout, 5, 10)
    assert within(costs.prefill_heldout, 5, 10)


def test_the_70b_prefill_on_a100_is_within_5_and_10_percent_at_lengths_left_out_too() -> None:
    error = shipped("a100", LARGE).prefill_heldout
    assert error is not None
    assert error.left_out_median < 5
    assert error.left_out_p90 < 10


@pytest.mark.parametrize(("node", "base", "notes_ms"), [("a800", "a100", 0.0107), ("h800", "h100", 0.0109)])
def test_derived_nodes_add_a_slower_all_reduce_in_proportion_to_hidden_size_and_layers(
    node: str, base: str, notes_ms: float
) -> None:
    for model in nodes.SHIPPED:
        there, here = shipped(base, model).coefficients, shipped(node, model).coefficients
        size = nodes.shape(model)
        more = notes_ms * size.hidden * size.layers / (8192 * 80)
        assert here.prefill_token_ms - there.prefill_token_ms == pytest.approx(more, rel=0.03)
        assert here.decode_sequence_ms - there.decode_sequence_ms == pytest.approx(more, rel=0.03)
        assert (here.prefill_floor_ms, here.prefill_late_ms) == (there.prefill_floor_ms, there.prefill_late_ms)
        assert shipped(node, model).status == "derived"
        assert shipped(node, model).prefill_heldout is None  # nothing was measured on it


def test_a_slower_all_reduce_of_143_gbytes_a_second_adds_the_notes_0_0107_ms() -> None:
    # 80 layers * 2 * 2*(7/8) * 8192 * 2 bytes = 4,587,520 bytes a token; * (1/143e9 - 1/215e9 s/byte) = 0.01074 ms
    assert nodes.extra_token_ms(nodes.shape(LARGE), 143e9, 215e9) == pytest.approx(0.01074, abs=5e-6)


def test_kvcache_that_fits_beside_the_weights() -> None:
    # 0.9 * 8 * 80 GiB = 618.5 GB. 8B: 8.03 billion weights, 16.06 GB, 2*32*8*128*2 = 131,072 B a token: 4.596 million;
    # Qwen3-32B: 32.76 billion, 65.52 GB, 2*64*8*128*2 = 262,144 B: 2.109 million
    assert nodes.vram_tokens("a100", nodes.shape("llama-3-8b")) == 4_596_000
    assert nodes.vram_tokens("h100", nodes.shape("qwen3-32b")) == 2_109_000


def test_rewriting_keeps_what_is_not_its_own_and_what_it_wrote_before() -> None:
    costs = {"box": '[box.costs.llama-3-70b]\nstatus = "new"\n'}
    text = (
        '# old head\n\n[box]\ngpus = 8\n\n[box.costs.llama-3-70b]\nstatus = "old"\n\n'
        '[box.costs.llama-3-70b.prefill_heldout]\nrows = 1\n\n[box.costs.other]\nstatus = "kept"\n\n[mine]\ngpus = 1\n'
    )
    once = nodes.rewritten(text, costs)
    assert once == nodes.rewritten(once, costs)
    assert tomllib.loads(once) == {
        "box": {"gpus": 8, "costs": {"llama-3-70b": {"status": "new"}, "other": {"status": "kept"}}},
        "mine": {"gpus": 1},
    }
    assert once.startswith("# Nodes of 8 GPUs")
    assert "old head" not in once


def test_a_folder_without_the_tables_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main([str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "gemm_perf.parquet: no such table" in err
    assert err.count("\n") == 1
