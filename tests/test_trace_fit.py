"""A generator's specification from a trace: what it holds, what it must not hold, and how close a copy is."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mooncake_bench.errors import TraceError
from mooncake_bench.trace import Trace, info, load
from mooncake_bench.trace.likeness import lru_hit_blocks
from mooncake_bench.trace.synthetic import closeness, links, redraw, specfile
from mooncake_bench.trace.synthetic.fit import specification
from mooncake_bench.trace.synthetic.recipe import make
from mooncake_bench.trace.synthetic.tables import Binned, Table, rounded
from mooncake_bench.trace.synthetic.wording import recipe


def made(**words: Any) -> Trace:
    return make(recipe(words), 3)


CHAT = {"requests": "3000", "rate": "2", "share": ("sessions:turns=3,think=40s", "system:count=3,tokens=2048,zipf=1")}


@pytest.fixture(scope="module")
def chat() -> Trace:
    return made(**CHAT, input="lognormal:mean=1500,cv=1")


def facts(trace: Trace) -> dict[str, float]:
    ideal = info(trace)["infinite_cache"]
    return {
        "input": trace.input_tokens.mean(),
        "output": trace.output_tokens.mean(),
        "tokens": ideal["hit_ratio_tokens"],
        "blocks": ideal["hit_ratio_blocks"],
        "lru": lru_hit_blocks(trace, 5_859) / len(trace.block_ids),
    }


def assert_close(original: Trace, copy: Trace) -> None:
    """The aims: means within 5 %, infinite-cache ratios within .03, an LRU cache of 3M tokens within .04."""
    ours, theirs = facts(copy), facts(original)
    assert len(copy) == len(original)
    for side in ("input", "output"):
        assert ours[side] == pytest.approx(theirs[side], rel=0.05), side
    for unit in ("tokens", "blocks"):
        assert ours[unit] == pytest.approx(theirs[unit], abs=0.03), unit
    assert ours["lru"] == pytest.approx(theirs["lru"], abs=0.04)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_a_copy_of_a_real_trace_is_close_to_it(shared: Path, name: str, seed: int) -> None:
    trace = load(shared / f"traces/mooncake-fast25/{name}_trace.jsonl")
    assert_close(trace, redraw.draw(specification(trace), seed))


def test_a_copy_of_a_bundled_trace_is_close_to_it() -> None:
    trace = load("conversation-like")
    assert_close(trace, redraw.draw(specification(trace), 0))


def test_a_copy_of_generated_sessions_is_close_to_them(chat: Trace) -> None:
    assert_close(chat, redraw.draw(specification(chat), 0))


def test_a_copy_has_as_many_requests_in_each_window_and_the_grid_of_the_original() -> None:
    trace = load("toolagent-like")
    spec = specification(trace)
    copy = redraw.draw(spec, 1)
    assert not (copy.arrival_ms % 3000).any()
    curve = spec.arrivals
    assert sum(curve.counts) == len(trace)
    # windows of 60 s hold whole ticks of 3 s; the first arrival may not be at 0 of the first window
    first = int(round(curve.span_ms - 3000 - copy.arrival_ms[-1], 6))
    counts = np.bincount(((copy.arrival_ms + first) // curve.window_ms).astype(int), minlength=len(curve.counts))
    assert counts.tolist() == list(curve.counts)


def test_bursts_within_windows_are_copied() -> None:
    trace = made(requests="20000", rate="20", arrivals="mmpp:rates=1/20,dwell=4s/2s", input="fixed:100")
    copy = redraw.draw(specification(trace), 0)
    calm = redraw.draw(specification(made(requests="20000", rate="20", input="fixed:100")), 0)

    def index(one: Trace) -> float:
        return info(one)["arrivals"]["dispersion"][1]["index"]  # over 10 s; 1: Poisson

    assert index(calm) < 1.3
    assert index(trace) > 10 * index(calm)
    assert index(copy) == pytest.approx(index(trace), rel=0.5)


def test_a_specification_knows_no_ids_of_blocks_requests_or_sessions(chat: Trace, tmp_path: Path) -> None:
    assert chat.session_id is not None
    other = replace(
        chat,
        block_ids=chat.block_ids.max() - chat.block_ids + 10**15,
        request_id=tuple(f"secret-{row}" for row in range(len(chat))),
        session_id=chat.session_id.max() - chat.session_id + 7_000_000,
        name="secret",
        metadata={"source": "secret"},
    )
    for name, trace in (("a", chat), ("b", other)):
        specfile.write(specification(trace), tmp_path / f"{name}.toml")
    assert (tmp_path / "a.toml").read_bytes() == (tmp_path / "b.toml").read_bytes()
    assert "secret" not in (tmp_path / "b.toml").read_text()


def test_every_length_and_time_in_a_specification_is_rounded_to_three_digits(chat: Trace, tmp_path: Path) -> None:
    specfile.write(specification(chat), tmp_path / "chat.toml")
    found = tomllib.loads((tmp_path / "chat.toml").read_text())
    del found["arrivals"], found["openings"], found["version"]

    def numbers(value: Any) -> list[float]:
        if isinstance(value, dict):
            return [number for item in value.values() for number in numbers(item)]
        if isinstance(value, list):
            return [number for item in value for number in numbers(item)]
        return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []

    listed = numbers(found)
    assert len(listed) > 300
    assert [number for number in listed if float(f"{number:.3g}") != number] == []
    assert len(listed) < len(chat)  # and there are fewer than the trace has requests


def test_a_copy_repeats_no_request_of_a_trace_without_grid(chat: Trace) -> None:
    def rows(trace: Trace) -> set[tuple[float, int, int]]:
        times = np.round(trace.arrival_ms).tolist()
        return set(zip(times, trace.input_tokens.tolist(), trace.output_tokens.tolist(), strict=True))

    assert rows(chat) & rows(redraw.draw(specification(chat), 0)) == set()


def test_a_specification_survives_its_file(chat: Trace, tmp_path: Path) -> None:
    spec = specification(chat)
    specfile.write(spec, tmp_path / "chat.toml")
    assert specfile.read(tmp_path / "chat.toml") == spec
    assert redraw.trace_of(tmp_path / "chat.toml", 5) == redraw.draw(spec, 5)
    assert redraw.draw(spec, 5) != redraw.draw(spec, 6)


def test_a_trace_without_sharing_gets_a_copy_without_hits() -> None:
    copy = redraw.draw(specification(made(requests="500")), 0)
    assert info(copy)["infinite_cache"]["hit_blocks"] == 0
    assert copy.has_prefix_ids


def test_a_trace_without_prefix_ids_gets_a_copy_without_them() -> None:
    trace = made(requests="5000", input="lognormal:mean=4k,cv=1")
    unknown = replace(trace, metadata={"prefix_ids": "none"})
    spec = specification(unknown)
    copy = redraw.draw(spec, 0)
    assert spec.continuations is None
    assert not copy.has_prefix_ids
    # 5,000 lognormal lengths of cv 1: error 1.4 %
    assert copy.input_tokens.mean() == pytest.approx(trace.input_tokens.mean(), rel=5 * 0.014)
    names = [row["statistic"] for row in closeness.rows(unknown, copy)]
    assert not [name for name in names if "cache" in name or "LRU" in name or "blocks" in name]


def test_answers_of_a_copy_depend_on_the_prompts_as_in_the_original() -> None:
    words: dict[str, Any] = {"requests": "4000", "output": "fixed:10"}
    trace = made(**words, input="lognormal:mean=4k,cv=1")
    dependent = replace(trace, output_tokens=1 + trace.input_tokens // 10)
    copy = redraw.draw(specification(dependent), 0)

    def rank(values: np.ndarray) -> np.ndarray:
        return np.argsort(np.argsort(values))

    # ten bins of the prompt's length: the rank correlation of a mixture of ten even steps is about .99
    assert np.corrcoef(rank(copy.input_tokens), rank(copy.output_tokens))[0, 1] > 0.95


def test_repeated_prompts_and_edited_ones_are_told_from_growing_ones() -> None:
    blocks = [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2], [0, 9], [50]]
    tokens = [3 * 512, 3 * 512 + 5, 3 * 512, 600, 5]
    trace = Trace.of([(float(row), tokens[row], 1, blocks[row]) for row in range(5)])
    found = links.links(trace)
    # row 1 grows row 0; row 2 is row 0 again, whose last block row 1 has too and had later; row 3 keeps one block
    assert found.parent.tolist() == [-1, 0, 1, 2, -1]
    assert found.shared_blocks.tolist() == [0, 3, 3, 1, 0]
    assert found.kind[[1, 3]].tolist() == [links.GROWS, links.EDITS]
    assert found.turn.tolist() == [1, 2, 3, 4, 1]
    again = Trace.of([(0.0, 700, 1, [0, 1]), (1.0, 700, 1, [0, 1])])
    assert links.links(again).kind[1] == links.REPEATS


def test_the_previous_turn_of_a_given_session_is_continued_rather_than_a_later_request_of_another() -> None:
    rows = [(0.0, 1024, 1, [0, 1]), (1.0, 1024, 1, [0, 1]), (2.0, 1536, 1, [0, 1, 2])]
    trace = replace(Trace.of(rows), session_id=np.array([5, 6, 5]))
    assert links.links(trace).parent.tolist() == [-1, 0, 0]
    assert links.links(Trace.of(rows)).parent.tolist() == [-1, 0, 1]


def test_openings_are_the_widely_shared_beginnings_with_what_they_have_in_common() -> None:
    # 60 prompts open with blocks 1 2 3 and 40 with 1 2 4 5; each then has a block of its own
    chains = {0: [1, 2, 3], 1: [1, 2, 4, 5]}
    rows = []
    for row in range(100):
        blocks = [*chains[int(row % 5 >= 3)], 1000 + row]
        rows.append((float(row), 512 * len(blocks), 1, blocks))
    found = links.links(Trace.of(rows))
    assert set(found.parent.tolist()) == {links.NOBODY}
    assert sorted((one.blocks, one.requests) for one in found.openings) == [(3, 60), (4, 40)]
    later = found.openings[1]
    assert (later.like, later.like_blocks) == (0, 2)
    copy = redraw.draw(specification(Trace.of(rows)), 0)
    ideal = info(copy)["infinite_cache"]
    # all but the first of either kind hit their opening; the second kind's first prompt finds two blocks
    kinds = np.diff(copy.block_offsets) - 1
    expected = 3 * ((kinds == 3).sum() - 1) + 4 * ((kinds == 4).sum() - 1) + 2
    assert ideal["hit_blocks"] == expected


@pytest.mark.parametrize(
    "rows",
    [
        [(0.0, 1, 1, [0])] * 60,
        [(0.0, 1024, 1, [0, 1])] * 60,
        [(float(row), 513, 1, [0, row + 1]) for row in range(60)],
        [(1e9 * (row > 50), 100_000, 1, list(range(row, row + 196))) for row in range(60)],
    ],
    ids=["one block", "one prompt", "a root", "shifted ids"],
)
def test_odd_traces_can_be_fitted_and_copied(rows: list[tuple[float, int, int, list[int]]]) -> None:
    trace = Trace.of(rows)
    spec = specification(trace)
    copy = redraw.draw(spec, 0)
    assert len(copy) == 60
    assert copy.input_tokens.max() <= spec.longest_tokens
    json.dumps(closeness.rows(trace, copy), allow_nan=False)


def test_a_trace_of_a_few_requests_is_not_fitted() -> None:
    trace = Trace.of([(float(row), 5, 1, [row]) for row in range(49)])
    with pytest.raises(TraceError, match="has 49 requests; expected at least 50"):
        specification(trace)


def test_closeness_compares_the_original_with_the_copy(chat: Trace) -> None:
    found = {row["statistic"]: row for row in closeness.rows(chat, chat.select(1500))}
    assert found["requests"] == {"statistic": "requests", "original": 3000, "copy": 1500, "ratio": 0.5}
    assert found["input tokens, mean"]["original"] == pytest.approx(chat.input_tokens.mean())
    sizes = [name for name in found if name.startswith("LRU of")]
    assert len(sizes) == 3
    assert closeness.shown(found["requests"]) == {
        "statistic": "requests",
        "original": "3,000",
        "copy": "1,500",
        "ratio": "0.500",
    }


def test_a_table_goes_through_its_points_with_the_logarithm_linear_between() -> None:
    table = Table((0.0, 0.5, 1.0), (0.0, 3.0, 15.0))
    # log2(1 + value) is 0, 2, 4: half way 1 and 3, that is 1 and 7
    assert table(np.array([0.0, 0.25, 0.5, 0.75])).tolist() == pytest.approx([0, 1, 3, 7])
    assert Table.of(np.arange(1000)).values[-1] == rounded(999)
    assert len(Table.of(np.arange(20)).values) == 5


def test_binned_tables_have_a_distribution_for_each_bin() -> None:
    by = np.repeat([1, 10], 100)
    binned = Binned.of(by, by * 100, 2)
    assert len(binned.tables) == 2
    assert binned.value(1, 0.5) == pytest.approx(100)
    assert binned.each(np.array([0, 50]), np.array([0.3, 0.3])).tolist() == pytest.approx([100, 1000])
    assert len(Binned.of(np.ones(500), np.ones(500), 4).tables) == 1  # bins that are all the same are one


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"mooncake-bench generator"', '"other"', "expected format = 'mooncake-bench generator'"),
        ("version = 1", "version = 2", "version = 1, as `traces fit` writes it"),
        ("block_tokens = 512", "block_tokens = 0", "block_tokens: found 0; expected a whole number from 1"),
        ("block_tokens = 512", "", "block_tokens: missing"),
        ("prefix_ids = true", "prefix_ids = 1", "prefix_ids: found 1; expected true or false"),
        ("burst_cv = ", "burst_cv = -1 # ", "arrivals.burst_cv: found -1"),
        ("grid_ms = 0.0", "grid_ms = nan", "arrivals.grid_ms: found nan"),
        ("burst_ms = ", "burst_ms = 1e13 # ", "arrivals.burst_ms: expected a part of window_ms"),
        ("[arrivals]", "[arivals]", "arrivals.counts: missing"),
        ("counts = [", "counts = [-1, ", "arrivals.counts: found -1"),
        ("counts = [", "counts = [99999999, ", "arrivals.counts: expected from 1 to"),
        ("edges = [", "edges = [1e9, ", "output_tokens:"),
        ("edges = [", "edges = ['x', ", "output_tokens: expected a list of numbers"),
        ("values = [", "values = [7, ", "output_tokens: "),
        ("like = [-1", "like = [0", "openings.like: expected an earlier opening"),
        ("without = 0", "without = -1", "openings.without: found -1"),
        ("share = [", "share = [1.5, ", "continuations.share: found 1.5"),
        ("kinds = [[", "kinds = [[0.1, ", "continuations.kinds: expected a list of 3"),
        ("classes = [[", "classes = 5 # [[", "continuations.classes: expected a list"),
        ("[continuations.growth_tokens]", "[continuations.growth]", "continuations.growth_tokens: missing"),
        ("format", "format ==", "is not TOML"),
    ],
)
def test_a_damaged_specification_gives_one_line_that_names_the_key(
    chat: Trace, tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "chat.toml"
    specfile.write(specification(chat), path)
    path.write_text(changed(path.read_text(), old, new))
    with pytest.raises(TraceError, match=message) as caught:
        redraw.trace_of(path)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_specification_give_one_line(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty.toml").write_text("")
    for name in ("binary.toml", "empty.toml", "absent.toml", "."):
        with pytest.raises(TraceError, match="--from"):
            specfile.read(tmp_path / name)


def test_a_specification_is_not_written_over_another_file_nor_where_none_can_be(chat: Trace, tmp_path: Path) -> None:
    spec, path = specification(chat), tmp_path / "chat.toml"
    path.write_text("mine")
    with pytest.raises(TraceError, match="exists; choose another name, or --force"):
        specfile.write(spec, path)
    assert path.read_text() == "mine"
    specfile.write(spec, path, force=True)
    assert specfile.read(path) == spec
    for bad in ("chat.txt", "nowhere/chat.toml"):
        with pytest.raises(TraceError):
            specfile.write(spec, tmp_path / bad)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["chat.toml"]
