"""The live kernels compute what a plain reference computes, whichever way KV is moved; on the CPU, and a GPU if any."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import live_reference as plain
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'mooncake-bench[live]'")

from mooncake_bench.errors import SetupError  # noqa: E402
from mooncake_bench.hardware.architecture import Architecture, Experts, Latent  # noqa: E402
from mooncake_bench.live import layer, store  # noqa: E402
from mooncake_bench.live import prefill as prefill_module  # noqa: E402
from mooncake_bench.live import shard as shard_module  # noqa: E402
from mooncake_bench.live import timing as timing_module  # noqa: E402
from mooncake_bench.live.check import MODEL as CHECK_MODEL  # noqa: E402
from mooncake_bench.live.check import compare_modes, correctness, exact_prefill  # noqa: E402
from mooncake_bench.live.decode import Decode  # noqa: E402
from mooncake_bench.live.device import choose_device  # noqa: E402
from mooncake_bench.live.prefill import Prefill, prefill  # noqa: E402
from mooncake_bench.live.shard import Shard  # noqa: E402
from mooncake_bench.live.timing import Kernels  # noqa: E402

pytestmark = pytest.mark.live

# 2 layers, hidden 64, 8 heads of 16 (not 64 / 8) that share 2 KV heads, MLP 96, vocabulary 50
SMALL = Architecture("small", 2, 64, 8, 2, 16, 96, 50, weight_bytes=4, kv_value_bytes=4)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
# Relative errors stated: about 2 layers x a few roundings of 2^-24, 2^-9 and 2^-12, with room for the order of sums
LIMITS = {"float32": 5e-6, "bfloat16": 1.5e-2, "float16": 2e-3}


@cache
def made(device: str = "cpu", dtype: str = "float32", ranks: int = 1, model: Architecture = SMALL) -> Shard:
    return Shard(model, ranks, model.layers, choose_device(device, dtype), seed=3)


def scene(shard: Shard, computed: int, prefix: int) -> dict[str, Any]:
    """Inputs and prefix KV of one's own."""
    with torch.inference_mode():
        prefix_kv = shard.history(shard.layers_run, prefix, seed=200 + prefix)
        return {"inputs": shard.inputs(computed, seed=100 + computed), "prefix_kv": prefix_kv}


def random_shapes(count: int) -> list[tuple[int, int]]:
    """(computed 1..70, prefix 0..90), the corners among them."""
    draws = np.random.default_rng(4)
    corners = [(1, 0), (70, 0), (1, 90), (70, 90)]
    return corners + [(int(draws.integers(1, 71)), int(draws.integers(0, 91))) for _ in range(count)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize(("computed", "prefix"), random_shapes(6))
def test_attention_and_kv_equal_a_plain_reference(device: str, dtype: str, computed: int, prefix: int) -> None:
    shard = made(device, dtype)
    given = scene(shard, computed, prefix)
    found = prefill(shard, computed, prefix, **given)
    exact = plain.prefill(shard, **given)
    for number in range(SMALL.layers):
        assert plain.relative_error(found.attention[number], exact.attention[number]) < LIMITS[dtype]
        assert plain.relative_error(found.kv[number], exact.kv[number]) < LIMITS[dtype]
    assert plain.relative_error(found.logits[0], exact.logits) < LIMITS[dtype]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("computed", "prefix"), [(127, 0), (128, 5), (129, 0), (257, 130)])
