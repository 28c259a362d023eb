"""Metrics: each declared once, each by hand on the tiny run, none ever nan."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from test_results_tiny import (
    all_rejected,
    interrupted,
    one_request,
    tiny_columns,
    tiny_replay,
    tiny_run,
    tiny_trace,
)  # fmt: skip

from mooncake_bench.errors import ResultError
from mooncake_bench.results.metrics import ALIASES, BY_NAME, METRICS, find
from mooncake_bench.results.run import Run
from mooncake_bench.results.split import split
from mooncake_bench.sim.replay import Replay

UNIT_ENDINGS = {
    "ms": "_ms", "ratio": ("_ratio", "_ratio_tokens", "_ratio_blocks", "_ratio_full_blocks", "_ratio_ceiling"),
    "requests/s": "_rps", "tokens/s": "_tokens_per_s", "bytes": "_bytes", "tokens": "_tokens", "GPU h": "_hours",
    "requests": ("_requests", "n_tbt_unmeasured"),
}  # fmt: skip


def test_names_are_unique_and_carry_their_unit() -> None:
    assert len(BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert metric.name.endswith(UNIT_ENDINGS.get(metric.unit, metric.name)), metric.name


def test_every_metric_says_what_it_is() -> None:
    for metric in METRICS:
        assert metric.better in ("higher", "lower", "none"), metric.name
        assert metric.definition, metric.name
        assert metric.population, metric.name


@pytest.mark.parametrize(
    ("name", "value", "n"),
    [
        ("offered_requests", 4, 4),
        ("completed_requests", 3, 4),
        ("rejected_requests", 1, 4),
        ("rejected_arrival_requests", 1, 4),
        ("rejected_decode_requests", 0, 4),
        ("failed_requests", 0, 4),
        ("unfinished_requests", 0, 4),
        ("rejected_ratio", 1 / 4, 4),
        ("rejected_tokens_ratio", 12 / 34, 4),
        ("completed_tokens_ratio", 22 / 34, 4),
        ("failed_tokens_ratio", 0, 4),
        ("unfinished_tokens_ratio", 0, 4),
        # only a is within both SLOs: 8 of the 34 prompt tokens offered, 4 output tokens; the run lasts 44.053 ms
        ("good_requests", 1, 4),
        ("request_goodput_ratio", 1 / 4, 4),
        ("request_goodput_rps", 1 / 0.044053, 4),
        ("goodput_per_gpu_rps", 1 / 0.044053 / 16, 4),
        ("goodput_tokens_ratio", 8 / 34, 4),
        ("output_goodput_tokens_per_s", 4 / 0.044053, 4),
        ("slo_ttft_ratio", 2 / 3, 3),
        ("slo_tbt_ratio", 1 / 2, 2),
        ("n_tbt_unmeasured", 1, 3),
        ("mean_ttft_ms", (8 + 6 + 9) / 3, 3),
        ("p50_ttft_ms", 8, 3),
        ("p90_ttft_ms", 8.8, 3),  # linear: 8 + .8 * (9 - 8)
        ("max_ttft_ms", 9, 3),
        ("mean_queue_ms", 3, 3),
        ("mean_tbt_ms", (12.023 + 22.03) / 2, 2),
        ("mean_tpot_ms", (36.053 / 3 + 17.0265) / 2, 2),
        ("p50_itl_ms", 12.023, 5),
        ("mean_itl_ms", (12.009 + 12.021 + 12.023 + 22.03 + 12.023) / 5, 5),
        ("max_itl_ms", 22.03, 5),
        ("max_e2e_ms", 44.053, 3),
        ("mean_ttft_error_ms", 0.5, 2),  # a: |8 - 8|, b: |6 - 5|; c had no prediction
        ("p1_output_speed_tokens_per_s", 1000 / 17.0265 + 0.01 * (3000 / 36.053 - 1000 / 17.0265), 2),
        ("hit_ratio_tokens", 8 / 22, 3),
        ("hit_ratio_blocks", 2 / 6, 3),
        ("hit_ratio_full_blocks", 2 / 5, 3),
        ("ceiling_ratio_tokens", 8 / 22, 3),
        ("hit_ratio_ceiling", 1, 3),
        ("prefill_gpu_ms", 14, 3),
        ("mean_prefill_gpu_ms", 14 / 3, 3),
        ("wasted_prefill_gpu_ms", 0, 0),
        ("wasted_prefill_ratio", 0, 3),
        ("computed_tokens", 14, 3),
        ("request_throughput_rps", 3 / 0.044053, 3),
        ("output_throughput_tokens_per_s", 8 / 0.044053, 3),
        ("total_throughput_tokens_per_s", 30 / 0.044053, 3),
        ("offered_rps", 4 / 0.006, 4),
        ("duration_ms", 44.053, 4),
        ("gpu_hours", 44.053 / 3_600_000 * 16, None),  # two nodes of 8 GPUs
        ("prefill_utilisation_ratio", 1, 1),  # arrivals span 0 to 6 ms
        ("decode_utilisation_ratio", 0, 1),
        ("max_prefill_load_ratio", 9 / 8.5, 7),  # at 5 ms: 3 + 2 + 4 left
        ("streamed_bytes", 18_000, None),
    ],
)
def test_the_hand_counted_metric(name: str, value: float, n: int | None) -> None:
    found = tiny_run().metrics()[name]
    assert found.value == pytest.approx(value, rel=1e-12)
    assert found.n == n


@pytest.mark.parametrize("replay", [tiny_replay(), all_rejected(), one_request(1), interrupted()])
def test_shares_of_tokens_are_of_offered_prompts_and_add_up(replay: Replay) -> None:
    values = Run.from_replay(replay).metrics()
    shares = {word: values[f"{word}_tokens_ratio"].value or 0 for word in ("completed", "rejected", "failed")}
    rest = values["unfinished_tokens_ratio"].value or 0
    assert sum(shares.values()) + rest == pytest.approx(1, rel=1e-12)
    assert (values["goodput_tokens_ratio"].value or 0) <= shares["completed"]


def test_a_long_answer_is_no_larger_share_of_the_tokens() -> None:
    # a alone is within its SLOs: 8 of 34 prompt tokens; a longer answer of d, which is rejected, changes nothing
    trace = replace(tiny_trace(), output_tokens=np.array([4, 3, 1, 1000]))
    assert tiny_run(trace=trace).metrics()["goodput_tokens_ratio"].value == pytest.approx(8 / 34)


def test_every_rate_of_tokens_says_of_which() -> None:
    for metric in METRICS:
        if metric.unit == "tokens/s" and metric.name.endswith("put_tokens_per_s"):
            assert metric.name.startswith(("output_", "total_")), metric.name
            assert "output" in metric.definition, metric.name
    assert find("goodput_tokens_per_s").name == "output_goodput_tokens_per_s"


def reasonable(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and math.isfinite(value))


@pytest.mark.parametrize("replay", [all_rejected(), one_request(1), one_request(4), interrupted()])
def test_an_odd_run_has_every_metric_as_a_number_or_none(replay: Replay) -> None:
    values = Run.from_replay(replay).metrics()
    assert list(values) == [metric.name for metric in METRICS]
    assert all(reasonable(value.value) for value in values.values())
    json.dumps({name: value.value for name, value in values.items()}, allow_nan=False)


def test_when_all_is_rejected_latencies_are_undefined_and_rates_are_zero() -> None:
    values = Run.from_replay(all_rejected()).metrics()
    for name in ("mean_ttft_ms", "p99_itl_ms", "hit_ratio_tokens", "slo_ttft_ratio", "load_correlation"):
        assert values[name].value is None, name
    assert values["mean_ttft_ms"].n == 0
    assert values["request_goodput_rps"].value == 0  # 0 in 6 ms
    assert values["rejected_ratio"].value == 1


def test_one_request_has_no_arrival_span_and_so_no_utilisation() -> None:
    values = Run.from_replay(one_request(4)).metrics()
    assert values["prefill_utilisation_ratio"].value is None
    assert values["offered_rps"].value is None
    assert values["request_throughput_rps"].value == pytest.approx(1 / 0.04203)


def test_one_token_answers_have_no_tpot_and_no_tbt() -> None:
    values = Run.from_replay(one_request(1)).metrics()
    assert values["mean_tpot_ms"] == (None, 0, "ms", "lower")
    assert values["slo_tbt_ratio"].value is None
    assert values["n_tbt_unmeasured"].value == 1
    assert values["request_goodput_ratio"].value == 1


def test_an_instant_run_has_no_rate() -> None:
    columns = {name: column[3:4].copy() for name, column in tiny_columns().items()}
    columns["arrival_ps"][:] = columns["end_ps"][:] = 0
    nothing = all_rejected()
    trace = replace(tiny_trace().select(max_requests=1), request_id=("d",))
    replay = tiny_replay(trace=trace, columns=columns, segments=nothing.segments, stays=nothing.stays, horizon_ps=0)
    values = Run.from_replay(replay).metrics()
    assert values["request_throughput_rps"].value is None
    assert values["duration_ms"].value is None
    assert values["gpu_hours"].value is None


def test_the_warm_up_leaves_out_who_arrived_during_it() -> None:
    setup = replace(tiny_replay().setup, warmup_ms=5.0)
    values = tiny_run(setup=setup).metrics()
    assert values["offered_requests"].value == 2  # c and d
    assert values["mean_ttft_ms"] == (9, 1, "ms", "lower")
    assert values["mean_itl_ms"].value is None  # c has no gap
    assert values["duration_ms"].value == 9  # 5 to 14
    assert values["hit_ratio_tokens"].value == 0


def test_a_warm_up_longer_than_the_run_leaves_nothing() -> None:
    run = tiny_run(setup=replace(tiny_replay().setup, warmup_ms=100.0))
    assert run.metrics()["offered_requests"].value == 0
    assert run.metrics()["mean_ttft_ms"].value is None
    assert run.metrics()["rejected_ratio"].value is None


def test_an_interrupted_run_lasts_until_it_was_stopped() -> None:
    values = Run.from_replay(interrupted()).metrics()
    assert values["duration_ms"].value == 21
    assert values["unfinished_requests"].value == 2  # a and b; d never arrived
    assert values["completed_ratio"] == (1 / 3, 3, "ratio", "higher")
    assert values["offered_rps"].value == 600  # three in the 5 ms from a to c
    assert values["mean_ttft_ms"] == (9, 1, "ms", "lower")  # only c completed


def test_latencies_are_numpy_percentiles_of_the_completed() -> None:
    run = tiny_run()
    ttft = np.array([8.0, 6.0, 9.0])
    for percent in (50, 90, 95, 99):
        assert run.metrics()[f"p{percent}_ttft_ms"].value == np.percentile(ttft, percent)


def swinging(prefill: list[float], decode: list[float]) -> Run:
    """A run whose sampled loads are given."""
    run = tiny_run(trace=tiny_trace())
    table = run.timeline.slice(0, len(prefill))
    for name, values in (("prefill_load_ratio", prefill), ("decode_load_ratio", decode)):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), pa.array(values, pa.float64()))
    return Run(run.manifest, run._tables | {"timeline": table})


def test_loads_that_swing_against_each_other_correlate_negatively() -> None:
    values = swinging([0, 1, 0, 1], [1, 0, 1, 0]).metrics()
    assert values["load_correlation"].value == pytest.approx(-1)
    assert values["std_prefill_load_ratio"].value == 0.5
    assert swinging([0, 1, 2, 3], [0, 2, 4, 6]).metrics()["load_correlation"].value == pytest.approx(1)


@pytest.mark.parametrize(("prefill", "decode"), [([1, 1, 1], [0, 1, 2]), ([0, 1], [1, 0])])
def test_a_constant_load_or_too_few_samples_have_no_correlation(prefill: list[float], decode: list[float]) -> None:
    assert swinging(prefill, decode).metrics()["load_correlation"].value is None


def test_an_alias_or_a_near_name_leads_to_the_metric() -> None:
    assert find("request_goodput").name == "request_goodput_rps"
    assert set(ALIASES.values()) <= set(BY_NAME)
    with pytest.raises(ResultError, match="did you mean 'p99_ttft_ms'"):
        find("p99_ttft")


# ---- groups of requests


def test_groups_by_prompt_length_are_whole_metrics_of_their_requests() -> None:
    run = tiny_run()
    [(name, where)] = split(run, "input_tokens")
    assert (name, where.tolist()) == ("below 1,000", [True] * 4)
    values = run.metrics(np.array([True, False, True, False]))
    assert values["mean_ttft_ms"].value == 8.5
    assert values["p50_itl_ms"].n == 3  # a's
    assert values["decode_utilisation_ratio"].value is None  # of the pool, not of these requests
    assert values["gpu_hours"].value is None


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("priority", {"priority 0": 2, "priority 1": 1, "priority 2": 1}),
        ("session", {"session 7": 2, "session 8": 1, "none given": 1}),
    ],
)
def test_groups_by_priority_and_session(by: str, groups: dict[str, int]) -> None:
    trace = replace(tiny_trace(), session_id=np.array([7, 7, -1, 8]), priority=np.array([0, 1, 0, 2]))
    found = split(tiny_run(trace=trace), by)
    assert {name: int(rows.sum()) for name, rows in found} == groups


@pytest.mark.parametrize(
    ("by", "words"), [("session", "have none"), ("priority", "have none"), ("prio", "did you mean 'priority'")]
)
def test_a_split_that_means_nothing_is_refused(by: str, words: str) -> None:
    with pytest.raises(ResultError, match=words):
        split(tiny_run(), by)


def test_rejections_are_counted_by_stage_and_reason() -> None:
    columns: dict[str, Any] = tiny_columns()
    [group] = tiny_run(columns=columns).rejections()
    assert group == ("arrival", "busy", 1, 12)
    [group] = Run.from_replay(all_rejected()).rejections()
    assert group == ("arrival", "full", 4, 34)
