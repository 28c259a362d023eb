"""One small valid file of every trace format, with what it holds worked out by hand."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from mooncake_bench.trace import load, save


@dataclass(frozen=True)
class Sample:
    """A file, how to read it, and the columns that must come out."""

    name: str  # of the file
    data: bytes
    arrival_ms: list[float]
    input_tokens: list[int]
    output_tokens: list[int]
    options: dict[str, Any] = field(default_factory=dict)  # of load
    flags: tuple[str, ...] = ()  # the same on a command line
    prefix_ids: bool = True


def _text(*lines: str, end: str = "\n") -> bytes:
    return (end.join(lines) + end).encode()


AZURE_2023 = Sample(
    "azure23.csv",
    # published form: CRLF, seven digits, no end of the last line; 0.52 and 98.189 ms after the first
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"
    b"2023-11-16 18:17:03.9804800,3180,8\r\n2023-11-16 18:17:04.0781490,110,27",
    [0, 0.52, 98.189],
    [4808, 3180, 110],
    [10, 8, 27],
    prefix_ids=False,
)
AZURE_2024 = Sample(
    "azure24.csv",
    _text(
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2024-05-10 00:00:00.009930+00:00,2162,5",
        "2024-05-10 00:00:00.017335+00:00,2399,6",
        "2024-05-10 00:00:01+00:00,76,15",
    ),
    [0, 7.405, 990.07],
    [2162, 2399, 76],
    [5, 6, 15],
    prefix_ids=False,
)
BURSTGPT = Sample(
    "burstgpt.csv",
    _text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        "5,ChatGPT,472,18,490,Conversation log",
        "45,ChatGPT,0,0,0,Conversation log",
        "118,GPT-4,417,276,693,API log",
    ),
    [0, 113_000],
    [472, 417],
    [18, 276],
    prefix_ids=False,
)
BURSTGPT_3 = Sample(
    "burstgpt3.csv",
    _text(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
        "5.5,a7,12.5,ChatGPT,472,18,490,Conversation log",
        "45.0,,3.25,ChatGPT,100,1,101,API log",
        "118.0,a7,9.0,GPT-4,1417,276,1693,Conversation log",
    ),
    [0, 39_500, 112_500],
    [472, 100, 1417],
    [18, 1, 276],
    prefix_ids=False,
)
BAILIAN = Sample(
    "bailian.jsonl",
    _text(
        '{"chat_id": 10, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 33, "output_length": 4, '
        '"type": "text", "turn": 1, "hash_ids": [0, 1, 2]}',
        '{"chat_id": 11, "parent_chat_id": -1, "timestamp": 0.75, "input_length": 16, "output_length": 1, '
        '"type": "file", "turn": 1, "hash_ids": [3]}',
        '{"chat_id": 12, "parent_chat_id": 10, "timestamp": 61.5, "input_length": 49, "output_length": 9, '
        '"type": "text", "turn": 2, "hash_ids": [0, 1, 4, 5]}',
    ),
    [0, 250, 61_000],
    [33, 16, 49],
    [4, 1, 9],
)
SPLITWISE_SIM = Sample(
    "splitwise.csv",
    _text(
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size",
        "0,2,0,0,1,4096,32",
        "1,2,0,3,1,2048,1",
        "2,2,0,4,1,2048,16",
    ),
    [0, 3000, 4000],
    [4096, 2048, 2048],
    [32, 1, 16],
    prefix_ids=False,
)
VIDUR = Sample(
    "vidur.csv",
    _text("arrived_at,num_prefill_tokens,num_decode_tokens", "0.0,4808,10", "0.052,3180,8", "0.5,110,27"),
    [0, 52, 500],
    [4808, 3180, 110],
    [10, 8, 27],
    prefix_ids=False,
)
MOONCAKE = Sample(
    "mooncake.jsonl",
    _text(
        '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}',
        '{"timestamp": 30, "input_length": 512, "output_length": 1, "hash_ids": [1]}',
        '{"timestamp": 31.5, "input_length": 1025, "output_length": 7, "hash_ids": [1, 3, 4]}',
    ),
    [0, 30, 31.5],
    [600, 512, 1025],
    [5, 1, 7],
)
MOONCAKE_SESSIONS = Sample(
    "sessions.jsonl",
    # the second turn comes 250 ms after its session's first (at 30), at the earliest
    _text(
        '{"timestamp": 0, "session_id": "b", "input_length": 600, "output_length": 5, "hash_ids": ["x", "y"]}',
        '{"timestamp": 30, "session_id": "a", "input_length": 512, "output_length": 1, "hash_ids": ["x"]}',
        '{"delay": 250, "session_id": "a", "input_length": 1025, "output_length": 7, "hash_ids": ["x", "z", "w"]}',
    ),
    [0, 30, 280],
    [600, 512, 1025],
    [5, 1, 7],
)
PLAIN_CSV = Sample(
    "plain.csv",
    _text("arrival_ms,input_tokens,output_tokens", "10,600,5", "40,512,1", "41.5,1025,7"),
    [0, 30, 31.5],
    [600, 512, 1025],
    [5, 1, 7],
    prefix_ids=False,
)
MAPPING = "arrival=ts,input=prompt len,output=gen,blocks=hashes,session=conv,priority=p,id=rid,delay=wait"
MAPPED_CSV = Sample(
    "mapped.csv",
    _text(
        "rid,ts,prompt len,gen,hashes,conv,p,wait,note",
        "a,10,600,5,1 2,7,0,,x",
        'b,40,512,1,"[1]",,-1,,y',
        "c,41.5,1025,7,1;3;4,7,2,1.5,z",
    ),
    [0, 30, 31.5],
    [600, 512, 1025],
    [5, 1, 7],
    {"columns": MAPPING},
    ("--column", MAPPING),
)
PLAIN_JSONL = Sample(
    "plain.jsonl",
    _text(
        '{"arrival_ms": 10, "input_tokens": 600, "output_tokens": 5, "block_ids": [1, 2]}',
        '{"arrival_ms": 40, "input_tokens": 512, "output_tokens": 1, "block_ids": [1]}',
        '{"arrival_ms": 41.5, "input_tokens": 1025, "output_tokens": 7, "block_ids": [1, 3, 4]}',
    ),
    [0, 30, 31.5],
    [600, 512, 1025],
    [5, 1, 7],
)
MAPPED_JSONL = Sample(
    "mapped.jsonl",
    _text(
        '{"rid": 1, "ts": "2024-05-10 00:00:00", "prompt len": 600, "gen": 5, "hashes": ["p", "q"], '
        '"conv": "k", "p": 1}',
        '{"rid": 2, "ts": "2024-05-10 00:00:00.03", "prompt len": 512, "gen": 1, "hashes": ["p"], "conv": null, '
        '"p": 0, "wait": null}',
        '{"rid": 3, "ts": "2024-05-10 00:00:00.0315", "prompt len": 1025, "gen": 7, "hashes": ["p", "r", "s"], '
        '"conv": "k", "p": 1, "wait": 1.5}',
    ),
    [0, 30, 31.5],
    [600, 512, 1025],
    [5, 1, 7],
    {"columns": MAPPING},
    ("--column", MAPPING),
)


def parquet_bytes(**columns: Any) -> bytes:
    """A parquet file of these columns."""
    out = io.BytesIO()
    parquet.write_table(pa.table(columns), out)
    return out.getvalue()


PARQUET = Sample(
    "plain.parquet",
    parquet_bytes(
        arrival_ms=pa.array([10, 40, 41.5]),
        input_tokens=pa.array([600, 512, 1025], pa.int32()),
        output_tokens=pa.array([5, 1, 7], pa.uint16()),
        block_ids=pa.array([[1, 2], [1], [1, 3, 4]]),
    ),
    [0, 30, 31.5],
    [600, 512, 1025],
    [5, 1, 7],
)

TEXTS = (
    AZURE_2023, AZURE_2024, BURSTGPT, BURSTGPT_3, BAILIAN, SPLITWISE_SIM, VIDUR, MOONCAKE, MOONCAKE_SESSIONS,
    PLAIN_CSV, MAPPED_CSV, PLAIN_JSONL, MAPPED_JSONL,
)  # fmt: skip
SAMPLES = (*TEXTS, PARQUET)


def arrow_bytes(folder: Any) -> bytes:
    """The Mooncake sample in this tool's own format."""
    (folder / MOONCAKE.name).write_bytes(MOONCAKE.data)
    save(load(folder / MOONCAKE.name), folder / "trace.arrow")
    return bytes((folder / "trace.arrow").read_bytes())
