"""arXiv 2407.00079 (v3), figure 7: storing a prompt's KVCache after its prefill, and layer by layer beside it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.hardware.links import load_link
from mooncake_bench.report import plots
from mooncake_bench.report.sheets import Sheet
from mooncake_bench.sim.costs import cost_of
from mooncake_bench.sim.setup import Setup
from mooncake_bench.studies import replays
from mooncake_bench.studies.reproduce.outcome import CLOSE, Claim, Result, Row
from mooncake_bench.studies.validate.v3_fig7 import LINK, MODEL
from mooncake_bench.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mooncake_bench.studies.reproduce.sources import Traces

ID = "v3-F7"
TITLE = "storing KVCache after a prefill or layer by layer beside it"
SOURCE = "arXiv 2407.00079v3, figure 7, digitised"

LENGTHS = (8_000, 16_000, 32_000, 64_000, 128_000)  # tokens of the prompt
PUBLISHED = {  # seconds that storing adds
    "serialised": (0.1106, 0.1210, 0.2302, 0.4224, 0.8656),
    "overlapped": (0.1000, 0.1000, 0.1196, 0.1000, 0.1000),
}
WORDS = {"serialised": "serialised", "overlapped": "layer by layer"}
CHOSEN = 49.0  # GB/s between GPU and host: what the serialised curve rises by
RATES = (10.0, 20.0, 30.0, CHOSEN, 102.0)  # tried
FLAT_S = 0.02  # the published layer-wise times differ by no more
PART = 1 / 8  # of the serialised time, at the longest prompt: no more is left of it there
PAUSE_MS = 1e6  # between prompts: each is alone

Stores = dict[float, dict[str, dict[int, float]]]  # by GB/s, way and tokens: milliseconds that storing adds


def run(traces: Traces) -> Result:
    """Five prompts, each alone on a node, whose KVCache is stored either way; needs no published trace."""
    alone = _prefills(Setup(cluster="1P+1D", model=MODEL))
    stores: Stores = {rate: {way: _stores(alone, way, rate) for way in PUBLISHED} for rate in RATES}
    return Result(
        rows=tuple(_rows(stores)),
        claims=tuple(_claims(stores)),
        used=(),
        parameters=tuple(_parameters(stores)),
        notes=tuple(_notes(stores)),
        sheets=(_sheet(stores),),
        draw=partial(_draw, stores),
        measured=tuple(
            {"gbytes_per_s": rate, "way": way, "tokens": tokens, "store_ms": ms}
            for rate, ways in stores.items()
            for way, each in ways.items()
            for tokens, ms in each.items()
        ),
    )


# ---- measuring


def _prefills(setup: Setup) -> dict[int, float]:
    """Milliseconds that each prompt's prefill takes, nothing of it cached."""
    trace = Trace.of(
        [(i * PAUSE_MS, tokens, 2, _blocks(i, tokens)) for i, tokens in enumerate(LENGTHS)], name="prompts"
    )
    replay = replays.whole(trace, setup)
    spent = (replay.columns["first_token_ps"] - replay.columns["start_ps"]) / 1e9
    return dict(zip(LENGTHS, spent.tolist(), strict=True))


