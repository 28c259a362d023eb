"""What timings are made of, without torch: lines through depths, spread, and time that the system took away."""

from __future__ import annotations

import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware import presets
from mooncake_bench.hardware.architecture import Architecture
from mooncake_bench.live import device as device_module
from mooncake_bench.live import timing
from mooncake_bench.live.communication import all_reduce
from mooncake_bench.live.device import choose_device, require_memory

PRESETS = Path(presets.__file__).parent / "presets"
DEPTHS = np.array([1.0, 2.0, 4.0])


def timed(rounds: list[list[float]], whole: int, lost: float = 0.0) -> timing.Timing:
    measured = np.array(rounds)
    return timing._timing(DEPTHS, measured, np.full(measured.shape, lost), whole)


def test_a_straight_line_is_scaled_to_the_whole_depth_without_error() -> None:
    found = timed([[5.0, 7.0, 11.0]] * 3, whole=80)  # 3 + 2 a layer: 163 at 80
    assert found.median_ms == pytest.approx(163)
    assert found.depth_error == pytest.approx(0, abs=1e-9)
    assert found.spread == pytest.approx(0, abs=1e-9)
    assert not found.noisy


def test_the_depth_error_is_the_worse_of_two_predictions() -> None:
    # The line through 1 and 2 says 4 ms at depth 4, where 5 were measured: -20 %.
    # The line through 1 and 4 says 1 + 4/3 = 2.333 at depth 2, where 2 were measured: +16.7 %.
    assert timing.depth_error(DEPTHS, np.array([1.0, 2.0, 5.0])) == pytest.approx(20)
    # 3.5 at depth 4: -> 4 / 3.5 = +14.3 %; depth 2: 1 + 2.5/3 = 1.833, -8.3 %
    assert timing.depth_error(DEPTHS, np.array([1.0, 2.0, 3.5])) == pytest.approx(100 / 7)


def test_the_spread_is_between_the_quartiles_of_the_scaled_rounds() -> None:
    # 2 layers cost 10, 11, 12, 13, 14 ms in five rounds: quartiles 11 and 13, median 12
    found = timed([[ms / 2, ms, ms * 2] for ms in (12.0, 10.0, 14.0, 11.0, 13.0)], whole=2)
    assert found.median_ms == pytest.approx(12)
    assert found.rounds_ms == pytest.approx((12, 10, 14, 11, 13))
    assert found.spread == pytest.approx(2 / 12)
    assert found.noisy  # 16.7 % > 10 %


def test_one_bad_round_in_five_does_not_move_the_median() -> None:
    found = timed([[5.0, 7.0, 11.0]] * 4 + [[9.0, 30.0, 60.0]], whole=10)
    assert found.median_ms == pytest.approx(23)
    assert not found.noisy


def test_too_few_rounds_to_know_the_spread_are_called_noisy() -> None:
    found = timed([[5.0, 7.0, 11.0]] * 2, whole=4)
    assert np.isnan(found.spread)
    assert found.noisy


def test_time_that_the_system_took_away_is_called_noisy() -> None:
    steady = [[5.0, 7.0, 11.0]] * 5
    assert timed(steady, whole=4, lost=0.3).noisy
    assert not timed(steady, whole=4, lost=0.02).noisy
    one_depth = timing._timing(DEPTHS, np.array(steady), np.tile([0.0, 0.0, 0.4], (5, 1)), 4)
    assert (one_depth.lost, one_depth.noisy) == (0.4, True)


def test_a_run_that_had_the_cpu_counts_at_once_and_one_that_had_not_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # each run takes 10 ms on the clock; its process has the CPU for 2, then 10 of them
    clock = iter(10_000_000 * tick for tick in range(100))
    busy = iter([0, 2_000_000, 2_000_000, 12_000_000, 12_000_000, 22_000_000])
    monkeypatch.setattr(timing, "perf_counter_ns", lambda: next(clock))
    monkeypatch.setattr(timing, "process_time_ns", lambda: next(busy))
    monkeypatch.setattr(timing, "BUSY_IS_KNOWN", True)
    runs: list[int] = []
    assert timing._on_cpu(lambda: runs.append(1)) == (10.0, 0.0)
    assert len(runs) == 2
    assert timing._on_cpu(lambda: runs.append(1)) == (10.0, 0.0)
    assert len(runs) == 3


@pytest.mark.skipif(not timing.BUSY_IS_KNOWN, reason="the system's clock of busy time is too coarse")
def test_a_run_that_never_has_the_cpu_gives_its_shortest_try_and_says_what_was_lost() -> None:
    waits = iter((0.03, 0.01, 0.02))
    took_ms, lost = timing._on_cpu(lambda: time.sleep(next(waits)))
    assert 10 <= took_ms < 20
    assert lost > 0.5


@pytest.mark.live
@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"repeat": 0}, "live repeat 0: expected 1 or more rounds"),
        ({"layers": (2, 4)}, r"live layers \(2, 4\): expected three or more rising depths, as 1, 2, 4"),
        ({"layers": (1, 4, 2)}, "expected three or more rising depths"),
        ({"layers": (0, 1, 2)}, "expected three or more rising depths"),
    ],
)
def test_rounds_and_depths_that_cannot_be_run_are_refused(more: dict[str, object], line: str) -> None:
    pytest.importorskip("torch")
    model = Architecture("small", 2, 64, 8, 2, 16, 96, 50, weight_bytes=4, kv_value_bytes=4)
    with pytest.raises(SetupError, match=line):
        timing.Kernels(model, 1, choose_device("cpu"), **more)  # type: ignore[arg-type]


