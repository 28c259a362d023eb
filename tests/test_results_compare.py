"""Comparisons: refused when the work differs, paired by request, and honest about dropped work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from test_results_tiny import all_rejected, interrupted, tiny_columns, tiny_policies, tiny_replay, tiny_run, tiny_trace

from mooncake_bench.errors import ResultError
from mooncake_bench.results.advice import admission as admission_of
from mooncake_bench.results.advice import advice, never_fired
from mooncake_bench.results.compare import compare, decided_alike, pair
from mooncake_bench.results.run import Run


def b_rejected() -> Run:
    """The tiny run, but b is turned away when its KV arrives, so a decodes alone."""
    columns = tiny_columns()
    for name in ("join", "second_token"):
        columns[f"{name}_ps"][1] = -1
    columns["status"][1], columns["reject_stage"][1], columns["reject_reason"][1] = 2, 3, 1
    columns["end_ps"][1] = columns["kv_arrival_ps"][1]
    columns["end_ps"][0] = 42_030 * 10**6  # 9 + 11.009 + 11.010 + 11.011
    segments = {name: column[:1].copy() for name, column in tiny_replay().segments.items()}
    segments["steps"][0] = 3
    stays = {name: column[:1].copy() for name, column in tiny_replay().stays.items()}
    return tiny_run(columns=columns, segments=segments, stays=stays, policy_label="strict")


def test_ratios_are_over_the_reference() -> None:
    comparison = compare([tiny_run(), b_rejected()])
    assert comparison.ratio("mean_ttft_ms", 0) == 1
    assert comparison.ratio("mean_ttft_ms", 1) == pytest.approx(8.5 / (23 / 3))
    assert comparison.ratio("wasted_prefill_tokens", 1) is None  # the reference wasted nothing
    assert compare([tiny_run(), b_rejected()], reference=1).ratio("mean_ttft_ms", 0) == pytest.approx(23 / 3 / 8.5)


def test_pairs_are_the_requests_that_both_completed() -> None:
    pairing = pair(tiny_run(), b_rejected())
    assert (pairing.both, pairing.only_reference, pairing.only_this) == (2, 1, 0)  # a and c; b only there
    e2e = pairing.differences["e2e_ms"]
    assert e2e.n == 2
    assert e2e.mean_ms == pytest.approx((42.03 - 44.053) / 2)
    assert e2e.ratio == pytest.approx((42.03 + 9) / (44.053 + 9))
    assert e2e.low_ms is None  # two requests give no interval
    assert pairing.differences["tbt_ms"].n == 1  # c has no gap


def test_pairing_is_by_id_not_by_row() -> None:
    order = [0, 2, 1, 3]  # the same requests, c listed before b
    run = tiny_run()
    shuffled = Run(run.manifest, run._tables | {"requests": run.requests.take(order)})
    pairing = pair(run, shuffled)
    assert pairing.both == 3
    assert pairing.differences["ttft_ms"].mean_ms == 0


def test_pairs_leave_out_the_warm_up() -> None:
    setup = replace(tiny_replay().setup, warmup_ms=5.0)
    assert pair(tiny_run(setup=setup), tiny_run(setup=setup)).both == 1  # c


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trace": replace(tiny_trace(), output_tokens=np.array([4, 3, 1, 9]))}, "trace differs"),
        ({"setup": {"slo_ttft_ms": 9.0}}, "TTFT SLO differs .8.5 and 9."),
        ({"setup": {"slo_tbt_ms": 30.0}}, "TBT SLO differs .20 and 30."),
        ({"setup": {"tbt_metric": "max"}}, "TBT metric differs .tail10 and max."),
        ({"setup": {"first_gap": "exclude"}}, "first gap differs"),
        ({"setup": {"warmup_ms": 1.0}}, "warm-up differs"),
    ],
)
def test_runs_of_different_work_are_refused_unless_forced(changes: dict[str, Any], words: str) -> None:
    if "setup" in changes:
        changes = {"setup": replace(tiny_replay().setup, **changes["setup"])}
    runs = [tiny_run(), tiny_run(**changes)]
    with pytest.raises(ResultError, match=f"not comparable: {words}.*--force"):
        compare(runs)
    assert any(notice.startswith("forced: ") for notice in compare(runs, force=True).notices)


def test_a_different_block_size_is_refused_by_name() -> None:
    run = tiny_run()
    other = Run(run.manifest | {"trace": run.manifest["trace"] | {"block_tokens": 16}}, run._tables)
    with pytest.raises(ResultError, match=r"block size differs \(4 and 16\)"):
        compare([run, other])


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises(ResultError, match="name at least one run"):
        compare([])


def test_a_ranking_by_latency_alone_is_refused_when_work_was_dropped() -> None:
    comparison = compare([tiny_run(), b_rejected()])
    assert not comparison.completed_alike
    with pytest.raises(ResultError, match="dropping work looks fast"):
        comparison.rank("mean_e2e_ms")
    assert comparison.rank("completed_requests") == [0, 1]
    assert compare([tiny_run(), b_rejected()], force=True).rank("mean_e2e_ms") == [1, 0]
    assert any("latencies alone do not rank them" in notice for notice in comparison.notices)


def test_runs_that_completed_the_same_are_ranked_by_latency_undefined_last() -> None:
    alike = compare([tiny_run(), tiny_run()])
    assert alike.completed_alike
    assert alike.rank("p99_ttft_ms") == [0, 1]
    empty = compare([Run.from_replay(all_rejected()), tiny_run()], force=True)
    assert empty.rank("mean_ttft_ms") == [1, 0]


def test_a_metric_without_a_better_side_ranks_nothing() -> None:
    with pytest.raises(ResultError, match="neither more nor less"):
        compare([tiny_run()]).rank("offered_requests")


def test_policies_that_decided_identically_are_told_so_with_what_would_part_them() -> None:
    runs = [tiny_run(), tiny_run(policy_label="twin", policies=with_part("router", "random"))]
    assert decided_alike(*runs)
    assert alike(*runs).startswith("twin and tiny decided identically on all 4 requests; prefill pool 100.0 % busy")
    assert not decided_alike(tiny_run(), b_rejected())


def with_part(kind: str, name: str) -> dict[str, Any]:
    """The tiny run's parts, one of them another policy."""
    return tiny_policies() | {kind: {"name": name, "parameters": {}}}


