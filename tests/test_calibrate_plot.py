"""The picture of a fit: every row is in it twice, once as a time and once as an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.hardware.calibrate.fitting import PhaseFit
from mooncake_bench.hardware.calibrate.forms import Decode, Prefill
from mooncake_bench.hardware.calibrate.rows import DecodeRows, PrefillRows
from mooncake_bench.report import calibration_plot, plots

if TYPE_CHECKING:
    from pathlib import Path

N = np.array([16.0, 512.0, 8192.0])
PREFILL = PhaseFit(
    "prefill", Prefill(0, 0.1, 10, 0), PrefillRows(N, N * N / 2, np.array([11.6, 50.0, 829.2])), None,
    np.array([0.0, 22.4, 0.0]),
)  # fmt: skip
DECODE = PhaseFit("decode", Decode(5, 0, 0, 1e-9), DecodeRows(N, N, np.array([5.0, 5.0, 5.0])), None, np.zeros(3))


def test_times_and_errors_of_all_rows_are_drawn_a_column_a_phase(tmp_path: Path) -> None:
    with plots.style():
        figure = calibration_plot.draw([PREFILL, DECODE], "rows.csv")
        assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["prefill", "decode"]
        equal, points = figure.axes[0].lines
        assert list(equal.get_xdata()) == list(equal.get_ydata())
        # 0.1 ms a token + 10 ms: 11.6, 61.2 and 829.2 ms
        assert np.allclose(points.get_ydata(), [11.6, 61.2, 829.2])
        assert np.allclose(figure.axes[2].lines[1].get_ydata(), [0, 22.4, 0])
        assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"
        low, high = figure.axes[2].get_ylim()
        assert low < -22.4 < 22.4 < high
        plots.save(figure, tmp_path / "fit.png")
    assert (tmp_path / "fit.png").stat().st_size > 10_000


def test_one_phase_has_a_narrow_picture_and_a_long_title_is_wrapped() -> None:
    with plots.style():
        figure = calibration_plot.draw([DECODE], "a long name " * 12)
        assert len(figure.axes) == 2
        assert figure.get_figwidth() < 5
        assert figure.get_suptitle().count("\n") >= 2
