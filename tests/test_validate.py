"""`calibrate validate` on small folders of measurements made by hand: errors, exclusions, ceilings, what is printed."""

from __future__ import annotations

import csv
import gzip
import io
from dataclasses import astuple, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.build import build_cost
from mooncake_bench.hardware.presets import HeldOut, load_node
from mooncake_bench.studies.validate import checks, choose, f25_eq2, heldout, validate
from mooncake_bench.studies.validate.files import FIGURES, Measurements
from mooncake_bench.studies.validate.linear import fit, left_out
from mooncake_bench.studies.validate.outcome import (
    INDEPENDENT,
    Done,
    Limits,
    Outcome,
    Point,
    Row,
    errors_of,
)

if TYPE_CHECKING:
    from fault_tools import Tool

SILICON = "aiconfigurator/silicon_sample.csv.gz"
SPLITWISE = "splitwise/perf_model.csv.gz"
FIGURE_HEAD = ("figure", "setting", "x", "series", "value")
SILICON_HEAD = (
    "backend", "model_path", "system", "mode", "isl", "osl", "gemm_quant_mode", "batch_size", "tp_size",
    "attention_dp_size", "moe_tp_size", "moe_ep_size", "silicon_ttft_ms", "silicon_tpot_ms",
)  # fmt: skip


