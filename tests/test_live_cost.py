"""Live costs, by kernels whose times can be worked out by hand: no torch needed."""

from __future__ import annotations

import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_fakes import NODE, FakeBench, FakeKernels

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.presets import load_model
from mooncake_bench.live import buckets, lock
from mooncake_bench.live.bench import LiveSettings
from mooncake_bench.live.communication import all_reduce
from mooncake_bench.live.cost import LiveCost, build_live_cost, shape_of
from mooncake_bench.live.measurement import Measurement
from mooncake_bench.live.quality import quality


def node_file(folder: Path, gpus: int = 1) -> str:
    path = folder / f"node{gpus}.toml"
    path.write_text(NODE.format(gpus=gpus), encoding="utf-8")
    return str(path)


def live(folder: Path, kernels: FakeKernels | None = None, nodes: list[str] | None = None, **more: Any) -> LiveCost:
    """A cluster of two instances of one fake GPU each; engine ``none`` unless told."""
    more = {"engine": "none", "vram_tokens": 200_000, **more}
    settings = LiveSettings(cache=str(folder / "cache"))
    bench = partial(FakeBench, kernels=kernels or FakeKernels())
    nodes = nodes or [node_file(folder)] * 2
    return build_live_cost(nodes, "tiny-llama", settings=settings, open_kernels=bench, **more)


# ---- what is run, and what lies between


def test_a_prefill_at_a_corner_is_what_the_kernels_took(tmp_path: Path) -> None:
    cost = live(tmp_path)
    # 10 + 0.1 * 256 + 0.002 * 256 * 512 = 10 + 25.6 + 262.144 ms
    assert cost.prefill_ps(0, 256, 512) == 297_744_000_000
    assert cost.prefill_ms(np.array([256, 256]), np.array([512, 512])) == pytest.approx([297.744, 297.744], rel=1e-12)


def test_between_corners_time_is_a_straight_line_in_both_directions(tmp_path: Path) -> None:
    # The fake's 10 + 0.1 n + 0.002 n p is linear in each size, so lines between corners are exact:
    # n 100 of 64..128, p 300 of 0..512: 10 + 10 + 0.002 * 100 * 300 = 80 ms
    assert live(tmp_path).prefill_ms(np.array([100, 100]), np.array([300, 0])) == pytest.approx([80, 20], rel=1e-12)


def test_a_short_prefill_costs_what_the_first_corner_does(tmp_path: Path) -> None:
    # 16 tokens: 10 + 1.6 ms
    assert live(tmp_path).prefill_ms(np.array([1, 16]), np.array([0, 0])) == pytest.approx([11.6, 11.6], rel=1e-12)


def test_a_square_between_corners_is_at_most_four_percent_too_long() -> None:
    surface = buckets.Surface(lambda n, p: float(n * n), buckets.COMPUTED, (0,), "tokens")
    sizes = np.arange(512, 9000)
    ratio = surface.at(sizes, np.zeros(len(sizes))) / (sizes * sizes)
    # (1 + 1.5^2) / 2 = 1.625 in the middle of a step of 1.5, where the square is 1.5625: 1.04
    assert ratio.min() >= 1
    assert ratio.max() == pytest.approx(1.04, abs=0.0021)  # 1.0417 at the harmonic middle of the two


def test_the_corners_are_few_whatever_a_trace_asks_for(tmp_path: Path) -> None:
    kernels = FakeKernels()
    cost = live(tmp_path, kernels)
    rng = np.random.default_rng(0)
    for _ in range(500):
        tokens = rng.integers(1, 128_000)
        prefix = rng.integers(0, tokens, 2)
        cost.prefill_ms(tokens - prefix, prefix)
    # 5 corners below 512, then two a doubling up to 131072 (2 * 8 + 1 = 17); prefixes 0, 512, 2048, 8192, 32768, 131072
    assert len(kernels.ran) <= 22 * 6


