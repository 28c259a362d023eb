"""SLO-based admission under overload: v3 section 7 (table 3, figures 9 and 10).

Load is SLO satisfaction. Prefill: the candidate's predicted TTFT over its SLO. Decode, of one instance: the larger of
its step time over the TBT SLO and its context tokens over its VRAM; 0 when it decodes nothing. A load above 1 rejects,
with the reason ``ttft``, ``tbt`` or ``vram``. The policies differ in when they look at decode, and at whom they count.
A request that has not joined a batch counts its prompt and one token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from mooncake_bench.api import Admission, Cluster, Columns, Request, Route

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64] | NDArray[np.int64]

UNTIL_COMPLETIONS = 20  # an EWMA of fewer decode times is not used
EWMA_WEIGHT = 0.1  # of the newest decode time; the first ten count alike


def prefill_reason(request: Request, route: Route, cluster: Cluster) -> str | None:
    """``ttft`` when the predicted TTFT exceeds its SLO, the request's own where it has one."""
    assert route.ttft_ms is not None, "the harness fills predictions in"
    return "ttft" if route.ttft_ms / (request.ttft_slo_ms or cluster.ttft_slo_ms) > 1 else None


class Batches(NamedTuple):
    """Requests and context tokens of each instance."""

    requests: Numbers
    tokens: Numbers

    def plus(self, columns: Columns, keep: NDArray[np.bool_] | None = None) -> Batches:
        """With the requests of ``columns`` (those of the mask ``keep``) added."""
        instance, tokens = columns.instance, columns.tokens
        if keep is not None:
            instance, tokens = instance[keep], tokens[keep]
        n = self.requests.size
        return Batches(
            self.requests + np.bincount(instance, minlength=n), self.tokens + np.bincount(instance, tokens, n)
        )

    def with_candidate(self, request: Request, route: Route) -> Batches:
        """With the candidate on the decode instance of its route."""
        requests, tokens = self.requests.copy(), self.tokens.copy()
        requests[route.decode] += 1
        tokens[route.decode] += request.input_tokens + 1
        return Batches(requests, tokens)

    def reason(self, cluster: Cluster, request: Request, only: int | None = None) -> str | None:
        """Why the mean load of the decode pool, or that of the instance ``only``, exceeds 1; None if it does not.

        By the TBT SLO of ``request``, where it has its own.
        """
        busy = np.flatnonzero(self.requests) if only is None else np.array([only])
        busy = busy[cluster.is_decode[busy]]  # one that takes no more requests has no load to tell
        among = np.count_nonzero(cluster.is_decode) if only is None else 1
        step = cluster.step_ms(self.requests, self.tokens)[busy] / (request.tbt_slo_ms or cluster.tbt_slo_ms)
        fill = self.tokens[busy] / cluster.vram_tokens[busy]
        if np.maximum(step, fill).sum() / among <= 1:
            return None
        return "tbt" if step.sum() >= fill.sum() else "vram"


def decoding_and_waiting(cluster: Cluster) -> Batches:
    """What each instance decodes or is about to: its batch, and the requests whose KV has arrived."""
    return Batches(cluster.decode_batch, cluster.decode_tokens).plus(cluster.waiting)


class Baseline(Admission):
    """Checks each stage as it starts: prefill at arrival, decode when the KV is there (the prefill is then lost)."""

    name = "baseline"

    def reject(self, request: Request, route: Route, cluster: Cluster) -> str | None:
        return prefill_reason(request, route, cluster)

    def reject_decode(self, request: Request, route: Route, cluster: Cluster) -> str | None:
        batches = decoding_and_waiting(cluster).with_candidate(request, route)
        return batches.reason(cluster, request, only=route.decode)


@dataclass
class Early(Baseline):
    """Checks both stages at arrival: the mean decode load counts who decodes or waits now, and the candidate.

    Requests still in prefill are not seen: the lag the paper blames for the swings of figures 9 and 10.
    ``recheck`` keeps the baseline's check at the decode instance as well; the paper does not say whether it stays.
    """

    name = "early"
    recheck: bool = False

    def reject(self, request: Request, route: Route, cluster: Cluster) -> str | None:
        reason = prefill_reason(request, route, cluster)
        if reason or not cluster.is_decode.any():  # in a prefill-only study nothing decodes
            return reason
        return self.batches(route, cluster).with_candidate(request, route).reason(cluster, request)

    def reject_decode(self, request: Request, route: Route, cluster: Cluster) -> str | None:
        return super().reject_decode(request, route, cluster) if self.recheck else None

    def batches(self, route: Route, cluster: Cluster) -> Batches:
        """Who is counted beside the candidate."""
        return decoding_and_waiting(cluster)


