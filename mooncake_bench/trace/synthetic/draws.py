"""Uniform numbers by named stream, and the quantile functions they go through."""

from __future__ import annotations

from math import gamma, log1p, sqrt
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.trace.synth import stream

if TYPE_CHECKING:
    from mooncake_bench.trace.model import Floats, Ints


class Draws:
    """Uniform numbers in [0, 1): one PCG64 stream a purpose. A longer draw begins with the shorter one."""

    def __init__(self, seed: int, name: str) -> None:
        self.seed, self.name = seed, name

    def __call__(self, purpose: str, size: int) -> Floats:
        """The first ``size`` numbers of the stream ``name/purpose``."""
        return stream(self.seed, f"{self.name}/{purpose}").random(size)


def exponential(uniform: Floats) -> Floats:
    """Exponential values of mean 1."""
    return -np.log1p(-uniform)


def gamma_of(uniform: Floats, shape: float) -> Floats:
    """Gamma values of mean 1; their coefficient of variation is ``1 / sqrt(shape)``."""
    from scipy.special import gammaincinv

    values: Floats = gammaincinv(shape, uniform) / shape
    return values


def weibull_of(uniform: Floats, shape: float) -> Floats:
    """Weibull values of mean 1."""
    values: Floats = exponential(uniform) ** (1 / shape) / gamma(1 + 1 / shape)
    return values


def lognormal_of(uniform: Floats, mean: float, cv: float) -> Floats:
    """Lognormal values of the given mean and coefficient of variation."""
    from scipy.special import ndtri

    variance = log1p(cv * cv)
    values: Floats = mean * np.exp(sqrt(variance) * ndtri(uniform) - variance / 2)
    return values


def lognormal_share(limit: float, mean: float, cv: float) -> float:
    """Probability that such a lognormal value is at most ``limit``."""
    from scipy.special import ndtr

    spread = sqrt(log1p(cv * cv))
    return float(ndtr((np.log(limit / mean) + spread * spread / 2) / spread))


def zipf_choice(uniform: Floats, count: int, exponent: float) -> Ints:
    """Indices 0 .. count - 1, the k-th in proportion to ``k ** -exponent`` (counted from 1); 0: all alike."""
    weight = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    edges = np.cumsum(weight) / weight.sum()
    return np.minimum(np.searchsorted(edges, uniform, side="right"), count - 1)


def geometric_turns(uniform: Floats, mean: float) -> Ints:
    """Whole numbers from 1 with the given mean: after each there is another with probability ``1 - 1 / mean``."""
    if mean <= 1:
        return np.ones(len(uniform), np.int64)
    turns: Ints = 1 + np.floor(np.log1p(-uniform) / np.log1p(-1 / mean)).astype(np.int64)
    return turns
