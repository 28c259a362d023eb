"""A slow, plain simulator of the same rules, written apart from the engine: agreement of the two means something."""

from .engine import simulate
from .state import Req, Result

__all__ = ["Req", "Result", "simulate"]