def test_no_answer_depends_on_which_question_came_first() -> None:
    def noisy(n: int, p: int) -> float:
        return float(np.random.default_rng([n, p]).uniform(1, 10))

    sizes = [(3000, 10), (20, 0), (700, 900), (3000, 4000)]
    answers = []
    for order in (sizes, sizes[::-1]):
        surface = buckets.Surface(noisy, buckets.COMPUTED, buckets.PREFIX, "tokens")
        answers.append({size: surface.at(np.array([size[0]]), np.array([size[1]]))[0] for size in order})
    assert answers[0] == answers[1]


def test_only_the_corners_around_a_question_are_run(tmp_path: Path) -> None:
    kernels = FakeKernels()
    cost = live(tmp_path, kernels)
    cost.prefill_ms(np.array([10_000, 10_000]), np.array([0, 600]))
    # 10,000 lies between 8192 and 12288; no prefix is a corner itself, 600 lies between 512 and 2048
    assert kernels.ran == [("prefill", n, p) for n in (8192, 12288) for p in (0, 512, 2048)]
    cost.prefill_ps(0, 8192, 512)
    assert len(kernels.ran) == 6


@given(st.integers(1, 20_000), st.integers(0, 20_000))
def test_a_time_lies_between_the_corners_around_it_however_noisy_the_kernels(n: int, p: int) -> None:
    noise, found = np.random.default_rng(n + p), []

    def noisy(*_: int) -> float:
        found.append(float(noise.uniform(1, 10)))
        return found[-1]

    time = buckets.Surface(noisy, buckets.COMPUTED, buckets.PREFIX, "tokens").at(np.array([n]), np.array([p]))[0]
    assert 1 <= len(found) <= 4
    assert min(found) * (1 - 1e-12) <= time <= max(found) * (1 + 1e-12)


def test_a_prompt_beyond_the_last_corner_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"a prefill of tokens 20,000,000: a live cost knows at most 16,777,216"):
        live(tmp_path).prefill_ps(0, 20_000_000, 0)


# ---- decode


def test_a_step_is_what_its_batch_takes_and_what_its_context_does(tmp_path: Path) -> None:
    cost = live(tmp_path)
    # 4 + B + 0.001 T: c_d 0.001 ms = 1,000,000 ps a token; f(3) = 7 ms between 2 and 4, f(0) = f(1) = 5 ms
    assert cost.token_ps(0) == 1_000_000
    assert [cost.decode_ps(0, batch) for batch in (1, 3, 4)] == pytest.approx([5e9, 7e9, 8e9], abs=1)
    assert cost.step_ms(np.array([3, 0]), np.array([2500, 0])) == pytest.approx([9.5, 5], rel=1e-9)


def test_the_slope_of_a_token_and_what_it_leaves_over() -> None:
    # Batch 1: 10 and 12 ms at 0 and 1000 tokens, batch 2: 20 and 24 ms at 0 and 2000: 0.002 ms a token, nothing over.
    slope, left = buckets.token_slope([(1, 0, 10), (1, 1000, 12), (2, 0, 20), (2, 1000, 24)])
    assert (slope, left) == pytest.approx((0.002, 0), abs=1e-12)
    # A bend: 10, 10, 20 ms at 0, 1000, 2000 tokens leaves something over.
    assert buckets.token_slope([(1, 0, 10), (1, 1000, 10), (1, 2000, 20)])[1] > 0.1


def test_a_token_never_costs_nothing() -> None:
    # Times that fall with the context are noise: the clock's unit remains, 1e-9 ms.
    assert buckets.token_slope([(1, 100, 10), (1, 1000, 9)])[0] == 1e-9


@pytest.mark.parametrize(
    ("vram", "shapes"),
    [
        (128, [(1, 64), (1, 128)]),
        (2048, [(1, 64), (1, 1024), (1, 2048), (8, 64), (8, 256)]),  # 64 sequences of 64 tokens are 4096
        (10**7, [(batch, context) for batch in (1, 8, 64) for context in (64, 1024, 16384)]),
    ],
)
def test_the_steps_that_give_the_slope_fit_into_memory(vram: int, shapes: list[tuple[int, int]]) -> None:
    assert buckets.slope_shapes(vram) == shapes