def alike(*runs: Run) -> str:
    """What is said of two runs that decided identically."""
    [notice] = [line for line in compare(runs).notices if "decided identically" in line]
    return notice


def test_evictions_that_decided_identically_are_told_of_the_pool_and_not_of_a_speedup() -> None:
    other = {"policy_label": "twin", "policies": with_part("eviction", "lfu")}
    assert alike(tiny_run(), tiny_run(**other)).endswith(
        "all 4 requests; no block was evicted, so no eviction policy had a choice: try a smaller --pool"
    )
    full = {"counters": {"evictions": 7}}
    assert alike(tiny_run(**full), tiny_run(**other, **full)).endswith(
        "all 4 requests; 7 blocks evicted without a difference: try a smaller --pool"
    )


def test_the_same_policy_twice_is_told_so() -> None:
    assert alike(tiny_run(), tiny_run()).endswith("all 4 requests: they are the same policies with the same parameters")


def loaded(run: Run, prefill_instances: int, slo_ttft_ms: float, load: float) -> Run:
    """A run on more prefill instances, under another TTFT SLO, with a prefill load that is given."""
    cluster = run.manifest["cluster"] | {"prefill_instances": prefill_instances}
    setup = run.manifest["setup"] | {"slo.ttft_ms": slo_ttft_ms}
    loads = run.timeline.set_column(1, run.timeline.schema.field(1), pa.array([load] * len(run.timeline)))
    return Run(run.manifest | {"cluster": cluster, "setup": setup}, run._tables | {"timeline": loads})


@pytest.mark.parametrize(
    ("instances", "slo_ttft_ms", "load", "words"),
    [
        # busy all of the 6 ms: it falls behind already, and a higher speedup is no new case
        (1, 0.6, 0.5, ""),
        # busy a quarter: at s there are 1.5 ms of work in 6 / s ms; behind by .6 ms when s = 6 / .9 = 6.67
        (4, 0.6, 0.5, "about --speedup 6.7 (there prefill falls behind by the TTFT SLO), or "),
        (4, 0.6, 1.0, ""),  # behind by its SLO already
        (4, 8.5, 0.5, "a higher --speedup, or "),  # 1.5 ms of work are never 8.5 ms behind
        (4, 1.2, 0.5, "a higher --speedup, or "),  # s = 6 / .3 = 20: too far to tell
    ],
)
def test_the_advice_is_a_speedup_only_where_one_can_be_told(
    instances: int, slo_ttft_ms: float, load: float, words: str
) -> None:
    # the longest decode step takes 12.023 of the 20 ms that the SLO allows
    assert advice(loaded(tiny_run(), instances, slo_ttft_ms, load)) == f"; try {words}--slo tbt:12ms"


def test_a_tbt_slo_that_the_longest_step_breaks_already_is_no_advice() -> None:
    assert advice(tiny_run(setup=replace(tiny_replay().setup, slo_tbt_ms=12.0))) == ""


def test_no_ratio_is_shown_against_an_interrupted_run() -> None:
    runs = [tiny_run(), Run.from_replay(interrupted()), tiny_run()]
    comparison = compare(runs)
    assert comparison.labels == ("tiny #1", "tiny #2", "tiny #3")
    assert [comparison.ratio("mean_ttft_ms", run) for run in range(3)] == [1, None, 1]
    assert "tiny #2: interrupted, so no ratio is shown against it" in comparison.notices
    assert [compare(runs, reference=1).ratio("mean_ttft_ms", run) for run in range(3)] == [None, 1, None]


