"""A stretch of decode steps at constant batch, in closed form (rule 7).

The first step lasts ``step`` ps, every further one ``growth`` ps more than the one before.
"""

from __future__ import annotations

from math import sqrt


def elapsed(steps: int, step: int, growth: int) -> int:
    """Duration of ``steps`` consecutive steps, ps."""
    return steps * step + growth * (steps * (steps - 1) // 2)


def steps_within(duration: int, step: int, growth: int) -> int:
    """The most whole steps that fit in ``duration`` ps: a float root, corrected in integers."""
    half = step - 0.5 * growth
    steps = int(2.0 * duration / (half + sqrt(half * half + 2.0 * growth * duration)))
    while steps * step + growth * (steps * (steps - 1) // 2) > duration:  # elapsed(), which is asked too often to call
        steps -= 1
    while (steps + 1) * step + growth * ((steps + 1) * steps // 2) <= duration:
        steps += 1
    return steps