@dataclass
class Predictive(Early):
    """Checks both stages at arrival, decode at the moment the candidate's prefill is predicted to end.

    Every request is taken to decode for ``td`` (a duration, ms) from its join, its KV's arrival or its prefill's end,
    the last of them known: by then some have left, and some now in prefill have joined. ``ewma`` learns it from
    completed decodes (last join to finish) and acts as ``early`` until there are 20.
    """

    name = "predictive"
    td: float | Literal["ewma"] = "ewma"

    def __post_init__(self) -> None:
        if self.td != "ewma" and not self.td > 0:
            raise ValueError(f"td must be a duration above 0 or 'ewma', found {self.td}")

    def start(self, cluster: Cluster, rng: Generator) -> None:
        self._joined_ms: dict[int, float] = {}
        self._completions = 0
        self._ewma_ms = 0.0

    def on_event(self, kind: str, row: int, cluster: Cluster) -> None:
        if kind == "joined":
            self._joined_ms[row] = cluster.now_ms
        elif (joined_ms := self._joined_ms.pop(row, None)) is not None and kind == "finished":
            self._completions += 1
            weight = max(EWMA_WEIGHT, 1 / self._completions)
            self._ewma_ms += weight * (cluster.now_ms - joined_ms - self._ewma_ms)

    def batches(self, route: Route, cluster: Cluster) -> Batches:
        td_ms = self._ewma_ms if self.td == "ewma" else self.td
        if self.td == "ewma" and self._completions < UNTIL_COMPLETIONS:
            return super().batches(route, cluster)
        assert route.ttft_ms is not None, "the harness fills predictions in"
        then = cluster.now_ms + route.ttft_ms
        joined, waiting, promised = cluster.joined, cluster.waiting, cluster.promised
        staying = joined.since_ms + td_ms > then
        arriving = (promised.since_ms <= then) & (promised.since_ms + td_ms > then)
        about_to_join = waiting.since_ms + td_ms > then
        nobody = np.zeros_like(cluster.decode_batch)
        return Batches(nobody, nobody).plus(joined, staying).plus(waiting, about_to_join).plus(promised, arriving)


class _Live(NamedTuple):
    """An admitted request that has not ended; all floats, to become a row of an array."""

    decode: float  # instance
    prompt: float  # tokens
    steps: float  # decode steps in all
    since_ms: float  # when it joined, or when its prefill ended or is predicted to
    joined: float  # 1: in a batch

    @classmethod
    def admitted(cls, request: Request, route: Route, now_ms: float) -> _Live:
        assert request.output_tokens is not None, "the harness shows output lengths to an oracle"
        assert route.decode is not None, "the harness fills the decode instance in"
        assert route.ttft_ms is not None, "the harness fills predictions in"
        return cls(route.decode, request.input_tokens, request.output_tokens - 1, now_ms + route.ttft_ms, 0)


@dataclass
class PredictiveRequest(Early):
    """Request-level prediction, the paper's future work, by an oracle: it knows each request's output length.

    As ``predictive``, but a request decodes for its own number of steps at the current step time of its instance (an
    estimate: batches change), from its join, or from now if it has not joined. It keeps its own list of admitted
    requests, so it needs no length predictor and shows what the best one could reach.
    """

    name = "predictive-request"
    oracle = True

    def start(self, cluster: Cluster, rng: Generator) -> None:
        self._live: dict[int, _Live] = {}

    def reject(self, request: Request, route: Route, cluster: Cluster) -> str | None:
        reason = super().reject(request, route, cluster)
        if reason is None:
            self._live[request.row] = _Live.admitted(request, route, cluster.now_ms)
        return reason

    def on_event(self, kind: str, row: int, cluster: Cluster) -> None:
        if kind not in ("first_token", "joined"):
            self._live.pop(row, None)
        elif row in self._live:
            self._live[row] = self._live[row]._replace(since_ms=cluster.now_ms, joined=float(kind == "joined"))

    def batches(self, route: Route, cluster: Cluster) -> Batches:
        assert route.ttft_ms is not None, "the harness fills predictions in"
        then, n = cluster.now_ms + route.ttft_ms, cluster.decode_batch.size
        table = np.array(list(self._live.values()), dtype=np.float64).reshape(-1, len(_Live._fields))
        prompt, steps, since, joined = table[:, 1:].T
        decode = table[:, 0].astype(np.int64)
        step_ms = cluster.step_ms(np.maximum(cluster.decode_batch, 1), cluster.decode_tokens)[decode]
        begin = np.where(joined > 0, since, np.maximum(since, cluster.now_ms))
        stays = (steps > 0) & np.isfinite(step_ms)  # not: it has left, or its instance does not decode
        decoding_ms = np.multiply(steps, step_ms, out=np.zeros_like(steps), where=stays)
        there = stays & (begin <= then) & (begin + decoding_ms > then)
        done = np.minimum(np.where(joined > 0, (cluster.now_ms - since) / step_ms, 0), steps)
        return Batches(
            np.bincount(decode[there], minlength=n), np.bincount(decode[there], (prompt + 1 + done)[there], n)
        )