def test_policy_files_whose_code_differs_between_the_runs_are_named() -> None:
    runs = [tiny_run(), tiny_run(policy_sources={"cache_aware.py": "cd" * 32, "mine.py": "ef" * 32})]
    assert [line for line in compare(runs).notices if "decided" not in line] == [
        "the code of policy file cache_aware.py differs between the runs "
        "(sha256 abababababab in tiny #1; cdcdcdcdcdcd in tiny #2)",
        "policies of the same names (cache-aware, queue-cap, lru) have different code: tiny #1; tiny #2",
    ]
    assert "the same policies" not in alike(*runs)
    elsewhere = tiny_run(policy_sources={"copy.py": "ab" * 32})  # the same code in another file
    assert not any("code of" in line or "different code" in line for line in compare([tiny_run(), elsewhere]).notices)


def test_rows_are_paired_by_content_where_one_file_lists_them_in_another_order() -> None:
    trace = replace(tiny_trace(), request_id=None)
    run, other = tiny_run(trace=trace), tiny_run(trace=replace(trace, source_row=np.array([3, 0, 1, 2])))
    assert other.requests.column("request_id").to_pylist() == ["3", "0", "1", "2"]
    pairing = compare([run, other]).pairs[1]
    assert pairing is not None
    assert (pairing.both, pairing.differences["ttft_ms"].mean_ms) == (3, 0)


def test_an_admission_that_never_fired_is_told_so() -> None:
    columns = tiny_columns()
    trace = tiny_trace().select(max_requests=3)
    replay = tiny_replay(trace=trace, columns={name: column[:3] for name, column in columns.items()})
    [notice] = [line for line in Run.from_replay(replay).notices if "never turned a request away" in line]
    assert "prefill pool" in notice
    assert "decode pool" in notice
    assert not any("never turned" in line for line in tiny_run().notices)  # there, d was


def test_an_admission_that_turned_an_attempt_away_has_fired() -> None:
    columns = {name: column[:3] for name, column in tiny_columns().items()}
    columns |= {"rejections": np.array([0, 1, 0]), "attempts": np.array([1, 2, 1])}
    run = Run.from_replay(tiny_replay(trace=tiny_trace().select(max_requests=3), columns=columns))
    assert never_fired(run)  # without retries every rejection is final, and the column says nothing
    retried = Run(run.manifest | {"setup": run.manifest["setup"] | {"client.retries": 1}}, run._tables)
    assert not never_fired(retried)


@pytest.mark.parametrize(
    ("spec", "admission"),
    [
        ("kvcache-centric", None),
        ("predictive:td=12s", "predictive"),
        ("mine=kvcache-centric:threshold=2+early:recheck=true+lru", "early"),
        ("late=deadline", "deadline"),
        ("mine=ours.py:Mine:alpha=.3", None),
    ],
)
def test_the_admission_of_an_old_run_is_read_from_its_spec(spec: str, admission: str | None) -> None:
    run = tiny_run(policy_spec=spec)
    policy = run.manifest["policy"] | {"admission": None}
    assert admission_of(Run(run.manifest | {"policy": policy}, run._tables)) == admission


def test_runs_with_one_label_are_told_apart_by_what_differs() -> None:
    fast = replace(tiny_replay().setup, speedup=2.0)
    comparison = compare([tiny_run(), tiny_run(setup=fast), tiny_run(policy_label="other")])
    assert comparison.labels == ("tiny (speedup 1)", "tiny (speedup 2)", "other")
    assert "speedup differs between the runs: 1, 2, 1" in comparison.notices
    assert compare([tiny_run(), tiny_run()]).labels == ("tiny #1", "tiny #2")


def test_the_interval_of_a_paired_difference_holds_the_truth() -> None:
    # 4,000 requests whose TTFT grows by 10 ms on average under the second policy, with correlated noise
    rng = np.random.default_rng(1)
    noise = np.repeat(rng.normal(0, 20, 400), 10) + rng.normal(0, 5, 4000)
    run = tiny_run()
    base = run.requests.slice(0, 1)
    many = {name: base.column(name).to_pylist() * 4000 for name in base.column_names}
    many["request_id"] = [str(i) for i in range(4000)]
    table = base.schema.empty_table().from_pydict(many, schema=base.schema)
    slower = table.from_pydict(many | {"ttft_ms": (8 + 10 + noise).tolist()}, schema=base.schema)
    found = pair(Run(run.manifest, {"requests": table}), Run(run.manifest, {"requests": slower}))
    ttft = found.differences["ttft_ms"]
    assert ttft.low_ms is not None
    assert ttft.high_ms is not None
    assert ttft.low_ms < 10 + noise.mean() < ttft.high_ms
    # correlated noise of sd 20 in 400 blocks: the standard error is 1, an interval of about 4, not of 20.6/sqrt(4000)
    assert 2 < ttft.high_ms - ttft.low_ms < 7
