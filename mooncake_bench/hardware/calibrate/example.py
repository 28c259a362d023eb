"""A small table in the form that is read, filled with a preset's predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.hardware.calibrate.preset import decode_of, prefill_of
from mooncake_bench.hardware.calibrate.rows import DecodeRows, PrefillRows

if TYPE_CHECKING:
    from mooncake_bench.hardware.analytic import Coefficients

COMPUTED = (16, 64, 256, 512, 1024, 4096, 16384)
PREFIXES = (0, 4096, 32768)
BATCHES = (1, 4, 16, 64, 128, 256)
CONTEXTS = (256, 1024, 4096)


def example_csv(coefficients: Coefficients, whose: str) -> str:
    """A CSV file of prefills and decode steps, times in ms."""
    n, prefix = np.array([(n, p) for n in COMPUTED for p in PREFIXES], dtype=np.float64).T
    batch, context = np.array([(b, c) for b in BATCHES for c in CONTEXTS], dtype=np.float64).T
    prefills = prefill_of(coefficients).predict(PrefillRows(n, n * prefix + n * n / 2, n))
    steps = decode_of(coefficients).predict(DecodeRows(batch, batch * context, batch))
    lines = [f"# Predicted: {whose}; these are not measurements.", "phase,n,prefix,batch,context,ms"]
    lines += [f"prefill,{a:g},{b:g},,,{t:.6g}" for a, b, t in zip(n, prefix, prefills, strict=True)]
    lines += [f"decode,,,{a:g},{b:g},{t:.6g}" for a, b, t in zip(batch, context, steps, strict=True)]
    return "\n".join(lines) + "\n"
