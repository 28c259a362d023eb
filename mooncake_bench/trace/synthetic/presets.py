"""Workloads by name: the paper's own datasets as options of the generator, and the two bundled traces.

Lengths, cache ratios and Poisson arrivals are published (arXiv 2407.00079, Fig 11, 12 and 13; see "about"). Everything
else is our choice: coefficients of variation, how what is shared is spread, the rate and the number of requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import SetupError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mooncake_bench.trace.model import Trace

ALIASES = {"real-like": "toolagent-like"}  # the request count and mean lengths nearest to v3's real trace (Fig 13)


@dataclass(frozen=True)
class Preset:
    """Options of the generator under a name, and the published facts that they aim at."""

    name: str
    about: str
    options: Mapping[str, Any]
    input_tokens: float  # published means
    output_tokens: float
    hit_ratio_tokens: tuple[float, float]  # published: the infinite cache's token hits lie between


def _simulated(thousands: int) -> Preset:
    half = thousands * 1024 // 2
    return Preset(
        f"simulated-{thousands}k",
        f"v3 Fig 12: {thousands}k in, 512 out, 50 % cached",
        {"input": f"fixed:{half}", "output": "fixed:512", "share": (f"system:count=8,tokens={half}",)},
        thousands * 1024,
        512,
        (0.49, 0.50),
    )


PRESETS = (
    Preset(
        "arxiv-summarization-like",
        "v3 Fig 11: 8,088 in, 229 out, ~0 % cached",
        {"input": "lognormal:mean=8088,cv=0.5", "output": "lognormal:mean=229,cv=0.5", "share": ("none",)},
        8_088,
        229,
        (0.0, 0.01),
    ),
    Preset(
        "l-eval-like",
        "v3 Fig 11: 19,019 in, 72 out, > 80 % cached",
        {
            "input": "lognormal:mean=119,cv=0.5",
            "output": "lognormal:mean=72,cv=0.8",
            "share": ("documents:tokens=18900,cv=0.3,questions=8",),
            "requests": "4000",
        },
        19_019,
        72,
        (0.80, 0.90),
    ),
    *(_simulated(thousands) for thousands in (16, 32, 64, 128)),
)


def names() -> list[str]:
    """Every name that ``--preset`` takes."""
    return [item["name"] for item in listed()]


def listed() -> list[dict[str, str]]:
    """What each preset is, and the options that give the same workload."""
    from mooncake_bench.trace.synth import presets as bundled

    shown = [{"name": one.name, "about": one.about, "options": _spelled(one.options)} for one in PRESETS]
    made = [(name, "FAST'25-like, as the bundled trace") for name in bundled()]
    made += [(alias, f"the same as {name}") for alias, name in ALIASES.items()]
    return shown + [{"name": name, "about": about, "options": "takes --seed only"} for name, about in made]


def _spelled(options: Mapping[str, Any]) -> str:
    words = [(key, value) for key, given in options.items() for value in ([given] if isinstance(given, str) else given)]
    return " ".join(f"--{key} {value}" for key, value in words)


def find(name: str) -> Preset | None:
    """The preset of that name; None for one of the bundled generator. Raises SetupError for an unknown name."""
    known = names()
    if name not in known:
        raise SetupError(f"--preset: no preset {name!r}{nearest(name, known)}; known: {', '.join(known)}")
    return next((preset for preset in PRESETS if preset.name == name), None)


def bundled(name: str, seed: int) -> Trace:
    """The trace of one of the bundled generator's presets."""
    from mooncake_bench.trace.synth import synthesize

    return synthesize(ALIASES.get(name, name), seed)
