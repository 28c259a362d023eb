"""A trace of six requests on which every hit of LRU, FIFO and the optimum can be counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

BLOCK_TOKENS = 10

# (arrival s, prompt tokens, blocks). 14 blocks, 125 tokens, 11 full blocks (2 + 2 + 2 + 2 + 1 + 2).
REQUESTS = (
    (0, 20, (0, 1)),
    (1, 25, (0, 1, 2)),
    (2, 20, (3, 4)),
    (3, 25, (0, 1, 2)),
    (4, 15, (3, 5)),
    (5, 20, (0, 1)),
)
# An infinite cache finds 0 + 2 + 0 + 3 + 1 + 2 = 8 blocks, 20 + 25 + 10 + 20 = 75 tokens, 2 + 2 + 1 + 2 = 7 full ones.
#
# LRU of 3 blocks, head first; stored blocks, oldest use first:
#   0 s  0 1: first sight twice                        0 1
#   1 s  0 1 hit, 2: first sight                       0 1 2
#   2 s  3 4: first sight; 0, then 1 go                2 3 4
#   3 s  0 1: evicted 1 s ago; 2: stored behind a gap
#        0 is stored, 2 goes; 1, 3 goes; 2, 4 goes     0 1 2
#   4 s  3: evicted 1 s ago, 5: first sight; 0, 1 go   2 3 5
#   5 s  0 1: evicted 1 s ago; 2, 3 go                 5 0 1
# 2 blocks and 20 tokens hit; misses: 6 first sight + 5 evicted + 1 gap = 12; 9 evictions; by the first missing block
# 3 requests miss at first sight and 3 by eviction. FIFO of 3 blocks evicts the same.
#
# 5 blocks: LRU loses only 4, which nobody asks for again: 8 blocks hit, 1 eviction. FIFO, when 5 comes, loses 0: the
# last request misses 0 (evicted 1 s ago), and 1 is behind that gap: 8 - 2 = 6 blocks, 55 tokens; evictions: 0, then 1
# for 0, then 2 for 1.
#
# The optimum of 3 blocks keeps 0 1 2 at 2 s, for they are next used at 3 s and 3 at 4 s; then 0 and 1:
# 0 + 2 + 0 + 3 + 0 + 2 = 7 blocks, 65 tokens. With 5 blocks it finds all 8.


def write_tiny(path: Path) -> str:
    """The trace as a Mooncake JSONL file; to be read with ``--block-size 10``."""
    rows = [
        {"timestamp": at * 1000, "input_length": tokens, "output_length": 1, "hash_ids": list(blocks)}
        for at, tokens, blocks in REQUESTS
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)
