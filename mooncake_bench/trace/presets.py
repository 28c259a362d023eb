"""The bundled workloads' parameters: numbers, each with the published statistic it aims at.

"Published" is what Mooncake's authors print about their traces (FAST'25, Table 2 and Fig 9) and what anyone can
measure on the trace files they published; ``likeness.py`` lists the statistics and compares. No file is read here.
"""

from __future__ import annotations

from mooncake_bench.trace.synth import Quantiles, Spec, SystemPrompts, Workload

# Published conversation answers: 1 to 2000 tokens, p50 350, p90 597, p99 1,118, mean 343.
_CHAT_ANSWERS = Quantiles(
    (
        (0.00, 1),
        (0.01, 3),
        (0.05, 10),
        (0.10, 24),
        (0.25, 156),
        (0.50, 350),
        (0.75, 472),
        (0.90, 597),
        (0.95, 698),
        (0.99, 1_118),
        (1.00, 2_000),
    ),
    linear=True,
)

# Minutes between turns. Aims at the LRU hit ratio of one pool against its capacity, published for conversation:
# .044, .136 and .326 of the blocks at 1,000, 5,859 and 30,000 blocks.
_THINK_MS = Quantiles(
    (
        (0.00, 6_000),
        (0.01, 14_000),
        (0.05, 30_000),
        (0.10, 42_000),
        (0.25, 74_000),
        (0.50, 135_000),
        (0.75, 300_000),
        (0.90, 620_000),
        (0.95, 950_000),
        (0.99, 1_800_000),
        (1.00, 3_000_000),
    )
)

# Most turns add a sentence; one in three adds a document or search results.
_TURN_TEXT = Quantiles(
    ((0.00, 1), (0.10, 8), (0.50, 25), (0.65, 160), (0.75, 1_600), (0.90, 4_400), (0.97, 8_800), (1.00, 40_000))
)

_CHAT = Workload(
    name="chat",
    requests=12_031,  # published
    system=SystemPrompts(tokens=(890,)),  # published: the shortest prompt has 891 tokens; one block opens all
    # Aims at prompts of mean 12,035, p50 6,909, p90 27,367, p99 85,400, longest 126,195.
    first_tokens=Quantiles(
        (
            (0.00, 1),
            (0.10, 14),
            (0.25, 550),
            (0.50, 4_400),
            (0.75, 12_100),
            (0.90, 23_200),
            (0.96, 41_500),
            (0.99, 86_000),
            (1.00, 125_300),
        )
    ),
    turn_tokens=_TURN_TEXT,
    output_tokens=_CHAT_ANSWERS,
    think_ms=_THINK_MS,
    # The next seven aim at infinite-cache hits of .374 of the tokens and .366 of the blocks.
    casual=0.68,
    casual_goes_on=0.17,
    goes_on=0.68,
    resends=0.02,
    edits=0.31,
    edit_keeps=(0.0, 0.8),
    edit_rewrites=0.66,
)

CONVERSATION_LIKE = Spec(
    name="conversation-like",
    about="modelled on the published statistics of Mooncake's FAST'25 conversation trace; no recorded request in it",
    workloads=(_CHAT,),
    span_ms=3_540_000,  # published: the last request arrives at 3,537 s
    grid_ms=3_000,  # published: 1,180 distinct times 3 s apart, up to 28 requests at one
    burst_ms=10_000,
    burst_cv=0.2,  # published: index of dispersion 2.1 over 10 s, 2.9 over 60 s
    ramp=(0.85, 1.1),  # published: 1,750 requests in the first ten minutes, about 2,100 in the later ones
)

# Calls of tools: one turn over one of many long shared prompts, short answers. Their lengths are not published.
_TOOLS = Workload(
    name="tools",
    requests=11_804,  # half of the published 23,608; the split is ours
    system=SystemPrompts(
        tokens=(
            *(6_210, 7_020, 3_260, 8_300, 4_120, 6_650, 5_480, 9_900, 2_180, 2_700, 4_700, 12_400),
            *(3_800, 5_900, 2_450, 8_800, 4_350, 6_900, 10_700, 3_100, 7_600, 5_150, 2_900, 14_200),
            *(4_900, 6_400, 3_500, 9_300, 5_700, 2_600, 7_900, 4_500, 11_500, 3_900, 6_100, 8_100),
        ),
        zipf=1.4,
    ),
    first_tokens=Quantiles(((0.00, 5), (0.25, 60), (0.50, 220), (0.90, 1_600), (0.99, 4_000), (1.00, 9_000))),
    turn_tokens=_TURN_TEXT,
    # Aims, with the agents' answers, at a mean of 182.
    output_tokens=Quantiles(((0.00, 1), (0.30, 3), (0.60, 18), (0.90, 40), (0.99, 180), (1.00, 600))),
    think_ms=_THINK_MS,
    casual=1.0,
    casual_goes_on=0.0,
    goes_on=0.0,
)

# Agents: conversations over a few shared prompts, with longer pauses.
_AGENTS = Workload(
    name="agents",
    requests=11_804,
    system=SystemPrompts(tokens=(890, 1_420, 2_350, 3_180, 1_060, 4_600), zipf=1.2),
    first_tokens=Quantiles(
        (
            (0.00, 1),
            (0.10, 30),
            (0.25, 500),
            (0.50, 3_200),
            (0.75, 9_600),
            (0.90, 19_200),
            (0.96, 33_000),
            (0.99, 64_000),
            (1.00, 124_000),
        )
    ),
    turn_tokens=_TURN_TEXT,
    output_tokens=_CHAT_ANSWERS,
    think_ms=Quantiles(tuple((at, 1.6 * value) for at, value in _THINK_MS.points)),
    # The next seven aim at infinite-cache hits of .59 of the tokens; the longer pauses at LRU's curve.
    casual=0.66,
    casual_goes_on=0.17,
    goes_on=0.69,
    resends=0.02,
    edits=0.29,
    edit_keeps=(0.0, 0.8),
    edit_rewrites=0.66,
)

TOOLAGENT_LIKE = Spec(
    name="toolagent-like",
    about="modelled on the published statistics of Mooncake's FAST'25 tool & agent trace; no recorded request in it",
    workloads=(_TOOLS, _AGENTS),
    span_ms=3_600_000,  # published: one hour
    grid_ms=3_000,
    burst_ms=10_000,
    burst_cv=0.2,
    ramp=(0.9, 1.05),
)