def put(folder: Path, name: str, head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Path:
    """A table at its place in a folder of measurements, packed where its name says so."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([head, *rows])
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    data = out.getvalue().encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return folder


def rows_of(folder: Path | None, check: str) -> dict[str, Row]:
    """The rows of one check on a folder."""
    (done,) = validate(choose([check]), None if folder is None else Measurements(folder))
    return {row.name: row for row in done.rows}


def excluded_of(folder: Path, check: str) -> tuple[str, ...]:
    (done,) = validate(choose([check]), Measurements(folder))
    assert done.outcome is not None
    return done.outcome.excluded


# ---- errors and verdicts


def test_errors_are_absolute_percentages_of_the_measured_value() -> None:
    # |110/100-1| = 10 %, |190/200-1| = 5 %, 0 %: median 5, p90 = 5 + 0.8 * 5 = 9 (linear), worst 10; signed +10 -5 0
    points = [Point("a", 100, 110), Point("b", 200, 190), Point("c", 50, 50)]
    assert astuple(errors_of(points, relative=True)) == pytest.approx((3, 5, 9, 10, 0))


def test_errors_of_an_axis_are_differences() -> None:
    # 0.02 and 0.04 off: median 0.03, p90 = 0.02 + 0.9 * 0.02 = 0.038; both predictions are too low
    points = [Point("a", 0.5, 0.48), Point("b", 1.0, 0.96)]
    assert astuple(errors_of(points, relative=False)) == pytest.approx((2, 0.03, 0.038, 0.04, -0.03))


@pytest.mark.parametrize(
    ("limits", "verdict"),
    [
        (None, "no claim"),
        (Limits("notes", worst=10.0), "within"),
        (Limits("notes", median=4.9), "beyond"),
        (Limits("notes", median=5.0, p90=8.9, worst=10.0), "beyond"),
        (Limits("notes", median=4.7, decimals=0), "beyond"),  # 5.0 rounds to 5
        (Limits("notes", p90=9.0, decimals=0), "within"),
    ],
)
def test_a_verdict_is_beyond_as_soon_as_one_claimed_statistic_is(limits: Limits | None, verdict: str) -> None:
    points = (Point("a", 100, 110), Point("b", 200, 190), Point("c", 50, 50))  # errors 5 / 9 / 10 %
    assert Row("r", INDEPENDENT, points, limits=limits).verdict == verdict


def test_a_rounded_claim_allows_what_rounds_to_it() -> None:
    assert Limits("notes", decimals=1).allow(8.12, 8.1)
    assert not Limits("notes", decimals=1).allow(8.16, 8.1)
    assert not Limits("aim").allow(8.12, 8.1)


def test_two_rows_of_one_name_are_a_bug() -> None:
    one = Done("X", "", "", (), (), None)
    with pytest.raises(ValueError, match="two rows of one name"):
        one.with_outcome(Outcome((Row("same", INDEPENDENT), Row("same", INDEPENDENT))))


def test_a_form_left_out_recovers_its_own_points() -> None:
    # y = 3 + 2 x without noise: each point follows from the others
    x = np.array([1.0, 2, 5, 9])
    terms = np.stack([np.ones_like(x), x], axis=1)
    assert fit(terms, 3 + 2 * x) == pytest.approx([3, 2])
    assert left_out(terms, 3 + 2 * x) == pytest.approx(3 + 2 * x)


def test_no_coefficient_is_fitted_below_0() -> None:
    # y = 10 - x wants a slope of -1: the best without one is a constant
    x = np.array([1.0, 2, 3])
    assert fit(np.stack([np.ones_like(x), x], axis=1), 10 - x)[1] == 0


def test_repetitions_of_a_configuration_are_left_out_together() -> None:
    # A constant: the two points of group a (10) are predicted from b alone (20), and the other way round.
    measured = np.array([10.0, 10, 20])
    assert left_out(np.ones((3, 1)), measured, ["a", "a", "b"]) == pytest.approx([20, 20, 10])


# ---- checks


def test_equation_2_gives_the_papers_6_and_19() -> None:
    # 2 x 8192 x 2 / 8 = 4096 bytes of K and V a token and layer (8 KV heads of 128: 2 x 1024 x 2)
    # (4 x 8192 x 8192 + 22 x 8192^2) = 26 x 67,108,864 = 1.74483e9 operations a token and layer
    # A800: 8 x 312e12 x 4096 / 1.74483e9 = 5.859e9 bytes/s; H800: x 989/312 = 18.573e9
    assert f25_eq2.equation_2(312e12) == pytest.approx(5.859, abs=5e-4)
    assert f25_eq2.equation_2(989e12) == pytest.approx(18.573, abs=5e-4)
    (row,) = rows_of(None, "F25-EQ2").values()
    assert [round(point.predicted) for point in row.points] == [point.measured for point in row.points] == [6, 19]
    assert row.verdict == "within"


def test_figure_14_prefill_computes_5_percent_of_a_cached_prompt(tmp_path: Path) -> None:
    # 8192 x 0.95 = 7782.4 -> 7782 cached, 410 computed; the bar is made half as high as the preset's time: +100 %
    cost = build_cost(["a800"], "llama-3-70b", "mooncake-a800")
    full, cached = cost.prefill_ps(0, 8192, 0) / 1e12, cost.prefill_ps(0, 410, 7782) / 1e12
    bars = [("FAST25_fig14", 0, 8192, "prefill", full), ("FAST25_fig14", 95, 8192, "prefill", cached / 2)]
    rows = rows_of(put(tmp_path, FIGURES, FIGURE_HEAD, bars), "F25-FIG14-PREFILL")
    assert rows["0 % cached, engine mooncake-a800"].errors.worst == pytest.approx(0, abs=1e-9)
    assert rows["95 % cached, engine mooncake-a800"].errors.worst == pytest.approx(100)
    assert rows["95 % cached, engine mooncake-a800"].verdict == "beyond"
    assert {name: row.basis for name, row in rows.items() if name.startswith("0 %")} == {
        "0 % cached, engine mooncake-a800": "in-sample",
        "0 % cached, engine none": "independent",
    }


def test_figure_14_decode_is_128_steps_of_a_growing_context(tmp_path: Path) -> None:
    # 128 f(1) + c_d sum(1000 .. 1127) = 128 f(1) + c_d x 128 x 1063.5
    cost = build_cost(["a800"], "llama-3-70b", "none")
    # and 128 f(1) + c_d x 128 x 2063.5 for a context of 2000
    short, long = ((128 * cost.decode_ps(0, 1) + cost.token_ps(0) * tokens) / 1e12 for tokens in (136_128, 264_128))
    bars = [
        ("FAST25_fig14", percent, context, "decode", seconds)
        for percent in (0, 95)
        for context, seconds in ((1000, short), (2000, long))
    ]
    rows = rows_of(put(tmp_path, FIGURES, FIGURE_HEAD, bars), "F25-FIG14-DECODE")
    assert rows["batch 1, engine none"].errors.worst == pytest.approx(0, abs=1e-9)


def test_figure_2_is_normalised_by_the_largest_value_of_each_curve(tmp_path: Path) -> None:
    # Only the ratio of two steps counts, so a curve of the same ratio on another scale agrees exactly.
    cost = build_cost(["a800"], "llama2-70b", "none")
    steps = [cost.decode_ps(0, batch) + cost.token_ps(0) * batch * 8192 for batch in (1, 16)]
    curve = [
        ("arXivv3_fig2_right", "", batch, "decode_norm_vs_batch_seq8k", 0.4 * step / steps[1])
        for batch, step in zip((1, 16), steps, strict=True)
    ]
    curve.append(("arXivv3_fig2_left", "", 8192, "prefill_norm", 1))
    rows = rows_of(put(tmp_path, FIGURES, FIGURE_HEAD, curve), "V3-FIG2")
    assert rows["right: decode, engine none"].errors.worst == pytest.approx(0, abs=1e-9)
    assert rows["right: decode, engine mooncake-a800"].errors.worst > 0.01


def silicon_row(batch: int, prompt: int, answer: int, tpot: float, **other: Any) -> tuple[Any, ...]:
    values: dict[str, Any] = {
        "backend": "trtllm", "model_path": "deepseek-ai/DeepSeek-R1", "system": "h200_sxm", "mode": "agg",
        "isl": prompt, "osl": answer, "gemm_quant_mode": "fp8", "batch_size": batch, "tp_size": 8,
        "attention_dp_size": 1, "moe_tp_size": 8, "moe_ep_size": "", "silicon_ttft_ms": 100, "silicon_tpot_ms": tpot,
    } | other  # fmt: skip
    return tuple(values[key] for key in SILICON_HEAD)


def test_serving_points_of_experts_follow_a_form_with_a_root(tmp_path: Path) -> None:
    # TPOT = 5 + 0.2 B + 1e-5 T + 2 sqrt(B) + 1e-3 B prompt / answer exactly, T = B (prompt + answer / 2)
    made = []
    for batch in (1, 2, 4, 8, 16, 32):
        for prompt, answer in ((1000, 100), (4000, 1000)):
            tokens = batch * (prompt + answer / 2)
            tpot = 5 + 0.2 * batch + 1e-5 * tokens + 2 * batch**0.5 + 1e-3 * batch * prompt / answer
            made.append(silicon_row(batch, prompt, answer, tpot))
    other = [
        silicon_row(4, 1000, 100, 9, silicon_ttft_ms=5000),
        silicon_row(4, 1000, 100, 9, system="b200_sxm"),
        silicon_row(4, 1000, 100, 9, mode="disagg", batch_size="", tp_size=""),
        silicon_row(4, 1000, 100, 9, model_path="meta-llama/Llama-3.1-70B"),
        silicon_row(4, 1000, 100, 9, tp_size=4),
    ]
    folder = put(tmp_path, SILICON, SILICON_HEAD, made + other)
    rows = rows_of(folder, "SILICON-MOE")
    assert list(rows) == ["DeepSeek-R1 h200 TRT-LLM TP8", "DeepSeek-R1 h200 TRT-LLM TP8, physical form"]
    assert rows["DeepSeek-R1 h200 TRT-LLM TP8"].errors.worst < 0.01
    assert sorted(excluded_of(folder, "SILICON-MOE")) == [
        "1 rows in groups of fewer than 10 configurations",
        "1 rows of other models",
        "1 rows on GPUs without a preset here",
        "1 rows with a TTFT of 5 s or more: queueing",
        "1 rows with prefill and decode on different GPUs",
    ]


def test_a_dense_serving_point_is_a_decode_step_and_its_share_of_prefills(tmp_path: Path) -> None:
    # Llama-3-8B in bf16 on one H200: a step reads 16.06 GB less the embedding's 1.05 GB = 15.0 GB of weights; at the
    # data sheet's 4.8 TB/s that is 3.13 ms, the least it can be, and by common experience not twice as much.
    # With batch 1 and an answer of a million tokens neither prefills nor (60 GB/s less) KVCache matter.
    point = silicon_row(
        1,
        100,
        1_000_000,
        4.0,
        model_path="meta-llama/Llama-3.1-8B-Instruct",
        gemm_quant_mode="",
        tp_size=1,
        moe_tp_size=1,
    )
    short = silicon_row(
        1, 10_000, 1, 4.0, model_path="meta-llama/Llama-3.1-8B-Instruct", gemm_quant_mode="", tp_size=2, moe_tp_size=2
    )
    rows = rows_of(put(tmp_path, SILICON, SILICON_HEAD, [point, short]), "SILICON-DENSE")
    (step,) = rows["Llama-3.1-8B-Instruct h200 TRT-LLM TP1"].points
    kv_ms = 500_100 * 131_072 / 4.8e12 * 1e3  # halfway through the answer: 32 layers x 8 x 128 x 2 x 2 bytes a token
    assert 3.13 + kv_ms < step.predicted < 2 * (3.13 + kv_ms)
    # An answer of one token waits for one whole prefill: 2 x 7.5e9 x 10,000 operations at 2 x 989e12 are 76 ms
    (waiting,) = rows["Llama-3.1-8B-Instruct h200 TRT-LLM TP2"].points
    assert 76 < waiting.predicted < 2 * 76 + 20


SPLITWISE_HEAD = (
    "model", "hardware", "prompt_size", "batch_size", "token_size", "prompt_time", "token_time", "tensor_parallel",
)  # fmt: skip


def test_splitwise_repetitions_become_their_median_and_scaled_copies_are_counted(tmp_path: Path) -> None:
    made = [("llama2-70b", "a100-80gb", 512, 1, 128, prefill, 40, 8) for prefill in (100, 300, 110)]
    made += [("llama2-70b", "a100-80gb-pcap", 512, 1, 128, 100, 40, 8)] * 2
    made += [("bloom-176b", "a100-80gb", 512, 1, 128, 100, 40, 8)]
    folder = put(tmp_path, SPLITWISE, SPLITWISE_HEAD, made)
    rows = rows_of(folder, "SPLITWISE")
    assert [point.measured for point in rows["a100 TP8 prefill, preset"].points] == [110]
    assert [text.split()[0] for text in excluded_of(folder, "SPLITWISE")] == ["2", "1"]
    assert "a100 TP8 prefill, line" not in rows  # one point is no line


def mla_table(folder: Path, name: str, **columns: list[Any]) -> None:
    # latency = 0.1 + 0.001 B + 1e-6 B context, exactly; 16 and 128 heads, KVCache in both types
    sizes = [(b, c) for b in (1, 2, 4, 8, 16, 32) for c in (100, 1000, 10_000)]
    kinds = [(heads, kv) for heads in (16, 128) for kv in ("bfloat16", "fp8")]
    table = {
        "batch_size": [b for b, _ in sizes] * 4,
        "step": [c for _, c in sizes] * 4,
        "latency": [0.1 + 0.001 * b + 1e-6 * b * c for b, c in sizes] * 4,
        "num_heads": [heads for heads, _ in kinds for _ in sizes],
        "kv_cache_dtype": [kv for _, kv in kinds for _ in sizes],
        "gemm_type": ["bfloat16"] * 4 * len(sizes),
    } | columns
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: values for name, values in table.items() if values}), folder / name)


def test_kernels_of_latent_attention_follow_a_form_linear_in_the_context(tmp_path: Path) -> None:
    h100, h200 = choose(["MLA-DECODE"])[0].FILES
    mla_table(tmp_path, h100)
    mla_table(tmp_path, h200)
    rows = rows_of(tmp_path, "MLA-DECODE")
    assert len(rows) == 8
    assert all(row.errors.worst is not None and row.errors.worst < 1e-6 for row in rows.values())
    assert {row.errors.points for row in rows.values()} == {18}
    mla_table(tmp_path, h200, latency=[])
    with pytest.raises(SetupError, match="no column 'latency'"):
        rows_of(tmp_path, "MLA-DECODE")
    (tmp_path / h200).write_bytes(b"PAR1 not really")
    with pytest.raises(SetupError, match="cannot be read"):
        rows_of(tmp_path, "MLA-DECODE")


def test_recorded_errors_are_held_against_this_tools_aim(monkeypatch: pytest.MonkeyPatch) -> None:
    node = load_node("a100")
    costs = replace(next(iter(node.costs.values())), prefill_heldout=None, decode_heldout=None)
    small = replace(costs, prefill_heldout=HeldOut(10, 1.0, 5.0, 9.0, 2.0, 6.0))
    large = replace(costs, prefill_heldout=HeldOut(20, 3.0, 10.5, 11.0, 4.0, 7.0))
    node = replace(node, costs={"small": small, "large": large})
    monkeypatch.setattr(heldout, "node_names", lambda: ["a100"])
    monkeypatch.setattr(heldout, "load_node", lambda name: node)
    outcome = heldout.run(Measurements(None))
    found = {row.name: (row.verdict, row.errors.median, row.errors.p90) for row in outcome.rows}
    assert found == {  # 10.5 is beyond this tool's 10 %
        "a100, small: prefill": ("within", 1.0, 5.0),
        "a100, small: prefill, left out": ("no claim", 2.0, 6.0),
        "a100, large: prefill": ("beyond", 3.0, 10.5),
        "a100, large: prefill, left out": ("no claim", 4.0, 7.0),
    }
    assert "small on a100 in decode" in outcome.facts[1]


# ---- files


def test_a_check_without_its_file_is_listed_with_the_files_name(tool: Tool, tmp_path: Path) -> None:
    bars = [("FAST25_fig14", percent, 8192, series, 1) for percent in (0, 95) for series in ("transfer", "load")]
    put(tmp_path, FIGURES, FIGURE_HEAD, bars)
    found = tool("calibrate", "validate", "F25-FIG14-LINK", "SPLITWISE", "--measurements", str(tmp_path))
    assert found.code == 0
    assert f"SPLITWISE: skipped, 1 file absent: {SPLITWISE}" in " ".join(found.out.split())
    answer = tool.json("calibrate", "validate", "F25-FIG14-LINK", "SPLITWISE", "--measurements", str(tmp_path))
    assert [(one["id"], one["skipped"], one["absent"]) for one in answer] == [
        ("F25-FIG14-LINK", False, []),
        ("SPLITWISE", True, [SPLITWISE]),
    ]


def test_a_folder_without_any_of_the_files_is_nothing_to_conclude_from(tool: Tool, tmp_path: Path) -> None:
    found = tool("calibrate", "validate", "--measurements", str(tmp_path))
    assert found.code == 3
    assert "holds none of their files" in found.err
    assert found.err.count("\n") == 1
    assert all(check in found.out for check in checks())


def test_without_a_folder_only_checks_that_read_nothing_run(tool: Tool) -> None:
    assert tool("calibrate", "validate", "F25-EQ2").code == 0
    assert tool("calibrate", "validate").code == 3


@pytest.mark.parametrize(
    ("head", "rows", "message"),
    [
        (FIGURE_HEAD, [], "holds no line of data"),
        (FIGURE_HEAD[:-1], [("FAST25_fig14", 0, 8192, "decode")], "line 2: no column 'value'"),
        (
            FIGURE_HEAD,
            [("FAST25_fig14", 0, 8192, "decode", "fast")],
            "line 2, column 'value': found 'fast', expected a",
        ),
        (FIGURE_HEAD, [("FAST25_fig14", 0, 8192, "decode", -1)], "found '-1', expected a number above 0"),
        (FIGURE_HEAD, [("FAST25_fig14", 0, 8192, "decode", "nan")], "found 'nan', expected a number"),
        (FIGURE_HEAD, [("FAST25_fig14", 0, 8192, "load", 1)], "series 'decode': found 0 points, expected at least 1"),
    ],
)
def test_a_faulty_table_is_told_where(
    head: tuple[str, ...], rows: list[tuple[Any, ...]], message: str, tmp_path: Path
) -> None:
    put(tmp_path, FIGURES, head, rows)
    with pytest.raises(SetupError) as caught:
        rows_of(tmp_path, "F25-FIG14-DECODE")
    assert message in str(caught.value)
    assert FIGURES in str(caught.value)


def test_a_damaged_archive_and_a_folder_that_is_none_are_one_line(tool: Tool, tmp_path: Path) -> None:
    put(tmp_path, SPLITWISE, SPLITWISE_HEAD, [("x",) * 8])
    (tmp_path / SPLITWISE).write_bytes(b"\x1f\x8bnot really")
    found = tool("calibrate", "validate", "SPLITWISE", "--measurements", str(tmp_path))
    assert (found.code, found.out, found.err.count("\n")) == (2, "", 1)
    assert "cannot be read" in found.err
    found = tool("calibrate", "validate", "SPLITWISE", "--measurements", "absent")
    assert (found.code, found.out) == (2, "")
    assert "is not a folder" in found.err


# ---- ceilings


def eq2_ceilings(**changed: str) -> str:
    # The errors of equation 2 are .1406 and .4265 GB/s: median .2836, p90 .3979, worst .4265
    values = {"points": "2", "median": "0.29", "p90": "0.40", "worst": "0.43"} | changed
    return '["F25-EQ2"."equation 2 at 8,192 tokens"]\n' + "".join(f"{key} = {value}\n" for key, value in values.items())


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (eq2_ceilings(), 0, ""),
        (eq2_ceilings(worst="0.42"), 1, "worst error 0.4265 is above its ceiling 0.42"),
        (eq2_ceilings(points="3"), 1, "2 points, expected 3"),
        (eq2_ceilings(median="0.9"), 0, "median well below the ceiling: tighten it"),
        ("", 1, "a row without a ceiling"),
        (eq2_ceilings().replace("8,192", "16,384"), 1, "a ceiling, but no such row"),
        (eq2_ceilings() + '["F25-EQ3".x]\npoints = 1\nmedian = 1.0\np90 = 1.0\n', 1, "F25-EQ3: no such check"),
        (eq2_ceilings() + '[SPLITWISE.x]\npoints = 1\nmedian = 1.0\np90 = 1.0\n', 0, ""),  # was not asked for
        (eq2_ceilings(points="0"), 2, "points' is 0"),
        (eq2_ceilings(pints="1"), 2, "did you mean 'points'"),
        (eq2_ceilings().replace("worst = 0.43\n", ""), 1, "worst error 0.4265, its ceiling is not known"),
    ],
)  # fmt: skip
def test_a_row_that_grew_beyond_its_ceiling_fails_the_command(
    text: str, code: int, message: str, tool: Tool, tmp_path: Path
) -> None:
    (tmp_path / "ceilings.toml").write_text(text, encoding="utf-8")
    found = tool("calibrate", "validate", "F25-EQ2", "--ceilings", "ceilings.toml")
    assert found.code == code, found.err
    assert message in found.err
    assert bool(found.out) == (code != 2)


def test_a_skipped_check_with_ceilings_fails_the_command(tool: Tool, tmp_path: Path) -> None:
    (tmp_path / "ceilings.toml").write_text("[SPLITWISE.x]\npoints = 1\nmedian = 1.0\np90 = 1.0\n", encoding="utf-8")
    found = tool("calibrate", "validate", "SPLITWISE", "--ceilings", "ceilings.toml", "--measurements", str(tmp_path))
    assert found.code == 1
    assert f"SPLITWISE: skipped, {SPLITWISE} absent, yet it has ceilings" in found.err


def test_written_ceilings_are_today_s_errors_with_2_percent_to_spare(tool: Tool, tmp_path: Path) -> None:
    found = tool("calibrate", "validate", "F25-EQ2", "--write-ceilings", "new.toml")
    assert (found.code, found.err) == (0, "written: new.toml\n")
    # 0.28358 x 1.02 = 0.28925, 0.42653 x 1.02 = 0.43506
    text = (tmp_path / "new.toml").read_text(encoding="utf-8")
    assert "points = 2\nmedian = 0.2893\n" in text
    assert "worst = 0.4351\n" in text
    assert tool("calibrate", "validate", "F25-EQ2", "--ceilings", "new.toml").err == ""
    assert "exists" in tool("calibrate", "validate", "F25-EQ2", "--write-ceilings", "new.toml").err
    assert tool("calibrate", "validate", "F25-EQ2", "--write-ceilings", "new.toml", "--force").code == 0


def test_ceilings_are_not_written_without_every_check(tool: Tool, tmp_path: Path) -> None:
    found = tool("calibrate", "validate", "F25-EQ2", "SPLITWISE", "--write-ceilings", "new.toml")
    assert found.code == 2
    assert "SPLITWISE skipped, so the file would lack them" in found.err
    assert list(tmp_path.iterdir()) == []


# ---- what is printed and written


def test_every_check_says_what_it_reads(tool: Tool) -> None:
    listed = tool.json("calibrate", "validate", "--list")
    assert [one["id"] for one in listed] == list(checks())
    assert all("; reads " in one["check"] for one in listed)
    assert [one["id"] for one in listed if one["check"].endswith("no file")] == [
        "F25-EQ2",
        "HELDOUT",
        "HELDOUT-PHYSICAL",
    ]


def test_csv_has_one_line_a_row_and_one_a_skipped_check(tool: Tool) -> None:
    lines = list(
        csv.DictReader(io.StringIO(tool("calibrate", "validate", "F25-EQ2", "SPLITWISE", "--format", "csv").out))
    )
    assert [(line["id"], line["row"], line["verdict"]) for line in lines] == [
        ("F25-EQ2", "equation 2 at 8,192 tokens", "within"),
        ("SPLITWISE", "", f"skipped: {SPLITWISE}"),
    ]
    assert float(lines[0]["worst"]) == pytest.approx(0.4265, abs=1e-4)


@pytest.mark.parametrize(("shown", "sign"), [("markdown", "| --- |"), ("latex", r"\toprule"), ("table", "verdict")])
def test_other_formats_hold_the_same_table(shown: str, sign: str, tool: Tool) -> None:
    found = tool("calibrate", "validate", "F25-EQ2", "--format", shown)
    assert found.code == 0
    assert sign in found.out
    assert "equation 2 at 8,192 tokens" in found.out


def test_out_gets_rows_points_and_a_picture(tool: Tool, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = tool("calibrate", "validate", "F25-EQ2", "SPLITWISE", "-o", "made")
    assert found.code == 3  # SPLITWISE, the only check that reads a file, was skipped
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == [
        "F25-EQ2.png",
        "points.parquet",
        "rows.parquet",
    ]
    rows = pq.read_table(tmp_path / "made" / "rows.parquet").to_pylist()
    assert [(row["id"], row["points"]) for row in rows] == [("F25-EQ2", 2), ("SPLITWISE", None)]
    points = pq.read_table(tmp_path / "made" / "points.parquet").to_pylist()
    assert [round(point["error"], 2) for point in points] == [-0.14, -0.43]  # 5.86 - 6, 18.57 - 19
    assert "exists" in tool("calibrate", "validate", "F25-EQ2", "-o", "made").err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["F25-EQ"], "did you mean 'F25-EQ2'"),
        (["--list", "-o", "x"], "--out: no effect with --list"),
        (["--list", "--write-ceilings", "x"], "--write-ceilings: no effect with --list"),
        (["F25-EQ2", "--force"], "--force: no effect without"),
        (["F25-EQ2", "--ceilings", "absent.toml"], "absent.toml"),
        (["F25-EQ2", "--format", "jsn"], "did you mean 'json'"),
    ],
)
def test_wrong_use_is_one_line(words: list[str], reason: str, tool: Tool, tmp_path: Path) -> None:
    found = tool("calibrate", "validate", *words)
    assert (found.code, found.out, found.err.count("\n")) == (2, "", 1)
    assert reason in found.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_ceilings_is_not_judged_by_and_rewritten_at_once(tool: Tool) -> None:
    found = tool("calibrate", "validate", "F25-EQ2", "--ceilings", "a.toml", "--write-ceilings", "b.toml")
    assert (found.code, "one judges, the other gives in" in " ".join(found.err.split())) == (2, True)
