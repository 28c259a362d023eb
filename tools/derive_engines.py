"""Fit the engines of ``mooncake_bench/hardware/presets/engines_fitted.toml`` to public serving measurements.

    python tools/derive_engines.py MEASUREMENTS            print the file and every group's overhead
    python tools/derive_engines.py MEASUREMENTS --write    write the file

MEASUREMENTS is the folder of measurements that its own README describes. Two kinds of source:

- aiconfigurator's serving points of Llama-3.1-70B in FP8: only TPOT, so only o_dec: what is added to the physical form
  (E5) for the least mean relative error; o_pre is not known and taken as 0. Held out: each configuration, o_dec fitted
  to the others.
- served logs of LLMServingSim: both, as `mooncake-bench calibrate fit --served` finds them; held out: the later half.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.studies.served.engine import Limits
from mooncake_bench.studies.served.show import error, short
from mooncake_bench.studies.served.study import fit_served
from mooncake_bench.studies.validate.files import Measurements
from mooncake_bench.studies.validate.silicon import FILE, SYSTEMS, grouped, servings
from mooncake_bench.studies.validate.silicon_dense import NOTED, steps_of, tpot_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.studies.validate.silicon import Serving

OUT = Path(__file__).resolve().parent.parent / "mooncake_bench" / "hardware" / "presets" / "engines_fitted.toml"
HEAD = """# Engines fitted to serving measurements. Made by `python tools/derive_engines.py MEASUREMENTS --write`.
# Keys as in engines.toml; errors are of points that the overheads were not fitted to.
"""
NODE_TP = 8  # of the nodes' coefficients
POINTS = {"vllm": "vllm-{}", "trtllm": "trtllm-{}"}
WORDS = {"vllm": "vLLM of 2025", "trtllm": "TensorRT-LLM of 2025"}
LOG_LIMITS = Limits(batched_tokens=2048, sequences=128)
"""As the published runs were started: their chunks end at 2,048 tokens, and never more than 128 requests decode. Steps
are made up ahead, which suits the earlier half of the 8B log far better (loss 0.009 against 0.12 between steps). The
rule of mixed steps was written with these logs at hand, so only the overheads are blind to the later half."""


@dataclass(frozen=True)
class Log:
    """A served log, and the node and model that served it."""

    engine: str
    file: str
    node: str
    model: str
    remark: str = ""


LOGS = (
    Log("vllm-rtxpro6000", "rtxpro6000_Llama-3.1-8B_vllm_requests.jsonl.gz", "rtxpro6000", "llama-3-8b"),
    Log(
        "vllm-rtxpro6000x2",
        "rtxpro6000_Qwen3-32B_vllm_requests.jsonl.gz",
        "rtxpro6000x2",
        "qwen3-32b",
        "; the node's costs lack all-reduce, which these overheads stand for as well",
    ),
)


@dataclass(frozen=True)
class Point:
    """Serving points of one engine, GPU and parallelism."""

    backend: str
    node: str
    tp: int
    measured: np.ndarray
    bare: np.ndarray
    """TPOT of the physical form, without engine time [ms]."""
    keys: list[tuple[float, float, float]]

    def overhead_ms(self, without: tuple[float, float, float] | None = None) -> float:
        """o_dec of least mean relative error, leaving a configuration out: a weighted median of what is left over."""
        kept = np.array([key != without for key in self.keys])
        left, weights = (self.measured - self.bare)[kept], 1 / self.measured[kept]
        order = np.argsort(left)
        reached = np.cumsum(weights[order])
        return float(left[order][np.searchsorted(reached, reached[-1] / 2)])

    def errors(self) -> tuple[float, float]:
        """Median and 90th percentile [%] over all points, each configuration predicted without its own points."""
        off = []
        for key in dict.fromkeys(self.keys):
            out = np.array([each == key for each in self.keys])
            off += list(100 * np.abs((self.bare[out] + self.overhead_ms(without=key)) / self.measured[out] - 1))
        return float(np.median(off)), float(np.percentile(off, 90))


def points(folder: Path) -> list[Point]:
    """All groups of Llama-3.1-70B."""
    found, _ = servings(Measurements(folder).lines(FILE), [NOTED])
    made = [_point(group) for group in grouped(found)]
    return sorted(made, key=lambda each: (each.backend != "vllm", each.node, each.tp))


def _point(group: Sequence[Serving]) -> Point:
    first = group[0]
    bare = np.array([tpot_ms(steps_of(one), one) for one in group])
    measured = np.array([one.tpot_ms for one in group])
    return Point(first.backend, SYSTEMS[first.system], first.tp, measured, bare, [one.key for one in group])


def point_text(point: Point, others: Sequence[Point]) -> str:
    """The preset of an engine at the nodes' parallelism; ``others``: its groups at another."""
    median, p90 = point.errors()
    elsewhere = ", ".join(f"{each.overhead_ms():.1f} at TP{each.tp}" for each in others)
    words = WORDS[point.backend]
    faster = " (below 0: its kernels beat the tables)" if point.overhead_ms() < 0 else ""
    return _table(
        POINTS[point.backend].format(point.node),
        description=f"{words}, Llama-3.1-70B FP8 at tensor parallelism {point.tp} on {point.node.upper()}",
        status="derived",
        source=f"aiconfigurator serving points: {len(point.keys)} TPOTs less the physical form's decode step and "
        f"interleaved prefills, the overhead of least mean relative error{faster}; the same way: {elsewhere} ms",
        error=f"fitted with FP8 weights to TPOT alone; each configuration predicted from the others, TPOT is off by "
        f"{median:.1f}/{p90:.1f} % (median/p90); its prefill overhead, not measured, is taken as 0",
        short=f"TPOT off by {median:.1f}/{p90:.1f} % (median/p90, each configuration left out) where it was fitted "
        "(FP8 weights), prefill overhead not known",
        node=point.node,
        prefill_ms=0.0,
        decode_ms=round(point.overhead_ms(), 2),
    )


