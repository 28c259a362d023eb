"""A node's preset from fits: it reads back as it was written, and its error travels with every report."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.build import build_cost
from mooncake_bench.hardware.calibrate.fitting import PhaseFit
from mooncake_bench.hardware.calibrate.forms import Decode, Prefill
from mooncake_bench.hardware.calibrate.preset import fitted_costs, with_costs, write_node
from mooncake_bench.hardware.calibrate.rows import DecodeRows, PrefillRows
from mooncake_bench.hardware.presets import HeldOut, load_node, node_names

if TYPE_CHECKING:
    from pathlib import Path

TWO = np.array([1.0, 2.0])
ERRORS = np.array([1.0, -3.0])
PREFILL = PhaseFit(
    "prefill", Prefill(1 / 3, 0.1, 2.0, 1e-7 / 3, 5.0, 600.0), PrefillRows(TWO, TWO, TWO), HeldOut(60, 1, 5, 7, 2, 8),
    ERRORS,
)  # fmt: skip
DECODE = PhaseFit("decode", Decode(9.0, 0.1, 0.02, 1e-5, 0.3), DecodeRows(TWO, TWO, TWO), None, ERRORS)


@pytest.mark.parametrize("name", node_names())
def test_every_node_reads_back_as_it_was_written(name: str, tmp_path: Path) -> None:
    node = load_node(name)
    path = tmp_path / "mine.toml"
    write_node(node, path)
    again = load_node(str(path))
    for model, costs in node.costs.items():
        found = again.costs[model]
        assert vars(found.coefficients) == pytest.approx(vars(costs.coefficients), rel=1e-9)
        assert replace(found, coefficients=costs.coefficients, prefill_heldout=None, decode_heldout=None) == replace(
            costs, prefill_heldout=None, decode_heldout=None
        )
        assert (found.prefill_heldout is None) == (costs.prefill_heldout is None)
    assert replace(again, name=node.name, costs={}) == replace(node, costs={})


def test_texts_of_any_letters_survive(tmp_path: Path) -> None:
    odd = 'a "quoted" \\ back\nline, 8 × A100 \x7f\t'
    path = tmp_path / "mine.toml"
    write_node(replace(load_node("a100"), description=odd), path)
    assert load_node(str(path)).description == odd


def test_the_errors_of_a_fit_are_what_a_replay_reports(tmp_path: Path) -> None:
    costs = fitted_costs(PREFILL, DECODE, vram_tokens=1000, source="mine")
    path = tmp_path / "mine.toml"
    write_node(with_costs(load_node("a100"), "llama-3-70b", costs, "mine"), path)
    built = build_cost([str(path)], "llama-3-70b", "none")
    # in-sample of +1 and -3 %: median 2, p90 1 + 0.9 * 2 = 2.8
    off = "off by 1.0/5.0 % in prefill (median/p90, held-out) and 2.0/2.8 % in decode (median/p90, in-sample: 2 rows)"
    assert off in built.error
    assert off in built.error_short
    assert built.vram_tokens.tolist() == [1000]
    # rows of n = S = 1, 2 and of B = T = 1, 2: a context of one token a sequence
    fitted_on = (
        "fitted on prefills of 1 to 2 computed tokens, S up to 2 tokens^2 and on batches of 1 to 2, contexts of 1 "
    )
    assert fitted_on in built.error


def test_a_phase_without_rows_is_the_bases_and_says_so() -> None:
    base = load_node("h100").costs["llama-3-70b"]
    costs = fitted_costs(None, DECODE, vram_tokens=1, source="mine", base=base, base_name="h100")
    assert costs.coefficients.prefill_token_ms == base.coefficients.prefill_token_ms
    assert costs.coefficients.decode_root_ms == 0.3
    assert "prefill is that of h100, not fitted" in costs.error
    assert "prefill is that of h100" in costs.short
    with pytest.raises(SetupError, match="the rows hold no prefill times"):
        fitted_costs(None, DECODE, vram_tokens=1, source="mine")


def test_nothing_is_overwritten_and_no_name_is_taken_that_node_would_not_read(tmp_path: Path) -> None:
    node = load_node("a100")
    write_node(node, tmp_path / "mine.toml")
    with pytest.raises(SetupError, match="exists"):
        write_node(node, tmp_path / "mine.toml")
    write_node(node, tmp_path / "mine.toml", force=True)
    with pytest.raises(SetupError, match=r"expected a name ending in .toml"):
        write_node(node, tmp_path / "mine.txt")