def test_too_little_memory_for_any_step_is_said() -> None:
    with pytest.raises(SetupError, match="100 tokens of KVCache are too few to measure decode; expected at least 128"):
        buckets.slope_shapes(100)


# ---- scalars and arrays


def test_scalars_and_arrays_agree(tmp_path: Path) -> None:
    cost = live(tmp_path, engine="mooncake-a800", nodes=[node_file(tmp_path, 1), node_file(tmp_path, 2)])
    rng = np.random.default_rng(1)
    for _ in range(200):
        n, p, batch, tokens = (rng.integers(low, 20_000, 2) for low in (1, 0, 1, 1))
        prefill, step = cost.prefill_ms(n, p), cost.step_ms(batch, tokens)
        for i in (0, 1):
            assert cost.prefill_ps(i, int(n[i]), int(p[i])) == pytest.approx(prefill[i] * 1e9, rel=1e-9)
            exact = cost.decode_ps(i, int(batch[i])) + cost.token_ps(i) * int(tokens[i])
            assert exact == pytest.approx(step[i] * 1e9, rel=1e-9)


def engine_file(folder: Path, prefill_ms: float, decode_ms: float, fitted_on: str = "") -> str:
    path = folder / "engine.toml"
    head = 'description = "x"\nstatus = "assumed"\nsource = "x"\nerror = "x"\n'
    path.write_text(f"{head}fitted_on = [{fitted_on}]\n{prefill_ms = }\n{decode_ms = }\n", encoding="utf-8")
    return str(path)


def test_the_engine_adds_its_own_time_and_says_where_it_was_fitted(tmp_path: Path) -> None:
    cost = live(tmp_path, engine=engine_file(tmp_path, 80, 7.8, '"a800"'))
    assert cost.prefill_ps(0, 16, 0) == pytest.approx((11.6 + 80) * 1e9)
    assert cost.decode_ps(0, 1) == pytest.approx((5 + 7.8) * 1e9)
    assert "that engine was fitted on a800, not here" in cost.error
    assert "engine fitted on a800, not here" in cost.error_short


def test_an_engine_that_takes_more_off_than_there_is_is_refused(tmp_path: Path) -> None:
    cost = live(tmp_path, engine=engine_file(tmp_path, -20, -9))
    with pytest.raises(SetupError, match=r"a prefill would take -8\.4 ms: the engine's -20 ms"):
        cost.prefill_ps(0, 16, 0)  # 11.6 - 20
    with pytest.raises(SetupError, match="a decode step would take -4 ms"):
        cost.decode_ps(0, 1)  # 5 - 9


def test_instances_of_unlike_nodes_have_their_own_shards(tmp_path: Path) -> None:
    nodes = [node_file(tmp_path, 1), node_file(tmp_path, 2), node_file(tmp_path, 1)]
    cost = live(tmp_path, nodes=nodes)
    cost.prefill_ms(np.array([16, 16, 16]), np.zeros(3))
    assert len(list((tmp_path / "cache").iterdir())) == 2
    assert "2 x tensor parallelism 1 + 1 x tensor parallelism 2" in cost.name
    assert "all-reduces between 2 ranks are not included" in cost.error  # the node file names no GPU


