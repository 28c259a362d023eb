"""A node as the TOML file that ``--node FILE.toml`` reads, and the costs in it from fits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.calibrate.forms import Decode, Prefill, coefficients
from mooncake_bench.hardware.calibrate.rows import distinct_shapes
from mooncake_bench.hardware.presets import NodeCosts
from mooncake_bench.outfile import check_target, writing

if TYPE_CHECKING:
    from pathlib import Path

    from mooncake_bench.hardware.analytic import Coefficients
    from mooncake_bench.hardware.calibrate.fitting import PhaseFit
    from mooncake_bench.hardware.presets import HeldOut, Node

DIGITS = 10
"""Of a written coefficient: no time changes by as much as 1e-8 of it."""
PREFILL_KEYS = {
    "floor_ms": "ms",
    "token_ms": "ms per computed token",
    "constant_ms": "ms",
    "token2_ms": "ms per token^2",
    "late_ms": "ms",
    "late_tokens": "tokens",
}
DECODE_KEYS = {
    "floor_ms": "ms",
    "roof_ms": "ms per sequence",
    "sequence_ms": "ms per sequence",
    "token_ms": "ms per context token",
    "root_ms": "ms per sqrt(sequence)",
}
HEAD = """\
# Written by mooncake-bench calibrate; use it with --node FILE.toml.
# prefill: E1, sqrt(floor^2 + (token n)^2) + constant + token2 S + late n^2 / (n^2 + late_tokens^2)
#          [ms; n computed tokens, p cached ones, S = n p + n^2/2]
# decode:  E2, (floor^4 + (roof B)^4)^(1/4) + sequence B + root sqrt(B) + token T
#          [ms; B sequences, T context tokens of all]
"""


def fitted_costs(
    prefill: PhaseFit | None,
    decode: PhaseFit | None,
    *,
    vram_tokens: int,
    source: str,
    status: str = "measured",
    base: NodeCosts | None = None,
    base_name: str = "",
) -> NodeCosts:
    """The costs of a model as fitted; a phase without a fit is that of ``base`` and says so.

    Raises SetupError where a phase has neither.
    """
    if base is None and (prefill is None or decode is None):
        lacking = "prefill" if prefill is None else "decode"
        raise SetupError(
            f"the rows hold no {lacking} times, and the base node has none for this model; add {lacking} rows, or name "
            "another --base"
        )
    taken = base.coefficients if base is not None else None
    fitted = [fit for fit in (prefill, decode) if fit is not None]
    error = "fitted times are off by " + " and ".join(_off(fit) for fit in fitted)
    short = error
    error += f"; fitted on {' and on '.join(fit.domain for fit in fitted)}"
    if base is not None and len(fitted) == 1:
        other = "decode" if decode is None else "prefill"
        error += f"; {other} is that of {base_name}, not fitted, {base.status}: {base.error}"
        short += f", {other} is that of {base_name}"
        source += f"; {other}: {base.source}"
    return NodeCosts(
        status=status,
        source=source,
        error=f"{error}; no engine time is in them that was not in the rows",
        short=short,
        vram_tokens=vram_tokens,
        coefficients=_merged(prefill, decode, taken),
        prefill_heldout=prefill.heldout if prefill else base.prefill_heldout if base else None,
        decode_heldout=decode.heldout if decode else base.decode_heldout if base else None,
    )


def with_costs(node: Node, model: str, costs: NodeCosts, description: str) -> Node:
    """``node`` with these costs alone: what was known of other models was not fitted here."""
    return replace(node, description=description, costs={model: costs})


def write_node(node: Node, path: Path, *, force: bool = False) -> None:
    """Write a node's file. Raises SetupError as :func:`check_node` does, and where the file cannot be written."""
    check_node(path, force=force)
    with writing(path, force=force, label=f"-o {path}", error=SetupError) as partial:
        partial.write_text(node_toml(node), encoding="utf-8")


def check_node(path: Path, *, force: bool = False) -> None:
    """Raises SetupError for a path that a node's file cannot have: not .toml, there already, in no folder."""
    if path.suffix != ".toml":
        raise SetupError(f"-o {path}: expected a name ending in .toml, which --node takes for a file")
    check_target(path, force=force, label=f"-o {path}", error=SetupError)


