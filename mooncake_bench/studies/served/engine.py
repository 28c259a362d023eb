"""One coupled serving instance, step by step: continuous batching with chunked prefill, as vLLM schedules it.

Every step has room for so many tokens. Sequences that decode take one each; what is left goes to prompts, first come
first served, a prompt that does not fit continuing in the next step, and a new one starting only while fewer than the
most sequences run. A prompt's first token is there when the step of its last chunk ends. Memory never runs short:
the peak of KVCache tokens is counted for the caller to judge.

What a step takes, with n prompt tokens in S token^2 of attention beside B decoding sequences of T tokens in all:

    n = 0    f(B) + c_d T + o_dec                                    E2: a decode step
    B = 0    E(n, S) + o_pre a prompt that starts                    E1: a prefill
    else     max(E(n + B, S), f(B) + c S) + c_d T + o_dec + o_pre a prompt that starts

In a mixed step one matrix product takes all n + B tokens and reads the weights once, so the two floors are not added:
the B tokens ride along in E, and only what attention reads is added. It is never less than the decode step in it. An
engine that serves one request at a time so takes exactly what a replay takes for a prefill and its decode steps.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from math import inf, sqrt
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mooncake_bench.hardware.analytic import Coefficients, EngineOverhead

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Limits:
    """What a step may hold; vLLM's own defaults on a GPU of 70 GB or more."""

    batched_tokens: int = 8192
    sequences: int = 256
    ahead: bool = True
    """A step is made up while the one before runs (asynchronous scheduling): who comes meanwhile waits a step more."""

    def __post_init__(self) -> None:
        """Raises SetupError where every sequence could not decode in one step, as vLLM does."""
        if not 1 <= self.sequences <= self.batched_tokens:
            raise SetupError(
                f"--max-seqs {self.sequences} with --max-batched-tokens {self.batched_tokens}: expected at least 1 "
                "sequence, and a token a step for each; lower the one or raise the other"
            )


@dataclass(frozen=True)
class Work:
    """Requests in the order of their arrival; columns of one length."""

    arrival_ms: Sequence[float]
    input_tokens: Sequence[int]
    output_tokens: Sequence[int]
    cached_tokens: Sequence[int]
    """Of the prompt, found in a prefix cache: attended to, not computed; less than the prompt."""


@dataclass(frozen=True)
class Answers:
    """When each request got its tokens."""

    step_ends_ms: Floats
    """(steps,) The clock at the end of each step."""
    first_step: Ints
    """(N,) The step that gave each request its first token; from then on it gets one a step."""
    output_tokens: Ints
    peak_kv_tokens: int
    most_sequences: int
    """Running at once."""

    def first_ms(self) -> Floats:
        """(N,) The moment of each first token."""
        moments: Floats = self.step_ends_ms[self.first_step]
        return moments

    def last_ms(self) -> Floats:
        """(N,) The moment of each last token."""
        moments: Floats = self.step_ends_ms[self.first_step + self.output_tokens - 1]
        return moments

    def gaps_ms(self, request: int) -> Floats:
        """The gaps between one request's tokens."""
        first = self.first_step[request]
        moments = self.step_ends_ms[first : first + self.output_tokens[request]]
        return np.diff(moments)


class StepCost:
    """Durations of steps [ms] by E1 to E3 and the rule above; a sequence's context holds the token that it decodes."""

    def __init__(self, coefficients: Coefficients, overhead: EngineOverhead, sequences: int) -> None:
        """``sequences``: the most that decode in one step."""
        self._c = coefficients
        self.token_ms = coefficients.decode_token_ms
        self.overhead = overhead
        self._decode = [self._flat(batch) for batch in range(sequences + 1)]

    def under(self, overhead: EngineOverhead) -> StepCost:
        """The same with another overhead."""
        other = copy(self)
        other.overhead = overhead
        return other

    def step_ms(self, new: int, attended: float, starting: int, batch: int, context: int) -> float:
        """One step: ``new`` = n, ``attended`` = S, ``starting`` prompts begin, ``batch`` = B, ``context`` = T."""
        time = starting * self.overhead.prefill_ms
        if new:
            time += self._products(new + batch, batch) + self._c.prefill_token2_ms * attended
        if batch:
            time += self.token_ms * context + self.overhead.decode_ms
            if not new:
                time += self._decode[batch]
        return time

    def _products(self, tokens: int, batch: int) -> float:
        """E1 without attention, for the tokens of prompts and decoding sequences together; at least f(B)."""
        c = self._c
        linear = c.prefill_token_ms * tokens
        n2, w2 = float(tokens * tokens), c.prefill_late_tokens * c.prefill_late_tokens
        late = c.prefill_late_ms * n2 / (n2 + w2)
        products = sqrt(c.prefill_floor_ms * c.prefill_floor_ms + linear * linear) + c.prefill_constant_ms + late
        return max(products, self._decode[batch]) if batch else products

    def _flat(self, batch: int) -> float:
        """f(B) of E2."""
        c = self._c
        roof = sqrt(sqrt(c.decode_floor_ms**4 + (c.decode_roof_ms * batch) ** 4))
        return roof + c.decode_sequence_ms * batch + c.decode_root_ms * sqrt(batch)


