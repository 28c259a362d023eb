"""More of the rules as countable cases: ties, block states, preemption, queue order, and the admissions of rule 9."""

from __future__ import annotations

from mooncake_bench.api import Route

from .scenarios import INF, A, B, Scenario

C = (5, 6)
EACH = {0: Route(0), 1: Route(1), 2: Route(2)}

MORE = [
    # Row 0's first step ends at 8.1 + 11 = 19.1. Row 1: 11 + 8 = 19, last byte 0.1: 19.1. The transfer's end goes
    # first, so it joins: steps of 12.
    Scenario(
        "KV that arrives at the instant of a step boundary joins at it",
        [(0, 8, 4, A), (11, 8, 3, B)],
        {1: {"kv_arrival": 19.1, "join": 19.1, "second_token": 31.1, "end": 43.1}},
        tokens={0: [8, 19.1, 31.1, 43.1]},
        cluster=(2, 1),
        routes={1: Route(1)},
    ),
    Scenario(
        "a decode boundary precedes an arrival of the same instant",
        [(0, 8, 2, A), (19.1, 8, 1, B)],
        {0: {"end": 19.1}, 1: {"status": "rejected"}},
        sees={1: {"decode_batch": [0, 0], "decode_tokens": [0, 0], "joined.tokens": []}},
        reject={1: "arrival"},
    ),
    # Both KVs arrive at 8.2 (two last bytes share the ingress). 9 + 9 + 2 = 20 > 19: only the first joins, 8.2 to
    # 30.2. Row 0's prefill started first, on the node of the higher id.
    Scenario(
        "of two KVs that arrive together the one whose prefill started first is first in line",
        [(0, 8, 3, A), (0, 8, 2, B)],
        {0: {"join": 8.2, "end": 30.2}, 1: {"kv_arrival": 8.2, "join": 30.2, "end": 41.2}},
        cluster=(2, 1),
        routes={0: Route(1), 1: Route(0)},
        cost={"vram": 19},
    ),
    # Row 1 pins 1, 2 and the new 3 until 104, so row 2's block finds no slot at 102.
    Scenario(
        "hits stay pinned until the prefill ends",
        [(0, 8, 1, A), (100, 12, 1, (1, 2, 3)), (102, 4, 1, (9,)), (200, 12, 1, (1, 2, 3))],
        {1: {"first_token": 104}, 2: {"first_token": 108}, 3: {"hit_blocks": 3, "first_token": 201}},
        pool_blocks=3,
    ),
    # Node 1 has 3 slots: 8 (running until 103), 1 and 2 (fetched by 100.8, their request waits): nothing for row 3.
    Scenario(
        "fetched blocks stay pinned until their own prefill ends",
        [(0, 8, 1, A), (99, 4, 1, (8,)), (100, 8, 1, A), (102, 4, 1, (9,)), (200, 8, 1, A), (300, 4, 1, (9,))],
        {2: {"head": 103, "start": 103, "first_token": 104}, 3: {"first_token": 108},
         4: {"hit_blocks": 2, "first_token": 201}, 5: {"hit_blocks": 0}},
        cluster=(2, 1),
        routes={row: Route(1, fetch_from=0 if row == 2 else None) for row in range(1, 6)},
        pool_blocks=3,
    ),
    # Block 1 is touched at row 2's routing (100), 2 at row 3's (101), so 1 is the older and gives way to 3 at 200.
    # 1 byte/ms: 1 byte of the fetch by 101, 0.5 by 102 (row 3's stream takes half), 2.5 more: 104.5.
    Scenario(
        "the source of a fetch is touched at routing and not at the transfer's end",
        [(0, 4, 1, (1,)), (9, 4, 1, (2,)), (100, 8, 1, (1, 5)), (101, 4, 1, (2,)), (200, 4, 1, (3,)), (300, 4, 1, (2,))],  # noqa: E501
        {2: {"start": 104.5, "fetched_tokens": 4, "first_token": 108.5}, 5: {"hit_blocks": 1, "first_token": 301}},
        cluster=(2, 1),
        routes={2: Route(1, fetch_from=0)},
        pool_blocks=2,
        cost={"nic": 1000.0},
    ),
    # Had row 2 touched 1, the new block 3 would have taken 2's slot.
    Scenario(
        "a request rejected at arrival touches nothing",
        [(0, 4, 1, (1,)), (10, 4, 1, (2,)), (50, 4, 1, (1,)), (100, 4, 1, (3,)), (200, 4, 1, (2,))],
        {2: {"status": "rejected"}, 4: {"hit_blocks": 1, "first_token": 201}},
        reject={2: "arrival"},
        pool_blocks=2,
    ),
    # VRAM 27. Rows 0 and 1 join at 8.2, row 2 (there from 11.025) at 20.2: 10 + 10 + 3 + 3 = 26. Step of 13: at 33.2
    # 11 + 11 + 4 + 3 = 29 > 27: row 2 gives way. At 57.2 13 + 13 + 2 = 28: row 1 gives way too. Now row 2 has room
    # (13 + 4 + 2 = 19), but joins go before preemptions: it is back at the next boundary, 57.2 + 11. It ends at 80.2,
    # row 0 at 91.2, then row 1 (13 + 1) is back for its last step.
    Scenario(
        "room that a preemption makes is used at the next boundary, first preempted first",
        [(0, 8, 8, A), (0, 8, 6, B), (9, 2, 3, (5,))],
        {0: {"end": 91.2, "preemptions": 0}, 1: {"end": 102.2, "preemptions": 1}, 2: {"join": 20.2, "preemptions": 1}},
        tokens={0: [8, 20.2, 33.2, 45.2, 57.2, 68.2, 80.2, 91.2], 1: [8, 20.2, 33.2, 45.2, 57.2, 102.2],
                2: [11, 33.2, 80.2]},
        cluster=(3, 1),
        routes=EACH,
        cost={"vram": 27},
    ),
    # At 20 row 1 is turned away. Its blocks pass to row 2, but row 3 is shorter and goes first: it computes them,
    # 20..28, and they are there: row 2 computes only its own block, 28..32.
    Scenario(
        "what a prefill computes is ready even if another request had inherited the promise",
        [(0, 20, 1, (10, 11, 12, 13, 14)), (1, 8, 1, A), (2, 12, 1, (1, 2, 5)), (3, 8, 1, A), (28.5, 8, 1, A)],
        {1: {"status": "rejected", "end": 20}, 3: {"head": 20, "hit_blocks": 0, "first_token": 28},
         2: {"head": 28, "hit_blocks": 2, "computed_tokens": 4, "first_token": 32}},
        sees={4: {"fetchable_tokens": [8, 0]}},
        shortest_first=True,
        reject={1: "prefill", 4: "arrival"},
    ),
    # Shortest first would take row 2 at 20, but row 1 computes its prefix: 20..28, and then row 2: 1 ms.
    Scenario(
        "under an order of its own a queue never lets a request overtake the one that computes its prefix",
        [(0, 20, 1, (10, 11, 12, 13, 14)), (1, 8, 1, A), (2, 4, 1, (1,))],
        {1: {"head": 20, "first_token": 28}, 2: {"head": 28, "hit_blocks": 1, "first_token": 29}},
        shortest_first=True,
    ),
    # Row 2's turn comes when its fetch is over, at 100.8, not when the idle node calls it.
    Scenario(
        "the admission is asked for its last word before the prefill when the fetch is over",
        [(0, 8, 1, A), (100, 12, 1, (1, 2, 3)), (200, 8, 1, A)],
        {1: {"status": "rejected", "reject_stage": "prefill", "head": 100, "end": 100.8, "start": None},
         2: {"hit_blocks": 2, "first_token": 201}},
        cluster=(2, 1),
        routes={1: Route(1, fetch_from=0), 2: Route(1)},
        reject={1: "prefill"},
    ),
    # Rule 9. A step of k requests takes 10 + k ms; the TBT SLO is 12 ms: loads 11/12, 12/12 and 13/12, and a load above
    # 1 rejects. Rows 0 and 1 decode from 8.2 on.
    Scenario(
        "baseline turns a request away when its KV arrives at a full instance, and its prefill is lost",
        [(0, 8, 20, A), (0, 8, 20, B), (20, 8, 20, C)],
        {0: {"status": "completed"}, 1: {"status": "completed"},
         2: {"status": "rejected", "reject_stage": "decode", "reject_reason": "tbt", "first_token": 28, "end": 28.1}},
        cluster=(3, 1), routes=EACH, admission="baseline", tbt_slo_ms=12.0,
    ),
    Scenario(
        "early turns the same request away when it arrives",
        [(0, 8, 20, A), (0, 8, 20, B), (20, 8, 20, C)],
        {2: {"status": "rejected", "reject_stage": "arrival", "reject_reason": "tbt", "end": 20}},
        cluster=(3, 1), routes=EACH, admission="early", tbt_slo_ms=12.0,
    ),
    # The lag: at 0 nobody decodes or waits, so each finds 11/12.
    Scenario(
        "early does not see the requests that are still in prefill",
        [(0, 8, 20, A), (0, 8, 20, B), (0, 8, 20, C)],
        {row: {"status": "completed"} for row in range(3)},
        cluster=(3, 1), routes=EACH, admission="early", tbt_slo_ms=12.0,
    ),
    # Row 1 counts row 0, whose prefill ends at 8 as its own would: 12/12. Row 2 counts both: 13/12.
    Scenario(
        "predictive counts the requests that will decode by the end of the candidate's prefill",
        [(0, 8, 20, A), (0, 8, 20, B), (0, 8, 20, C)],
        {0: {"status": "completed"}, 1: {"status": "completed"}, 2: {"status": "rejected", "reject_stage": "arrival"}},
        cluster=(3, 1), routes=EACH, admission="predictive:td=1s", tbt_slo_ms=12.0,
    ),
    # Rows 0 and 1 joined at 8.2 and are taken to leave at 28.2. Row 2's prefill would end at 27.5: they are there.
    # Row 3's at 28.5: they are gone. In truth they decode until 8.2 + 18 * 12 + 13 = 237.2 (one step with row 3).
    Scenario(
        "predictive takes a joined request for gone when t_d has passed since it joined",
        [(0, 8, 20, A), (0, 8, 20, B), (19.5, 8, 2, C), (20.5, 8, 2, C)],
        {0: {"end": 237.2}, 2: {"status": "rejected", "end": 19.5}, 3: {"status": "completed", "first_token": 28.5}},
        cluster=(3, 1), routes={**EACH, 3: Route(2)}, admission="predictive:td=20ms", tbt_slo_ms=12.0,
    ),
    # 8 + 8 ms of prefill for row 1, over the SLO of 10 ms.
    Scenario(
        "a predicted TTFT over its SLO turns a request away under every rule of the paper",
        [(0, 8, 1, A), (0, 8, 1, B)],
        {0: {"status": "completed"}, 1: {"status": "rejected", "reject_stage": "arrival", "reject_reason": "ttft"}},
        admission="baseline", ttft_slo_ms=10.0,
    ),
    # Row 1's KV arrives at 9.1, row 0 (joined at 8.1) still at 9 tokens: 18 of 17, though the step is far from its SLO.
    Scenario(
        "a batch that outgrows VRAM is a load above one",
        [(0, 8, 5, A), (1, 8, 5, B)],
        {0: {"status": "completed"}, 1: {"status": "rejected", "reject_stage": "decode", "reject_reason": "vram"}},
        cluster=(2, 1), routes=EACH, admission="baseline", cost={"vram": 17},
    ),
    # Rows 0 and 1 decode on instance 3, so does row 2: 13/12 there and 0 on instance 4 (nobody: 0), 0.54 in the mean.
    Scenario(
        "early looks at the mean of the decode pool, an empty instance counting nothing",
        [(0, 8, 20, A), (0, 8, 20, B), (20, 8, 2, C)],
        {2: {"status": "completed", "decode_instance": 3}},
        cluster=(3, 2), routes={row: Route(row, 3) for row in range(3)}, admission="early", tbt_slo_ms=12.0,
    ),
    # The same, and once more at the KV's arrival on its own instance: 13/12.
    Scenario(
        "a recheck looks at the request's own instance",
        [(0, 8, 20, A), (0, 8, 20, B), (20, 8, 2, C)],
        {2: {"status": "rejected", "reject_stage": "decode", "end": 28.1}},
        cluster=(3, 2), routes={row: Route(row, 3) for row in range(3)}, admission="early:recheck=true",
        tbt_slo_ms=12.0,
    ),
    # Row 0 takes 9 to instance 1, row 1 5 to instance 2, so row 2 (5 < 9) goes to 2 as well. One node prefills them by
    # 8, 12 and 16. At 40 row 0, there from 8 + 1/9, has done 2 steps of 11: 9 + 2. Row 1, there from 12 + 1/18, did a
    # step of 11, then one of 12 with row 2, to 35.06: 5 + 2 and 5 + 1.
    Scenario(
        "the decode choice counts contexts that grow in the batch and those not joined yet",
        [(0, 8, 9, A), (0, 4, 9, (3,)), (0, 4, 9, (4,)), (40, 4, 1, (9,))],
        {0: {"decode_instance": 1}, 1: {"decode_instance": 2}, 2: {"decode_instance": 2}},
        sees={3: {"decode_batch": [0, 1, 2], "decode_tokens": [0, 11, 13], "routed_tokens": [0, 0, 0],
                  "queue_ms": [0, INF, INF]}},
        cluster=(1, 2),
        reject={3: "arrival"},
    ),
]  # fmt: skip
