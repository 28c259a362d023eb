"""The scripts in tools/, on a sliver of a trace."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location

import numpy as np
import pytest
from conftest import REPO

from mooncake_bench.trace import Trace, load

BUNDLED = "conversation-like"


def tool(name):
    """A script of tools/, as a module."""
    spec = spec_from_file_location(name, REPO / "tools" / f"{name}.py")
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


overload_grid, routing_ratios = tool("overload_grid"), tool("routing_ratios")


def printed(capsys, module, *given):
    """Exit code and lines of one call."""
    code = module.main([str(each) for each in given])
    return code, capsys.readouterr().out.splitlines()


def table_rows(lines, first_head):
    """Rows of the tables whose first head is this, as lists of cells without the heads."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else [] for line in lines]
    rows, inside = [], False
    for each in cells:
        inside = bool(each) and (inside or each[0] == first_head)
        if inside and each[0] != first_head and set(each[0]) != {"-"}:
            rows.append(each)
    return rows


# ---- overload_grid


def outcome(rejected=0, within=0, correlation=0.0, prefill_sd=0.1, decode_sd=0.1):
    return overload_grid.Outcome(
        offered=6000, fates=0, rejected=rejected, at_decode=0, within=dict.fromkeys(overload_grid.READINGS, within),
        correlation=correlation, prefill_sd=prefill_sd, decode_sd=decode_sd, decode_mean=0.9,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rejected", "ordered"),
    [
        ((4183, 3771, 3589), True),  # arXiv 2407.00079, table 3
        ((102, 100, 98), True),  # 102 = 1.02 * 100, and 100 > 1.02 * 98 = 99.96
        ((101, 100, 90), False),  # a step of 1 %
        ((200, 100, 100), False),
        ((200, 0, 0), False),
        ((90, 100, 80), False),
    ],
)
def test_rejections_are_in_order_when_each_step_is_2_percent(rejected, ordered):
    assert overload_grid.rejects_in_order(*(outcome(rejected=count) for count in rejected)) is ordered


def test_goodput_is_in_order_when_it_rises():
    reading = overload_grid.FIRST_READING
    rising, tied = [outcome(within=n) for n in (10, 11, 12)], [outcome(within=n) for n in (10, 11, 11)]
    assert overload_grid.completes_in_order(reading, *rising)
    assert not overload_grid.completes_in_order(reading, *tied)


def test_swings_are_damped_when_prediction_is_calmer_and_less_in_anti_phase():
    early = outcome(correlation=-0.65, prefill_sd=0.33, decode_sd=0.12)
    calm = outcome(correlation=0.09, prefill_sd=0.13, decode_sd=0.06)
    assert overload_grid.swings(early, calm)
    assert not overload_grid.swings(calm, early)
    assert not overload_grid.swings(early, calm._replace(prefill_sd=0.32))  # 0.32 > 0.9 * 0.33
    assert not overload_grid.swings(early, calm._replace(correlation=None))


def test_a_grid_has_a_row_a_cell_and_a_share_a_decode_time(capsys):
    # A TTFT of 1 ms is shorter than the engine's overhead of 80 ms a prefill: every admission rejects all 120 requests.
    code, lines = printed(
        capsys, overload_grid, BUNDLED, "--max-requests", 120, "--cluster", "6P+1D", "--speedup", "5",
        "--ttft", "1ms,30s", "--tbt", "32ms", "--td", "ewma,5s", "--recheck",
    )  # fmt: skip
    assert code == 0
    assert lines[0] == "Cells: 2, of 120 requests each; in 1 of them the admissions differ."
    rows = table_rows(lines, "cluster")
    assert rows[0] == ["6P+1D", "preset", "5", "1ms", "32ms", "120", "0", "0", "0.00"]
    assert [row[3] for row in rows[1:]] == ["30s"] * 3  # rejected, completed within, loads
    counts = [int(cell.split()[0]) for cell in rows[1][5:]]
    assert len(counts) == 6  # baseline, early, two decode times, two with the check kept
    assert all(0 < count < 120 for count in counts)
    within = [int(cell) for cell in rows[2][6:]]
    assert all(good + bad <= 120 for good, bad in zip(within, counts, strict=True))
    assert [row[0] for row in table_rows(lines, "predictive")] == ["t_d ewma", "t_d 5s", "recheck"]


def test_a_grid_over_nonsense_says_so_and_exits_2(capsys):
    assert overload_grid.main([BUNDLED, "--cluster", "8Q", "--max-requests", "10"]) == 2
    assert "8Q" in capsys.readouterr().err


def test_swings_are_reported_at_three_intervals_for_early_and_predictive(capsys):
    code, lines = printed(
        capsys, overload_grid, BUNDLED, "--max-requests", 120, "--cluster", "6P+1D", "--speedup", "5", "--tbt", "32ms",
        "--td", "5s", "--swings",
    )  # fmt: skip
    assert code == 0
    rows = table_rows(lines, "policy")
    assert [row[0] for row in rows] == ["early", "pred. 5s"]
    assert all(-1 <= float(row[5]) <= 1 for row in rows)
    # 120 requests arrive within 36 s / 5: sampled every 10 s after the first tenth, no two samples.
    assert [row[7] for row in rows] == ["–", "–"]


# ---- routing_ratios


def test_an_infinite_cache_finds_the_blocks_that_came_before():
    # Two full blocks of 10 and a last one of 5. Row 1 finds blocks 1 and 2; row 2 nothing; row 3 all of its 25 tokens.
    rows = [(0.0, 25, 1, [1, 2, 3]), (1.0, 25, 1, [1, 2, 4]), (1.0, 10, 1, [5]), (2.0, 25, 1, [1, 2, 3])]
    assert routing_ratios.infinite_cache(Trace.of(rows, block_tokens=10)).tolist() == [0, 20, 0, 25]


def test_spreading_keeps_the_order_and_stays_within_the_tick():
    trace = load(BUNDLED).select(200)
    spread = routing_ratios.spread_ticks(trace)
    moved = spread.arrival_ms - trace.arrival_ms
    assert (np.diff(spread.arrival_ms) >= 0).all()
    assert np.ptp(moved) < 3000  # the trace's tick
    assert len(np.unique(spread.arrival_ms)) == 200
    assert spread.block_ids is trace.block_ids


def test_ratios_are_printed_beside_the_published_ones(capsys):
    code, lines = printed(capsys, routing_ratios, BUNDLED, "--max-requests", 200, "--seeds", 2)
    assert code == 0
    rows = {row[0]: row[1:] for row in table_rows(lines, "router")}
    assert list(rows) == ["random", "load-balancing", "load-balancing:by=requests", "cache-aware", "kvcache-centric"]
    assert [row[2] for row in rows.values()] == ["6.40", "1.72", "1.72", "1.17", "1"]  # FAST'25, figure 5
    centric = float(rows["kvcache-centric"][0].removesuffix(" s"))
    for seconds, ratio, *_ in rows.values():
        assert float(ratio) == pytest.approx(float(seconds.removesuffix(" s")) / centric, abs=0.01)
    assert lines[-1] == "Requests whose hit is above their infinite-cache prefix: 0 (in 6 replays)."
