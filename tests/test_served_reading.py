"""Served logs in the formats that tools write: the same requests in each, and one clear line for what cannot be."""

from __future__ import annotations

import csv
import gzip
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from served_logs import Request, aiperf_lines, llmservingsim_lines, naive, requests, step_ms, vllm_json

from mooncake_bench.errors import NothingToConclude, TraceError
from mooncake_bench.hardware.analytic import Coefficients
from mooncake_bench.studies.served.reading import read

if TYPE_CHECKING:
    from pathlib import Path

    from mooncake_bench.studies.served.log import ServedLog

CHEAP = Coefficients(4.0, 0.05, 1.0, 0.0, 5.0, 0.0, 0.1, 1e-4)
COLUMNS = "arrival=sent:s,input=prompt,output=answer,ttft=first:s,end=done:s"


@pytest.fixture(scope="module")
def work() -> list[Request]:
    made = requests(24, 40.0, seed=5)
    naive(made, partial(step_ms, CHEAP, 3.0, 1.0), 256, 8, ahead=True)
    return made


def rows(work: list[Request]) -> list[dict[str, Any]]:
    return [
        {
            "sent": 7 + r.arrival_ms / 1e3,
            "prompt": r.prompt,
            "answer": r.answer,
            "first": (r.token_ms[0] - r.arrival_ms) / 1e3,
            "done": 7 + r.token_ms[-1] / 1e3,
        }
        for r in work
    ]