def serve(work: Work, cost: StepCost, limits: Limits) -> Answers:
    """Serve all of ``work``, from 0 ms on. Raises SetupError where a step would take no time."""
    return _Instance(work, cost, limits).run()


class _Instance:
    """The state between two steps."""

    def __init__(self, work: Work, cost: StepCost, limits: Limits) -> None:
        self.work, self.cost, self.limits = work, cost, limits
        self.clock = 0.0
        self.seen = 0.0  # who came until then may start in the next step
        self.ends: list[float] = []
        self.first = [0] * len(work.arrival_ms)
        self.next = 0  # request to arrive
        self.chunked = -1  # request whose prompt is half done
        self.done = 0  # tokens of it
        self.running = self.batch = self.context = 0
        self.kv = self.peak = self.most = 0
        self.leaving: dict[int, list[int]] = {}  # step -> requests that get their last token in it

    def run(self) -> Answers:
        arrivals = self.work.arrival_ms
        while self.running or self.next < len(arrivals):
            if not self.running:
                self.clock = self.seen = max(self.clock, arrivals[self.next])
            if self.chunked < 0:
                self._decode_on()
            self._step()
        outputs = np.asarray(self.work.output_tokens, dtype=np.int64)
        return Answers(np.array(self.ends), np.array(self.first, dtype=np.int64), outputs, self.peak, self.most)

    def _step(self) -> None:
        step = len(self.ends)
        new, attended, starting, prompted = self._admit()
        duration = self.cost.step_ms(new, attended, starting, self.batch, self.context)
        if duration <= 0:
            raise SetupError(
                f"an engine step of {new} prompt tokens and {self.batch} decoding sequences would take {duration:g} "
                "ms: expected more than 0; raise the engine's prefill_ms or decode_ms"
            )
        start, self.clock = self.clock, self.clock + duration
        self.seen = start if self.limits.ahead else self.clock
        self.ends.append(self.clock)
        self.context += self.batch
        self.kv += self.batch
        self._leave(step)
        for request in prompted:
            self._start_decoding(request, step)

    def _decode_on(self) -> None:
        """Steps in which nothing but decoding can happen, up to one that a request leaves in or may start in."""
        arrivals, leaving, batch, step = self.work.arrival_ms, self.leaving, self.batch, len(self.ends)
        waits = self.next < len(arrivals) and self.running < self.limits.sequences
        arrival = arrivals[self.next] if waits else inf
        flat = self.cost.step_ms(0, 0.0, 0, batch, 0)
        token = self.cost.token_ms
        if not batch or flat <= 0:  # a full step raises the error
            return
        while step not in leaving and self.seen < arrival:
            start, self.clock = self.clock, self.clock + flat + token * self.context
            self.seen = start if self.limits.ahead else self.clock
            self.ends.append(self.clock)
            self.context += batch
            self.kv += batch
            step += 1

    def _admit(self) -> tuple[int, float, int, list[int]]:
        """Prompt tokens of this step, S of their attention, prompts that start, and requests whose prompt it ends."""
        work, room = self.work, self.limits.batched_tokens - self.batch
        new, attended, starting = 0, 0.0, 0
        prompted = []
        while room > 0 and (self.chunked >= 0 or self._takes_another()):
            if self.chunked < 0:
                self.chunked, self.next = self.next, self.next + 1
                self.done = work.cached_tokens[self.chunked]
                self.kv += self.done
                self.running += 1
                starting += 1
            chunk = min(room, work.input_tokens[self.chunked] - self.done)
            attended += chunk * (self.done + 0.5 * chunk)
            new += chunk
            room -= chunk
            self.done += chunk
            if self.done == work.input_tokens[self.chunked]:
                prompted.append(self.chunked)
                self.chunked = -1
        self.kv += new
        self.peak = max(self.peak, self.kv)
        self.most = max(self.most, self.running)
        return new, attended, starting, prompted

    def _takes_another(self) -> bool:
        arrivals = self.work.arrival_ms
        there = self.next < len(arrivals) and arrivals[self.next] <= self.seen
        return there and self.running < self.limits.sequences

    def _start_decoding(self, request: int, step: int) -> None:
        """Its first token is there; it decodes from the next step on, unless that token was all."""
        self.first[request] = step
        more = self.work.output_tokens[request] - 1
        self.batch += 1
        self.context += self.work.input_tokens[request] + 1
        self.leaving.setdefault(step + more, []).append(request)
        if not more:
            self._leave(step)

    def _leave(self, step: int) -> None:
        for request in self.leaving.pop(step, ()):
            held = self.work.input_tokens[request] + self.work.output_tokens[request]
            self.running -= 1
            self.batch -= 1
            self.context -= held
            self.kv -= held - 1  # the last token is never read
