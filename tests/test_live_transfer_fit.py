"""Time against bytes: the two numbers of a line come back, and how far it is off is said honestly."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mooncake_bench.errors import NothingToConclude, SetupError
from mooncake_bench.hardware import links
from mooncake_bench.live.transfer.fit import by_size, fit_link
from mooncake_bench.live.transfer.link import (
    GUARD_BYTES,
    PIECE_BYTES,
    Link,
    fault,
    fill,
    pattern,
    pieces,
    rounds,
    transfers,
    wipe,
)
from mooncake_bench.live.transfer.measure import Measured
from mooncake_bench.live.transfer.rows import as_csv, as_json, as_toml
from mooncake_bench.report.links import report

SIZES = [2**power for power in (16, 18, 20, 22, 24, 26)]
SAMPLES = np.repeat(SIZES, 5)


def line(latency_ms: float, gbytes_per_s: float) -> np.ndarray:
    """E4 of every sample [ms]: 1 GB/s are 1e6 bytes a millisecond."""
    return latency_ms + SAMPLES / (gbytes_per_s * 1e6)


@pytest.mark.parametrize(("latency_ms", "gbytes_per_s"), [(0.5, 2.0), (0.01, 90.0), (3.0, 0.25)])
def test_an_exact_line_gives_its_latency_and_bandwidth(latency_ms: float, gbytes_per_s: float) -> None:
    fit = fit_link(SAMPLES, line(latency_ms, gbytes_per_s))
    assert fit.latency_ms == pytest.approx(latency_ms, rel=1e-6)
    assert fit.gbytes_per_s == pytest.approx(gbytes_per_s, rel=1e-6)
    assert fit.left_out_worst < 1e-6
    assert fit.spread == 0
    assert not fit.noisy
    assert fit.predict(4e6) == pytest.approx(latency_ms + 4 / gbytes_per_s)  # 4e6 bytes: 4 ms at 1 GB/s


@pytest.mark.parametrize("factor", [0.1, 10])
def test_two_bad_samples_in_five_do_not_move_the_fit(factor: float) -> None:
    ms = line(0.5, 2.0)  # a size's median is one of the three good ones, which are equal
    ms[::5] *= factor
    ms[3::5] *= factor
    fit = fit_link(SAMPLES, ms)
    assert fit.latency_ms == pytest.approx(0.5, rel=1e-6)
    assert fit.gbytes_per_s == pytest.approx(2.0, rel=1e-6)


def test_one_bad_size_in_six_hardly_moves_the_fit() -> None:
    ms = line(0.5, 2.0)
    ms[15:20] *= 3  # all samples of 4 MiB
    fit = fit_link(SAMPLES, ms)
    assert fit.latency_ms == pytest.approx(0.5, rel=0.05)
    assert fit.gbytes_per_s == pytest.approx(2.0, rel=0.05)
    assert fit.left_out_worst == pytest.approx(
        100 * 2 / 3, rel=1e-3
    )  # the line without it is exact: 1/3 of what it was


def test_a_latency_is_never_negative() -> None:
    # 1 ns a byte, and 0.05 ms less than that: the smallest takes 0.0155 ms, the best line starts below 0
    fit = fit_link(SAMPLES, SAMPLES * 1e-6 - 0.05)
    assert fit.latency_ms == 0


def test_a_time_that_does_not_grow_has_no_bandwidth() -> None:
    with pytest.raises(NothingToConclude, match=r"does not grow from 65,536 to 67,108,864 bytes; give larger --sizes"):
        fit_link(SAMPLES, np.full(len(SAMPLES), 2.0))


def test_a_size_left_out_shows_what_a_line_cannot_say() -> None:
    """Three sizes 1, 2 and 3 MB of 1, 2 and 6 ms: every line through two of them is exact, and known by hand."""
    nbytes = np.repeat([1_000_000, 2_000_000, 3_000_000], 3)
    fit = fit_link(nbytes, nbytes / 1e6 * np.repeat([1, 1, 2], 3))
    # Without 3 MB: t = b, 3 for 6 ms, 50 % off. Without 2 MB the line through (1, 1) and (3, 6) starts at -1.5 ms,
    # without 1 MB that through (2, 2) and (3, 6) at -6 ms; that may not be, so t = r b with the relative residuals
    # r - 1 and r/2 - 1. Far beyond the tolerance soft_l1 is their size: slopes 1 and 1/2, least at r = 1 or a little
    # above. So 2 MB and 1 MB are predicted nearly as measured.
    assert fit.left_out_worst == pytest.approx(50, abs=1)
    assert fit.left_out_median < 6
    assert fit.left_out_p90 == pytest.approx(0.2 * fit.left_out_median + 0.8 * fit.left_out_worst)  # numpy's linear


def test_quartiles_far_apart_are_called_noisy() -> None:
    # samples .8 .9 1 1.1 1.2 times the line: quartiles at .9 and 1.1, 20 % of the median apart; .96 … 1.04: 4 %
    for step, noisy in ((0.1, True), (0.02, False)):
        factors = np.tile(1 + step * np.arange(-2, 3), len(SIZES))
        fit = fit_link(SAMPLES, line(0.5, 2.0) * factors)
        assert fit.spread == pytest.approx(2 * step)
        assert fit.noisy is noisy


def test_too_few_sizes_or_samples_are_refused() -> None:
    for nbytes in ([1, 1, 1, 2, 2, 2], [1, 1, 1, 2, 2, 2, 3, 3]):
        with pytest.raises(SetupError, match="a fit needs 3 samples of each of 3 sizes"):
            fit_link(nbytes, [1.0] * len(nbytes))


def test_the_samples_of_a_size_are_kept_together() -> None:
    groups = by_size([2, 1, 2, 1, 2, 1], [20.0, 1.0, 30.0, 3.0, 40.0, 2.0])
    assert [(group.nbytes, group.median_ms, group.samples) for group in groups] == [(1, 2.0, 3), (2, 30.0, 3)]
    assert groups[0].spread == pytest.approx(0.5)  # quartiles of 1, 2, 3: 1.5 and 2.5


# ---- the data that is sent


def test_what_arrives_whole_has_no_fault() -> None:
    buffer = np.zeros(1000 + GUARD_BYTES, np.uint8)
    wipe(buffer, 1000)
    fill(buffer, 5, 1000)
    assert fault(buffer, 5, 1000) == ""


def test_one_flipped_bit_a_stale_buffer_and_a_byte_too_many_are_found() -> None:
    buffer = np.zeros(1003 + GUARD_BYTES, np.uint8)
    wipe(buffer, 1003)
    fill(buffer, 5, 1003)
    buffer[777] ^= 1
    assert fault(buffer, 5, 1003) == "1 of 1,003 bytes are wrong, the first at 777"
    fill(buffer, 4, 1003)  # another transfer's data: 255 of 256 bytes differ
    assert int(fault(buffer, 5, 1003).split(" of ")[0].replace(",", "")) > 950
    fill(buffer, 5, 1003)
    buffer[1003] ^= 1
    assert fault(buffer, 5, 1003) == "bytes behind the 1,003 that were sent were overwritten"


def test_no_eight_bytes_of_the_data_are_anywhere_else() -> None:
    words = [pattern(seed, 2**20).view(np.uint64) for seed in (1, 2, 70_000)]
    assert len(np.unique(np.concatenate(words))) == 3 * 2**17
    assert pattern(1, 13).tolist() == pattern(1, 4096)[:13].tolist()


def test_the_pieces_of_the_data_are_the_data() -> None:
    nbytes = 2 * PIECE_BYTES + 13
    parts = list(pieces(7, nbytes))
    assert [start for start, _ in parts] == [0, PIECE_BYTES, 2 * PIECE_BYTES]
    assert (np.concatenate([part for _, part in parts]) == pattern(7, nbytes)).all()
    buffer = np.zeros(nbytes + GUARD_BYTES, np.uint8)
    wipe(buffer, nbytes)
    fill(buffer, 7, nbytes)
    assert fault(buffer, 7, nbytes) == ""
    buffer[[PIECE_BYTES + 5, nbytes - 1]] ^= 8  # in the second and the last piece
    assert fault(buffer, 7, nbytes) == f"2 of {nbytes:,} bytes are wrong, the first at {PIECE_BYTES + 5:,}"


def test_sizes_take_turns_and_the_first_round_is_a_warm_up() -> None:
    found = list(rounds([10, 20], 2))
    assert [size for size, _, _ in found] == [10, 20, 10, 20, 10, 20]
    assert [counts for _, _, counts in found] == [False, False, True, True, True, True]
    assert len({seed for _, seed, _ in found}) == len(found) == transfers([10, 20], 2)


# ---- what is told and written


def measured(name: str = "engine-write", factor: float = 1.0) -> Measured:
    ms = line(0.5, 2.0) * np.tile([1, 1, 1, factor, factor], len(SIZES))
    link = Link(name, "loopback", 'two "ends"', "a CPU, 2 cores", "engine 1", tuple(SAMPLES.tolist()), tuple(ms))
    return Measured(link, tuple(by_size(SAMPLES, ms)), fit_link(SAMPLES, ms), "")


def unfitted() -> Measured:
    ms = np.full(len(SAMPLES), 2.0)
    link = Link("gloo", "loopback", "two", "a CPU, 2 cores", "torch 1", tuple(SAMPLES.tolist()), tuple(ms))
    return Measured(link, tuple(by_size(SAMPLES, ms)), None, "gloo: the time does not grow")


def test_the_file_reads_back_as_links_do(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "links.toml"
    path.write_text(as_toml([measured(), unfitted()], "2025-01-31"), encoding="utf-8")
    monkeypatch.setattr(links, "_FILE", path)
    assert links.link_names() == ["engine-write"]  # the other has no numbers
    link = links.load_link("engine-write")
    assert (link.latency_ms, link.gbytes_per_s, link.status, link.points) == (0.5, 2.0, "measured", 30)
    assert link.description == 'two "ends"'
    assert link.source == "a CPU, 2 cores; engine 1; 2025-01-31; 65,536 to 67,108,864 bytes, 5 times each"
    assert link.error == "sizes left out of the fit are off by 0.0/0.0 % (median/p90), at worst 0 %"


def test_json_has_null_for_what_could_not_be_fitted() -> None:
    whole, lacking = as_json(measured()), as_json(unfitted())
    assert whole["gbytes_per_s"] == pytest.approx(2.0)
    assert [size["bytes"] for size in whole["sizes"]] == SIZES
    assert whole["sizes"][0]["fitted_ms"] == pytest.approx(0.5 + 65536 / 2e6)
    assert (lacking["latency_ms"], lacking["noisy"], lacking["sizes"][0]["fitted_ms"]) == (None, None, None)
    assert lacking["sizes"][0]["median_ms"] == 2.0


def test_csv_has_one_plain_line_a_link_and_size() -> None:
    lines = as_csv([measured(), unfitted()]).splitlines()
    assert lines[0] == "link,bytes,median_ms,fitted_ms,spread_ratio,samples"
    assert len(lines) == 1 + 2 * len(SIZES)
    assert lines[7] == "gloo,65536,2.0,,0.0,5"


def test_the_report_tells_noise_a_poor_fit_and_what_was_not_measured() -> None:
    content = report([measured(), measured("noisy-one", 1.5), unfitted()], ["copy: not measured: torch is missing"])
    assert [sheet.rows[0][0] for sheet in content.sheets] == ["engine-write", "engine-write"]
    assert content.sheets[0].rows[0][1:3] == ("0.5", "2")
    assert content.sheets[0].rows[2][1:3] == ("–", "–")
    assert content.sheets[1].headers == ("link", "64 KiB", "256 KiB", "1 MiB", "4 MiB", "16 MiB", "64 MiB")
    told = " | ".join(content.notices)
    assert "noisy: noisy-one; measure again" in told
    assert "gloo: the time does not grow" in told
    assert content.notices[-1] == "copy: not measured: torch is missing"
    assert not math.isnan(measured("noisy-one", 1.5).fit.spread)