def node_toml(node: Node) -> str:
    """A node's file: every key that ``--node FILE.toml`` reads."""
    keys = ("description", *(("gpu",) if node.gpu else ()), "gpus", "pool_tokens", "pool_source")
    lines = [HEAD, *_lines(node, *keys, "nic_gbytes_per_s", "nic_status", "nic_source")]
    if not node.costs:
        lines += ["", "[costs]"]
    for model, costs in node.costs.items():
        where = f"costs.{_text(model)}"
        lines += ["", f"[{where}]", *_lines(costs, "status", "source", "error", "short", "vram_tokens")]
        lines += [f"prefill = {_inline(prefill_of(costs.coefficients))}"]
        lines += [f"decode = {_inline(decode_of(costs.coefficients))}"]
        for key, heldout in (("prefill_heldout", costs.prefill_heldout), ("decode_heldout", costs.decode_heldout)):
            if heldout is not None:
                lines += ["", f"[{where}.{key}]", *_errors(heldout)]
    return "\n".join(lines) + "\n"


def prefill_of(c: Coefficients) -> Prefill:
    """The prefill's part of a model's coefficients."""
    return Prefill(
        c.prefill_floor_ms, c.prefill_token_ms, c.prefill_constant_ms, c.prefill_token2_ms, c.prefill_late_ms,
        c.prefill_late_tokens,
    )  # fmt: skip


def decode_of(c: Coefficients) -> Decode:
    """The decode's part of a model's coefficients."""
    return Decode(c.decode_floor_ms, c.decode_roof_ms, c.decode_sequence_ms, c.decode_token_ms, c.decode_root_ms)


def numbers_of(form: Prefill | Decode) -> dict[str, tuple[float, str]]:
    """A form's coefficients and units by their key in a preset; a term that is not there has no key."""
    keys = dict(PREFILL_KEYS if isinstance(form, Prefill) else DECODE_KEYS)
    for term, more in (("late_ms", ("late_tokens",)), ("root_ms", ())):
        if term in keys and not getattr(form, term):
            for key in (term, *more):
                del keys[key]
    return {key: (float(getattr(form, key)), unit) for key, unit in keys.items()}


def _merged(prefill: PhaseFit | None, decode: PhaseFit | None, taken: Coefficients | None) -> Coefficients:
    first = prefill.form if prefill is not None else prefill_of(taken)  # type: ignore[arg-type]
    second = decode.form if decode is not None else decode_of(taken)  # type: ignore[arg-type]
    assert isinstance(first, Prefill)
    assert isinstance(second, Decode)
    return coefficients(first, second)


def _off(fit: PhaseFit) -> str:
    """How far a fit is off, in words."""
    if fit.heldout is None:
        median, p90, _ = fit.in_sample
        sizes = distinct_shapes(fit.rows)
        of = f" of {sizes} sizes" if sizes < len(fit.rows) else ""
        return f"{median:.1f}/{p90:.1f} % in {fit.phase} (median/p90, in-sample: {len(fit.rows)} rows{of})"
    return f"{fit.heldout.median:.1f}/{fit.heldout.p90:.1f} % in {fit.phase} (median/p90, held-out)"


def _lines(item: Any, *keys: str) -> list[str]:
    return [f"{key} = {_value(getattr(item, key))}" for key in keys]


def _errors(heldout: HeldOut) -> list[str]:
    names = ("median", "p90", "worst", "left_out_median", "left_out_p90")
    return [f"rows = {heldout.rows}", *(f"{name} = {getattr(heldout, name):.4g}" for name in names)]


def _inline(form: Prefill | Decode) -> str:
    return "{ " + ", ".join(f"{key} = {_value(value)}" for key, (value, _) in numbers_of(form).items()) + " }"


def _value(value: str | float) -> str:
    return _text(value) if isinstance(value, str) else str(value) if isinstance(value, int) else f"{value:.{DIGITS}g}"


def _text(value: str) -> str:
    """A TOML basic string: JSON's escapes are a part of TOML's."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
