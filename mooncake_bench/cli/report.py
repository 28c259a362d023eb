"""``report``: stored runs as one page for a browser or for paper."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.options import Example, argument, option
from mooncake_bench.cli.output import answer, note, silence
from mooncake_bench.errors import ResultError, SetupError

if TYPE_CHECKING:
    from mooncake_bench.cli.options import Commands
    from mooncake_bench.report.html.page import Page

STDOUT, PAGE = "-", "report.html"
TIMELINES = (".json", ".json.gz")
RUNS = "Runs, the first is the reference: a folder, a number, a --name, @last or @last:N; or the folder of one sweep"
EXAMPLES = (
    Example("report @last:2", "the two latest runs as report.html, the older as the reference"),
    Example("report 1 2 -o overload.html --title 'Overload, 2.5 x'", "two runs by number, under a title of your own"),
    Example("report @last --timeline run.json", "the latest run over time, for Perfetto; no page"),
)


@options.takes(
    argument("runs", list[str], RUNS, metavar="RUN"),
    option(
        "out", str | None, ("-o", "--out"), "Page to write, - is stdout [default: report.html; with --timeline none]",
        panel="Output", metavar="FILE",
    ),
    option(
        "timeline", Path | None, ("--timeline",),
        "Write trace events for Perfetto or chrome://tracing to this .json or .json.gz [default: none]",
        panel="Output", metavar="FILE",
    ),
    option("force", bool, ("--force",), "Overwrite an existing file [default: off]", False, panel="Output"),
    option(
        "title", str | None, ("--title",), "Title of the page [default: the policies and the trace]", panel="Output",
        metavar="TEXT",
    ),
    option(
        "results", Path | None, ("--results",),
        "Folder in which numbers, names and @last are looked up [default: results]", metavar="DIR",
    ),
    option(
        "force_compare", bool, ("--force-compare",), "Put even runs of different work side by side [default: off]",
        False,
    ),
)  # fmt: skip
def report(**given: Any) -> None:
    """Write stored runs as one HTML page, or as a timeline.

    The page says what was replayed, in tables and figures with their numbers.

    The page needs no network and nothing beside it: open it, print it, send it on. Tables can be sorted, and the
    numbers of every table and figure downloaded. Needs Jinja2: pip install 'mooncake-bench[report]'.
    """
    if given["out"] is None and given["timeline"] is None:
        given["out"] = PAGE
    _check(given)
    if given["out"] is not None:
        from mooncake_bench.report.html.page import check_jinja, render

        check_jinja()
        _write(render(_page(given)), given)
    if given["timeline"] is not None:
        _write_timeline(given)


def _page(given: dict[str, Any]) -> Page:
    """What the page says: of a sweep, where its folder is named, else of runs."""
    from mooncake_bench.results.sweep import MANIFEST

    sweeps = [name for name in given["runs"] if (Path(name) / MANIFEST).is_file()]
    if not sweeps:
        return _page_of_runs(given)
    if len(given["runs"]) > 1:
        raise ResultError(f"{sweeps[0]!r} is a sweep, which has a page of its own; name it alone")
    idle = [flag for name, flag in IDLE_WITH_SWEEP.items() if given[name]]
    if idle:
        raise SetupError(f"{' and '.join(idle)}: no effect on the page of a sweep; leave it out")
    from mooncake_bench.report.html.sweeps import of_sweep
    from mooncake_bench.results.sweep import open_sweep

    return of_sweep(open_sweep(sweeps[0]), given["title"])


def _page_of_runs(given: dict[str, Any]) -> Page:
    from mooncake_bench.report.html.runs import of_runs
    from mooncake_bench.results.compare import compare, differing_work
    from mooncake_bench.results.run import open_runs

    runs = open_runs(given["runs"], *([given["results"]] if given["results"] else []))
    apart = dict.fromkeys(line for run in runs for line in differing_work(runs[0], run))
    if apart and not given["force_compare"]:
        raise ResultError(f"the runs are not comparable: {'; '.join(apart)} (--force-compare shows them anyway)")
    return of_runs(compare(runs, force=given["force_compare"]), given["title"])


IDLE_WITH_SWEEP = {"results": "--results", "force_compare": "--force-compare"}


def _check(given: dict[str, Any]) -> None:
    """Raises SetupError for an output that could not be written, before any work is done."""
    from mooncake_bench import outfile

    if given["title"] is not None and not given["title"].strip():
        raise SetupError("--title: expected some text, got nothing")
    if given["timeline"] is not None:
        _check_timeline(given)
    if given["out"] is None:
        return
    if given["out"] != STDOUT:
        outfile.check_target(given["out"], force=given["force"], label=_label(given), error=SetupError)
    elif given["force"]:
        raise SetupError("--force: no effect where the page goes to stdout; leave it out")


def _check_timeline(given: dict[str, Any]) -> None:
    from mooncake_bench import outfile

    target = given["timeline"]
    if not target.name.endswith(TIMELINES):
        raise SetupError(f"--timeline {str(target)!r}: expected a name that ends in {' or '.join(TIMELINES)}")
    outfile.check_target(target, force=given["force"], label=f"--timeline {str(target)!r}", error=SetupError)
    if given["out"] is None and given["title"] is not None:
        raise SetupError("--title: no effect without a page; add -o FILE, or drop it")


def _write_timeline(given: dict[str, Any]) -> None:
    """The runs' trace events; what was left out is said on stderr."""
    import gzip

    from mooncake_bench import outfile
    from mooncake_bench.report.tracks import document
    from mooncake_bench.results.run import open_runs

    target = given["timeline"]
    text, notes = document(open_runs(given["runs"], *([given["results"]] if given["results"] else [])))
    content = text.encode("utf-8")
    if target.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    label = f"--timeline {str(target)!r}"
    with outfile.writing(target, force=given["force"], label=label, error=SetupError) as partial:
        partial.write_bytes(content)
    for line in notes:
        note(line)
    answer(f"{target}: {len(content):,} bytes, for Perfetto or chrome://tracing")


def _label(given: dict[str, Any]) -> str:
    return f"-o {given['out']!r}"


def _write(page: str, given: dict[str, Any]) -> None:
    from mooncake_bench import outfile

    if given["out"] == STDOUT:
        _to_stdout(page)
        return
    with outfile.writing(given["out"], force=given["force"], label=_label(given), error=SetupError) as partial:
        partial.write_bytes(page.encode("utf-8", "replace"))
    answer(f"{given['out']}: {len(page.encode('utf-8', 'replace')):,} bytes")


def _to_stdout(page: str) -> None:
    """The page's bytes, whatever the terminal's encoding."""
    if sys.stdout is None:
        raise SetupError("the page cannot be written: stdout is closed; redirect it to a file, or name one")
    try:
        sys.stdout.buffer.write(page.encode("utf-8", "replace"))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        silence(sys.stdout)
        raise SetupError(f"the page cannot be written to stdout: {error.strerror or error}") from None


COMMANDS: Commands = (("report", report, EXAMPLES),)
