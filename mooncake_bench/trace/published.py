"""What others have published about a trace, beside what is in it.

A trace is recognised by its content: its hash, or its counts and sums; never by a file's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Definition of the infinite-cache hit ratio -> (where it stands in ``infinite_cache``, what it is)
DEFINITIONS: dict[str, tuple[str, ...]] = {
    "hit tokens of all prompt tokens": ("hit_ratio_tokens",),
    "hit blocks of all blocks": ("hit_ratio_blocks",),
    "hit full blocks of all full blocks": ("hit_ratio_full_blocks",),
    "hit blocks over full blocks": ("hit_blocks_over_full_blocks",),
    "mean over requests of hit tokens": ("mean_request_hit_ratio_tokens",),
    "tokens, second half of requests": ("second_half", "hit_ratio_tokens"),
    "blocks, second half of requests": ("second_half", "hit_ratio_blocks"),
}
NO_DEFINITION = "the paper does not say what its ratio counts"


@dataclass(frozen=True)
class Known:
    """A published trace: how it is recognised, and what its publication says of it.

    ``sums`` are the sum of input tokens, of output tokens, and the number of blocks, exactly; where the file could not
    be counted, None: then the published means, to the nearest whole token, must be met.
    """

    name: str
    source: str
    requests: int
    input_mean: int
    output_mean: int
    hit_ratio: float
    sums: tuple[int, int, int] | None = None
    sha256: str | None = None  # Trace.sha256
    remark: str = ""

    def is_it(self, facts: dict[str, Any]) -> bool:
        """Whether the facts of a trace are this one's."""
        if facts["sha256"] == self.sha256:
            return True
        inputs, outputs, shared = facts["input_tokens"], facts["output_tokens"], facts["sharing"]
        if facts["requests"] != self.requests or facts["block_tokens"] != 512 or shared is None:
            return False
        if self.sums is not None:
            return (inputs["sum"], outputs["sum"], shared["blocks"]) == self.sums
        return (round(inputs["mean"]), round(outputs["mean"])) == (self.input_mean, self.output_mean)


KNOWN = (
    Known(
        name="Mooncake's conversation trace",
        source="FAST'25, Table 2",
        requests=12_031,
        input_mean=12_035,
        output_mean=343,
        hit_ratio=0.40,
        sums=(144_793_823, 4_122_048, 288_500),
        sha256="2543cc1b3834750afdb4ae6398040332b8094932160f43b92ccdd44a295877c1",
        remark="the definition that comes nearest here is not the one that comes nearest for the synthetic trace",
    ),
    Known(
        name="Mooncake's synthetic trace",
        source="FAST'25, Table 2",
        requests=3_993,
        input_mean=15_325,
        output_mean=149,
        hit_ratio=0.66,
        sums=(61_194_628, 595_432, 121_877),
        sha256="a05e5e951944d01e67efc838abe43481c282c6f3abc06d8f8e244d6b12d0f5aa",
        remark="the definition that comes nearest here is not the one that comes nearest for the conversation trace",
    ),
    Known(
        name="Mooncake's arXiv trace",
        source="arXiv v3, Table 1 (infinite capacity)",
        requests=23_608,
        input_mean=7_590,
        output_mean=182,
        hit_ratio=0.51,
        sums=(202_791_701, 4_299_817, 409_356),
        remark="the text is of 9 July 2024, the file was replaced on 31 July 2024: it is not the trace of that table",
    ),
    Known(
        name="Mooncake's tool & agent trace",
        source="FAST'25, Table 2",
        requests=23_608,
        input_mean=8_596,
        output_mean=182,
        hit_ratio=0.59,
    ),
)


def published(facts: dict[str, Any]) -> dict[str, Any] | None:
    """What is published of the trace with these facts (of :func:`~mooncake_bench.trace.stats.info`), or None.

    ``definitions`` holds each definition of the hit ratio, the nearest to the published value first.
    """
    known = next((known for known in KNOWN if known.is_it(facts)), None)
    if known is None:
        return None
    ratios = [(text, hit_ratio(facts["infinite_cache"], text)) for text in DEFINITIONS]
    ranked = sorted((abs(value - known.hit_ratio), text, value) for text, value in ratios if value is not None)
    return {
        "name": known.name,
        "source": known.source,
        "requests": known.requests,
        "input_tokens_mean": known.input_mean,
        "output_tokens_mean": known.output_mean,
        "hit_ratio": known.hit_ratio,
        "definitions": [
            {"definition": text, "hit_ratio": value, "minus_published": value - known.hit_ratio}
            for _, text, value in ranked
        ],
        "nearest": _nearest(known, ranked),
        "remark": known.remark or None,
    }


def hit_ratio(infinite_cache: dict[str, Any], definition: str) -> float | None:
    """The infinite-cache hit ratio under one of :data:`DEFINITIONS`."""
    value: Any = infinite_cache
    for key in DEFINITIONS[definition]:
        value = value[key]
    ratio: float | None = value
    return ratio


def _nearest(known: Known, ranked: list[tuple[float, str, float]]) -> str:
    """One sentence: which definition comes nearest, and which others round to the published value as well."""
    _, text, value = ranked[0]
    points = (value - known.hit_ratio) * 100
    alike = [other for _, other, ratio in ranked[1:] if round(ratio, 2) == known.hit_ratio]
    also = f"; rounded to whole percents also: {', '.join(alike)}" if alike else ""
    miss = "" if round(value, 2) == known.hit_ratio else ", yet none rounds to it"
    return f"nearest to the published {known.hit_ratio:.0%}: {text}, {value:.1%} ({points:+.1f} points){miss}{also}"
