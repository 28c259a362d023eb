"""``traces hash``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.options import Example
from mooncake_bench.cli.output import note
from mooncake_bench.cli.reading import PANEL as READING
from mooncake_bench.cli.trace_out import FORMATS, checked_out, out_argument, write_given, writing_options
from mooncake_bench.errors import SetupError

if TYPE_CHECKING:
    from mooncake_bench.cli.options import Commands

IDS = ("dense", "hashes")


@options.takes(
    options.argument("prompts", str, "File of requests with their text: JSON lines or CSV, or example-prompts"),
    out_argument(),
    options.option(
        "tokenizer",
        Path | None,
        ("--tokenizer",),
        "Count tokens with this tokenizer.json (needs the extra 'hash') [default: none]",
        metavar="FILE",
    ),
    options.option("tokens", bool, ("--tokens",), "The rows have token ids: take those [default: off]", False),
    options.option("words", bool, ("--words",), "Take each word for a token, to try it out [default: off]", False),
    options.option(
        "ids",
        str | None,
        ("--ids",),
        "Block ids: dense (numbered, no hash is left) or hashes (two files of one salt can be merged) [default: dense]",
        metavar="dense|hashes",
    ),
    options.option(
        "salt", str | None, ("--salt",), "Secret that hashes depend on [default: a random one]", metavar="TEXT"
    ),
    options.option(
        "salt_file", Path | None, ("--salt-file",), "File that holds the secret [default: none]", metavar="FILE"
    ),
    options.option(
        "block_tokens",
        int,
        ("--block-size",),
        "Tokens in a block [tokens; default: 512]",
        512,
        panel=READING,
        metavar="TOKENS",
        min=1,
    ),
    options.option(
        "timestamp_unit",
        str | None,
        ("--timestamp-unit",),
        "Unit of times that are numbers [default: auto]",
        panel=READING,
        metavar="auto|s|ms|us|ns",
    ),
    *writing_options(),
)
def hash_prompts(**given: Any) -> None:
    """Turn requests with their text into a trace without it, to be shared.

    A row has its arrival (timestamp or arrival_ms), a prompt, messages or token_ids, and output_tokens or a response.
    What can still be seen: when requests arrived, how long they are, which blocks they share, and their sessions.
    """
    options.chosen_format(given["format"], *FORMATS)
    _check(given)
    checked_out(given)
    from mooncake_bench.trace import hashing, prompts

    trace, notices = hashing.hash_file(
        prompts.find(given["prompts"]),
        Path(given["out"]).name.split(".")[0] or "hashed",
        _encoder(given),
        given["block_tokens"],
        _salt(given),
        given["ids"] == "hashes",
        given["timestamp_unit"] or "auto",
    )
    for notice in () if given["quiet"] else notices:
        note(notice)
    write_given(trace, given, notices)


def _check(given: dict[str, Any]) -> None:
    ways = [flag for flag in ("tokenizer", "tokens", "words") if given[flag]]
    if len(ways) != 1:
        found = " and ".join(f"--{way}" for way in ways) or "none"
        raise SetupError(f"how to count tokens: expected one of --tokenizer FILE, --tokens, --words; got {found}")
    if given["ids"] not in (None, *IDS):
        raise SetupError(f"--ids: expected one of {', '.join(IDS)}, got {given['ids']!r}")
    if given["salt"] is not None and given["salt_file"] is not None:
        raise SetupError("--salt and --salt-file: two secrets; keep one")
    salted = given["salt"] is not None or given["salt_file"] is not None
    if salted and given["ids"] != "hashes":
        raise SetupError("--salt: no effect on dense ids, of which no hash is left; add --ids hashes, or leave it out")


def _encoder(given: dict[str, Any]) -> Any:
    from mooncake_bench.trace import hashing

    if given["tokens"]:
        return None
    return hashing.words if given["words"] else hashing.tokenizer(given["tokenizer"])


def _salt(given: dict[str, Any]) -> bytes | None:
    from mooncake_bench.trace import hashing

    if given["salt_file"] is not None:
        return hashing.read_salt(given["salt_file"])
    return None if given["salt"] is None else given["salt"].encode()


COMMANDS: Commands = (
    (
        "hash",
        hash_prompts,
        (
            Example("traces hash example-prompts mine.arrow --words --block-size 16", "a few made-up chats"),
            Example("traces hash example-prompts - --tokens --block-size 16", "from the token ids in the rows"),
            Example(
                "traces hash example-prompts two.jsonl --words --block-size 16 --ids hashes --salt secret",
                "ids that another file of the same salt shares",
            ),
        ),
    ),
)