def log_text(folder: Path, log: Log) -> str:
    """The preset of an engine that a served log was fitted to."""
    served = fit_served(folder / "llmservingsim" / log.file, node=log.node, model=log.model, limits=LOG_LIMITS)
    fit = served.fit
    return _table(
        log.engine,
        description=f"vLLM 0.19 serving {log.model} on {log.node}",
        status="measured",
        source=f"LLMServingSim's {log.file} ({len(served.log):,} requests), the earlier half fitted by calibrate fit "
        f"--served with {LOG_LIMITS.batched_tokens:,} tokens and {LOG_LIMITS.sequences} sequences a step{log.remark}",
        error=error(served),
        short=f"whole steps, {fit.heldout[0].requests} held-out requests of a served log: {short(fit.heldout)}",
        node=log.node,
        prefill_ms=round(fit.overhead.prefill_ms, 2),
        decode_ms=round(fit.overhead.decode_ms, 2),
    )


def _table(name: str, *, node: str, prefill_ms: float, decode_ms: float, **texts: str) -> str:
    lines = [f"[{name}]", *(f"{key} = {json.dumps(text)}" for key, text in texts.items())]
    return "\n".join([*lines, f'fitted_on = ["{node}"]', f"prefill_ms = {prefill_ms}", f"decode_ms = {decode_ms}"])


def main(words: list[str]) -> None:
    """Print the file, or write it."""
    if not words or words[1:] not in ([], ["--write"]):
        raise SystemExit(__doc__)
    folder = Path(words[0])
    groups = points(folder)
    for each in groups:
        median, p90 = each.errors()
        found = f"o_dec {each.overhead_ms():+.2f} ms, left out {median:.1f}/{p90:.1f} %, {len(each.keys)} points"
        print(f"# {each.backend} {each.node} TP{each.tp}: {found}", file=sys.stderr)
    shipped = [each for each in groups if each.tp == NODE_TP]
    siblings = {
        id(one): [each for each in groups if (each.backend, each.node) == (one.backend, one.node) and each is not one]
        for one in shipped
    }
    parts = [*(point_text(one, siblings[id(one)]) for one in shipped), *(log_text(folder, log) for log in LOGS)]
    text = "\n\n".join([HEAD.rstrip(), *parts]) + "\n"
    if words[1:]:
        OUT.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