def test_queries_beyond_one_block_attend_as_in_the_reference(device: str, computed: int, prefix: int) -> None:
    shard = made(device)
    given = scene(shard, computed, prefix)
    found, exact = prefill(shard, computed, prefix, **given), plain.prefill(shard, **given)
    assert plain.relative_error(torch.stack(found.attention), exact.attention) < LIMITS["float32"]
    assert plain.relative_error(found.kv, exact.kv) < LIMITS["float32"]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_rank_of_a_split_model_equals_the_reference_with_its_own_heads(ranks: int) -> None:
    shard = made(ranks=ranks)
    assert (shard.heads, shard.kv_heads, shard.width) == (8 // ranks, max(1, 2 // ranks), 96 // ranks)
    given = scene(shard, 20, 30)
    found, exact = prefill(shard, 20, 30, **given), plain.prefill(shard, **given)
    assert plain.relative_error(torch.stack(found.attention), exact.attention) < LIMITS["float32"]
    assert plain.relative_error(found.kv, exact.kv) < LIMITS["float32"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", LIMITS)
def test_layer_wise_and_serialised_runs_write_identical_kv(device: str, dtype: str) -> None:
    shard = made(device, dtype)
    for computed, prefix in random_shapes(8):
        given = scene(shard, computed, prefix)
        beside = prefill(shard, computed, prefix, "layerwise", **given)
        apart = prefill(shard, computed, prefix, "serialised", **given)
        assert torch.equal(beside.kv, apart.kv)
        assert torch.equal(beside.hidden, apart.hidden)
        assert torch.equal(beside.logits, apart.logits)
        assert torch.isfinite(beside.kv.float()).all()
        assert beside.kv.device.type == "cpu"


@pytest.mark.parametrize("mode", ["layerwise", "serialised"])
def test_slow_copies_change_nothing_but_the_time(mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shard, given = made(), scene(made(), 30, 40)
    expected = prefill(shard, 30, 40, mode, **given)
    copy = store.host_copy

    def slow(target: Any, source: Any) -> None:
        time.sleep(0.02)
        copy(target, source)

    monkeypatch.setattr(store, "host_copy", slow)
    found = prefill(shard, 30, 40, mode, **given)
    assert torch.equal(found.kv, expected.kv)
    assert torch.equal(found.logits, expected.logits)


class Watched:
    """A lane that notes what it is given and waited for."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.lane = name, log, store.ThreadLane()

    def copy(self, target: Any, source: Any) -> Any:
        self.log.append(f"{self.name} copy")
        return self.lane.copy(target, source)

    def wait(self, mark: Any) -> None:
        self.log.append(f"{self.name} wait")
        self.lane.wait(mark)


def order(mode: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a prefill of three layers does, in order; ``compute`` is a layer's attention."""
    log: list[str] = []
    names = iter(("load", "store"))
    real = prefill_module.attend_causally

    def attend(*parts: Any) -> Any:
        log.append("compute")
        return real(*parts)

    monkeypatch.setattr(prefill_module, "make_lane", lambda _: Watched(next(names), log))
    monkeypatch.setattr(prefill_module, "attend_causally", attend)
    prefill(made(model=replace(SMALL, layers=3)), 5, 6, mode)
    return log


def test_layer_wise_loads_a_layer_ahead_and_stores_each_layer_before_it_attends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, ahead = ["load copy"], ["load copy"]
    layer = ["store copy", "load wait", "compute"]
    end = ["store wait"] * 3
    assert order("layerwise", monkeypatch) == first + ahead + layer + ahead + layer + layer + end


def test_serialised_loads_all_before_and_stores_all_after(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = ["load copy"] * 3 + ["load wait"] * 3, ["store copy"] * 3 + ["store wait"] * 3
    assert order("serialised", monkeypatch) == before + ["compute"] * 3 + after


def test_a_stream_copies_after_the_computing_so_far_and_is_waited_for_by_the_computing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    class Stream:
        def __init__(self, name: str = "side") -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            log.append(f"{self.name} waits for {other.name}")

        def record_event(self) -> str:
            log.append(f"mark on {self.name}")
            return "mark"

        def wait_event(self, mark: str) -> None:
            log.append(f"{self.name} waits for {mark}")

    class Target:
        def copy_(self, source: str, non_blocking: bool) -> None:
            log.append(f"copy {source} {non_blocking}")

    main = Stream("main")
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    lane = store.StreamLane()
    lane.wait(lane.copy(Target(), "kv"))
    assert log == ["side waits for main", "copy kv True", "mark on side", "main waits for mark"]


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("kv_heads", [2, 8])
def test_the_gpus_attention_is_the_same_arithmetic_where_a_cpu_runs_it(dtype: str, kv_heads: int) -> None:
    draws = torch.Generator().manual_seed(1)
    for new, prefix in ((1, 0), (1, 90), (30, 0), (30, 41)):
        shapes = ((1, 8, new, 16), (1, kv_heads, prefix + new, 16), (1, kv_heads, prefix + new, 16))
        with torch.inference_mode():
            parts = [torch.randn(shape, generator=draws).to(getattr(torch, dtype)) for shape in shapes]
            found = layer._attend_on_gpu(*parts)
        query, keys, values = (plain.numpy(part[0]).swapaxes(0, 1) for part in parts)
        kv = np.stack((keys, values), axis=1)
        exact = [plain.attend(query[row], kv[: prefix + row + 1]) for row in range(new)]
        assert plain.relative_error(found.flatten(1), np.array(exact)) < LIMITS[dtype]


@pytest.mark.parametrize("dtype", LIMITS)
def test_two_chunks_write_what_one_prefill_writes(dtype: str) -> None:
    shard = made(dtype=dtype)
    given = scene(shard, 50, 10)
    whole = prefill(shard, 50, 10, **given)
    first = prefill(shard, 20, 10, inputs=given["inputs"][:20], prefix_kv=given["prefix_kv"])
    known = torch.cat((given["prefix_kv"], first.kv), dim=1)
    second = prefill(shard, 30, 30, inputs=given["inputs"][20:], prefix_kv=known)
    expected = plain.numpy(whole.kv)
    assert plain.relative_error(torch.cat((first.kv, second.kv), dim=1), expected) < LIMITS[dtype]
    assert plain.relative_error(second.logits, plain.numpy(whole.logits)) < LIMITS[dtype]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", LIMITS)
def test_a_decode_step_equals_a_prefill_of_one_token_for_each_sequence(device: str, dtype: str) -> None:
    shard = made(device, dtype)
    contexts = [1, 17, 17, 60]  # rising, as the rows of the inputs are
    with torch.inference_mode():
        inputs = shard.inputs(4, seed=9)
        known = {tokens: shard.history(2, tokens, seed=tokens) for tokens in (1, 34, 60)}
        logits = Decode(shard, [60, 17, 1, 17], inputs, lambda layers, tokens: known[tokens].clone()).run()
    # the two sequences of 17 lie one after the other in the KV of 34
    histories = [known[1], known[34][:, :17], known[34][:, 17:], known[60]]
    for row, (context, history) in enumerate(zip(contexts, histories, strict=True)):
        exact = plain.prefill(shard, inputs[row : row + 1], history[:, : context - 1])
        assert plain.relative_error(logits[row], exact.logits) < LIMITS[dtype]


def test_fewer_layers_are_a_shallower_model() -> None:
    shard = made(model=replace(SMALL, layers=3))
    given = scene(shard, 9, 4)
    shallow = Prefill(shard, 9, 4, **given).run(layers=1)
    whole = prefill(shard, 9, 4, **given)
    assert len(shallow.kv) == 1
    assert torch.equal(shallow.kv[0], whole.kv[0])
    assert not torch.equal(shallow.logits, whole.logits)


def test_a_run_can_be_repeated_in_its_own_buffers() -> None:
    run = Prefill(made(), 12, 8, **scene(made(), 12, 8))
    first = run.run().kv.clone()
    assert torch.equal(run.run("serialised").kv, first)
    assert torch.equal(run.run().kv, first)


def test_one_seed_gives_one_model() -> None:
    device = choose_device("cpu")
    one, same, other = (Shard(SMALL, 1, 2, device, seed) for seed in (5, 5, 6))
    assert torch.equal(one.layers[1].down, same.layers[1].down)
    assert not torch.equal(one.layers[1].down, other.layers[1].down)


def test_the_checks_own_float64_agrees_with_the_reference_to_rounding() -> None:
    shard = made()
    given = scene(shard, 40, 25)
    exact, expected = exact_prefill(shard, **given), plain.prefill(shard, **given)
    assert plain.relative_error(torch.stack(exact.attention), expected.attention) < 1e-13
    assert plain.relative_error(exact.kv, expected.kv) < 1e-13
    assert plain.relative_error(exact.logits[0], expected.logits) < 1e-13


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", LIMITS)
def test_the_check_passes_on_this_device(device: str, dtype: str) -> None:
    rows = correctness(choose_device(device, dtype), [(1, 0), (64, 64), (129, 257)])
    assert [row.passed for row in rows] == [True] * 3
    assert not replace(rows[0], kv_error=float("nan")).passed
    assert not replace(rows[0], modes_equal=False).passed
    assert rows[0].dtype == dtype


def test_weights_and_kv_take_the_bytes_that_they_are_said_to() -> None:
    shard = Shard(CHECK_MODEL, 2, 2, choose_device("cpu", "bfloat16"))
    tensors = [part for weights in shard.layers for part in vars(weights).values()] + [shard.final_norm, shard.head]
    assert shard.weight_bytes == sum(part.numel() * 2 for part in tensors)
    assert prefill(shard, 10, 0).kv.nbytes == 2 * 10 * shard.kv_bytes_per_token


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels(replace(SMALL, layers=40), 2, choose_device("cpu"), repeat=3, layers=(1, 2, 3))


def test_timings_are_of_the_whole_depth(kernels: Kernels) -> None:
    for timing in (kernels.prefill_ms(40, 8), kernels.prefill_ms(40, 8, "serialised"), kernels.decode_ms(3, 20)):
        assert timing.depth_error is not None  # 40 layers by 1, 2 and 3
        assert timing.samples == len(timing.rounds_ms) == 3
        assert timing.depth_error >= 0
        assert timing.median_ms > 0
        assert timing.spread >= 0
        assert 0 <= timing.lost < 1


def test_a_model_no_deeper_than_the_depths_is_run_whole() -> None:
    whole = Kernels(SMALL, 1, choose_device("cpu"), repeat=3)
    assert whole.layers == (2,)
    assert whole.prefill_ms(20, 5).depth_error is None
    assert whole.decode_ms(2, 9).notice == ""


def test_steps_without_a_graph_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Kernels(SMALL, 1, choose_device("cpu"), repeat=1)
    monkeypatch.setattr(timing_module, "_on_gpu", timing_module._on_cpu)
    monkeypatch.setattr(type(one.device), "cuda", True)
    monkeypatch.setattr(Decode, "_allocate", lambda *_: None)
    monkeypatch.setattr(Decode, "graph", lambda *_: None)
    monkeypatch.setattr(Decode, "run", lambda *_: None)
    monkeypatch.setattr(type(one.device), "free_bytes", lambda _: 1 << 40)
    assert one.decode_ms(2, 9).notice == timing_module.EAGER


def test_much_kv_is_the_same_tokens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "DRAWN", 4)
    history = made().history(2, 10)
    assert torch.equal(history[:, 4:8], history[:, :4])
    assert torch.equal(history[:, 8:], history[:, :2])


def test_contexts_may_differ_between_sequences(kernels: Kernels) -> None:
    assert kernels.decode_ms(3, [5, 70, 5]).samples == 3
    with pytest.raises(ValueError, match="a batch of 3 needs as many contexts, not 2"):
        kernels.decode_ms(3, [5, 70])


def test_the_modes_are_compared_side_by_side(kernels: Kernels) -> None:
    (row,) = compare_modes(kernels, [(30, 10)])
    assert (row.computed, row.prefix) == (30, 10)
    assert row.spread >= 0


def test_what_is_not_measured_is_said(kernels: Kernels) -> None:
    assert kernels.notices() == ["one rank of TP2 is measured; its all-reduces are not (one process has no peers)"]
    half = Kernels(SMALL, 1, choose_device("cpu", "bfloat16"), layers=(1, 2, 3))
    assert half.notices() == [
        "weights run in bfloat16 (2 bytes a value), but small has 4: times are of the former",
        "KV run in bfloat16 (2 bytes a value), but small has 4: times are of the former",
    ]


@pytest.mark.parametrize(
    ("model", "ranks", "line"),
    [
        (replace(SMALL, experts=Experts(8, 2, 32, 0, 0)), 1, "has a mixture of experts: the live kernels run dense"),
        (replace(SMALL, latent=Latent(0, 32, 8, 16, 16)), 1, r"has latent attention \(MLA\): the live kernels run den"),
        (SMALL, 3, "does not split over 3 ranks: 8 heads, 2 KV heads and width 96 must divide; choose another"),
        (replace(SMALL, head_dim=15), 1, "head_dim 15 must be even"),
    ],
)
def test_a_shape_that_is_not_run_is_refused_in_one_line(model: Architecture, ranks: int, line: str) -> None:
    with pytest.raises(SetupError, match=line):
        Shard(model, ranks, 2, choose_device("cpu"))


def test_too_little_memory_is_said_before_anything_is_allocated() -> None:
    device = choose_device("cpu")
    huge = replace(SMALL, name="huge", hidden=1 << 20, width=1 << 22)
    # hidden 2^20 x 3 matrices x width 2^22 x 4 bytes: the MLP of one layer is 52.8 TB
    with pytest.raises(
        SetupError, match=r"not enough memory for the weights of 2 layers of huge at TP1.*--live-layers"
    ):
        Shard(huge, 1, 2, device)
    with pytest.raises(
        SetupError, match="not enough memory for a prefill of 10 tokens after a prefix of 1,000,000,000"
    ):
        prefill(made(), 10, 10**9)
    with pytest.raises(SetupError, match="not enough memory for a decode step of 1 sequences with 1,000,000,000"):
        Decode(made(), [10**9])


@pytest.mark.parametrize("error", [RuntimeError("CUDA out of memory. Tried to allocate"), MemoryError()])
def test_memory_that_runs_out_in_the_middle_is_one_line(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any) -> Any:
        raise error

    run = Prefill(made(), 5, 0)
    monkeypatch.setattr(prefill_module, "attend_causally", exhausted)
    with pytest.raises(SetupError, match="not enough memory for a prefill of 5 tokens after a prefix of 0: run fewer"):
        run.run()


def test_another_fault_in_the_kernels_is_not_taken_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("shapes cannot be multiplied")

    run = Prefill(made(), 5, 0)
    monkeypatch.setattr(prefill_module, "attend_causally", broken)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        run.run()


def test_the_cpu_is_described_by_all_that_its_times_depend_on() -> None:
    device = choose_device("cpu")
    assert device.dtype == "float32"
    assert device.name.startswith("cpu: ")
    assert set(device.describe()) == {"device", "driver", "torch", "dtype", "threads"}
    assert device.describe()["threads"] == str(torch.get_num_threads())
    assert 0 < device.free_bytes() <= device.memory_bytes


@pytest.mark.parametrize(
    ("name", "dtype", "line"),
    [
        ("tpu", "auto", "live device 'tpu' is not known; expected auto, cpu, cuda or cuda:N"),
        ("cuda:x", "auto", "live device 'cuda:x' is not known"),
        ("cpu:1", "auto", "live device 'cpu:1' is not known"),
        (
            "cpu",
            "fp8",
            "live dtype 'fp8' is not one that the kernels run in; expected auto, float32, bfloat16, float16",
        ),
        ("cpu", "bfloat", "did you mean 'bfloat16'"),
    ],
)
def test_an_unknown_device_or_type_is_refused_in_one_line(name: str, dtype: str, line: str) -> None:
    with pytest.raises(SetupError, match=line):
        choose_device(name, dtype)


def test_a_gpu_that_is_not_there_is_one_line_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SetupError, match=r"live device 'cuda': torch .* sees no GPU .*; use --live-device cpu"):
        choose_device("cuda")
    assert choose_device("auto").cuda is False


def test_a_gpu_beyond_the_last_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(SetupError, match=r"live device 'cuda:2': torch sees 2 GPU\(s\); expected cuda:0 to cuda:1"):
        choose_device("cuda:2")


def test_a_type_that_the_device_cannot_run_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'\nmore")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", refused)
    with pytest.raises(
        SetupError, match=r"live dtype 'float16' does not run on cpu: .* \(\"addmm.*'Half'\); try anothe"
    ):
        choose_device("cpu", "float16")
