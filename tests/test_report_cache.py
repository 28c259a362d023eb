"""The tables and the picture of a cache analysis: what stands where, and that it fits a narrow or plain screen."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from cache_tiny import write_tiny
from fault_tools import Tool

from mooncake_bench.cache import FirstMiss, Misses, Point, simulate
from mooncake_bench.report import markup, tables
from mooncake_bench.report.cache_tables import cache_report
from mooncake_bench.results.cache_analysis import DEFINITIONS, Analysis, Capacity, Model
from mooncake_bench.studies.cache import analyse, bound_line, eviction_specs
from mooncake_bench.trace import load

GOLDEN = Path(__file__).parent / "golden"
SUFFIX = {"table": "txt", "markdown": "md", "latex": "tex"}

SIZES = (Capacity("1000", 1000), Capacity("3Mtok", 5859), Capacity("10Mtok", 19_531), Capacity("30000", 30_000))
SIZES = (*SIZES, Capacity("50Mtok", 97_656), Capacity("inf", None))
NAMES = (
    "lru", "leaf-lru", "fifo", "leaf-fifo", "lfu", "lfu:counts=all", "length-aware", "length-aware:bias=keep", "clock",
    "sieve", "s3-fifo", "two-q", "arc", "lru-k", "slru", "w-tinylfu", "mooncake-store",
)  # fmt: skip


def point(policy: str, capacity: int | None, hits: int, evicted: int = 100_000) -> Point:
    """A point of a made-up trace of 12,031 requests and 288,500 blocks, 182,790 of them new."""
    misses = Misses(182_790, 0, 288_500 - 182_790 - hits - evicted, 0, evicted)
    return Point(
        policy=policy, spec=policy, capacity_blocks=capacity, pools=1, assignment=None, touch_order="forward",
        ready_after_ms=0.0, warm_requests=0, block_tokens=512, requests=12_031, blocks=288_500, full_blocks=276_491,
        tokens=144_793_823, block_hits=hits, prefix_blocks=hits, prefix_full_blocks=hits, prefix_tokens=hits * 512,
        requests_with_hit=12_030, misses=misses, requests_by_first_miss=FirstMiss(4, 6_000, 0, 0, 6_027),
        evictions=evicted, evicted_ago_ms={"p50": 181_000.0, "p90": 1_234_567.0, "p99": 3e6} if evicted else None,
        peak_blocks=capacity or 182_790, pool_requests=(12_031,),
    )  # fmt: skip


def analysis(names: tuple[str, ...] = NAMES, model: Model | None = None) -> Analysis:
    """Every policy at every size: the later in the list and the larger, the more hits."""
    full = 105_710
    return Analysis(
        trace_name="conversation_trace",
        trace_sha256="2543cc1b3834" + "0" * 52,
        trace_requests=12_031,
        model=model or Model(),
        capacities=SIZES,
        labels=names,
        offline=frozenset(),
        points={
            (name, size.blocks): point(name, size.blocks, 0 if size.blocks is None else 100 * i + 10 * j, 50)
            for i, name in enumerate(names)
            for j, size in enumerate(SIZES)
        },
        bounds={size.blocks: point("optimum", size.blocks, full, 0) for size in SIZES},
        ceiling=point("optimum", None, full, 0),
    )


@pytest.mark.parametrize("fmt", SUFFIX)
def test_the_report_of_the_small_trace_looks_as_agreed(fmt: str, tool: Tool, update_golden: bool) -> None:
    # the numbers are those counted in cache_tiny: LRU 2, 8 and 8 of 14 blocks, FIFO 2, 6 and 8, the optimum 7, 8 and 8
    words = (write_tiny(Path("tiny.jsonl")), "--block-size", "10", "-p", "lru", "-p", "fifo", "--capacity", "3,5,inf")
    done = tool("cache", *words, "--why", "--format", fmt)
    assert done.code == 0, done.err
    path = GOLDEN / f"cache_tiny.{SUFFIX[fmt]}"
    if update_golden:
        path.write_text(done.out, encoding="utf-8", newline="\n")
    assert done.out == path.read_text(encoding="utf-8")


def test_the_numbers_of_the_agreed_report_are_those_counted_by_hand() -> None:
    text = (GOLDEN / "cache_tiny.txt").read_text(encoding="utf-8")
    rows = [line.split() for line in text.splitlines()]
    ratios = rows[next(i for i, row in enumerate(rows) if row[:2] == ["Hit", "ratio"]) :]
    # of 14 blocks: 2 = 14.3 %, 6 = 42.9 %, 7 = 50 %, 8 = 57.1 %
    assert ratios[3] == ["lru", "14.3", "%", "57.1", "%", "57.1", "%"]
    assert ratios[4] == ["fifo", "14.3", "%", "42.9", "%", "57.1", "%"]
    assert ratios[5] == ["optimum", "*", "50.0", "%", "57.1", "%", "57.1", "%"]
    assert ratios[6] == ["infinite", "cache", "57.1", "%", "57.1", "%", "57.1", "%"]
    bound = rows[next(i for i, row in enumerate(rows) if row[:2] == ["Share", "of"]) :]
    assert bound[3] == ["lru", "28.6", "%", "100.0", "%", "100.0", "%"]  # 2 / 7, 8 / 8
    why = rows[next(i for i, row in enumerate(rows) if row[:3] == ["Why", "blocks", "miss"]) :]
    # hit 2, first sight 6, evicted 5 (1 s before), gap 1, of 14
    assert why[3] == ["lru", "14.3", "%", "42.9", "%", "35.7", "%", "1.0", "s", "1.0", "s", "7.1", "%"]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_seventeen_policies_at_six_sizes_fit_80_columns(encoding: str) -> None:
    text = tables.screen(cache_report(analysis(), why=True), 80, encoding)
    assert max(map(len, text.splitlines())) <= 80
    assert text.isascii() is (encoding == "ascii")
    for name in NAMES:
        assert re.search(rf"^{re.escape(name)} +\S", text, re.MULTILINE), name  # no name is broken over lines


def test_every_definition_names_its_denominator() -> None:
    text = " ".join(tables.screen(cache_report(analysis(), list(DEFINITIONS.values())), 200).split())
    for words in (
        "Hit ratio (blocks): leading blocks of prompts found, of 288,500 blocks",
        "Hit ratio (tokens): leading tokens of prompts found, of 144,793,823 prompt tokens",
        "Hit ratio (full-blocks): leading full blocks of prompts found, of 276,491 full blocks",
        "Hit ratio (per-block): blocks found, each looked up by itself, of 288,500 blocks",
    ):
        assert words in text


def test_the_head_says_which_trace_and_which_model_of_time() -> None:
    text = " ".join(tables.screen(cache_report(analysis()), 200).split())
    for words in (
        "trace conversation_trace (content sha256 2543cc1b3834): 12,031 requests; 288,500 blocks of 512 tokens",
        "each request served at once, in trace order, blocks touched head first; one pool",
        "3Mtok = 5,859 blocks, 10Mtok = 19,531 blocks, 50Mtok = 97,656 blocks",
    ):
        assert words in text
    local = Model("reverse", 16, "hashed", 1500.0, 6_015)
    told = " ".join(tables.screen(cache_report(analysis(model=local)), 200).split())
    assert "blocks touched tail first; 16 pools of the size shown, nothing shared, requests assigned hashed" in told
    assert "a block is found from 1.5 s after it was stored" in told
    assert "optimum: that of one pool of 16 times the size" in told
    assert "optimum of 16× the size, no wait * " in told
    assert "hits over those of the optimum of one pool of 16× the size, which does not wait" in told
    assert "without the 1.5 s: still a bound" in told


def test_reasons_that_cannot_be_are_no_columns_and_those_that_can_are() -> None:
    one = tables.screen(cache_report(analysis()), 120)
    assert "not ready" not in one
    assert "elsewhere" not in one
    both = tables.screen(cache_report(analysis(model=Model(pools=2, ready_after_ms=1.0))), 120)
    assert "not ready" in both
    assert "elsewhere" in both


def test_reasons_are_shown_at_the_size_nearest_to_3_m_tokens_and_at_all_when_asked() -> None:
    asked = tables.screen(cache_report(analysis(), why=True), 80)
    assert asked.count("Why blocks miss at") == len(SIZES) - 1  # nothing is evicted from an infinite cache
    usual = tables.screen(cache_report(analysis()), 80)
    assert usual.count("Why blocks miss at") == 1
    assert "Why blocks miss at 3Mtok (5,859 blocks)" in usual


def test_an_infinite_cache_alone_has_no_size_to_show_reasons_at() -> None:
    only = replace(analysis(), capacities=(Capacity("inf", None),))
    assert "Why" not in tables.screen(cache_report(only, why=True), 80)


def test_names_come_from_users_and_are_escaped() -> None:
    nasty = 'a|b_$%&#{}~^\\<b>[red]*`"=1+1'
    content = cache_report(analysis((nasty,)))
    assert nasty in tables.screen(content, 200)
    assert "|a\\|b" in markup.markdown(content).replace(" ", "")
    assert r"a\textbar{}b\_\$\%" in markup.latex(content)


def test_a_larger_cache_that_cannot_find_more_is_named() -> None:
    idle = analysis(("lru",))
    points = {key: replace(each, evictions=0) if key[1] == 97_656 else each for key, each in idle.points.items()}
    assert cache_report(replace(idle, points=points)).notices == (
        "nothing was evicted at 50Mtok: a larger cache cannot find more",
    )


def test_a_picture_has_every_policy_the_bound_the_ceiling_and_what_was_published() -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra 'plots'")
    from mooncake_bench.report import cache_plot, plots

    with plots.style():
        drawn = analysis()
        bound = {size: each for size, each in drawn.bounds.items() if size is not None}
        figure = cache_plot.draw(drawn, DEFINITIONS["blocks"], bound, None, {5859: 0.165}, "FAST'25, figure 9")
    [axes] = figure.axes
    labels = [line.get_label() for line in axes.get_lines()]
    assert set(NAMES) | {"optimum (bound)", "infinite cache", "FAST'25, figure 9"} <= set(labels)
    assert axes.get_xscale() == "log"
    lines = [line for line in axes.get_lines() if line.get_label() in NAMES]
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == len(NAMES)  # no two policies look alike
    assert len({(line.get_marker(), line.get_fillstyle(), line.get_linestyle()) for line in lines}) == len(NAMES)
    assert axes.get_legend() is None  # it stands beside the picture, over no line
    assert len(figure.legends) == 1
    assert any("3 M tokens" in text.get_text() for text in axes.texts)


def test_the_bound_of_a_picture_is_above_every_policy_between_the_sizes_asked_for(tmp_path: Path) -> None:
    # LRU at every size against the line drawn for the bound, of which only the ends were asked for
    trace = load(write_tiny(tmp_path / "tiny.jsonl"), block_tokens=10)
    both = (Capacity("1", 1), Capacity("6", 6))
    found = analyse(trace, eviction_specs(["lru"]), both, Model())
    line = bound_line(trace, found)
    assert list(line) == [1, 2, 3, 4, 5, 6]  # 16 places from 1 to 6, in whole blocks
    assert [point.prefix_blocks for point in line.values()][2] == 7  # counted in cache_tiny
    for size, point in line.items():
        assert point.prefix_blocks >= simulate(trace, "lru", size).prefix_blocks
    local = analyse(trace, eviction_specs(["lru"]), both, Model(pools=2))
    assert bound_line(trace, local)[3].prefix_blocks == line[6].prefix_blocks
    infinite = analyse(trace, eviction_specs(["lru"]), [Capacity("inf", None)], Model())
    assert bound_line(trace, infinite, [5]) == {}
