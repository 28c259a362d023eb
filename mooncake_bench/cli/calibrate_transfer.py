"""``calibrate transfer``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.listing import render_report
from mooncake_bench.cli.options import Example, option
from mooncake_bench.cli.output import answer, json_answer, note
from mooncake_bench.errors import SetupError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.cli.options import Commands
    from mooncake_bench.live.transfer.measure import Measured

VIAS = ("copy", "gloo", "engine", "all")

PARAMETERS = [
    option(
        "via",
        str | None,
        ("--via",),
        "How bytes are moved: copy (host to device and back, by torch), gloo (between two processes over TCP, by "
        "torch.distributed), engine (Mooncake's transfer engine between two processes) or all that are installed "
        "[default: all]",
        metavar="|".join(VIAS),
    ),
    option(
        "sizes",
        str | None,
        ("--sizes",),
        "Bytes of a transfer, at least three sizes; bare number: bytes, or 64KiB, 1MB [bytes; default: "
        "64KiB,256KiB,1MiB,4MiB,16MiB,64MiB]",
        metavar="SIZE,...",
    ),
    option("repeat", int | None, ("--repeat",), "Timed transfers of each size, at least 3 [default: 7]", metavar="N"),
    option(
        "device",
        str | None,
        ("--device",),
        "Device of --via copy: auto (the first GPU, else the CPU), cpu, cuda or cuda:N [default: auto]",
        metavar="DEVICE",
    ),
    options.format_option(),
    option(
        "out",
        Path | None,
        ("-o", "--out"),
        "File for the links, in TOML as the bundled ones [default: none]",
        panel="Output",
        metavar="FILE",
    ),
    option("force", bool, ("--force",), "Overwrite the file of -o [default: off]", False, panel="Output"),
    option(
        "quiet", bool, ("-q", "--quiet"), "No bar, notices or paths on stderr [default: off]", False, panel="Output"
    ),
]


@options.takes(*PARAMETERS)
def transfer(**given: Any) -> None:
    """Time transfers of real data and fit latency and bandwidth, with the error on sizes left out of the fit.

    Every transfer's data is checked. --via copy and gloo need the extra 'live', --via engine the extra 'mooncake'.
    """
    shown = options.chosen_format(given["format"])
    via = _via(given)
    from mooncake_bench.cli.progress import progress_bar
    from mooncake_bench.live.transfer import measure

    sizes = _sizes(given["sizes"]) if given["sizes"] is not None else measure.DEFAULT_SIZES
    repeat = measure.DEFAULT_REPEAT if given["repeat"] is None else given["repeat"]
    _check_out(given)
    measure.check_work(sizes, repeat)
    vias, lacking = measure.usable(via)
    with progress_bar("transfers", given["quiet"], "transfers") as progress:
        measured = measure.measure(vias, sizes, repeat, given["device"] or "auto", progress)
    if given["out"] is not None:
        _write(measured, given)
    answer(_text(measured, lacking, shown))
    if shown in ("json", "csv") and not given["quiet"]:
        for line in lacking:
            note(line)


def _via(given: dict[str, Any]) -> str:
    via: str = given["via"] or "all"
    if via not in VIAS:
        raise SetupError(f"--via: expected one of {', '.join(VIAS)}, got {via!r}{nearest(via, VIAS)}")
    if given["device"] is not None and via not in ("copy", "all"):
        raise SetupError(f"--device: no effect with --via {via}, which moves bytes between the memories of processes")
    return via


def _sizes(text: str) -> tuple[int, ...]:
    from mooncake_bench.sim.parsing import parse_size

    found = []
    for part in text.split(","):
        size = parse_size(part.strip(), "bytes", "--sizes")
        if size.unit != "bytes" or size.amount != int(size.amount) or size.amount < 1:
            raise SetupError(f"--sizes: expected whole bytes above 0, such as 65536 or 64KiB, got {part.strip()!r}")
        found.append(int(size.amount))
    return tuple(found)


def _check_out(given: dict[str, Any]) -> None:
    from mooncake_bench.outfile import check_target

    if given["out"] is None:
        if given["force"]:
            raise SetupError("--force: no effect without -o FILE; drop it, or name a file")
        return
    check_target(given["out"], force=given["force"], label=f"-o {str(given['out'])!r}", error=SetupError)


def _write(measured: Sequence[Measured], given: dict[str, Any]) -> None:
    import datetime

    from mooncake_bench.live.transfer.rows import as_toml
    from mooncake_bench.outfile import writing

    text = as_toml(measured, datetime.datetime.now(datetime.UTC).date().isoformat())
    label = f"-o {str(given['out'])!r}"
    with writing(given["out"], force=given["force"], label=label, error=SetupError) as partial:
        partial.write_text(text, encoding="utf-8")
    if not given["quiet"]:
        note(f"written: {given['out']}")


def _text(measured: Sequence[Measured], lacking: Sequence[str], shown: str) -> str:
    from mooncake_bench.live.transfer.rows import as_csv, as_json

    if shown == "json":
        return json_answer({"links": [as_json(one) for one in measured], "not_measured": list(lacking)})
    if shown == "csv":
        return as_csv(measured)
    from mooncake_bench.report.links import report

    content = report(measured, lacking)
    return render_report(content, shown)


EXAMPLES = (
    Example("calibrate transfer --via copy", "device and host; on a CPU, within its memory"),
    Example("calibrate transfer --via copy --format json -o links.toml", "for a program, and as a file of links"),
    Example("calibrate transfer --sizes 64KiB,1MiB,8MiB --repeat 5", "all ways that are installed, quickly"),
)
COMMANDS: Commands = (("transfer", transfer, EXAMPLES),)
