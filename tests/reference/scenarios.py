"""The rules as small cases that a person can count, as data: any engine can be held to them.

Costs unless said: a block has 4 tokens; prefill 1 ms a computed token; a decode step 10 ms + 1 ms a request; a token's
KV is 1 byte in 8 layers; a NIC moves 10 bytes a ms each way. So a prompt of 8 tokens is prefilled in 8 ms, streamed at
1 byte a ms meanwhile, and its last layer (8 / 8 = 1 byte) takes 0.1 ms more. Instance ids: prefill first, then decode.
Times are in ms; transfers end on a picosecond rounded up, so a check allows a few picoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mooncake_bench.api import Admission, Route, Router

from .state import Req


@dataclass
class Scripted(Router):
    """Routes as told (row -> Route), and notes what it sees."""

    name = "scripted"
    routes: dict[int, Route]
    seen: dict[int, dict[str, list[float]]] = field(default_factory=dict)

    def route(self, request, cluster):
        seen = {name: getattr(cluster, name).tolist() for name in VIEWED}
        for state in STATES:
            rows = sorted(zip(*getattr(cluster, state), strict=True), key=lambda row: row[1:])  # by time
            seen |= {f"{state}.{name}": [row[i].item() for row in rows] for i, name in enumerate(COLUMNS)}
        seen["cached_tokens"] = cluster.cached_tokens(request).tolist()
        seen["fetchable_tokens"] = cluster.fetchable_tokens(request).tolist()
        self.seen[request.row] = seen
        return self.routes.get(request.row, Route(0))


class ShortestFirst(Scripted):
    def order(self, instance, queue, cluster):
        lengths = [request.input_tokens for request in queue]
        return lengths.index(min(lengths))


VIEWED = ("queue_ms", "queue_requests", "decode_batch", "decode_tokens", "routed_tokens")
STATES = ("joined", "waiting", "promised")
COLUMNS = ("instance", "since_ms", "tokens")


@dataclass
class Rejecting(Admission):
    """Turns away the rows it was told, at the stage it was told."""

    name = "rejecting"
    at: dict[int, str]

    def reject(self, request, route, cluster):
        return "told" if self.at.get(request.row) == "arrival" else None

    def reject_prefill(self, request, route, cluster):
        return "told" if self.at.get(request.row) == "prefill" else None

    def reject_decode(self, request, route, cluster):
        return "told" if self.at.get(request.row) == "decode" else None


@dataclass
class Scenario:
    """``requests``: (arrival ms, input tokens, output tokens, blocks) of rows 0, 1, ..."""

    name: str
    requests: list[tuple[float, int, int, tuple[int, ...]]]
    expected: dict[int, dict[str, Any]]  # row -> column -> value; times in ms, without "_ps"
    tokens: dict[int, list[float]] = field(default_factory=dict)  # row -> every token's time, ms
    sees: dict[int, dict[str, list[float]]] = field(default_factory=dict)  # row -> what the router saw
    cluster: tuple[int, int] = (1, 1)
    routes: dict[int, Route] = field(default_factory=dict)
    reject: dict[int, str] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)
    pool_blocks: int = 100
    shortest_first: bool = False
    touch_order: str = "tail-first"
    admission: str = ""  # a bundled one instead of ``reject``
    ttft_slo_ms: float = 1000.0
    tbt_slo_ms: float = 100.0

    def trace(self) -> list[Req]:
        return [Req(i, round(at * 1e9), n, out, blocks) for i, (at, n, out, blocks) in enumerate(self.requests)]

    def costs(self) -> dict[str, Any]:
        return {"step_token_ms": 0.0, "nic": 10_000.0, "layers": 8, **self.cost, "instances": sum(self.cluster)}


INF = float("inf")
A, B = (1, 2), (3, 4)

SCENARIOS = [
    # E = 8; last layer 0.1; joins an idle instance at once; steps of 10 + 1 = 11.
    Scenario(
        "a request alone is prefilled, sent and decoded",
        [(0, 8, 3, A)],
        {0: {"status": "completed", "head": 0, "start": 0, "first_token": 8, "kv_arrival": 8.1, "join": 8.1,
             "second_token": 19.1, "end": 30.1, "computed_tokens": 8, "hit_tokens": 0, "predicted_ttft_ms": 8.0}},
        tokens={0: [8, 19.1, 30.1]},
    ),
    # Its stream is cancelled at 8: no arrival, no join.
    Scenario(
        "a one-token request ends at its first token",
        [(0, 8, 1, A)],
        {0: {"status": "completed", "first_token": 8, "kv_arrival": None, "join": None, "second_token": None,
             "end": 8}},
        tokens={0: [8]},
    ),
    # Both blocks hit: max(1, 8 - 8) = 1 token, 1 ms; stream at 8 bytes/ms, then the last layer's 1 byte: 0.1.
    Scenario(
        "a full hit still computes one token",
        [(0, 8, 1, A), (100, 8, 2, A)],
        {1: {"hit_blocks": 2, "hit_tokens": 8, "computed_tokens": 1, "first_token": 101, "kv_arrival": 101.1}},
    ),
    # n = 6 in 2 blocks: hits min(2*4, 6) = 6, computed 1, prefix 5: 1 + 5 * 0.5 = 3.5.
    Scenario(
        "a partial last block counts only its tokens and the prefix costs n minus computed",
        [(0, 6, 1, A), (100, 6, 1, A)],
        {0: {"first_token": 6}, 1: {"hit_blocks": 2, "hit_tokens": 6, "computed_tokens": 1, "first_token": 103.5}},
        cost={"prefix_token_ms": 0.5},
    ),
    # (1, 9, 3): 1 is there, 9 is not, 3 is there but after the miss: 4 tokens hit, 12 - 4 = 8 computed.
    Scenario(
        "hits stop at the first miss",
        [(0, 12, 1, (1, 2, 3)), (100, 12, 1, (1, 9, 3))],
        {1: {"hit_blocks": 1, "hit_tokens": 4, "computed_tokens": 8, "first_token": 108}},
    ),
    # Row 1 finds row 0's blocks promised: computes 1 token when its turn comes at 8. File order keeps row 0 first.
    Scenario(
        "a promised block is a hit on its own node",
        [(0, 8, 1, A), (0, 8, 1, A)],
        {0: {"head": 0, "first_token": 8}, 1: {"hit_tokens": 8, "computed_tokens": 1, "head": 8, "first_token": 9}},
        sees={1: {"queue_ms": [8, INF], "queue_requests": [1, 0], "cached_tokens": [8, 0], "fetchable_tokens": [0, 0]}},
    ),
    # At 1: promised, so cached but not fetchable. At 8 the prefill end goes before the arrival: ready, node idle.
    Scenario(
        "blocks become fetchable at the prefill's end, which precedes an arrival of the same instant",
        [(0, 8, 1, A), (1, 8, 1, A), (8, 8, 1, A)],
        {0: {"first_token": 8}, 1: {"end": 1, "status": "rejected"}, 2: {"status": "rejected"}},
        sees={1: {"cached_tokens": [8, 0, 0], "fetchable_tokens": [0, 0, 0], "queue_ms": [7, 0, INF]},
              2: {"cached_tokens": [8, 0, 0], "fetchable_tokens": [8, 0, 0], "queue_ms": [0, 0, INF]}},
        cluster=(2, 1),
        reject={1: "arrival", 2: "arrival"},
    ),
    # Row 2 at 2: remainder 6 + E(row 1) 4 = 10, so it heads at 12; predicted 10 + 4.
    Scenario(
        "the queue is first come, first served, and the view adds it up",
        [(0, 8, 1, A), (1, 4, 1, (3,)), (2, 4, 1, (4,))],
        {1: {"head": 8, "start": 8, "first_token": 12, "predicted_ttft_ms": 11.0},
         2: {"head": 12, "start": 12, "first_token": 16, "predicted_ttft_ms": 14.0}},
        sees={2: {"queue_ms": [10, INF], "queue_requests": [2, 0]}},
    ),
    # At 8 rows 1 (8 tokens) and 2 (4 tokens) wait: the short one goes first, 8..12, then 12..20.
    Scenario(
        "a router may order its queues",
        [(0, 8, 1, A), (1, 8, 1, B), (2, 4, 1, (5,))],
        {2: {"head": 8, "first_token": 12}, 1: {"head": 12, "first_token": 20}},
        shortest_first=True,
    ),
    # 8 bytes at 10 a ms: 0.8. Then 12 - 8 = 4 tokens. At 100.4: 0.4 of fetch + 4 of prefill. At 100.8 the fetched
    # blocks are ready, the new one promised, and the prefill has just begun.
    Scenario(
        "a fetch starts at routing and its blocks are ready when it ends",
        [(0, 8, 1, A), (100, 12, 1, (1, 2, 3)), (100.4, 12, 1, (1, 2, 3)), (100.8, 12, 1, (1, 2, 3))],
        {1: {"hit_blocks": 2, "hit_tokens": 8, "fetched_tokens": 8, "computed_tokens": 4, "head": 100, "start": 100.8,
             "first_token": 104.8, "predicted_ttft_ms": 4.8}},
        sees={2: {"queue_ms": [0, 4.4, INF], "cached_tokens": [8, 12, 0], "fetchable_tokens": [8, 0, 0]},
              3: {"queue_ms": [0, 4.0, INF], "cached_tokens": [8, 12, 0], "fetchable_tokens": [8, 8, 0]}},
        cluster=(2, 1),
        routes={1: Route(1, fetch_from=0)},
        reject={2: "arrival", 3: "arrival"},
    ),
    # Row 1 keeps node 1 busy till 108; the fetch is over at 101 + 0.8 = 101.8, long before: no idling. Predicted:
    # remainder 7, uncontended fetch 0.8, 4 tokens.
    Scenario(
        "a fetch runs while its request queues",
        [(0, 8, 1, A), (100, 8, 1, B), (101, 12, 1, (1, 2, 5))],
        {1: {"first_token": 108}, 2: {"head": 108, "start": 108, "first_token": 112, "fetched_tokens": 8,
                                      "predicted_ttft_ms": 7 + 0.8 + 4}},
        cluster=(2, 1),
        routes={1: Route(1), 2: Route(1, fetch_from=0)},
    ),
    # Two fetches of 8 bytes out of node 0 share its 10 bytes/ms: 1.6 each. At 100.8 half is done: 4 bytes at 5 = 0.8
    # left, + 4 of prefill. Predictions are uncontended (0.8 + 4).
    Scenario(
        "two fetches from one holder share its egress",
        [(0, 8, 1, A), (100, 12, 1, (1, 2, 3)), (100, 12, 1, (1, 2, 4)), (100.8, 4, 1, (9,))],
        {1: {"start": 101.6, "first_token": 105.6, "predicted_ttft_ms": 4.8},
         2: {"start": 101.6, "first_token": 105.6, "predicted_ttft_ms": 4.8}},
        sees={3: {"queue_ms": [0, 4.8, 4.8, INF]}},
        cluster=(3, 1),
        routes={1: Route(1, fetch_from=0), 2: Route(2, fetch_from=0)},
        reject={3: "arrival"},
    ),
    # Egress of 0 from 100: row 1's stream asks 8 bytes / 8 ms = 1, so the fetch of 36 bytes gets 9: 4 ms. Row 2
    # computes 4 tokens, 104..108, streaming 40 bytes at up to 10; ingress of the decode node leaves it 9: 36 sent,
    # max(4, 40/8) = 5 left. At 108 both are uncapped, 5 each: row 1's last byte takes 0.2; then row 2 has 4 bytes at
    # 10: 0.4.
    Scenario(
        "capped streams leave the rest to others, max-min",
        [(0, 36, 1, tuple(range(1, 10))), (100, 8, 2, (11, 12)), (100, 40, 2, tuple(range(1, 11)))],
        {1: {"first_token": 108, "kv_arrival": 108.2}, 2: {"start": 104, "first_token": 108, "kv_arrival": 108.6}},
        cluster=(2, 1),
        routes={1: Route(0), 2: Route(1, fetch_from=0)},
    ),
    # 0.5 bytes/ms: 4 of 8 bytes sent in 8 ms, 4 left (more than the last layer's 1): 8 ms more.
    Scenario(
        "a stream slower than its prefill sends the rest afterwards",
        [(0, 8, 2, A)],
        {0: {"first_token": 8, "kv_arrival": 16, "second_token": 27}},
        cost={"nic": 500.0},
    ),
    # Context 8 + 1 = 9 at the first step: 10 + 1 + 0.9 = 11.9, then 12.0: 8.1, 20.0, 32.0.
    Scenario(
        "a step costs its batch and its context, which grows",
        [(0, 8, 3, A)],
        {0: {"join": 8.1, "second_token": 20.0, "end": 32.0}},
        tokens={0: [8, 20.0, 32.0]},
        cost={"step_token_ms": 0.1},
    ),
    # Row 1's KV arrives at 16.6, in row 0's first step (8.1 to 19.1): joins at 19.1, then steps of 12.
    Scenario(
        "a request joins at the next step boundary",
        [(0, 8, 4, A), (8.5, 8, 3, B)],
        {0: {"join": 8.1, "end": 43.1}, 1: {"kv_arrival": 16.6, "join": 19.1, "second_token": 31.1, "end": 43.1}},
        tokens={0: [8, 19.1, 31.1, 43.1], 1: [16.5, 31.1, 43.1]},
        cluster=(2, 1),
        routes={1: Route(1)},
    ),
    # Both KVs arrive at 8.2 (two last bytes share the ingress). 9 + 9 + 2 = 20 fits, they join together: step of 12.
    # At 20.2: 10 + 10 + 2 = 22 > 20: row 1 is preempted. Row 0: 11 more, leaves at 31.2; row 1 (context 10) is back:
    # 42.2.
    Scenario(
        "simultaneous arrivals join together and the last joined is preempted when the context outgrows VRAM",
        [(0, 8, 3, A), (0, 8, 3, B), (25, 4, 1, (9,))],
        {0: {"join": 8.2, "end": 31.2, "preemptions": 0}, 1: {"join": 8.2, "end": 42.2, "preemptions": 1}},
        tokens={0: [8, 20.2, 31.2], 1: [8, 20.2, 42.2]},
        sees={2: {"decode_batch": [0, 0, 1], "decode_tokens": [0, 0, 10], "routed_tokens": [0, 0, 10],
                  "waiting.instance": [2], "waiting.tokens": [10]}},
        cluster=(2, 1),
        routes={1: Route(1)},
        reject={2: "arrival"},
        cost={"vram": 20},
    ),
    # VRAM 19. Row 0 decodes from 8.1, boundaries 19.1, 30.1, 41.1, 52.1 (end). Row 1 (context 9): 10 + 9 + 2 > 19
    # waits. Row 2 (context 3, there from 20.525): at 30.1 11 + 3 + 2 = 16 would fit, but it does not overtake. At
    # 52.1 both join (9 + 3 + 2 = 14), one step of 12.
    Scenario(
        "nobody overtakes in the line for VRAM",
        [(0, 8, 5, A), (10, 8, 2, B), (18.5, 2, 2, (5,))],
        {0: {"end": 52.1}, 1: {"kv_arrival": 18.1, "join": 52.1, "end": 64.1},
         2: {"kv_arrival": 20.525, "join": 52.1, "end": 64.1}},
        cluster=(3, 1),
        routes={1: Route(1), 2: Route(2)},
        cost={"vram": 19},
    ),
    # 9 + 1 > 9 even alone.
    Scenario(
        "what cannot run alone fails when first in line",
        [(0, 8, 3, A), (100, 4, 2, (5,))],
        {0: {"status": "failed", "first_token": 8, "kv_arrival": 8.1, "join": None, "end": 8.1, "preemptions": 0},
         1: {"status": "completed", "first_token": 104, "join": 104.05, "end": 115.05}},
        tokens={0: [8]},
        cost={"vram": 9},
    ),
    # VRAM 11: 9 + 1 fits, 10 + 1 fits, 11 + 1 does not: preempted at 30.1, first in line, cannot run: failed at once.
    Scenario(
        "a request that outgrows VRAM alone fails",
        [(0, 8, 9, A)],
        {0: {"status": "failed", "join": 8.1, "end": 30.1, "preemptions": 1}},
        tokens={0: [8, 19.1, 30.1]},
        cost={"vram": 11},
    ),
    # Loads before each (promised contexts n + 1): row 0: 0, 0 -> 1; row 1: 9, 0 -> 2; row 2: 9, 5 -> 2; row 3: 9, 10
    # -> 1.
    Scenario(
        "the default decode instance is the one with the least context routed to it",
        [(0, 8, 1, A), (1, 4, 1, (3,)), (2, 4, 1, (4,)), (3, 4, 1, (5,))],
        {0: {"decode_instance": 1}, 1: {"decode_instance": 2}, 2: {"decode_instance": 2}, 3: {"decode_instance": 1}},
        sees={3: {"routed_tokens": [0, 9, 10], "decode_tokens": [0, 0, 0]}},
        cluster=(1, 2),
    ),
    # Rows 0 and 1 are queued: their prefills end at 8 and 12. From 8 row 1's stream takes 1 of the 10 bytes/ms, so
    # row 0's last byte arrives at 8 + 1/9: it is on its way at 8.05. Row 0 steps 11 ms; row 1 came at 12.05, joined
    # at 19 + 1/9; at 30 row 0 has done one step, and the step of 12 ends at 31 + 1/9.
    Scenario(
        "the view knows promised and joined requests",
        [(0, 8, 9, A), (1, 4, 9, (3,)), (2, 4, 1, (9,)), (8.05, 4, 1, (9,)), (15, 4, 1, (9,)), (30, 4, 1, (9,))],
        {0: {"kv_arrival": 8 + 1 / 9}, 1: {"kv_arrival": 12.05, "join": 19 + 1 / 9}},
        sees={2: {"promised.since_ms": [8, 12], "promised.tokens": [9, 5], "promised.instance": [1, 1],
                  "routed_tokens": [0, 14]},
              3: {"promised.since_ms": [8, 12], "joined.tokens": [], "routed_tokens": [0, 14]},
              4: {"promised.tokens": [], "waiting.since_ms": [12.05], "waiting.tokens": [5],
                  "joined.since_ms": [8 + 1 / 9], "joined.tokens": [9], "routed_tokens": [0, 5]},
              5: {"joined.since_ms": [8 + 1 / 9, 19 + 1 / 9], "joined.tokens": [10, 5], "decode_tokens": [0, 15],
                  "decode_batch": [0, 2], "routed_tokens": [0, 0]}},
        reject={2: "arrival", 3: "arrival", 4: "arrival", 5: "arrival"},
    ),
    # Room for 2 blocks. (1, 2) touched tail first: 2 is the older, and gives way to 3. Then (1, 2) hits 1 block.
    Scenario(
        "a full pool gives up the tail of a prompt first",
        [(0, 8, 1, A), (100, 4, 1, (3,)), (200, 8, 1, A)],
        {2: {"hit_blocks": 1, "computed_tokens": 4, "first_token": 204}},
        pool_blocks=2,
    ),
    # Head first, 1 is the older and gives way: nothing is left of the prefix.
    Scenario(
        "touched head first, the head goes first",
        [(0, 8, 1, A), (100, 4, 1, (3,)), (200, 8, 1, A)],
        {2: {"hit_blocks": 0, "computed_tokens": 8, "first_token": 208}},
        pool_blocks=2,
        touch_order="head-first",
    ),
    # Room for 1 block: 1 is stored and pinned, 2 is refused.
    Scenario(
        "storing stops at the first refusal",
        [(0, 8, 1, A), (100, 8, 1, A)],
        {1: {"hit_blocks": 1, "computed_tokens": 4, "first_token": 104}},
        pool_blocks=1,
    ),
    # Row 1 comes while row 0's two blocks are pinned: not stored. Row 2 finds no 3, takes 2's slot; row 3 finds 1.
    Scenario(
        "pinned blocks are not evicted",
        [(0, 8, 1, A), (1, 4, 1, (3,)), (100, 4, 1, (3,)), (200, 8, 1, A)],
        {1: {"first_token": 12}, 2: {"hit_blocks": 0, "first_token": 104}, 3: {"hit_blocks": 1, "first_token": 204}},
        pool_blocks=2,
    ),
    # Node 1's two slots are pinned by row 1 until 107: nothing of row 2 is stored, yet its fetched 8 tokens are used:
    # 107 + 4 = 111. Row 3 finds nothing on node 1.
    Scenario(
        "a fetched prefix that was not stored is still used",
        [(0, 8, 1, A), (99, 8, 1, (8, 9)), (100, 12, 1, (1, 2, 3)), (200, 8, 1, A)],
        {2: {"head": 107, "hit_tokens": 8, "fetched_tokens": 8, "computed_tokens": 4, "first_token": 111},
         3: {"hit_blocks": 0, "first_token": 208}},
        cluster=(2, 1),
        routes={1: Route(1), 2: Route(1, fetch_from=0), 3: Route(1)},
        pool_blocks=2,
    ),
    # 1 byte/ms. Fetch of 8 bytes from 100. Row 2 (4 tokens, node 0, 101..105): (1, 2) are pinned, 3 is not stored;
    # its stream asks 4 / 4 = 1, so both get 0.5 from 101: fetch 1 + 2 = 3 by 105, stream 2 of 4; both at 0.5 until
    # 109 when the stream is through; the fetch has 8 - 5 = 3 bytes left: 112. Row 1 computes 4: 116. Row 3 still hits
    # both.
    Scenario(
        "the source of a fetch is pinned until it ends",
        [(0, 8, 1, A), (100, 12, 1, (1, 2, 5)), (101, 4, 2, (3,)), (200, 8, 1, A)],
        {1: {"start": 112, "first_token": 116}, 2: {"first_token": 105, "kv_arrival": 109},
         3: {"hit_blocks": 2, "first_token": 201}},
        cluster=(2, 1),
        routes={1: Route(1, fetch_from=0)},
        pool_blocks=2,
        cost={"nic": 1000.0},
    ),
    Scenario(
        "a request rejected at arrival leaves nothing behind",
        [(0, 8, 3, A), (1, 8, 1, A)],
        {0: {"status": "rejected", "reject_stage": "arrival", "reject_reason": "told", "end": 0, "first_token": None},
         1: {"hit_blocks": 0, "head": 1, "first_token": 9}},
        tokens={0: []},
        reject={0: "arrival"},
    ),
    # Row 1 is dropped at 8; row 2 had counted on its blocks and computes them itself: 8..16. Row 3 finds them.
    Scenario(
        "a request dropped at its turn passes its blocks to the next who wants them",
        [(0, 8, 1, (7, 8)), (1, 8, 1, A), (2, 8, 1, A), (100, 8, 1, A)],
        {1: {"status": "rejected", "reject_stage": "prefill", "head": 8, "start": None, "end": 8},
         2: {"head": 8, "hit_tokens": 0, "computed_tokens": 8, "first_token": 16, "predicted_ttft_ms": 15.0},
         3: {"hit_tokens": 8, "first_token": 101}},
        reject={1: "prefill"},
    ),
    Scenario(
        "the promised blocks of a dropped request are forgotten",
        [(0, 8, 1, (7, 8)), (1, 8, 1, A), (100, 8, 1, A)],
        {1: {"status": "rejected", "end": 8}, 2: {"hit_tokens": 0, "first_token": 108}},
        reject={1: "prefill"},
    ),
    # The prefill was for nothing, but its blocks stay.
    Scenario(
        "a request may be rejected when its KV arrives",
        [(0, 8, 3, A), (100, 8, 1, A)],
        {0: {"status": "rejected", "reject_stage": "decode", "first_token": 8, "kv_arrival": 8.1, "join": None,
             "end": 8.1}, 1: {"hit_tokens": 8, "first_token": 101}},
        tokens={0: [8]},
        reject={0: "decode"},
    ),
]  # fmt: skip
