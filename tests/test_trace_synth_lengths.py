"""Lengths of prompts and answers that the generator draws."""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from mooncake_bench.errors import BenchError
from mooncake_bench.trace import Trace, save
from mooncake_bench.trace.synthetic import lengths
from mooncake_bench.trace.synthetic.draws import Draws

N = 200_000
UNIFORM = Draws(5, "test")("lengths", N)


def test_lognormal_lengths_have_the_mean_and_the_variation() -> None:
    found = lengths.parse("lognormal:mean=8k,cv=0.8", "--input")(UNIFORM)
    assert found.dtype == np.int64
    assert found.mean() == pytest.approx(8_000, rel=5 * 0.8 / sqrt(N))
    # with s^2 = ln(1 + cv^2) = 0.495 the excess kurtosis is e^4s + 2 e^3s + 3 e^2s - 6 = 22.4:
    # the deviation's relative error is sqrt(24.4 / N) / 2 = 0.6 %
    assert found.std() / found.mean() == pytest.approx(0.8, rel=5 * 0.006 + 5 * 0.8 / sqrt(N))


def test_a_lognormal_that_is_cut_has_no_longer_values_and_nothing_piles_up_there() -> None:
    found = lengths.parse("lognormal:mean=8k,cv=1,max=16k", "--input")(UNIFORM)
    assert found.max() <= 16_000
    # an even share of what lies within 1 % of the cut: the density there is small and falling
    assert (found > 15_840).mean() < 0.01
    whole = lengths.parse("lognormal:mean=8k,cv=1", "--input")(UNIFORM)
    kept = whole[whole <= 16_000]  # the cut distribution is the whole one, given that it is below
    assert found.mean() == pytest.approx(kept.mean(), rel=0.01)


def test_short_lognormal_lengths_are_at_least_1() -> None:
    assert lengths.parse("lognormal:mean=1,cv=3", "--output")(UNIFORM).min() == 1


def test_fixed_lengths_may_be_written_as_a_bare_number() -> None:
    for text in ("fixed:8Ki", "8192", "8Ki"):
        assert set(lengths.parse(text, "--input")(UNIFORM[:9]).tolist()) == {8192}


def test_uniform_lengths_reach_both_ends_and_are_all_alike() -> None:
    counts = np.bincount(lengths.parse("uniform:3,7", "--input")(UNIFORM))
    assert counts[:3].tolist() == [0, 0, 0]
    assert len(counts) == 8
    assert counts[3:].tolist() == pytest.approx([N / 5] * 5, abs=5 * sqrt(N * 0.2 * 0.8))


def test_empirical_lengths_are_those_of_a_trace_as_often_as_there(tmp_path: Path) -> None:
    trace = Trace.of([(float(row), 100 * (1 + row % 4), 7 + row % 2, [row]) for row in range(400)])
    save(trace, tmp_path / "mine.arrow")
    prompts = lengths.parse(f"empirical:{tmp_path}/mine.arrow", "--input")(UNIFORM)
    values, counts = np.unique(prompts, return_counts=True)
    assert values.tolist() == [100, 200, 300, 400]
    assert counts.tolist() == pytest.approx([N / 4] * 4, abs=5 * sqrt(N * 3 / 16))
    assert set(lengths.parse(f"empirical:{tmp_path}/mine.arrow", "--output")(UNIFORM).tolist()) == {7, 8}


def test_joint_lengths_come_in_the_pairs_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("id,num_prefill_tokens,num_decode_tokens\na,10,1\nb,20,2\n\nc,30.0,3\n")
    both = lengths.joint(f"{tmp_path}/pairs.csv", "--lengths")
    rows = both.rows(UNIFORM)
    assert np.array_equal(both.input_tokens[rows], 10 * both.output_tokens[rows])
    assert np.bincount(rows).tolist() == pytest.approx([N / 3] * 3, abs=5 * sqrt(N * 2 / 9))


def test_vidurs_file_of_lengths_is_read_whole(shared: Path) -> None:
    path = shared / "traces/vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv"
    both = lengths.joint(str(path), "--lengths")
    lines = path.read_text().split()[1:]
    assert len(both.input_tokens) == len(lines)
    assert both.input_tokens.sum() == sum(int(line.split(",")[0]) for line in lines)
    assert both.output_tokens.sum() == sum(int(line.split(",")[1]) for line in lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lognormal", "mean= is missing"),
        ("lognormal:mean=0", "expected a whole number of tokens"),
        ("lognormal:mean=1.5", "expected a whole number of tokens"),
        ("lognormal:mean=8k,cv=-1", "from 0 to 100"),
        ("log:mean=8k", "no kind 'log'"),
        ("uniform:5", "A,B is missing"),
        ("uniform:9,5", "the second number is below the first"),
        ("uniform:1,5,9", "unknown value '9'"),
        ("fixed:", "found ''"),
        ("12x", "expected a whole number of tokens"),
        ("empirical:nowhere.arrow", "no such file"),
    ],
)
def test_a_bad_distribution_gives_one_line(text: str, message: str) -> None:
    with pytest.raises(BenchError, match=message) as caught:
        lengths.parse(text, "--input")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "found no lengths after the header"),
        ("10\n", "line 2, field 'num_decode_tokens': found ''"),
        ("10,0\n", "line 2, field 'num_decode_tokens': found '0'"),
        ("10,5\nx,5\n", "line 3, field 'num_prefill_tokens': found 'x'"),
        ("nan,5\n", "found 'nan'"),
        ("1e99,5\n", "found '1e99'"),
        ("2.5,5\n", "found '2.5'"),
        ("-3,5\n", "found '-3'"),
    ],
)
def test_a_bad_file_of_lengths_names_its_line_and_field(tmp_path: Path, body: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(f"num_prefill_tokens,num_decode_tokens\n{body}")
    with pytest.raises(BenchError, match=message):
        lengths.joint(str(path), "--lengths")


def test_a_file_of_lengths_that_is_not_text_gives_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(b"num_prefill_tokens,num_decode_tokens\n\xff\xfe,1\n")
    with pytest.raises(BenchError, match="cannot be read"):
        lengths.joint(str(path), "--lengths")