def as_csv(path: Path, lines: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    return path


def as_jsonl(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def is_the_work(log: ServedLog, work: list[Request], *, gaps: bool) -> None:
    assert log.arrival_ms == pytest.approx([r.arrival_ms for r in work], abs=1e-3)
    assert log.input_tokens.tolist() == [r.prompt for r in work]
    assert log.output_tokens.tolist() == [r.answer for r in work]
    assert log.ttft_ms == pytest.approx([r.token_ms[0] - r.arrival_ms for r in work], abs=1e-3)
    tpot = [(r.token_ms[-1] - r.token_ms[0]) / (r.answer - 1) for r in work]
    assert log.tpot_ms == pytest.approx(tpot, abs=1e-3)
    if gaps:  # TBT: the mean of the longest tenth, at least one
        longest = [sorted(np.diff(r.token_ms))[-max(1, -(-(r.answer - 1) // 10)) :] for r in work]
        assert log.tbt_ms == pytest.approx([np.mean(each) for each in longest], abs=1e-3)
    else:
        assert np.isnan(log.tbt_ms).all()


def test_vllm_json_is_read_and_failed_requests_are_counted(work: list[Request], tmp_path: Path) -> None:
    path = tmp_path / "vllm.json"
    path.write_text(json.dumps(vllm_json(work, failed=2)), encoding="utf-8")
    log = read(path)
    assert (log.format, log.failed) == ("vLLM bench serve", 2)
    assert any("2 of 26 requests failed: they are left out" in note for note in log.notes)
    is_the_work(log, work, gaps=True)


def test_a_zipped_and_indented_file_is_read_as_well(work: list[Request], tmp_path: Path) -> None:
    path = tmp_path / "vllm.json.gz"
    path.write_bytes(gzip.compress(json.dumps(vllm_json(work), indent=2).encode()))
    is_the_work(read(path), work, gaps=True)


def test_aiperf_records_are_read_and_cancelled_ones_are_counted(work: list[Request], tmp_path: Path) -> None:
    cancelled = {
        "metadata": {"session_num": 99, "request_start_ns": 1_759_813_207_000_000_000, "was_cancelled": True},
        "metrics": {"error_isl": {"value": 550, "unit": "tokens"}},
        "error": {"code": 499, "type": "RequestCancellationError", "message": "cancelled"},
    }
    path = tmp_path / "profile_export.jsonl"
    path.write_text(json.dumps(cancelled) + "\n" + aiperf_lines(work), encoding="utf-8")
    log = read(path)
    assert (log.format, log.failed) == ("aiperf", 1)
    is_the_work(log, work, gaps=True)


def test_llmservingsim_arrivals_are_set_by_the_quickest_hand_over(work: list[Request], tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(llmservingsim_lines(work, handover_ms=0.0), encoding="utf-8")
    log = read(path)
    assert log.format == "LLMServingSim"
    assert any("quickest hand-over" in note for note in log.notes)
    is_the_work(log, work, gaps=False)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_named_columns_with_units_are_read(work: list[Request], tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"log.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows(work)), path)
    else:
        (as_csv if kind == "csv" else as_jsonl)(path, rows(work))
    is_the_work(read(path, COLUMNS), work, gaps=False)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_list_of_gaps_a_first_moment_and_cached_tokens_can_be_named(
    work: list[Request], tmp_path: Path, kind: str
) -> None:
    lines = [
        {"t": r.arrival_ms, "in": r.prompt, "out": r.answer, "f": r.token_ms[0], "hit": 16,
         "gaps": np.diff(r.token_ms).tolist()}
        for r in work
    ]  # fmt: skip
    path = tmp_path / f"log.{kind}"
    if kind == "csv":
        as_csv(path, [line | {"gaps": json.dumps(line["gaps"])} for line in lines])
    else:
        as_jsonl(path, lines)
    log = read(path, "arrival=t,input=in,output=out,first=f,gaps=gaps,cached=hit")
    is_the_work(log, work, gaps=True)
    assert set(log.cached_tokens.tolist()) == {16}


def test_rows_without_a_first_token_or_without_output_failed(work: list[Request], tmp_path: Path) -> None:
    lines = rows(work)
    lines += [lines[0] | {"first": ""}, lines[0] | {"answer": 0}]
    assert read(as_csv(tmp_path / "log.csv", lines), COLUMNS).failed == 2


def test_rows_are_sorted_by_arrival_with_a_notice(work: list[Request], tmp_path: Path) -> None:
    log = read(as_csv(tmp_path / "log.csv", rows(work)[::-1]), COLUMNS)
    assert any("not in the order of their arrival; sorted" in note for note in log.notes)
    is_the_work(log, work, gaps=False)


def test_the_most_requests_that_decode_at_once_are_counted(work: list[Request], tmp_path: Path) -> None:
    log = read(as_csv(tmp_path / "log.csv", rows(work)), COLUMNS)
    moments = [r.token_ms[0] for r in work]
    by_hand = max(sum(r.token_ms[0] <= m < r.token_ms[-1] for r in work) for m in moments)
    assert log.most_decoding() == pytest.approx(by_hand, abs=1)  # ties of an end and a start


def changed(work: list[Request], **fields: Any) -> list[dict[str, Any]]:
    lines = rows(work)
    lines[2] = lines[2] | fields
    return lines


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"first": -1},
            r"log.csv, row 3: the first token is -1000 ms after the arrival: expected more than 0; are",
        ),
        ({"done": 0}, r"log.csv, row 3: the last of \d+ tokens is -.* ms after the first: expected more than 0"),
        ({"prompt": 0}, r"log.csv, row 3: input tokens 0.0: expected a whole number of at least 1"),
        ({"answer": 2.5}, r"log.csv, row 3: output tokens 2.5: expected a whole number"),
        ({"sent": "soon"}, r"log.csv, row 3: column 'sent' \(arrival\): expected a number, found 'soon'"),
        ({"sent": ""}, r"log.csv, row 3: column 'sent' \(arrival\): expected a number, found nothing"),
    ],
)
def test_a_row_that_cannot_be_is_named(
    work: list[Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    as_csv(tmp_path / "log.csv", changed(work, **fields))
    with pytest.raises(TraceError, match=f"^{message}"):
        read("log.csv", COLUMNS)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("arrival=sent", "input is missing"),
        ("arrival=sent,input=prompt,output=answer,ttft=first", "expected one of end, e2e, gaps, found none"),
        (f"{COLUMNS},first=first", "expected one of ttft, first, found ttft and first"),
        (f"{COLUMNS},frist=x", "no key 'frist'; did you mean 'first'"),
        (f"{COLUMNS},input=x", "input is given twice"),
        ("arrival", "expected KEY=COLUMN, got 'arrival'"),
        (COLUMNS.replace("=prompt", "=promt"), "no column 'promt' for input; did you mean 'prompt'"),
        (None, "a file of no known format .known: vLLM"),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    work: list[Request], tmp_path: Path, columns: str | None, message: str
) -> None:
    path = as_csv(tmp_path / "log.csv", rows(work))
    with pytest.raises(TraceError, match=message):
        read(path, columns)


def test_columns_for_a_known_format_are_refused(work: list[Request], tmp_path: Path) -> None:
    path = tmp_path / "vllm.json"
    path.write_text(json.dumps(vllm_json(work)), encoding="utf-8")
    with pytest.raises(TraceError, match=r"--columns: no effect on .*vllm\.json, whose format is known"):
        read(path, COLUMNS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start_times": None}, "no list 'start_times'; an older vLLM does not save"),
        ({"ttfts": None}, "no list 'ttfts'; save it with --save-result --save-detailed"),
        ({"ttfts": [0.1]}, "lists are not of one length .*ttfts 1"),
        ({"itls": [0.1] * 24}, "request 0: field 'itls': expected a list of seconds"),
    ],
)
def test_a_vllm_file_that_lacks_details_says_how_to_get_them(
    work: list[Request], tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "vllm.json"
    path.write_text(json.dumps(vllm_json(work) | change), encoding="utf-8")
    with pytest.raises(TraceError, match=message):
        read(path)


def test_an_aiperf_record_without_streaming_says_so(work: list[Request], tmp_path: Path) -> None:
    path = tmp_path / "profile_export.jsonl"
    path.write_text(aiperf_lines(work).replace("time_to_first_token", "ttft"), encoding="utf-8")
    with pytest.raises(TraceError, match="line 1: no metric 'time_to_first_token' with a value; profile with --stream"):
        read(path)


def test_a_damaged_line_a_missing_and_an_empty_file_are_one_line_each(work: list[Request], tmp_path: Path) -> None:
    path = tmp_path / "profile_export.jsonl"
    path.write_text(aiperf_lines(work) + '{"metadata": ', encoding="utf-8")
    with pytest.raises(TraceError, match="line 25: expected a JSON object of one request"):
        read(path)
    with pytest.raises(TraceError, match="cannot be read"):
        read(tmp_path / "absent.json")
    (tmp_path / "empty.json").write_text("", encoding="utf-8")
    with pytest.raises(TraceError, match="the file is empty"):
        read(tmp_path / "empty.json")


def test_too_few_requests_conclude_nothing(work: list[Request], tmp_path: Path) -> None:
    path = as_csv(tmp_path / "log.csv", rows(work)[:19])
    with pytest.raises(NothingToConclude, match=r"19 answered requests \(0 failed\).*at least 20"):
        read(path, COLUMNS)