def test_ranks_on_a_gpu_with_a_datasheet_pay_for_their_all_reduces(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text('gpu = "h100"\n' + NODE.format(gpus=2), encoding="utf-8")
    cost, plain = live(tmp_path, nodes=[str(file)] * 2), live(tmp_path, nodes=[node_file(tmp_path, 2)] * 2)
    reduce = all_reduce(shape_of(load_model("tiny-llama")), 2, "h100")
    assert reduce is not None
    one, many = (float(reduce.ms(np.array([n]))[0]) for n in (1, 256))
    assert cost.prefill_ps(0, 256, 512) == pytest.approx(plain.prefill_ps(0, 256, 512) + many * 1e9, rel=1e-9)
    assert cost.decode_ps(0, 1) == pytest.approx(plain.decode_ps(0, 1) + one * 1e9, rel=1e-9)
    assert "all-reduces between 2 ranks are from the datasheet of h100, not measured" in cost.error
    assert cost.version != plain.version


# ---- what is said of it


def test_the_error_says_on_what_and_how_well_it_was_measured(tmp_path: Path) -> None:
    kernels = FakeKernels()
    cost = live(tmp_path, kernels)
    assert "no shape yet" in cost.error
    cost.prefill_ps(0, 16, 0)
    assert cost.error.startswith(
        "live: measured on fake GPU in float32 (driver 1, torch 9.9): 1 shapes, 5 rounds each, "
        "spread 1.0 % (worst 1.0 %), depth scaling off by 2.0 % (worst 2.0 %); noisy: 0; engine none is assumed"
    )
    kernels.noisy = True
    cost.prefill_ps(0, 32, 0)
    assert "2 shapes" in cost.error_short
    assert "noisy: 1" in cost.error_short


@pytest.mark.parametrize(
    ("rounds", "told"),
    [
        ([(5, 0.01, None), (5, 0.03, None)], "2 shapes, 5 rounds each, spread 2.0 % (worst 3.0 %), all layers run"),
        ([(3, 0.01, 2.0), (5, 0.01, None)], "2 shapes, 3 to 5 rounds each, spread 1.0 % (worst 1.0 %), depth scaling"),
        ([(1, None, None), (5, 0.01, None)], "2 shapes, 1 of 5 rounds, 1 of one or two rounds (spread not known), spr"),
        ([(1, None, None)], "1 shapes, 1 of one or two rounds (spread not known), all layers run; noisy: 1"),
    ],
)
def test_how_often_shapes_were_run_is_counted(rounds: list[Any], told: str) -> None:
    used = [Measurement(1.0, spread, samples, spread is None, depth) for samples, spread, depth in rounds]
    assert quality(used).startswith(told)


def test_what_kernels_say_of_a_time_stands_in_the_error_and_stays_on_the_disk(tmp_path: Path) -> None:
    for kernels in (FakeKernels(notice="launched one by one"), FakeKernels(fail=AssertionError("run again"))):
        cost = live(tmp_path, kernels)
        cost.prefill_ps(0, 16, 0)
        assert cost.error.count("; launched one by one; ") == 1
        assert "launched one by one" in cost.error_short


def test_what_is_measured_is_told_before_and_in_sum(tmp_path: Path) -> None:
    told: list[str | None] = []
    live(tmp_path).prefill_ps(0, 64, 0)
    cost = live(tmp_path, watch=told.append)
    for computed, prefix in ((64, 0), (8192, 512), (32, 0)):
        cost.prefill_ps(0, computed, prefix)
    assert told == [
        "live: measuring prefill of 8,192 + 512 tokens (shape 1, 0 s so far)…", None,
        "live: measuring prefill of 32 tokens (shape 2, 0 s so far)…", None,
    ]  # fmt: skip
    (file,) = (tmp_path / "cache").iterdir()
    assert cost.summary() == f"live: 2 shapes measured in 0 s, 1 from earlier measurements; kept in {file}"


def test_the_version_changes_with_all_that_times_depend_on(tmp_path: Path) -> None:
    base = live(tmp_path).version
    assert live(tmp_path).version == base
    changed = [live(tmp_path, engine="mooncake-a800"), live(tmp_path, vram_tokens=1000)]
    settings = LiveSettings(repeat=6, cache=str(tmp_path / "cache"))
    nodes = [node_file(tmp_path)]
    changed.append(build_live_cost(nodes, "tiny-llama", "none", 200_000, settings=settings, open_kernels=FakeBench))
    other = partial(FakeBench, name="another GPU")
    settings = LiveSettings(cache=str(tmp_path / "cache"))
    changed.append(build_live_cost(nodes, "tiny-llama", "none", 200_000, settings=settings, open_kernels=other))
    assert len({base, *(cost.version for cost in changed)}) == 5


def test_memory_and_network_are_the_settings_or_the_nodes_or_the_devices(tmp_path: Path) -> None:
    # 10 GB of GPU memory: 0.9 of it less tiny-llama's weights, over its 4 layers * 2 * 2 * 32 * 4 = 2048 bytes a token.
    # Weights: a layer 256 * 32 * 2 * (8 + 2) = 163,840 of attention, 3 * 256 * 688 = 528,384, norms 2 * 256; 4 layers
    # 2,770,944; embedding and head 2 * 256,000; a norm 256: 3,283,200 values of 4 bytes = 13,132,800 bytes.
    cost = live(tmp_path, vram_tokens=None)
    assert cost.vram_tokens.tolist() == [(9_000_000_000 - 13_132_800) // 2048] * 2
    assert cost.nic_bytes_per_s.tolist() == [2e9, 2e9]
    assert cost.kv_bytes_per_token == 2048
    assert live(tmp_path, nic_gbytes_per_s=5.0).nic_bytes_per_s.tolist() == [5e9, 5e9]


def test_a_cpu_does_not_say_how_much_kvcache_fits(tmp_path: Path) -> None:
    def on_cpu(settings: LiveSettings) -> FakeBench:
        bench = FakeBench(settings)
        bench.is_gpu = False
        return bench

    with pytest.raises(SetupError, match="give --vram"):
        build_live_cost([node_file(tmp_path)], "tiny-llama", "none", open_kernels=on_cpu)


def test_a_model_too_large_for_the_node_is_said(tmp_path: Path) -> None:
    settings = LiveSettings(cache=str(tmp_path))
    with pytest.raises(SetupError, match=r"llama-3-8b does not fit on 1 x 10 GB \(16 GB of weights\)"):
        build_live_cost([node_file(tmp_path)], "llama-3-8b", "none", settings=settings, open_kernels=FakeBench)


def test_a_model_without_dimensions_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "mine.toml"
    model.write_text('description = "x"\nsource = "x"\nlayers = 2\nkv_bytes_per_token = 10\n', encoding="utf-8")
    with pytest.raises(SetupError, match=r"'mine\.toml' has no dimensions to run kernels of; add a table \[shape\]"):
        build_live_cost([node_file(tmp_path)], str(model), "none", open_kernels=FakeBench)


def test_without_torch_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SetupError, match=r"pip install 'mooncake-bench\[live\]'"):
        build_live_cost([node_file(tmp_path)], "tiny-llama", "none", 1000)


# ---- the disk


class Slower(FakeKernels):
    """A quarter slower than the others."""

    def _timing(self, phase: str, first: int, second: int, ms: float) -> Any:
        return super()._timing(phase, first, second, ms * 1.25)


def test_the_version_is_of_the_times_in_use(tmp_path: Path) -> None:
    def version(folder: str, kernels: FakeKernels, *prompts: int) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        cost = live(tmp_path / folder, kernels, [node])
        for prompt in prompts:
            cost.prefill_ps(0, prompt, 0)
        return cost.version

    node = node_file(tmp_path)
    first = version("one", FakeKernels(), 64)
    assert version("two", Slower(), 64) != first
    assert version("one", FakeKernels(), 64) == first  # from the disk
    assert version("one", FakeKernels(), 32, 128) == first  # another policy's questions: the same cost
    assert version("one", FakeKernels()) != first  # nothing asked yet


def test_a_file_changed_by_hand_is_another_version(tmp_path: Path) -> None:
    def version() -> str:
        cost = live(tmp_path)
        cost.prefill_ps(0, 16, 0)
        return cost.version

    first = version()
    (file,) = (tmp_path / "cache").iterdir()
    file.write_text(file.read_text(encoding="utf-8").replace('"ms": 11.6', '"ms": 11.7'), encoding="utf-8")
    second = version()
    live(tmp_path).prefill_ps(0, 32, 0)  # the file is written again
    assert first != second == version()


def test_two_processes_keep_each_others_measurements_and_the_first_of_a_shape(tmp_path: Path) -> None:
    one, other = live(tmp_path, FakeKernels()), live(tmp_path, Slower())
    assert one.prefill_ps(0, 64, 0) == 16_400_000_000  # 10 + 6.4 ms
    assert other.prefill_ps(0, 64, 0) == 16_400_000_000  # measured as 20.5 ms, but the other was first
    assert other.prefill_ps(0, 32, 0) == 16_500_000_000  # 13.2 * 1.25
    assert one.prefill_ps(0, 128, 0) == 22_800_000_000
    assert one.prefill_ps(0, 32, 0) == 16_500_000_000  # not run again
    (file,) = (tmp_path / "cache").iterdir()
    rows = json.loads(file.read_text(encoding="utf-8"))["measurements"]
    assert [(row["shape"][1], row["ms"]) for row in rows] == [(32, 16.5), (64, 16.4), (128, 22.8)]
    assert one.version == other.version
    assert "another process" not in one.summary() + other.summary()


def test_a_time_in_use_stays_and_the_summary_says_that_the_file_has_another(tmp_path: Path) -> None:
    one = live(tmp_path, FakeKernels())
    one.prefill_ps(0, 64, 0)
    shutil.rmtree(tmp_path / "cache")
    other = live(tmp_path, Slower())
    other.prefill_ps(0, 64, 0)
    one.prefill_ps(0, 32, 0)
    assert one.prefill_ms(np.array([64, 64]), np.zeros(2)) == pytest.approx([16.4, 16.4])
    assert one.version != other.version
    assert "now keeps another process's time of what this run had measured itself (prefill of 64 t" in one.summary()
    assert "another process" not in other.summary()


@pytest.mark.parametrize("by_file", [False, True], ids=["folder lock", "lock file"])
def test_writers_at_once_lose_nothing(tmp_path: Path, by_file: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_file:
        monkeypatch.setattr(lock, "_locked_folder", lambda _: None)
    node = node_file(tmp_path)
    corners = [16, 32, 64, 128, 256, 512, 768, 1024]
    with ThreadPoolExecutor(len(corners)) as threads:
        list(threads.map(lambda prompt: live(tmp_path, nodes=[node]).prefill_ps(0, prompt, 0), corners))
    (file,) = (tmp_path / "cache").iterdir()
    rows = json.loads(file.read_text(encoding="utf-8"))["measurements"]
    assert [row["shape"][1] for row in rows] == corners


def test_a_lock_file_left_over_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_locked_folder", lambda _: None)
    left = tmp_path / "a.json.lock"
    left.touch()
    os.utime(left, (0, 0))
    with lock.locked(tmp_path / "a.json"):
        assert left.exists()
    assert not left.exists()


def test_a_time_that_scaling_made_impossible_is_not_kept(tmp_path: Path) -> None:
    class Disturbed(FakeKernels):
        def _timing(self, phase: str, first: int, second: int, ms: float) -> Any:
            return super()._timing(phase, first, second, -3.0)

    with pytest.raises(SetupError, match="the prefill of 16 tokens came out at -3 ms"):
        live(tmp_path, Disturbed()).prefill_ps(0, 16, 0)
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_was_measured_is_not_run_again(tmp_path: Path) -> None:
    first, second = FakeKernels(), FakeKernels(fail=AssertionError("nothing is to be run"))
    answers = []
    for kernels in (first, second):
        cost = live(tmp_path, kernels)
        times = cost.prefill_ps(0, 700, 300), cost.decode_ps(0, 5), cost.token_ps(1)
        answers.append((*times, cost.error, cost.error_short, cost.version))
    assert answers[0] == answers[1]
    assert len(first.ran) == len(set(first.ran)) > 10


def test_the_error_is_of_the_shapes_in_use_not_of_those_on_the_disk(tmp_path: Path) -> None:
    live(tmp_path).prefill_ps(0, 20_000, 9000)
    cost = live(tmp_path)
    cost.prefill_ps(0, 16, 0)
    assert "1 shapes, 5 rounds each" in cost.error


def test_a_measurement_survives_a_failure_after_it(tmp_path: Path) -> None:
    kernels = FakeKernels()
    cost = live(tmp_path, kernels)
    cost.prefill_ps(0, 32, 0)
    kernels.fail = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        cost.prefill_ps(0, 64, 0)
    (file,) = (tmp_path / "cache").iterdir()
    rows = json.loads(file.read_text(encoding="utf-8"))["measurements"]
    assert [(row["shape"], row["ms"]) for row in rows] == [(["prefill", 32, 0], 13.2)]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"format": 1}', b'{"format": 2, "key": {}, "measurements": []}'],
)
def test_a_damaged_cache_is_one_line_that_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    live(tmp_path).prefill_ps(0, 16, 0)
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(content)
    with pytest.raises(SetupError, match=r"cannot be used: .*; delete it, and its times are measured again"):
        live(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"ms": 11.6', '"ms": NaN'),
        ('"ms": 11.6', '"ms": -1'),
        ('"ms": 11.6', '"ms": 1e300'),
        ('"ms": 11.6', '"ms": 1e-300'),
        ('"ms": 11.6', f'"ms": {"9" * 400}'),
        ('"ms": 11.6', '"ms": true'),
        ('"prefill"', '"prefil"'),
        ('"ms"', '"s"'),
        ('"spread": 0.01', '"spread": "abc"'),
        ('"spread": 0.01', '"spread": NaN'),
        ('"spread": 0.01', '"spread": -1'),
        ('"samples": 5', '"samples": null'),
        ('"samples": 5', '"samples": 0'),
        ('"noisy": false', '"noisy": "no"'),
        ('"depth_error": 2.0', '"depth_error": "2 %"'),
        ('"notice": ""', '"notice": 3'),
        ("    16,", "    -16,"),
        ("    16,", "    16.5,"),
        ("    16,", "    16, 16,"),
        ('"measurements": [', '"measurements": 3, "more": ['),
        ('"measurements": [', f'"measurements": {"[" * 100_000}'),
        ('"tensor_parallel": 1', f'"tensor_parallel": {"[" * 100_000}'),
    ],
    ids=str,
)
def test_a_cache_with_a_bad_number_is_refused(tmp_path: Path, old: str, new: str) -> None:
    live(tmp_path).prefill_ps(0, 16, 0)
    (file,) = (tmp_path / "cache").iterdir()
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(SetupError, match="not a file of measurements"):
        live(tmp_path)


