"""Engine overheads from a served log: known ones are found again, real ones predict the half they did not see."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from served_logs import naive, requests, step_ms, vllm_json

from mooncake_bench.errors import NothingToConclude, SetupError
from mooncake_bench.hardware.analytic import EngineOverhead
from mooncake_bench.hardware.build import build_cost
from mooncake_bench.hardware.presets import load_engine, load_node
from mooncake_bench.studies.served import fit, study
from mooncake_bench.studies.served.engine import Limits
from mooncake_bench.studies.served.show import as_json, notices, preset, report, write_preset
from mooncake_bench.studies.served.study import fit_served

if TYPE_CHECKING:
    from mooncake_bench.studies.served.fit import Quantity
    from mooncake_bench.studies.served.show import Served

NODE, MODEL = "rtxpro6000", "llama-3-8b"
LIMITS = Limits(batched_tokens=512, sequences=16)


def log_file(folder: Path, o_pre: float, o_dec: float, *, gap_ms: float = 60.0, ahead: bool = True) -> Path:
    """A vLLM file of 120 requests, served by the slow reference with these overheads."""
    work = requests(120, gap_ms, seed=11)
    coefficients = load_node(NODE).costs[MODEL].coefficients
    naive(work, partial(step_ms, coefficients, o_pre, o_dec), 512, 16, ahead=ahead)
    path = folder / "served.json"
    path.write_text(json.dumps(vllm_json(work, failed=1)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return fit_served(log_file(tmp_path_factory.mktemp("log"), 12.0, 3.0), node=NODE, model=MODEL, limits=LIMITS)


def test_overheads_that_the_slow_reference_served_with_are_found_again(fitted: Served) -> None:
    assert fitted.fit.overhead.prefill_ms == pytest.approx(12.0, rel=0.02)
    assert fitted.fit.overhead.decode_ms == pytest.approx(3.0, rel=0.02)


def test_an_engine_faster_than_its_kernels_is_found_as_well(tmp_path: Path) -> None:
    path = log_file(tmp_path, 2.0, -1.5, gap_ms=20.0, ahead=False)
    served = fit_served(path, node=NODE, model=MODEL, limits=LIMITS, compare=True)
    found = served.fit.overhead
    assert found.decode_ms == pytest.approx(-1.5, rel=0.02)
    assert found.prefill_ms == pytest.approx(2.0, rel=0.05)
    (below,) = (text for text in notices(served) if "below 0" in text)
    assert below.startswith("o_dec is -1.5")
    assert "the kernels of node and model as given are slower than this engine's, or --max-seqs" in below
    # The log was scheduled between steps, and nobody said so.
    assert (LIMITS.ahead, served.limits.ahead) == (True, False)
    (told,) = (text for text in notices(served) if "--scheduling" in text)
    assert f"loss of {served.fit.loss:.3g}, async with {served.rejected_loss:.3g}: sync is taken, which" in told


@pytest.mark.parametrize(("ours", "theirs", "taken"), [(0.8, 0.6, True), (0.8, 0.5, False), (0.3, 0.5, True)])
def test_the_other_scheduling_is_taken_where_its_loss_is_less_than_seven_tenths(
    ours: float, theirs: float, taken: bool, fitted: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 0.6 / 0.8 = 0.75; 0.5 / 0.8 = 0.625; 0.3 / 0.5 = 0.6, of the one that was asked for
    def fit_of(log: object, coefficients: object, start: object, limits: Limits, progress: object) -> object:
        return replace(fitted.fit, loss=ours if limits.ahead else theirs)

    monkeypatch.setattr(study, "fit", fit_of)
    served = fit_served(log_file(tmp_path, 1.0, 1.0), node=NODE, model=MODEL, limits=LIMITS, compare=True)
    assert served.limits.ahead == taken
    assert {served.fit.loss, served.rejected_loss} == {ours, theirs}
    (told,) = (text for text in notices(served) if "--scheduling" in text)
    assert ("hardly tells them apart" in told) == (theirs == 0.6)


def test_an_overhead_of_twenty_shortest_steps_or_a_median_three_times_off_is_doubted(fitted: Served) -> None:
    step = -2 * fitted.least.decode_ms
    assert not any("may be wrong" in text for text in notices(fitted))
    for times, doubted in ((19, False), (21, True)):
        slow = replace(fitted, fit=replace(fitted.fit, overhead=EngineOverhead(1.0, times * step)))
        assert any("21 times the node's shortest decode step" in text for text in notices(slow)) == doubted
    ttft = fitted.fit.heldout[0]
    for p50, doubted in ((2.9, False), (3.1, True), (0.32, True)):
        off = replace(ttft, predicted=ttft.predicted | {"p50": p50 * ttft.observed["p50"]})
        found = notices(replace(fitted, fit=replace(fitted.fit, heldout=(off,))))
        said = f"the later half's median TTFT is predicted {p50:g} times as long as it was"
        assert any(said in text for text in found) == doubted


def test_the_later_half_is_predicted_and_the_earlier_one_fitted(fitted: Served) -> None:
    found, log = fitted.fit, fitted.log
    assert (len(log), log.failed, found.fitted_requests) == (120, 1, 60)
    for quantities, half in ((found.fitted, slice(0, 60)), (found.heldout, slice(60, None))):
        assert [each.metric for each in quantities] == ["ttft", "tpot", "tbt"]
        for each, column in zip(quantities, (log.ttft_ms, log.tpot_ms, log.tbt_ms), strict=True):
            assert each.requests == 60
            assert each.observed["p90"] == pytest.approx(np.percentile(column[half], 90))
            assert each.observed["mean"] == pytest.approx(column[half].mean())
            assert each.predicted["p90"] == pytest.approx(each.observed["p90"], rel=0.01)
    # without overheads a prompt is 12 ms and a step 3 ms too short
    assert found.unfitted[1].error_percent("mean") < -10


def test_the_preset_carries_the_held_out_error_to_a_cost_model(fitted: Served, tmp_path: Path) -> None:
    path = write_preset(fitted, tmp_path / "mine.toml", force=False)
    engine = load_engine(str(path))
    assert engine.overhead == fitted.fit.overhead
    assert engine.status == "measured"
    assert engine.fitted_on == (NODE,)
    cost = build_cost([NODE], MODEL, str(path))
    assert "60 later requests that it was not fitted to" in cost.error
    assert "TTFT p10" in cost.error
    assert cost.error_short.startswith("measured: whole steps, 60 held-out requests of a served log: TTFT off by ")
    with pytest.raises(SetupError, match="exists; choose another name, or --force"):
        write_preset(fitted, path, force=False)
    with pytest.raises(SetupError, match=r"ends in \.toml"):
        write_preset(fitted, tmp_path / "mine.json", force=True)


def test_the_preset_is_toml_whatever_the_logs_name(fitted: Served) -> None:
    odd = replace(fitted, log=replace(fitted.log, label='a\\b/"odd"\x7f\n.json'))
    assert '"odd"?' in tomllib.loads(preset(odd))["description"]


def test_the_report_shows_predicted_beside_observed_and_says_which_half(fitted: Served) -> None:
    shown = report(fitted)
    assert shown.sheets[0].title == "Later half, not fitted: 60 requests, ms"
    assert shown.sheets[1].notes == ("in-sample",)
    names = [row[0] for row in shown.sheets[0].rows]
    assert names[:3] == ["TTFT observed", "TTFT predicted", "TTFT off"]
    assert any("1 of 121 requests failed" in notice for notice in shown.notices)


def test_the_json_is_strict_and_holds_every_quantile(fitted: Served) -> None:
    values = json.loads(json.dumps(as_json(fitted, None), allow_nan=False))
    assert values["heldout"][0]["metric"] == "ttft_ms"
    assert list(values["heldout"][0]["predicted"]) == ["p10", "p50", "p90", "p99", "mean"]
    assert values["limits"] == {"batched_tokens": 512, "sequences": 16, "ahead": True}
    assert values["written"] == []


def test_wrong_limits_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "COARSE", (0.0, 0.2))
    monkeypatch.setattr(fit, "TRIES", 4)
    path = log_file(tmp_path, 12.0, 3.0, gap_ms=5.0)
    few = fit_served(path, node=NODE, model=MODEL, limits=Limits(512, 8))
    assert any("up to 16 requests decode at once, the model has room for 8" in text for text in report(few).notices)
    many = fit_served(path, node=NODE, model=MODEL, limits=Limits(512, 64))
    assert any("in the log at most 16 decode" in text for text in report(many).notices)


def test_a_node_without_costs_for_the_model_and_answers_of_one_token_are_refused(tmp_path: Path) -> None:
    path = log_file(tmp_path, 1.0, 1.0)
    with pytest.raises(SetupError, match="node 'rtxpro6000' has no cost coefficients for model 'llama-3-70b'"):
        fit_served(path, node=NODE, model="llama-3-70b", limits=LIMITS)
    values = json.loads(path.read_text())
    values |= {"output_lens": [1] * 121, "itls": [[]] * 121}
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(NothingToConclude, match="0 of 120 answers have more than one token"):
        fit_served(path, node=NODE, model=MODEL, limits=LIMITS)


# ---- the real logs


def worst(quantity: Quantity) -> float:
    return max(abs(quantity.error_percent(name)) for name in quantity.predicted)


@pytest.mark.parametrize(
    ("log", "node", "model", "ttft", "tpot"),
    [
        ("Llama-3.1-8B", "rtxpro6000", "llama-3-8b", 1.0, 2.0),
        ("Qwen3-32B", "rtxpro6000x2", "qwen3-32b", 4.0, 13.0),  # all-reduce is in the overheads only
    ],
)
def test_a_real_logs_later_half_is_predicted_within(
    shared: Path, log: str, node: str, model: str, ttft: float, tpot: float
) -> None:
    path = shared / "measurements" / "llmservingsim" / f"rtxpro6000_{log}_vllm_requests.jsonl.gz"
    served = fit_served(path, node=node, model=model, limits=Limits(2048, 128))
    first, rest = served.fit.heldout
    assert (len(served.log), first.requests, rest.requests) == (300, 150, 150)
    assert worst(first) < ttft  # percent, of p10, p50, p90, p99 and the mean
    assert worst(rest) < tpot
    shipped = load_engine(f"vllm-{node}").overhead  # what tools/derive_engines.py wrote
    assert shipped.prefill_ms == pytest.approx(served.fit.overhead.prefill_ms, rel=0.05)
    assert shipped.decode_ms == pytest.approx(served.fit.overhead.decode_ms, rel=0.05)
