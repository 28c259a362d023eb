"""``artifact pack`` and ``artifact verify``: runs in one archive that others replay."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mooncake_bench.cli import options
from mooncake_bench.cli.listing import render_list, render_report
from mooncake_bench.cli.options import Example, argument, option
from mooncake_bench.cli.output import answer, json_answer, note, policies_print_to_stderr, tell
from mooncake_bench.cli.progress import progress_bar
from mooncake_bench.errors import NothingToConclude, SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mooncake_bench.cli.options import Commands
    from mooncake_bench.cli.progress import Silent
    from mooncake_bench.studies.artifact.contents import Contents
    from mooncake_bench.studies.artifact.outcome import Outcome

HELP = "A paper's runs in one archive, and their replay."
EXAMPLES = (
    Example("artifact pack @last:2 -o paper.tar.gz --force", "the two latest runs, their policies and setups"),
    Example("artifact verify paper.tar.gz --list", "what an archive holds; runs nothing"),
    Example("artifact verify paper.tar.gz", "replay its runs and compare every number"),
)
DIFFERS = 1
_quiet = option(
    "quiet",
    bool,
    ("-q", "--quiet"),
    "No progress or path on stderr; that code of an archive is run is always said [default: off]",
    False,
    panel="Output",
)


@options.takes(
    argument("runs", list[str], "Runs: a folder, a number, a --name, @last or @last:N", metavar="RUN"),
    option("file", Path | None, ("-o",), "The archive, a .tar.gz or .zip [required; default: none]", metavar="FILE"),
    option(
        "with_traces",
        bool,
        ("--with-traces",),
        "Put trace files in as well, not only their hashes; mind their licences [default: off]",
        False,
    ),
    options.policy_dir_option(),
    option(
        "out", Path | None, ("--out",), "Folder in which numbers, names and @last are looked up [default: results]",
        metavar="DIR",
    ),
    option("force", bool, ("--force",), "Overwrite an existing file [default: off]", False, panel="Output"),
    options.format_option(),
    _quiet,
)  # fmt: skip
def pack(**given: Any) -> None:
    """Pack stored runs: their tables, setups and presets, their policies' code, and what their traces must be.

    A run is packed only if it can be replayed here and now: its trace, the code of its policies and its costs are
    checked. The same runs give the same bytes. Paths of this machine do not get in.
    """
    shown = options.chosen_format(given["format"])
    path = _target(given)
    from mooncake_bench.results.run import open_runs
    from mooncake_bench.studies.artifact import archive
    from mooncake_bench.studies.artifact.collect import collect

    runs = open_runs(given["runs"], *([given["out"]] if given["out"] else []))
    with policies_print_to_stderr():
        collected = collect(runs, given["policy_dir"] or (), with_traces=given["with_traces"])
    if given["with_traces"] and not collected.traces:
        raise SetupError("--with-traces: no effect, the traces of these runs come with mooncake-bench; drop it")
    contents = collected.finished()
    archive.write(path, collected.files, force=given["force"])
    tell(given, f"artifact: {path}")
    answer(_listed(contents, shown, collected.notices))


def _target(given: Mapping[str, Any]) -> Path:
    from mooncake_bench.errors import ResultError
    from mooncake_bench.outfile import check_target
    from mooncake_bench.studies.artifact.archive import ENDINGS

    path: Path | None = given["file"]
    if path is None:
        raise SetupError("-o: name the archive to write, such as -o paper.tar.gz")
    if not path.name.endswith(ENDINGS):
        raise SetupError(f"-o {path}: expected a name that ends in .tar.gz or .zip")
    check_target(path, force=given["force"], label=f"-o {path}", error=ResultError)
    return path


@options.takes(
    argument("file", Path, "An archive that `artifact pack` wrote"),
    option(
        "list",
        bool,
        ("--list",),
        "Show what it holds, and check its files' hashes; nothing is replayed, no code is run [default: off]",
        False,
    ),
    option(
        "traces",
        Path | None,
        ("--traces",),
        "Folder, searched with those in it, for traces that are not in the archive; found by sha256 [default: none]",
        metavar="DIR",
    ),
    option(
        "max_size",
        float | None,
        ("--max-size",),
        "Refuse an archive that unpacks to more [GB; default: 4]",
        metavar="GB",
    ),
    options.format_option(),
    _quiet,
)
def verify(**given: Any) -> None:
    """Replay an archive's runs and compare every number and every decision with what was stored.

    Says of each run: identical, within 1e-9, or which decisions differ. Exit code 0: all of them are; 1: one differs
    or fails; 3: none differs, but one could not be verified, for its trace is not at hand.

    Policies' code that the archive brings is run, with your rights: see what it is with --list, and read it first. What
    comes with mooncake-bench is taken from this installation where it is the same.
    """
    shown = options.chosen_format(given["format"])
    most = 4.0 if given["max_size"] is None else given["max_size"]
    if not most > 0:
        raise SetupError(f"--max-size: expected a number of GB above 0, got {most:g}")
    if given["list"] and given["traces"]:
        raise SetupError("--traces: no effect with --list, which replays nothing; drop one of the two")
    from mooncake_bench.studies.artifact.verify import opened

    with opened(given["file"], round(min(most, 1e9) * 1e9)) as (folder, contents):
        if given["list"]:
            answer(_listed(contents, shown))
            return
        outcomes = _verify_all(contents, folder, given)
    answer(_rendered(outcomes, shown))
    _leave(outcomes)


def _verify_all(contents: Contents, folder: Path, given: Mapping[str, Any]) -> list[Outcome]:
    from mooncake_bench.studies.artifact.verify import code_to_run, find_traces
    from mooncake_bench.studies.artifact.verify import verify as verified

    missing = find_traces(contents, folder, given["traces"])
    code = code_to_run(contents, missing)
    if code:
        files = ", ".join(f"{file} (sha256 {digest[:12]})" for file, digest in sorted(code.items()))
        note(f"! this runs policy code out of the archive, with your rights: {files}")

    @contextmanager
    def progress_of(label: str) -> Iterator[Silent]:
        with progress_bar(label, given["quiet"]) as progress:
            yield progress

    with policies_print_to_stderr():
        return list(verified(contents, folder, missing, progress_of))


def _leave(outcomes: Sequence[Outcome]) -> None:
    """With the exit code that tells what was found."""
    from mooncake_bench.studies.artifact.outcome import DIFFERS as DIFFERENT
    from mooncake_bench.studies.artifact.outcome import FAILED, MISSING

    verdicts = [each.verdict for each in outcomes]
    if DIFFERENT in verdicts or FAILED in verdicts:
        raise typer.Exit(DIFFERS)
    if MISSING in verdicts:
        raise NothingToConclude(f"{verdicts.count(MISSING)} of {len(verdicts)} runs could not be verified")


def _listed(contents: Contents, shown: str, notices: Sequence[str] = ()) -> str:
    from mooncake_bench.studies.artifact.show import contents_report

    if shown == "json":
        import json

        return json_answer(json.loads(contents.to_json()) | {"notices": list(notices)})
    if shown == "csv":
        files = [
            {"file": name, "bytes": fact["bytes"], "sha256": fact["sha256"]} for name, fact in contents.files.items()
        ]
        return render_list("Files", files, "csv")
    return render_report(contents_report(contents, notices), shown)


def _rendered(outcomes: Sequence[Outcome], shown: str) -> str:
    from mooncake_bench.studies.artifact.show import verified_report

    if shown == "json":
        return json_answer([each.to_dict() for each in outcomes])
    if shown == "csv":
        keys = ("folder", "label", "verdict", "requests", "differing_requests", "worst", "why")
        return render_list("Runs", [{key: getattr(each, key) for key in keys} for each in outcomes], "csv")
    return render_report(verified_report(outcomes), shown)


COMMANDS: Commands = (
    (
        "pack",
        pack,
        (
            EXAMPLES[0],
            Example("artifact pack @last -o one.zip", "one run, as a zip file"),
            Example("artifact pack @last:2 -o paper.tar.gz --force --format json", "every file with its sha256"),
        ),
    ),
    ("verify", verify, (EXAMPLES[1], EXAMPLES[2], Example("artifact verify paper.tar.gz --format csv", "for a table"))),
)
