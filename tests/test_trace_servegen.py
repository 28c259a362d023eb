"""Traces sampled from ServeGen's client files."""

from __future__ import annotations

import ast
import csv
import json
import tarfile
from math import sqrt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mooncake_bench.errors import BenchError
from mooncake_bench.trace.synthetic.servegen import sample

DAY_WINDOWS = 144
LENGTHS = {"input_tokens": "{100: 0.25, 300: 0.5, 7000: 0.25}", "output_tokens": "{5: 0.1, 50: 0.9}"}


def write_client(
    folder: Path, number: int, rates: dict[int, float], pattern: str = "Gamma", shape: float = 1.0, **fields: str
) -> None:
    """A client that sends at ``rates`` (window number -> requests/s) and is idle otherwise."""
    rows = [
        [600 * at, rates[at], 1 / sqrt(shape), pattern, shape, 1.0] if rates.get(at) else [600 * at, 0, 0, "", 0, 0]
        for at in range(DAY_WINDOWS)
    ]
    with (folder / f"chunk-{number}-trace.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    busy = {str(21_600 * (600 * at // 21_600)) for at in rates}
    table = {
        str(at): (LENGTHS | fields if str(at) in busy else {"input_tokens": "{}"}) for at in range(0, 86_400, 21_600)
    }
    (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(table))


def test_the_number_of_requests_is_the_sum_of_rate_times_window(tmp_path: Path) -> None:
    write_client(tmp_path, 0, {0: 2.0, 1: 8.0, 3: 1.0})
    trace = sample(tmp_path, duration_ms=4 * 600_000)
    # gamma gaps of shape 1 are exponential: Poisson counts of 1200, 4800, 0 and 600
    times = trace.arrival_ms / 1000
    counts = np.bincount((times // 600).astype(int), minlength=4)
    assert counts[2] == 0
    for found, expected in zip(counts[[0, 1, 3]].tolist(), (1200, 4800, 600), strict=True):
        assert found == pytest.approx(expected, abs=5 * sqrt(expected))


@pytest.mark.parametrize(
    ("pattern", "shape", "squared_cv"),
    # Weibull of shape 1/2: mean 2, second moment 24, so cv^2 = 24 / 4 - 1 = 5
    [("Gamma", 0.25, 4.0), ("Gamma", 10.0, 0.1), ("Weibull", 0.5, 5.0)],
)
def test_gaps_follow_the_clients_distribution_and_the_count_is_right_all_the_same(
    tmp_path: Path, pattern: str, shape: float, squared_cv: float
) -> None:
    write_client(tmp_path, 3, dict.fromkeys(range(DAY_WINDOWS), 0.5), pattern, shape)
    trace = sample(tmp_path, duration_ms=86_400_000, seed=2)
    # 43,200 expected; a renewal process has the variance n cv^2
    assert len(trace) == pytest.approx(43_200, abs=5 * sqrt(43_200 * squared_cv))
    gaps = np.diff(trace.arrival_ms)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(squared_cv, rel=0.12)


def test_rare_requests_of_a_bursty_client_are_not_counted_once_a_window(tmp_path: Path) -> None:
    write_client(tmp_path, 0, dict.fromkeys(range(DAY_WINDOWS), 0.01), "Gamma", 0.05)  # 6 a window, cv^2 = 20
    counts = [len(sample(tmp_path, duration_ms=86_400_000, seed=seed)) for seed in range(40)]
    # 864 a day with the variance 864 * 20; a process begun anew in each window would give 144 * (20 - 1) / 2 more
    assert np.mean(counts) == pytest.approx(864, abs=5 * sqrt(864 * 20 / 40))


def test_lengths_follow_the_distribution_of_their_window(tmp_path: Path) -> None:
    write_client(tmp_path, 0, dict.fromkeys(range(6), 5.0))
    trace = sample(tmp_path)
    n = len(trace)
    for value, share in ((100, 0.25), (300, 0.5), (7000, 0.25)):
        assert (trace.input_tokens == value).mean() == pytest.approx(share, abs=5 * sqrt(0.25 / n))
    assert set(trace.input_tokens.tolist()) == {100, 300, 7000}
    assert (trace.output_tokens == 5).mean() == pytest.approx(0.1, abs=5 * sqrt(0.09 / n))


def test_clients_add_up_and_each_is_the_same_alone(tmp_path: Path) -> None:
    for number, rate in ((0, 1.0), (2, 2.0), (11, 3.0)):
        write_client(tmp_path, number, {0: rate})
    whole = sample(tmp_path, duration_ms=600_000)
    parts = [len(sample(tmp_path, str(number), duration_ms=600_000)) for number in (0, 2, 11)]
    assert len(whole) == sum(parts)
    assert len(sample(tmp_path, "0-5", duration_ms=600_000)) == parts[0] + parts[1]
    assert len(sample(tmp_path, "0,11", duration_ms=600_000)) == parts[0] + parts[2]


def test_a_rate_scales_all_clients_to_that_mean(tmp_path: Path) -> None:
    write_client(tmp_path, 0, {0: 1.0})
    write_client(tmp_path, 1, {1: 3.0})
    trace = sample(tmp_path, duration_ms=1_200_000, rate_rps=10.0)
    # 12,000 requests; a quarter of them in the first window
    assert len(trace) == pytest.approx(12_000, abs=5 * sqrt(12_000))
    assert (trace.arrival_ms < 600_000).mean() == pytest.approx(0.25, abs=0.02)


def test_a_part_of_the_day_begins_within_a_window_and_takes_the_lengths_of_its_hours(tmp_path: Path) -> None:
    write_client(tmp_path, 0, {35: 2.0, 36: 4.0})  # windows 35 and 36 meet at 21,600 s
    table = json.loads((tmp_path / "chunk-0-dataset.json").read_text())
    table["21600"] = {"input_tokens": "{9: 1.0}", "output_tokens": "{1: 1.0}"}
    (tmp_path / "chunk-0-dataset.json").write_text(json.dumps(table))
    trace = sample(tmp_path, start_ms=21_300_000, duration_ms=600_000)
    later = trace.input_tokens == 9
    assert later.sum() == pytest.approx(1200, abs=5 * sqrt(1200))  # 300 s at 4/s
    assert (~later).sum() == pytest.approx(600, abs=5 * sqrt(600))  # 300 s at 2/s
    assert trace.arrival_ms[later].min() > trace.arrival_ms[~later].max()


def test_images_add_their_tokens_to_the_text(tmp_path: Path) -> None:
    write_client(tmp_path, 0, {0: 3.0})
    fields = {
        "text_tokens": "{10: 1.0}",
        "image_tokens": "{1000: 1.0}",
        "image_count": "{0: 0.5, 2: 0.5}",
        "audio_tokens": "{0: 1.0}",
        "audio_count": "{0: 1.0}",
        "output_tokens": "{4: 1.0}",
    }
    (tmp_path / "chunk-0-dataset.json").write_text(json.dumps({"0": fields}))
    trace = sample(tmp_path, duration_ms=600_000)
    assert set(trace.input_tokens.tolist()) == {10, 2010}
    assert (trace.input_tokens == 10).mean() == pytest.approx(0.5, abs=5 * sqrt(0.25 / len(trace)))


def test_answers_of_0_tokens_are_given_1_and_a_notice_counts_them(tmp_path: Path) -> None:
    write_client(tmp_path, 0, {0: 3.0}, output_tokens="{0: 0.5, 7: 0.5}")
    trace = sample(tmp_path, duration_ms=600_000)
    ones = int((trace.output_tokens == 1).sum())
    assert ones > 500
    assert any(f"{ones:,} answers of 0 tokens" in notice for notice in trace.notices)


def test_the_trace_says_that_it_knows_nothing_of_prefixes(tmp_path: Path) -> None:
    write_client(tmp_path, 0, {0: 1.0})
    trace = sample(tmp_path, duration_ms=600_000)
    assert not trace.has_prefix_ids
    assert len(np.unique(trace.block_ids)) == len(trace.block_ids)


def test_the_same_seed_gives_the_same_trace(tmp_path: Path) -> None:
    write_client(tmp_path, 0, {0: 1.0})
    assert sample(tmp_path, seed=3) == sample(tmp_path, seed=3)
    assert sample(tmp_path, seed=3) != sample(tmp_path, seed=4)


def test_real_clients_send_what_their_files_say(shared: Path, tmp_path: Path) -> None:
    archive = shared / "traces/servegen/servegen-deepseek-r1-and-multimodal.tar.zst"
    with pa.input_stream(str(archive), compression="zstd") as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            if "deepseek-r1/chunk-" in member.name and member.isfile():
                (tmp_path / Path(member.name).name).write_bytes(tar.extractfile(member).read())  # type: ignore[union-attr]
    trace = sample(tmp_path, start_ms=36_000_000, duration_ms=1_800_000, seed=1)
    expected = variance = tokens = squares = 0.0
    for path in tmp_path.glob("*-trace.csv"):
        rows = [row for row in csv.reader(path.open()) if 36_000 <= float(row[0]) < 37_800]
        count = sum(600 * float(row[1]) for row in rows)
        if count:
            expected += count
            variance += sum(600 * float(row[1]) * max(1.0, float(row[2]) ** 2) for row in rows)
            table = ast.literal_eval(
                json.loads(path.with_name(path.name.replace("trace.csv", "dataset.json")).read_text())["21600"][
                    "input_tokens"
                ]
            )
            mean = sum(value * share for value, share in table.items())
            tokens += count * mean
            squares += count * sum(value**2 * share for value, share in table.items())
    assert len(trace) == pytest.approx(expected, abs=5 * sqrt(variance))
    # which client a request is of varies with the counts, too: twice the error of independent lengths
    error = 2 * sqrt(squares / expected / len(trace))
    assert trace.input_tokens.mean() == pytest.approx(tokens / expected, abs=5 * error)


def broken(folder: Path, line: str | None = None, lengths: str | None = None, **fields: str) -> None:
    write_client(folder, 0, {0: 1.0}, **fields)
    if line is not None:
        path = folder / "chunk-0-trace.csv"
        path.write_text("\n".join([line, *path.read_text().splitlines()[1:]]) + "\n")
    if lengths is not None:
        (folder / "chunk-0-dataset.json").write_text(lengths)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0,1.0,1.0,Gamma,1.0", "chunk-0-trace.csv, line 1: found 5 fields; expected 6"),
        ("0,x,1.0,Gamma,1.0,1.0", "line 1, field 'rate_rps': found 'x'"),
        ("0,-1,1.0,Gamma,1.0,1.0", "line 1, field 'rate_rps': found '-1'"),
        ("0,nan,1.0,Gamma,1.0,1.0", "found 'nan'"),
        ("0,1.0,1.0,Pareto,1.0,1.0", "field 'pat_name': found 'Pareto'; expected Gamma or Weibull"),
        ("0,1.0,0,,0,0", "field 'pat_name': found ''"),
        ("0,1.0,1.0,Gamma,0,1.0", "field 'pat_arg1': found '0'; expected a shape above 0"),
        ("7,1.0,1.0,Gamma,1.0,1.0", "field 'timestamp_s': found '7'; expected windows 600 s apart"),
        ("600,1.0,1.0,Gamma,1.0,1.0", "found a window at 600 s after one at 600 s"),
    ],
)
def test_a_bad_line_of_a_clients_trace_is_named(tmp_path: Path, line: str, message: str) -> None:
    broken(tmp_path, line)
    with pytest.raises(BenchError, match=message) as caught:
        sample(tmp_path, duration_ms=600_000)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ("", "chunk-0-dataset.json cannot be read"),
        ("[]", "found list; expected an object"),
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('{"21600": {}}', "window '0', field 'input_tokens': the window is missing; found 21600"),
        ('{"0": {"input_tokens": "{5: 1.0}"}}', "field 'output_tokens': found nothing"),
        ('{"0": {"input_tokens": 7}}', "field 'input_tokens': found 7"),
    ],
)
def test_a_bad_file_of_a_clients_lengths_is_named(tmp_path: Path, lengths: str, message: str) -> None:
    broken(tmp_path, lengths=lengths)
    with pytest.raises(BenchError, match=message) as caught:
        sample(tmp_path, duration_ms=600_000)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "found no lengths, though the client sends requests then"),
        ("__import__('os').getcwd()", 'found "__import__'),
        ("{5: 0.5}", "the probabilities add up to 0.5; expected 1"),
        ("{5: 1.5, 6: -0.5}", "found 5: 1.5"),
        ("{-5: 1.0}", "found -5: 1.0"),
        ("{5.5: 1.0}", "found 5.5: 1.0"),
        ("{'a': 1.0}", "found 'a': 1.0"),
        ("{5: 'x'}", "found 5: 'x'"),
        ("{5: nan}", "expected the text of a dict"),
        ("{[]: 1}", "expected the text of a dict"),
        ("{" * 5000, "expected the text of a dict"),
    ],
)
def test_a_bad_distribution_is_named_and_never_run(tmp_path: Path, text: str, message: str) -> None:
    broken(tmp_path, input_tokens=text)
    with pytest.raises(BenchError, match=message) as caught:
        sample(tmp_path, duration_ms=600_000)
    assert "field 'input_tokens'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_time_that_the_files_do_not_cover_and_an_idle_one_are_refused(tmp_path: Path) -> None:
    write_client(tmp_path, 0, {0: 1.0})
    with pytest.raises(BenchError, match=r"covers 0 s to 86400 s; found 86000 s to 89600 s"):
        sample(tmp_path, start_ms=86_000_000)
    with pytest.raises(BenchError, match="the clients send nothing in that time"):
        sample(tmp_path, start_ms=7_200_000)


def test_a_folder_without_clients_and_a_client_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"found no chunk-I-trace.csv"):
        sample(tmp_path)
    with pytest.raises(BenchError, match="cannot be read"):
        sample(tmp_path / "nowhere")
    write_client(tmp_path, 4, {0: 1.0})
    for chosen in ("5", "x", "0-3", ""):
        with pytest.raises(BenchError, match="--clients"):
            sample(tmp_path, chosen)
    (tmp_path / "chunk-4-dataset.json").unlink()
    with pytest.raises(BenchError, match=r"chunk-4-dataset.json cannot be read"):
        sample(tmp_path, duration_ms=600_000)
