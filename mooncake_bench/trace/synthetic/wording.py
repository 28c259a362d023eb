"""From the words of a command line, or of Python keywords, to a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import SetupError
from mooncake_bench.trace.model import DEFAULT_BLOCK_TOKENS
from mooncake_bench.trace.synthetic import arrivals, lengths, presets, spelling, structure
from mooncake_bench.trace.synthetic.recipe import MOST_REQUESTS, Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping

LEAST_RATE_RPS = 1e-6  # a request in twelve days
WORDS = ("arrivals", "rate", "requests", "duration", "input", "output", "turn_input", "lengths", "share", "block_size")


def recipe(given: Mapping[str, Any], preset: str | None = None) -> Recipe:
    """The recipe that ``given`` (some of WORDS, values as text) describes, beside or in place of a preset's options.

    Raises SetupError for a bad or a superfluous word, TraceError for a file that cannot be read.
    """
    words = {key: value for key, value in given.items() if value is not None and value not in ([], ())}
    chosen = None if preset is None else presets.find(preset)
    base = {} if chosen is None else dict(chosen.options)
    if "lengths" in words:
        lengths.mixed(True, bool({"input", "output", "turn_input"} & set(words)))
        base = {key: value for key, value in base.items() if key not in ("input", "output")}
    if "duration" in words:
        base.pop("requests", None)
    told = base | words
    share = structure.parse(tuple(told.get("share", ())))
    if "turn_input" in told and share.sessions is None:
        raise SetupError("--turn-input: there are no later turns without --share sessions; leave it out")
    if {"requests", "duration"} <= set(told):
        raise SetupError("--requests and --duration: give one; the other follows from the rate")
    parts: dict[str, Any] = {"share": share}
    if "arrivals" in told:
        parts["arrivals"] = arrivals.parse(told["arrivals"])
    if "lengths" in told:
        parts["joint"] = lengths.joint(told["lengths"], "--lengths")
    for word, field in (("input", "input_tokens"), ("output", "output_tokens"), ("turn_input", "turn_tokens")):
        if word in told:
            parts[field] = lengths.parse(told[word], f"--{word.replace('_', '-')}")
    return Recipe(
        name="synthetic" if chosen is None else chosen.name,
        about=", ".join(f"{key} {_text(value)}" for key, value in told.items()),
        **parts,
        **_numbers(told),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else " + ".join(value)


def _numbers(told: Mapping[str, str]) -> dict[str, Any]:
    """The values that are one number each."""
    found: dict[str, Any] = {}
    if "rate" in told:
        found["rate_rps"] = rate_rps(told["rate"])
    if "requests" in told:
        found["requests"] = spelling.whole(told["requests"], "--requests", 1, MOST_REQUESTS)
    if "duration" in told:
        found["duration_ms"] = duration_ms(told["duration"])
    found["block_tokens"] = block_tokens(told.get("block_size"))
    return found


def rate_rps(text: str) -> float:
    """A rate in requests/s. Raises SetupError for a bad one."""
    return spelling.number(text, "--rate", LEAST_RATE_RPS, 1e6)


def duration_ms(text: str) -> float:
    """How long the trace is, ms. Raises SetupError for a bad duration or 0."""
    value = spelling.duration_ms(text, "--duration")
    if not value:
        raise SetupError("--duration: expected a time above 0, got 0")
    return value


def block_tokens(text: str | None) -> int:
    """The block size. Raises SetupError for a bad one."""
    return DEFAULT_BLOCK_TOKENS if text is None else spelling.token_count(text, "--block-size")
