"""What a prefix cache gets out of a trace, without a cluster: online policies, exact curves and offline bounds.

The model: requests in trace order, each served at once by one pool. At a request's arrival its policy may give up
blocks (``expire``); then the prefix hit is counted; then every block of the prompt is accessed in touch order
(``forward``: head first, ``reverse``: tail first): a stored one is touched, an absent one is stored, and a full pool
first gives up one block, never the one that comes. Pools never share content; see :mod:`mooncake_bench.cache.assign`.

- :func:`simulate`: one policy at one capacity -> :class:`Point`
- :func:`lru_curve`: LRU at every capacity in one pass -> :class:`Curve`
- :func:`optimum`, :func:`belady`: offline bounds -> :class:`Point`
- :func:`study`: many of these over processes -> list of :class:`Point`
"""

from __future__ import annotations

from mooncake_bench.cache.bounds import BOUNDS, belady, optimum
from mooncake_bench.cache.curve import Curve, lru_curve
from mooncake_bench.cache.point import ASSIGNMENTS, TOUCH_ORDERS, Assignment, FirstMiss, Misses, Point, TouchOrder
from mooncake_bench.cache.simulate import simulate
from mooncake_bench.cache.study import study

__all__ = [
    "ASSIGNMENTS",
    "BOUNDS",
    "TOUCH_ORDERS",
    "Assignment",
    "Curve",
    "FirstMiss",
    "Misses",
    "Point",
    "TouchOrder",
    "belady",
    "lru_curve",
    "optimum",
    "simulate",
    "study",
]
