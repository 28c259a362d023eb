"""``traces fetch``: public traces by name."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.interrupt import requested
from mooncake_bench.cli.listing import render_list
from mooncake_bench.cli.options import Example, argument, option
from mooncake_bench.cli.output import answer, json_answer, note
from mooncake_bench.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.cli.options import Commands
    from mooncake_bench.trace.fetch import Fetched, Progress
    from mooncake_bench.trace.public import PublicTrace


@options.takes(
    argument("names", list[str] | None, "Public traces, by the names that --list shows", None, metavar="NAME"),
    option("list_them", bool, ("--list",), "List the public traces instead of fetching [default: off]", False),
    option(
        "cache_dir",
        Path | None,
        ("--cache-dir",),
        "Folder that keeps the files [default: mooncake-bench/traces in the user's cache folder]",
        metavar="DIR",
    ),
    option(
        "url_base",
        str | None,
        ("--url-base",),
        "Address of a mirror that holds the same file names [default: where each trace was published]",
        metavar="URL",
    ),
    options.format_option(),
)
def fetch(**given: Any) -> None:
    """Download public traces, verify them and print where they are; one that is there already is not asked for again.

    mooncake-bench traces fetch mooncake-conversation
    """
    shown = options.chosen_format(given["format"])
    from mooncake_bench.trace.public import LIST_HINT, default_folder

    folder = given["cache_dir"] or default_folder()
    if given["list_them"]:
        _refuse_idle(given)
        answer(render_list("Public traces", _listed(folder, shown), shown) + (_by_hand() if shown == "table" else ""))
    elif not given["names"]:
        raise SetupError(f"traces fetch: name at least one public trace; {LIST_HINT}")
    else:
        found = [_fetched(name, folder, given["url_base"]) for name in dict.fromkeys(given["names"])]
        answer(_answer(found, shown))


def _refuse_idle(given: dict[str, Any]) -> None:
    if given["names"]:
        raise SetupError(f"traces fetch {given['names'][0]} --list: the list is of all traces; drop one of them")
    if given["url_base"] is not None:
        raise SetupError("--url-base: no effect with --list; drop it")


def _listed(folder: Path, shown: str) -> list[dict[str, Any]]:
    from mooncake_bench.trace.public import public_traces

    if shown in ("json", "csv"):
        return [_facts(trace, folder) for trace in public_traces().values()]
    return [
        {
            "name": trace.name,
            "requests": trace.requests,
            "MB": None if trace.bytes is None else f"{trace.bytes / 1e6:.1f}",
            "state": _state(trace, folder),
            "about": f"{trace.about} ({trace.licence})",
        }
        for trace in public_traces().values()
    ]


def _by_hand() -> str:
    """What can only be had by hand, and where."""
    from mooncake_bench.trace.public import public_traces

    lines = [f"{trace.name}: {trace.url}" for trace in public_traces().values() if not trace.pinned]
    return "\n".join(["\n\nBy hand, for no hash is known to verify a download:", *lines])


def _state(trace: PublicTrace, folder: Path) -> str:
    return "here" if (folder / trace.file).is_file() else "to fetch" if trace.pinned else "by hand"


def _facts(trace: PublicTrace, folder: Path) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(trace) | {"state": _state(trace, folder), "path": str(folder / trace.file)}


def _fetched(name: str, folder: Path, url_base: str | None) -> Fetched:
    from mooncake_bench.trace import fetch as fetching
    from mooncake_bench.trace.public import public_trace

    trace = public_trace(name)
    try:
        with _bar(name) as progress:
            return fetching.fetch(trace, folder, url_base, progress)
    except KeyboardInterrupt:
        partial = fetching.partial_path(folder / trace.file)
        if partial.is_file():
            note(f"{partial} keeps {partial.stat().st_size:,} bytes; run the same again to continue from there")
        raise


def _answer(found: Sequence[Fetched], shown: str) -> str:
    items = [
        {
            "name": item.trace.name,
            "path": str(item.path),
            "bytes": item.path.stat().st_size,
            "sha256": item.trace.sha256,
            "downloaded": item.downloaded,
        }
        for item in found
    ]
    if shown == "json":
        return json_answer(items)
    if shown != "table":
        return render_list("Fetched traces", items, shown)
    for item in found:
        state = "fetched and verified" if item.downloaded else "was there, verified"
        note(f"{item.trace.name}: {state}; licence {item.trace.licence}, cite {item.trace.cite}")
    note(f"look into it with: mooncake-bench traces info {found[0].path}")
    return "\n".join(str(item.path) for item in found)


@contextmanager
def _bar(name: str) -> Iterator[Progress]:
    """A progress bar on stderr where a person watches; each call also acts on a Ctrl-C that got lost."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield _heed
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)

        def advance(done: int, total: int | None) -> None:
            _heed(done, total)
            bar.update(task, completed=done, total=total)

        yield advance


def _heed(done: int, total: int | None) -> None:
    if requested():
        raise KeyboardInterrupt


COMMANDS: Commands = (
    (
        "fetch",
        fetch,
        (
            Example("traces fetch --list", "public traces: requests, size, licence, and whether they are here"),
            Example("traces fetch --list --format json", "the same with addresses and hashes, for a program"),
            Example("traces fetch --list --cache-dir data", "what of it is in the folder 'data'"),
        ),
    ),
)