def test_missing_torch_is_one_line_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        SetupError, match=r"live kernels need torch.*pip install 'mooncake-bench\[live\]'.*--cost analyt"
    ):
        choose_device()


def test_memory_that_suffices_is_silent_and_memory_that_does_not_is_counted() -> None:
    require_memory(100, 100, "a step", "the CPU")
    line = r"not enough memory for a step: run fewer layers .* \(needs about 2.50 GB of the CPU, 1.00 GB are free\)"
    with pytest.raises(SetupError, match=line):
        require_memory(2_500_000_000, 1_000_000_000, "a step", "the CPU")


def test_a_containers_limit_counts_where_it_is_less(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/meminfo": ["MemTotal: 9000 kB", "MemAvailable: 8000 kB"],
        "/sys/fs/cgroup/memory.max": ["3000000"],
        "/sys/fs/cgroup/memory.current": ["1000000"],
    }
    monkeypatch.setattr(device_module, "_lines", lambda path: files.get(path, []))
    assert device_module.host_free_bytes() == 2_000_000
    files["/sys/fs/cgroup/memory.max"] = ["max"]
    assert device_module.host_free_bytes() == 8_192_000


def test_the_drivers_version_is_read_from_its_own_file(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023"
    monkeypatch.setattr(device_module, "_lines", lambda path: [line] if path == "/proc/driver/nvidia/version" else [])
    assert device_module._driver(None) == "535.104.05"


def test_a_system_file_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert device_module._lines(str(tmp_path / "none")) == []


def test_allreduces_are_two_a_layer_of_latency_and_bytes() -> None:
    # 70B at TP8 on H100s, 1,000 tokens of bf16: x = 1,000 x 8,192 x 2 x 2 x 7/8 / 450 GB/s = .063716 ms; with the
    # fitted latency, share of the link and root term of physical.toml it is 160 times alpha + x / eps + rho sqrt(x).
    model = Architecture("70b", 80, 8192, 64, 8, 128, 28672, 128256, weight_bytes=2, kv_value_bytes=2)
    fitted = tomllib.loads((PRESETS / "physical.toml").read_text(encoding="utf-8"))["h100"]["efficiencies"]
    link = 1000 * 8192 * 2 * 2 * 7 / 8 / 450e9 * 1e3
    one = fitted["reduce_us"] / 1e3 + link / fitted["link"] + fitted["reduce_root"] * link**0.5
    found = all_reduce(model, 8, "h100")
    assert found is not None
    assert found.ms(np.array([1000.0]))[0] == pytest.approx(160 * one, rel=1e-9)


@pytest.mark.parametrize(("ranks", "gpu"), [(1, "h100"), (8, ""), (16, "h100")])
def test_nothing_is_known_of_allreduces_without_a_datasheet_or_between_nodes(ranks: int, gpu: str) -> None:
    model = Architecture("70b", 80, 8192, 64, 8, 128, 28672, 128256, weight_bytes=2, kv_value_bytes=2)
    assert all_reduce(model, ranks, gpu) is None


# ---- how many rounds


def ran(round_s: float, most: int, first_s: float | None = None) -> tuple[int, int]:
    """(rounds run, rounds counted) of a shape that takes so long, its first round perhaps longer."""
    now, runs = [0.0], [0]

    def one() -> timing.Round:
        now[0] += first_s if first_s is not None and not runs[0] else round_s
        runs[0] += 1
        return [(round_s, 0.0)]

    return len(timing.rounds(one, most, lambda: now[0])), runs[0]


@pytest.mark.parametrize(
    ("round_s", "most", "counted", "run"),
    [
        (0.001, 5, 5, 7),  # two to warm up
        (0.001, 2, 2, 4),
        (0.25, 5, 3, 5),  # after two and three rounds 1.25 s are over
        (0.125, 9, 6, 8),  # eight in a second
        (0.6, 5, 3, 3),  # the first counts
        (0.6, 1, 1, 1),
        (2.5, 5, 1, 1),  # so long that there is no other
    ],
)
def test_a_shape_that_takes_long_gets_fewer_rounds(round_s: float, most: int, counted: int, run: int) -> None:
    assert ran(round_s, most) == (counted, run)


def test_a_slow_first_round_does_not_make_a_fast_shape_one_of_few() -> None:
    # .6 s of it is warm-up: it counts as one of five, and the middle one is another
    assert ran(0.01, 5, first_s=0.6) == (5, 5)


def test_a_model_that_is_run_whole_is_not_scaled() -> None:
    found = timing._timing(np.array([4.0]), np.array([[5.0], [7.0], [6.0]]), np.zeros((3, 1)), 4)
    assert (found.median_ms, found.rounds_ms, found.depth_error) == (6, (5, 7, 6), None)


def test_a_long_run_is_not_tried_again_however_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(200_000_000 * tick for tick in range(100))  # 200 ms each, without any of the CPU
    monkeypatch.setattr(timing, "perf_counter_ns", lambda: next(clock))
    monkeypatch.setattr(timing, "process_time_ns", lambda: 0)
    monkeypatch.setattr(timing, "BUSY_IS_KNOWN", True)
    runs: list[int] = []
    assert timing._on_cpu(lambda: runs.append(1)) == (200.0, 1.0)
    assert len(runs) == 1
