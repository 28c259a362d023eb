"""From prompts to a trace without them: what is shared stays, what was said does not."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_making import shared_blocks

from mooncake_bench.errors import SetupError, TraceError
from mooncake_bench.trace import Trace, load, save
from mooncake_bench.trace.hashing import BlockHasher, hash_file, read_salt, tokenizer, words
from mooncake_bench.trace.prompts import EXAMPLE, find

SALT = b"a secret of the tests"
tokens = st.lists(st.integers(0, 2), min_size=1, max_size=9)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def row(at: Any = 0, **more: Any) -> dict[str, Any]:
    return {"timestamp": at, "prompt": "some words", "output_tokens": 1} | more


def hashed(path: Path, size: int = 2, **more: Any) -> Trace:
    return hash_file(path, "t", words, size, **more)[0]


def common(one: list[int], other: list[int]) -> int:
    """How many leading tokens two prompts share."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


# ---- blocks


@given(tokens, tokens, st.integers(1, 4))
def test_two_prompts_share_as_many_ids_as_whole_blocks_and_all_when_they_are_equal(
    one: list[int], other: list[int], size: int
) -> None:
    hasher = BlockHasher(SALT, size)
    left, right = hasher.ids(one), hasher.ids(other)
    assert len(left) == -(-len(one) // size)
    assert common(left, right) == (len(left) if one == other else common(one, other) // size)
    # chained: ids that differ at a place differ at all later ones, wherever they stand
    same = common(left, right)
    assert not set(left[same:]) & set(right[same:])
    assert len(set(left)) == len(left)
    assert all(0 <= number < 2**63 for number in left + right)


@given(tokens, st.integers(1, 4))
def test_the_same_salt_gives_the_same_ids_and_another_salt_others(prompt: list[int], size: int) -> None:
    assert BlockHasher(SALT, size).ids(prompt) == BlockHasher(SALT, size).ids(prompt)
    assert not set(BlockHasher(SALT, size).ids(prompt)) & set(BlockHasher(SALT + b"!", size).ids(prompt))


def test_large_token_ids_and_block_boundaries_are_told_apart() -> None:
    hasher = BlockHasher(SALT, 2)
    prompts = ([1], [1, 0], [0, 1], [2**32 + 1], [2**62], [2**63 - 1], [1, 0, 0], [256])
    assert len({hasher.ids(prompt)[-1] for prompt in prompts}) == len(prompts)


def test_two_blocks_of_one_id_are_noticed() -> None:
    hasher = BlockHasher(SALT, 1)
    (number,) = hasher.ids([1])
    hasher._seen[number] = b"the digest of another block, with the same first 63 bits"
    with pytest.raises(TraceError, match="two different blocks got the same 63-bit id; hash again with another salt"):
        hasher.ids([1])


def test_an_empty_salt_and_a_block_of_nothing_are_refused() -> None:
    with pytest.raises(TraceError, match="the salt is empty"):
        BlockHasher(b"")
    with pytest.raises(TraceError, match="block size is 0 tokens"):
        BlockHasher(SALT, 0)


# ---- files


def test_a_small_file_by_hand(tmp_path: Path) -> None:
    path = write(
        tmp_path / "p.jsonl",
        [
            row(0, prompt="a b c d e", output_tokens=7, session_id="x"),
            row(1500, prompt="a b c", output_length=2, output_tokens=None, session_id="y"),
            row(2000, prompt="a  b\nc d e", output_tokens=None, response="three words here", session_id="x"),
            row(2500, prompt="b a", priority=3),
        ],
    )
    # blocks of two words: [a b][c d][e], [a b][c], [a b][c d][e] (white space is no word), [b a]
    trace, notices = hash_file(path, "t", words, 2)
    assert [trace.blocks(at).tolist() for at in range(4)] == [[0, 1, 2], [0, 3], [0, 1, 2], [4]]
    assert trace.arrival_ms.tolist() == [0, 1500, 2000, 2500]
    assert trace.input_tokens.tolist() == [5, 3, 5, 2]
    assert trace.output_tokens.tolist() == [7, 2, 3, 1]
    assert trace.session_id is not None
    assert trace.session_id.tolist() == [0, 1, 0, -1]
    assert trace.priority is not None
    assert trace.priority.tolist() == [0, 0, 0, 3]
    assert notices == [
        f"{path}: 1 rows have no session_id: each stands alone",
        f"{path}: 3 rows have no priority: it is 0",
    ]


@given(st.lists(tokens, min_size=1, max_size=6), st.integers(1, 3))
def test_a_file_of_token_ids_shares_what_its_prompts_share(
    tmp_path_factory: pytest.TempPathFactory, some: list[list[int]], size: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "tokens.jsonl"
    write(path, [{"timestamp": at, "token_ids": prompt, "output_tokens": 1} for at, prompt in enumerate(some)])
    trace, _ = hash_file(path, "t", None, size)
    for one, left in enumerate(some):
        for other, right in enumerate(some):
            expected = -(-len(left) // size) if left == right else common(left, right) // size
            assert shared_blocks(trace, one, other) == expected
    assert sorted(set(trace.block_ids.tolist())) == list(range(len(set(trace.block_ids.tolist()))))


def test_dense_ids_depend_on_nothing_but_the_sharing(tmp_path: Path) -> None:
    one = write(tmp_path / "one.jsonl", [row(0, prompt="a b c d"), row(1, prompt="a b e")])
    other = write(tmp_path / "other.jsonl", [row(0, prompt="w x y z"), row(1, prompt="w x q")])
    assert hashed(one) == hashed(one, salt=SALT) == hashed(other)


def test_kept_hashes_are_the_same_for_one_salt_and_unlinkable_for_others(tmp_path: Path) -> None:
    one = write(tmp_path / "one.jsonl", [row(0, prompt="a b c d"), row(1, prompt="a b e")])
    other = write(tmp_path / "other.jsonl", [row(0, prompt="a b c d e f")])
    keep = {"keep_hashes": True, "salt": SALT}
    first, second = hashed(one, **keep), hashed(other, **keep)
    assert first.blocks(0).tolist() == second.blocks(0).tolist()[:2]
    others = [hashed(one, keep_hashes=True, salt=b"x"), hashed(one, keep_hashes=True), hashed(one, keep_hashes=True)]
    sets = [set(trace.block_ids.tolist()) for trace in (first, *others)]
    assert len(set.union(*sets)) == sum(map(len, sets))


def test_nothing_of_the_file_is_in_the_trace(tmp_path: Path) -> None:
    secret = "xylophone"
    path = write(
        tmp_path / f"{secret}.jsonl",
        [
            row(1_700_000_000_000 + 10 * at, prompt=f"{secret} " * (at + 1), session_id=f"{secret}-{at}", user=secret,
                request_id=secret, response=f"{secret} again", output_tokens=None)
            for at in range(3)
        ],
    )  # fmt: skip
    trace, notices = hash_file(path, "shared", words, 2, keep_hashes=True)
    save(trace, tmp_path / "out.arrow")
    visible = (repr(dict(trace.metadata)) + repr(trace.notices) + trace.name).encode()
    data = (tmp_path / "out.arrow").read_bytes()
    read = load(tmp_path / "out.arrow")
    for forbidden in (secret.encode(), b"170000000", secret[:6].encode()):
        assert forbidden not in data
        assert forbidden not in visible
    assert read.request_id is None
    assert read.session_id is not None
    assert read.session_id.tolist() == [0, 1, 2]
    assert set(read.metadata) == {"source", "block_ids", "block_tokens"}
    assert notices[-1] == f"{path}: ignored fields that mean nothing here: 'request_id', 'user'"


def test_chat_messages_share_what_their_first_messages_are(tmp_path: Path) -> None:
    system = {"role": "system", "content": "be brief"}
    first = [system, {"role": "user", "content": "who"}]
    second = [
        *first,
        {"role": "assistant", "content": [{"type": "text", "text": "me"}]},
        {"role": "user", "content": "why"},
    ]
    path = write(
        tmp_path / "chat.jsonl",
        [
            {"timestamp": 0, "messages": first, "output_tokens": 1},
            {"timestamp": 1, "messages": second, "output_tokens": 1},
            {"timestamp": 2, "messages": [system, {"role": "user", "content": "what"}], "output_tokens": 1},
        ],
    )
    trace = hashed(path, 1)
    # words: <|system|> be brief <|user|> who ...
    assert trace.input_tokens.tolist() == [5, 9, 5]
    assert [shared_blocks(trace, 0, 1), shared_blocks(trace, 0, 2)] == [5, 4]


def test_tool_calls_are_part_of_a_message(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": "{}"}]}
    rows = [[call], [{"role": "assistant", "content": ""}], [call]]
    path = write(tmp_path / "c.jsonl", [{"timestamp": 0, "messages": one, "output_tokens": 1} for one in rows])
    trace = hashed(path, 1)
    assert shared_blocks(trace, 0, 1) == 1
    assert shared_blocks(trace, 0, 2) == len(trace.blocks(0)) > 1


def test_csv_and_gzip_are_read_like_json_lines(tmp_path: Path) -> None:
    rows = [row(0, prompt='a "b", c\nd', session_id=5, priority=2), row(10, prompt="a", session_id=5, priority=1)]
    lines = write(tmp_path / "p.jsonl", rows)
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(lines.read_bytes()))
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    (tmp_path / "p.csv").write_bytes(b"\xef\xbb\xbf" + out.getvalue().encode())
    assert hashed(lines) == hashed(tmp_path / "p.jsonl.gz") == hashed(tmp_path / "p.csv")
    (tmp_path / "t.csv").write_text('arrival_ms,token_ids,output_tokens\n0,1 2 3,4\n5,"[1, 2, 9]",4\n')
    tokens_trace, _ = hash_file(tmp_path / "t.csv", "t", None, 2)
    assert [tokens_trace.blocks(at).tolist() for at in range(2)] == [[0, 1], [0, 2]]


def test_times_may_be_dates_and_out_of_order(tmp_path: Path) -> None:
    path = write(
        tmp_path / "d.jsonl",
        [
            row("2026-01-31T12:00:01.250"),
            row("2026-01-31 12:00:00", prompt="first"),
            row("2026-01-31T13:00:02.000001+01:00", prompt="third"),
        ],
    )
    trace, notices = hash_file(path, "t", words)
    assert trace.arrival_ms.tolist() == [0, 1250, 2000.001]
    assert trace.block_ids.tolist() == [0, 1, 2]  # numbered in order of arrival
    assert trace.source_row is None
    assert "rows were not in order of arrival" in notices[0]
    assert trace.notices == ()
    with pytest.raises(TraceError, match="its times are dates; found timestamp unit 's'; leave the option out"):
        hash_file(path, "t", words, timestamp_unit="s")


def test_seconds_are_a_matter_of_the_option(tmp_path: Path) -> None:
    path = write(tmp_path / "s.jsonl", [row(0.5), row(2)])
    assert hashed(path, timestamp_unit="s").arrival_ms.tolist() == [0, 1500]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([row(), {"timestamp": 1, "output_tokens": 1}], "line 2, field 'prompt': found none; expected the prompt's"),
        ([row(messages=[{"role": "user", "content": "x"}])], "field 'prompt': found prompt and messages; expected"),
        ([row(prompt="")], "field 'prompt': found an empty text; expected a text that is not empty"),
        ([row(prompt="  ")], "field 'prompt': found a text of 0 tokens; expected at least one token"),
        ([row(prompt=5)], "field 'prompt': found 5; expected a text"),
        ([row(prompt=None, messages=[])], "field 'messages': found an empty list; expected a list of objects"),
        ([row(prompt=None, messages=[{"content": [{"type": "image"}]}])], "found content that is not text"),
        ([row(), row(prompt=None, messages=[{"role": "user"}])], "line 2, field 'messages': found a message with"),
        ([row(prompt=None, messages=[{"content": None}])], "found content null; expected a text, or tool_calls, in"),
        ([row(output_tokens=None)], "field 'output_tokens': found none; expected the answer's length in tokens, or"),
        ([row(output_tokens=0)], "field 'output_tokens': found 0; expected a whole number from 1"),
        ([row(output_tokens=1.5)], "field 'output_tokens': found 1.5; expected a whole number"),
        ([row(output_tokens=None, response=" ")], "field 'response': found an answer of 0 tokens"),
        ([row(session_id=[1])], "field 'session_id': found a list; expected an integer or a text"),
        ([row(priority="high")], "field 'priority': found a text; expected a whole number"),
        ([row(None)], "field 'arrival_ms': found none; expected a time of arrival, as one of arrival_ms, timestamp"),
        ([row(True)], "field 'timestamp': found true or false; expected a number below"),
        ([row("soon")], "field 'timestamp': found a text that is no date"),
        ([row(1), row("2026-01-31T12:00:00")], "line 2, field 'timestamp': found a text, unlike in the first row"),
        ([row(-1)], "field 'timestamp': found -1; expected a finite number >= 0"),
        ([], "found 0 requests|expected JSON lines or CSV"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_without_what_it_says(tmp_path: Path, rows: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(TraceError, match=said):
        hashed(write(tmp_path / "bad.jsonl", rows))


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([], "found an empty list; expected a list of at least one token id"),
        ("1 2", "found a text; expected a list"),
        ([1, -1], "found something else in the list; expected integers from 0"),
        ([1, 2**63], "found something else in the list"),
        ([True], "found something else in the list"),
    ],
)
def test_bad_token_ids_are_named(tmp_path: Path, ids: Any, said: str) -> None:
    path = write(tmp_path / "bad.jsonl", [{"timestamp": 0, "token_ids": ids, "output_tokens": 1}])
    with pytest.raises(TraceError, match=f"line 1, field 'token_ids': {said}"):
        hash_file(path, "t", None)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"timestamp": 0, "prompt": "secret words"', "line 1: found no whole JSON object"),
        (b'{"timestamp": 0, "prompt": "secret \xff"}\n', "line 1: found no whole JSON object|not UTF-8"),
        (b"timestamp,prompt,output_tokens\n1,secret words\n", "line 2: expected 3 fields, as in its header"),
        (b"timestamp,prompt,output_tokens\n1,secret words,2,3\n", "line 2: expected 3 fields, as in its header"),
        (b'timestamp,prompt,output_tokens\n1,"secret words,2\n', "the CSV cannot be read"),
        (b"timestamp,prompt,output_tokens\n1,secret \xff,2\n", "bytes that are not UTF-8"),
        (gzip.compress(b'{"timestamp": 0, "prompt": "secret", "output_tokens": 1}\n' * 99, mtime=0)[:-12], "truncated"),
        (b"", "0 requests"),
    ],
)
def test_a_damaged_file_gives_one_line_without_its_text(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "bad"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=said) as caught:
        hashed(path)
    assert "secret" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@given(st.binary(max_size=80))
def test_any_bytes_give_a_trace_or_an_error_of_ours(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz"
    for prefix in (b"", b'{"timestamp":', b"timestamp,prompt,output_tokens\n", b"\x1f\x8b"):
        path.write_bytes(prefix + data)
        with suppress(TraceError):
            hashed(path)


# ---- tokenizers and salts


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    """A tokenizer of six words that cuts at two tokens unless told not to."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra 'hash'")
    known = {word: number for number, word in enumerate(("[UNK]", "a", "b", "c", "d", "e"))}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_truncation(2)
    made.enable_padding(length=8)
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_a_tokenizer_file_counts_and_cuts_nothing(tokenizer_file: Path) -> None:
    assert tokenizer(tokenizer_file)(["a b c d e", "a zebra", ""]) == [[1, 2, 3, 4, 5], [1, 0], []]


def test_a_file_hashed_with_a_tokenizer_is_the_file_of_its_tokens(tokenizer_file: Path, tmp_path: Path) -> None:
    texts = write(
        tmp_path / "p.jsonl", [row(0, prompt="a b c d"), row(1, prompt="a b e", output_tokens=None, response="c d")]
    )
    numbers = write(
        tmp_path / "n.jsonl",
        [
            {"timestamp": 0, "token_ids": [1, 2, 3, 4], "output_tokens": 1},
            {"timestamp": 1, "token_ids": [1, 2, 5], "output_tokens": 2},
        ],
    )
    one, _ = hash_file(texts, "t", tokenizer(tokenizer_file), 2, SALT, keep_hashes=True)
    other, _ = hash_file(numbers, "t", None, 2, SALT, keep_hashes=True)
    assert one == other


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(SetupError, match=r"pip install 'mooncake-bench\[hash\]'; --tokens and --words do without"):
        tokenizer(tmp_path / "tokenizer.json")


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="needs the extra 'hash'")
    with pytest.raises(TraceError, match=r"no such file; expected a tokenizer\.json"):
        tokenizer(tmp_path / "absent.json")
    (tmp_path / "odd.json").write_text("{}")
    with pytest.raises(TraceError, match=r"odd\.json' cannot be used \(.*\); expected a tokenizer\.json"):
        tokenizer(tmp_path / "odd.json")


def test_a_salt_file_is_read_without_its_line_end(tmp_path: Path) -> None:
    (tmp_path / "salt").write_bytes(b"secret\r\n")
    assert read_salt(tmp_path / "salt") == b"secret"
    (tmp_path / "salt").write_bytes(b"\n")
    with pytest.raises(TraceError, match="is empty; expected a secret text"):
        read_salt(tmp_path / "salt")
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read_salt(tmp_path / "absent")


def test_the_bundled_example_shares_its_system_prompts_by_words_and_by_token_ids() -> None:
    by_words, _ = hash_file(find(EXAMPLE), "t", words, 16)
    by_tokens, _ = hash_file(find(EXAMPLE), "t", None, 16)
    assert by_words == by_tokens  # its token ids are its words, numbered
    assert by_words.session_id is not None
    assert len(set(by_words.session_id.tolist())) == 5
    roots = [int(by_words.blocks(at)[0]) for at in range(len(by_words))]
    assert len(set(roots)) == 2  # two system prompts
    with pytest.raises(TraceError, match="no such file; expected prompts as JSON lines or CSV, or example-prompts"):
        find("absent.jsonl")
