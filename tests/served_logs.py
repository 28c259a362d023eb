"""Served logs for tests: a slow engine of its own, and its answers in the formats that real tools write."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_bench.hardware.analytic import Coefficients


@dataclass
class Request:
    """One request while it is served: how far its prompt is, and when it got its tokens."""

    arrival_ms: float
    prompt: int
    answer: int
    done: int = 0
    started: bool = False
    token_ms: list[float] = field(default_factory=list)

    @property
    def decoding(self) -> bool:
        return bool(self.token_ms) and len(self.token_ms) < self.answer

    @property
    def waiting(self) -> bool:
        return not self.token_ms


def requests(count: int, gap_ms: float, seed: int, longest: int = 600) -> list[Request]:
    """Random ones, ``gap_ms`` apart in the mean."""
    drawn = random.Random(seed)
    now, made = 0.0, []
    for _ in range(count):
        made.append(Request(now, drawn.randint(20, longest), drawn.randint(2, 60)))
        now += drawn.expovariate(1 / gap_ms)
    return made


def step_ms(c: Coefficients, o_pre: float, o_dec: float, chunks: Sequence[tuple[int, int]], decoding: list[Request],
            new: int) -> float:  # fmt: skip
    """The rule of a step, written anew: ``chunks`` are (tokens done before, tokens), ``new`` prompts start."""
    n, b = sum(chunk for _, chunk in chunks), len(decoding)
    attention = sum(c.prefill_token2_ms * (done * chunk + chunk**2 / 2) for done, chunk in chunks)
    reading = c.decode_token_ms * sum(r.prompt + len(r.token_ms) for r in decoding)
    flat = (c.decode_floor_ms**4 + (c.decode_roof_ms * b) ** 4) ** 0.25
    flat += c.decode_sequence_ms * b + c.decode_root_ms * sqrt(b)
    late = c.prefill_late_ms * (n + b) ** 2 / ((n + b) ** 2 + c.prefill_late_tokens**2)
    products = sqrt(c.prefill_floor_ms**2 + (c.prefill_token_ms * (n + b)) ** 2) + c.prefill_constant_ms + late
    if not chunks:
        return flat + reading + o_dec
    if not decoding:
        return products + attention + new * o_pre
    return max(products, flat) + attention + reading + o_dec + new * o_pre


def naive(work: list[Request], cost: Callable[..., float], tokens: int, most: int, *, ahead: bool) -> list[float]:
    """Serve ``work`` in place, looking at every request in every step; ``cost(chunks, decoding, new)``. Step ends."""
    clock, previous = 0.0, None
    ends: list[float] = []
    while any(len(r.token_ms) < r.answer for r in work):
        active = [r for r in work if r.started and len(r.token_ms) < r.answer]
        if not active:
            clock = max(clock, min(r.arrival_ms for r in work if not r.started))
            previous = None
        known = previous if ahead and previous is not None else clock
        decoding = [r for r in active if r.decoding]
        room, new, chunks, fed = tokens - len(decoding), 0, [], []
        running = len(active)
        for r in sorted((r for r in work if r.waiting), key=lambda r: (not r.started, r.arrival_ms)):
            if room <= 0 or (not r.started and (r.arrival_ms > known or running >= most)):
                break
            if not r.started:
                r.started, running, new = True, running + 1, new + 1
            chunk = min(room, r.prompt - r.done)
            chunks.append((r.done, chunk))
            fed.append((r, chunk))
            room -= chunk
        previous, clock = clock, clock + cost(chunks, decoding, new)
        ends.append(clock)
        for r in decoding:
            r.token_ms.append(clock)
        for r, chunk in fed:
            r.done += chunk
            if r.done == r.prompt:
                r.token_ms.append(clock)
    return ends


def vllm_json(work: Sequence[Request], failed: int = 0) -> dict[str, Any]:
    """As ``vllm bench serve --save-result --save-detailed`` saves it: seconds; the clock starts anywhere."""
    gaps = [[(b - a) / 1e3 for a, b in zip(r.token_ms, r.token_ms[1:], strict=False)] for r in work]
    return {
        "backend": "vllm",
        "completed": len(work),
        "request_throughput": 1.0,
        "input_lens": [r.prompt for r in work] + [9] * failed,
        "output_lens": [r.answer for r in work] + [0] * failed,
        "ttfts": [(r.token_ms[0] - r.arrival_ms) / 1e3 for r in work] + [0.0] * failed,
        "itls": gaps + [[]] * failed,
        "start_times": [5000 + r.arrival_ms / 1e3 for r in work] + [5000.0] * failed,
        "generated_texts": [""] * (len(work) + failed),
        "errors": [""] * len(work) + ["connection reset"] * failed,
    }


def aiperf_lines(work: Sequence[Request]) -> str:
    """As aiperf's profile_export.jsonl: ns since 1970, metrics with units."""
    lines = []
    for i, r in enumerate(work):
        start = 1_759_813_207_000_000_000 + round(r.arrival_ms * 1e6)
        metrics = {
            "input_sequence_length": (r.prompt, "tokens"),
            "output_sequence_length": (r.answer, "tokens"),
            "time_to_first_token": (r.token_ms[0] - r.arrival_ms, "ms"),
            "request_latency": (r.token_ms[-1] - r.arrival_ms, "ms"),
            "inter_chunk_latency": ([b - a for a, b in zip(r.token_ms, r.token_ms[1:], strict=False)], "ms"),
        }
        shown = {name: {"value": value, "unit": unit} for name, (value, unit) in metrics.items()}
        meta = {"session_num": i, "request_start_ns": start, "was_cancelled": False, "benchmark_phase": "profiling"}
        lines.append(json.dumps({"metadata": meta, "metrics": shown, "error": None}))
    return "\n".join(lines) + "\n"


def llmservingsim_lines(work: Sequence[Request], handover_ms: float) -> str:
    """As LLMServingSim records them: arrival by a clock of its own, the rest by the engine's, seconds."""
    lines = []
    for i, r in enumerate(work):
        moments = {"queued_ts": r.arrival_ms + handover_ms, "scheduled_ts": r.token_ms[0] - 1,
                   "first_token_ts": r.token_ms[0], "last_token_ts": r.token_ms[-1]}  # fmt: skip
        record = {"request_id": f"r{i}", "input_toks": r.prompt, "output_toks": r.answer,
                  "arrival_time": 1.7e9 + r.arrival_ms / 1e3}  # fmt: skip
        lines.append(json.dumps(record | {name: 400 + moment / 1e3 for name, moment in moments.items()}))
    return "\n".join(lines) + "\n"
