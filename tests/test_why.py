"""``compare --why``: the parts add up to the difference, and the requests that made it come first; sums by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fault_tools import Tool
from test_results_tiny import all_rejected, tiny_run

from mooncake_bench.errors import ResultError
from mooncake_bench.report.why_sheets import why_sheets
from mooncake_bench.results.compare import compare
from mooncake_bench.results.run import Run
from mooncake_bench.results.uncertainty import Interval
from mooncake_bench.results.why import Why, why, why_of

# The tiny run:   a: queue 0 + prefill 8 = 8 ms     b: 4 + 2 = 6      c: 5 + 4 = 9      d: rejected
MOVED = {
    #              a    b    c    d
    "queue_ms": (1.0, 3.0, 11.0, None),
    "fetch_ms": (0.0, 0.5, 0.0, None),
    "prefill_ms": (8.0, 1.0, 4.0, None),
    "retry_wait_ms": (0.0, 0.0, 0.0, 0.0),
    "ttft_ms": (9.0, 4.5, 15.0, None),
}  # changes:      +1  -1.5  +6: of queue +1 -1 +6 = 6, of fetch +0.5, of prefill -1; in all 5.5


def changed(**columns: Any) -> Run:
    """The tiny run with other columns."""
    run = tiny_run()
    table = run.requests
    for name, values in columns.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(name), pa.array(values, table.schema.field(name).type))
    return Run(run.manifest, run._tables | {"requests": table})


def found(run: Run, top: int = 10) -> Why:
    return why_of(tiny_run(), run, "moved", top)


def test_queue_fetch_and_prefill_add_up_to_the_difference_exactly() -> None:
    split = found(changed(**MOVED))
    ms = 10**9
    assert split.both == 3
    assert split.changes_ps == {"queue": 6 * ms, "fetch": ms // 2, "prefill": -ms, "retry_wait": 0}
    assert split.change_ps == 5.5 * ms
    assert split.mean_ms() == pytest.approx(5.5 / 3)
    assert split.interval == (pytest.approx(5.5 / 3), None, None)  # of 3 requests there is no interval
    assert split.mean_ms("queue") == pytest.approx(6 / 3)
    assert (split.slower, split.faster) == ((2, 7 * ms, 1), (1, -1.5 * ms, 1))  # 6 of 7 is more than 80 %


def test_the_mean_difference_is_the_one_that_compare_pairs() -> None:
    comparison = compare([tiny_run(), changed(**MOVED)])
    pairing = comparison.pairs[1]
    assert pairing is not None
    assert why(comparison)[0].mean_ms() == pytest.approx(pairing.differences["ttft_ms"].mean_ms)


def test_the_requests_that_made_it_come_first_with_their_share() -> None:
    split = found(changed(**MOVED, hit_tokens=(0, 4, 4, None), prefill_instance=(0, 0, 0, None)))
    assert [(moved.request_id, moved.change_ms) for moved in split.requests] == [("c", 6), ("a", 1), ("b", -1.5)]
    assert [moved.share_of_side for moved in split.requests] == pytest.approx([6 / 7, 1 / 7, 1])
    first = split.requests[0]
    assert (first.queue_ms, first.hit_tokens, first.prefill_instance) == ((5, 11), (0, 4), (0, 0))
    assert split.most == 1  # c alone is more than 80 % of 5.5
    assert len(found(changed(**MOVED), top=2).requests) == 2


def test_a_faster_run_lists_the_fastest_first_and_counts_who_makes_most_of_it() -> None:
    # reversed: -1, +1.5, -6 in all -5.5, of which c alone makes 109 %
    split = why_of(changed(**MOVED), tiny_run(), "back")
    assert [moved.request_id for moved in split.requests] == ["c", "a", "b"]
    assert split.change_ps == -5.5e9
    # queues 6, 2 and 3 ms shorter: 80 % of 11 is 8.8, which takes the two largest, 6 and 3
    slow = changed(queue_ms=(6.0, 6.0, 8.0, None), ttft_ms=(14.0, 8.0, 12.0, None))
    assert why_of(slow, tiny_run(), "back").most == 2


def test_waiting_to_retry_is_a_part_of_its_own() -> None:
    split = found(changed(retry_wait_ms=(0.0, 1000.0, 0.0, 0.0), ttft_ms=(8.0, 1006.0, 9.0, None)))
    assert split.changes_ps["retry_wait"] == split.change_ps == 10**12
    assert "retries" in why_sheets([split], "tiny")[0].headers
    assert "retries" not in why_sheets([found(changed(**MOVED))], "tiny")[0].headers


def test_what_the_completed_sets_do_is_told_apart() -> None:
    rejected = {"status": ("completed", "rejected", "completed", "rejected")}
    gone = {name: (values[0], None, *values[2:]) for name, values in MOVED.items() if name != "retry_wait_ms"}
    split = found(changed(**gone, **rejected))
    sets = split.sets
    assert (split.both, sets.only_reference, sets.only_this) == (2, 1, 0)
    assert (sets.all_reference_ms, sets.all_this_ms) == (pytest.approx(23 / 3), 12)  # (8 + 6 + 9) / 3, (9 + 15) / 2
    assert (sets.only_reference_ms, sets.only_this_ms) == (6, None)
    assert split.mean_ms() == pytest.approx(3.5)  # (1 + 6) / 2
    assert sets.change_ms == pytest.approx(12 - 23 / 3 - 3.5)


def test_runs_that_are_alike_or_have_nothing_in_common_divide_by_nothing() -> None:
    alike = found(tiny_run())
    assert (alike.change_ps, alike.most, alike.cancels, alike.requests) == (0, 0, False, ())
    assert (alike.slower, alike.faster) == ((0, 0, 0), (0, 0, 0))
    first, *others = why_sheets([alike], "tiny")
    assert "moved: identical to tiny: the same TTFT on all 3 requests that both completed" in first.notes
    assert len(others) == 1  # no table of requests, for none made anything
    nothing = why_of(tiny_run(), Run.from_replay(all_rejected()), "none")
    assert (nothing.both, nothing.mean_ms(), nothing.sets.change_ms, nothing.requests) == (0, None, None, ())
    assert [sheet.title for sheet in why_sheets([nothing], "tiny")] == [
        "Why: mean TTFT against tiny, on requests that both completed, ms",
        "What the sets completed do to it, ms",
    ]


def test_where_slower_and_faster_nearly_cancel_out_each_side_is_counted_by_itself() -> None:
    # +6, -4 and -1.5 ms: 0.5 of 11.5 ms is left, of which c alone would be "1200 %"
    moved = {"queue_ms": (0.0, 0.0, 11.0, None), "prefill_ms": (4.0, 4.5, 4.0, None), "ttft_ms": (4.0, 4.5, 15.0, None)}
    split = found(changed(**moved))
    assert (split.change_ps, split.gross_ps, split.cancels, split.most) == (0.5e9, 11.5e9, True, None)
    assert split.slower == (1, 6e9, 1)
    assert split.faster == (2, -5.5e9, 2)  # 4 of 5.5 is less than 80 %
    assert [(each.request_id, each.change_ms) for each in split.requests] == [("c", 6), ("a", -4), ("b", -1.5)]
    assert [each.share_of_side for each in split.requests] == pytest.approx([1, 4 / 5.5, 1.5 / 5.5])
    note = why_sheets([split], "tiny")[0].notes[-1]
    assert note == (  # 6 / 3 and 5.5 / 3 ms of the mean
        "moved: slower by 2.00 ms of the mean in 1 request, faster by 1.83 ms in 2: they nearly cancel out; "
        "80 % of the one come from 1 request, of the other from 2"
    )
    assert split.to_dict()["nearly_cancel_out"] is True
    assert not found(changed(**MOVED)).cancels  # 5.5 of 8.5 ms


def test_a_difference_whose_interval_covers_0_cannot_be_told_apart_from_it() -> None:
    def notes(low: float | None, high: float | None) -> tuple[str, ...]:
        split = replace(found(changed(**MOVED)), interval=Interval(5.5 / 3, low, high))
        return why_sheets([split], "tiny")[0].notes

    assert "moved: cannot tell the difference apart from 0" in notes(-0.5, 4.0)
    assert not any("cannot tell" in note for note in (*notes(0.5, 4.0), *notes(None, None)))


def test_a_ttft_that_is_not_the_sum_of_its_parts_is_refused() -> None:
    with pytest.raises(ResultError, match="TTFT of request 'b' is not queue"):
        found(changed(ttft_ms=(8.0, 7.0, 9.0, None)))


@pytest.fixture
def two(tool: Tool) -> Tool:
    for policy in ("random", "kvcache-centric"):
        assert tool("replay", "conversation-like", "-p", policy, "--max-requests", "60", "-q").code == 0
    return tool


def test_compare_why_on_stored_runs(two: Tool) -> None:
    shown = two("compare", "@last:2", "--why", "--top", "3")
    assert shown.code == 0
    assert "TTFT = queue + fetch + prefill, exactly" in shown.out
    assert "kvcache-centric: the requests that made most of it" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    (split,) = two.json("compare", "@last:2", "--why")["why"]
    sums = split["change_sum_ps"]
    assert sums["ttft"] == sums["queue"] + sums["fetch"] + sums["prefill"] + sums["retry_wait"]
    assert len(split["requests"]) == 10
    assert "why" not in two.json("compare", "@last:2")
    assert two("compare", "@last:2", "--why", "--format", "latex").out.count(r"\begin{table}") > 8


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--top", "3"), "--top: no effect without --why"),
        (("--why", "--top", "0"), "--top: expected at least 1 request"),
        (("--why", "--format", "csv"), "--why: no effect with --format csv"),
    ],
)
def test_options_without_effect_are_refused(tool: Tool, words: tuple[str, ...], said: str) -> None:
    assert tool("replay", "conversation-like", "--max-requests", "5", "-q").code == 0
    found = tool("compare", "@last", *words)
    assert (found.code, said in found.err) == (2, True)
    assert "--why: no effect on one run" in tool("compare", "@last", "--why").err
    assert Path("results").is_dir()