def test_a_cache_with_a_shape_twice_is_refused(tmp_path: Path) -> None:
    live(tmp_path).prefill_ps(0, 16, 0)
    (file,) = (tmp_path / "cache").iterdir()
    content = json.loads(file.read_text(encoding="utf-8"))
    content["measurements"] *= 2
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(SetupError, match="not a file of measurements; delete it"):
        live(tmp_path)


def test_another_devices_file_under_this_name_is_refused(tmp_path: Path) -> None:
    live(tmp_path).prefill_ps(0, 16, 0)
    (file,) = (tmp_path / "cache").iterdir()
    file.write_text(file.read_text(encoding="utf-8").replace("fake GPU", "faster GPU"), encoding="utf-8")
    with pytest.raises(SetupError, match="other measurements than its name says"):
        live(tmp_path)


def test_a_cache_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file", encoding="utf-8")
    kernels = FakeKernels()
    for folder in ("file", "file/below", "x" * 300, "null\0byte"):
        settings = LiveSettings(cache=str(tmp_path / folder))
        with pytest.raises(SetupError, match=r"^live cache .*: [^;]*; name another folder with --live-cache DIR$"):
            build_live_cost(
                [node_file(tmp_path)], "tiny-llama", "none", 1000, settings=settings,
                open_kernels=partial(FakeBench, kernels=kernels),
            ).prefill_ps(0, 16, 0)  # fmt: skip
    assert kernels.ran == []


def test_the_users_cache_folder_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    cost = build_live_cost([node_file(tmp_path)], "tiny-llama", "none", 1000, open_kernels=FakeBench)
    cost.prefill_ps(0, 16, 0)
    assert [path.name.split("-tp1-")[0] for path in (tmp_path / "mine/mooncake-bench/live").iterdir()] == ["tiny-llama"]
    shutil.rmtree(tmp_path / "mine")