def _blocks(prompt: int, tokens: int) -> range:
    """Blocks of 512 tokens that no other prompt has."""
    return range(1000 * prompt, 1000 * prompt + -(-tokens // 512))


def _stores(alone: Mapping[int, float], way: str, rate: float) -> dict[int, float]:
    """What storing adds to each prefill [ms]."""
    found = _prefills(Setup(cluster="1P+1D", model=MODEL, prefill_layers=way, dram_gbytes_per_s=rate))
    return {tokens: found[tokens] - alone[tokens] for tokens in LENGTHS}


# ---- what to say


def _rows(stores: Stores) -> Iterator[Row]:
    for way, published in PUBLISHED.items():
        for tokens, seconds in zip(LENGTHS, published, strict=True):
            yield Row(WORDS[way], f"{tokens // 1000}k tokens", 1e3 * seconds, stores[CHOSEN][way][tokens], "ms")


def hides(serialised: Mapping[int, float], overlapped: Mapping[int, float]) -> bool:
    """Whether an eighth at most of the longest prompt's store is left when it goes layer by layer."""
    longest = max(serialised)
    return overlapped[longest] <= PART * serialised[longest]


def flat(times: Mapping[int, float]) -> bool:
    """Whether times [ms] differ by no more than the published layer-wise ones do."""
    return max(times.values()) - min(times.values()) <= 1e3 * FLAT_S


def grows(times: Mapping[int, float]) -> bool:
    """Whether the longest prompt, sixteen times the shortest, takes at least as many times as long as published."""
    return times[LENGTHS[-1]] / times[LENGTHS[0]] >= PUBLISHED["serialised"][-1] / PUBLISHED["serialised"][0]


def _claims(stores: Stores) -> Iterator[Claim]:
    own = stores[CHOSEN]
    ends = {way: (own[way][LENGTHS[0]], own[way][LENGTHS[-1]]) for way in PUBLISHED}
    low, high = ends["serialised"]
    yield Claim(
        "storing after the prefill takes longer the longer the prompt",
        grows(own["serialised"]),
        f"{low:.0f} ms at 8k, {high:.0f} ms at 128k; {_range(stores, lambda each: grows(each['serialised']))}",
    )
    low, high = ends["overlapped"]
    yield Claim(
        "layer by layer it takes much the same for all of them",
        flat(own["overlapped"]),
        f"{low:.1f} ms at 8k, {high:.1f} ms at 128k; judged: {1e3 * FLAT_S:.0f} ms of difference; "
        f"{_range(stores, lambda each: flat(each['overlapped']))}",
    )
    yield Claim(
        "layer by layer hides nearly all of a long prompt's store (published: 88 %)",
        hides(own["serialised"], own["overlapped"]),
        f"{1 - ends['overlapped'][1] / ends['serialised'][1]:.1%} at 128k; "
        f"{_range(stores, lambda each: hides(each['serialised'], each['overlapped']))}",
    )


def _range(stores: Stores, holds: Callable[[Mapping[str, Mapping[int, float]]], bool]) -> str:
    held, not_held = (
        [f"{rate:g}" for rate, each in stores.items() if holds(each) is wanted] for wanted in (True, False)
    )
    if not held:
        return f"holds at none of {', '.join(not_held)} GB/s"
    return f"holds at {', '.join(held)} GB/s" + (f", not at {', '.join(not_held)}" if not_held else "")


def _parameters(stores: Stores) -> Iterator[str]:
    near = {rate: _near(each["serialised"]) for rate, each in stores.items()}
    counts = ", ".join(f"{count} at {rate:g}" for rate, count in near.items())
    yield (
        f"bandwidth from GPU to host, which v3 does not give: {CHOSEN:g} GB/s, by which the serialised curve rises; "
        f"of its five points within 10 %: {counts} GB/s"
    )
    yield f"model {MODEL} on a node a800; nothing cached, nothing else on the node"


def _near(serialised: Mapping[int, float]) -> int:
    pairs = zip(serialised.values(), PUBLISHED["serialised"], strict=True)
    return sum(abs(ms / 1e3 - seconds) <= CLOSE * seconds for ms, seconds in pairs)


def _notes(stores: Stores) -> Iterator[str]:
    link = load_link(LINK)
    yield (
        f"no trace is needed. The other way, host to GPU, F25-F14's nodes load at {link.gbytes_per_s:g} GB/s; at that "
        f"rate the longest store takes {stores[102.0]['serialised'][LENGTHS[-1]]:.0f} ms here, "
        f"{1e3 * PUBLISHED['serialised'][-1]:.0f} ms there: the serialised store is more than the copy"
    )
    own = stores[CHOSEN]
    per_gbyte, start = np.polyfit(_gbytes(), PUBLISHED["serialised"], 1)
    yield (
        f"published serialised times lie near {1e3 * start:.0f} ms + bytes / {1 / per_gbyte:.1f} GB/s, the shortest "
        "prompt's well above that line; ours have no constant"
    )
    missing = [1e3 * s - ms for s, ms in zip(PUBLISHED["overlapped"], own["overlapped"].values(), strict=True)]
    needed = _gbytes()[0] / cost_of(Setup(model=MODEL)).layers / PUBLISHED["overlapped"][0]
    yield (
        f"experiment: layer by layer the published times are {min(missing):.0f} to {max(missing):.0f} ms above ours at "
        f"{CHOSEN:g} GB/s, at every length. No bandwidth gives that: the last layer's store, which is all that is "
        f"left, takes 100 ms at 8k if it runs at {needed:.2f} GB/s, and then sixteen times that at 128k"
    )


def _gbytes() -> list[float]:
    size = cost_of(Setup(model=MODEL)).kv_bytes_per_token
    return [tokens * size / 1e9 for tokens in LENGTHS]


def _sheet(stores: Stores) -> Sheet:
    rows = []
    for way, published in PUBLISHED.items():
        rows.append((f"{WORDS[way]}, published", *(f"{1e3 * seconds:.0f}" for seconds in published)))
        rows += [
            (f"{WORDS[way]}, {rate:g} GB/s", *(f"{ms:.1f}" if ms < 10 else f"{ms:.0f}" for ms in each[way].values()))
            for rate, each in stores.items()
        ]
    headers = ("", *(f"{tokens // 1000}k" for tokens in LENGTHS))
    return Sheet("Milliseconds that storing adds to a prefill, by tokens", headers, tuple(rows), ())


# ---- the figure


def _draw(stores: Stores) -> Any:
    figure, [axes] = plots.figure(width_in=4.5)
    for i, (way, published) in enumerate(PUBLISHED.items()):
        places = [place - 0.2 + 0.4 * i for place in range(len(LENGTHS))]
        axes.bar(places, [ms / 1e3 for ms in stores[CHOSEN][way].values()], 0.36, color=plots.PALETTE[i],
                 label=f"{WORDS[way]}, ours at {CHOSEN:g} GB/s")  # fmt: skip
        axes.plot(places, published, color=plots.BOUND, linestyle="", marker="x+"[i], markersize=6,
                  label=f"{WORDS[way]}, published")  # fmt: skip
    axes.set_xticks(range(len(LENGTHS)), [f"{tokens // 1000}k" for tokens in LENGTHS])
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("tokens of the prompt")
    axes.set_ylabel("seconds that storing adds")
    axes.legend(loc="upper left")
    return figure
