"""``calibrate live``: run a grid of kernels here, fit the cost model to it, write a preset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.options import Example, option
from mooncake_bench.cli.output import answer, note
from mooncake_bench.errors import SetupError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.cli.options import Commands
    from mooncake_bench.hardware.calibrate.fitting import PhaseFit
    from mooncake_bench.live.bench import LiveSettings
    from mooncake_bench.live.calibration import Calibration
    from mooncake_bench.live.grid import Grid

OUT = Path("live.toml")
GRID_NAMES = ("small", "full")

PARAMETERS = [
    option(
        "model",
        str,
        ("--model",),
        "Model preset, a file.toml or a config.json [default: tiny-llama]",
        "tiny-llama",
        metavar="NAME",
    ),
    option(
        "tensor_parallel",
        int,
        ("--tensor-parallel",),
        "Ranks that the model is split over; one of them is run [ranks; default: 1]",
        1,
        metavar="N",
    ),
    option(
        "device",
        str,
        ("--device", "--live-device"),
        "Device that kernels run on: auto, cpu, cuda or cuda:N [default: auto]",
        "auto",
        metavar="NAME",
    ),
    option(
        "dtype",
        str,
        ("--dtype", "--live-dtype"),
        "Type of weights and KVCache: auto, float32, bfloat16 or float16 [default: auto]",
        "auto",
        metavar="NAME",
    ),
    option(
        "layers",
        str | None,
        ("--layers", "--live-layers"),
        "Rising depths that are run and scaled to the model's own, such as 1,2,4; a model that is not deeper is run "
        "whole [default: 1,2,4]",
        metavar="A,B,C",
    ),
    option(
        "repeat",
        int,
        ("--repeat", "--live-repeat"),
        "Timed rounds of each shape, after a warm-up; at most 3 of one that takes seconds [rounds; default: 5]",
        5,
        metavar="N",
    ),
    option(
        "grid",
        str | None,
        ("--grid",),
        "Shapes that are run: small (seconds for a small model on a CPU) or full (minutes on a GPU) [default: small on "
        "a CPU, full on a GPU]",
        metavar="|".join(GRID_NAMES),
    ),
    option(
        "prefill",
        str | None,
        ("--prefill",),
        "Prefills to run in place of a grid: computed tokens, or computed+prefix, such as 64,256,1024+512 [tokens; "
        "default: the grid's]",
        metavar="SHAPES",
    ),
    option(
        "decode",
        str | None,
        ("--decode",),
        "Decode steps to run in place of a grid: sequences x context of each, such as 1x512,8x1024 [tokens; default: "
        "the grid's]",
        metavar="SHAPES",
    ),
    option(
        "vram_tokens",
        str | None,
        ("--vram",),
        "KV capacity written into the preset, such as 64Ktok or 40GB; bare number: tokens [tokens; default: what the "
        "device's memory holds beside the weights]",
        metavar="SIZE",
    ),
    option(
        "rows",
        Path | None,
        ("--rows",),
        "CSV file of measured rows: those in it are not run again, new ones are added as they come, so that an "
        "interrupted grid continues; calibrate fit reads it [default: beside --out, as NAME.rows.csv]",
        panel="Output",
        metavar="FILE",
    ),
    option(
        "out",
        Path,
        ("-o", "--out"),
        f"Node preset to write, for --node FILE [default: {OUT}]",
        OUT,
        panel="Output",
        metavar="FILE",
    ),
    option("force", bool, ("--force",), "Overwrite the preset [default: off]", False, panel="Output"),
    options.format_option(),
    option(
        "quiet",
        bool,
        ("-q", "--quiet"),
        "No progress, notices or paths on stderr [default: off]",
        False,
        panel="Output",
    ),
]


@options.takes(*PARAMETERS)
def live(**given: Any) -> None:
    """Measure a grid of prefills and decode steps on this device and fit the cost model to it.

    Prints how far the fit is off: on rows held out of it (medians over random halves), and with each configuration (a
    prompt length, a batch size) left out. The preset holds no engine time. Rows are kept in a file as they are
    measured: after Ctrl-C the same command continues; delete the file to measure anew.
    """
    shown = options.chosen_format(given["format"])
    out, rows = given["out"], given["rows"] or given["out"].with_suffix(".rows.csv")
    from mooncake_bench.cli.progress import progress_bar
    from mooncake_bench.hardware.calibrate.preset import check_node, write_node
    from mooncake_bench.hardware.presets import load_model
    from mooncake_bench.live.calibration import calibrate
    from mooncake_bench.outfile import check_target

    check_node(out, force=given["force"])
    if out == rows:
        raise SetupError(f"--rows {rows}: is the preset's own file; name another")
    check_target(rows, force=True, label=f"--rows {rows}", error=SetupError)
    ranks = _at_least_one("--tensor-parallel", given["tensor_parallel"])
    model, grid, settings, vram = load_model(given["model"]), _grid(given), _settings(given), _vram_tokens(given)
    left_out: list[str] = []
    try:
        with progress_bar(f"{given['model']} on {given['device']}", given["quiet"], "shapes") as bar:
            done = calibrate(
                model, ranks, settings, grid, rows, lambda count, of: bar(count, of, 0.0), vram, tell=left_out.append
            )
    except KeyboardInterrupt:
        _tell(given, [f"what was measured is in {rows}; the same command continues"] if rows.exists() else [])
        raise
    except SetupError:
        _tell(given, left_out)
        raise
    write_node(done.node, out, force=given["force"])
    answer(_table(done, shown))
    _tell(given, [f"measured on {done.place}: {done.quality}", *left_out, *done.notices])
    _tell(given, [f"written: {out} (for --node {out}), {rows}"])


def _tell(given: dict[str, Any], lines: Sequence[str]) -> None:
    if not given["quiet"]:
        for line in lines:
            note(line)


def _vram_tokens(given: dict[str, Any]) -> int | None:
    """--vram as a replay reads it, but for blocks: they are a trace's."""
    from mooncake_bench.cli.sizes import resolve_sizes
    from mooncake_bench.sim.parsing import parse_size
    from mooncake_bench.sim.setup import Setup

    text = given["vram_tokens"]
    if text is None:
        return None
    if parse_size(text, "tokens", "--vram").unit == "blocks":
        raise SetupError(f"--vram: expected tokens or bytes such as 64Ktok or 40GB, got {text!r}; blocks are a trace's")
    return Setup(**resolve_sizes({"vram_tokens": text, "model": given["model"]}, 1)).vram_tokens


def _at_least_one(flag: str, value: int) -> int:
    if value < 1:
        raise SetupError(f"{flag}: must be at least 1, got {value}")
    return value


def _settings(given: dict[str, Any]) -> LiveSettings:
    """How kernels are run; read by the same rules as a replay's settings."""
    from mooncake_bench.live.bench import LiveSettings
    from mooncake_bench.sim.setup import Setup

    read = Setup(
        live_repeat=given["repeat"],
        live_device=given["device"],
        live_dtype=given["dtype"],
        live_layers=given["layers"],
    )
    return LiveSettings(read.live_repeat, read.live_device, read.live_dtype, read.live_depths)


def _grid(given: dict[str, Any]) -> Grid | None:
    """The shapes asked for; None: as the device is."""
    from mooncake_bench.live.grid import GRIDS, Grid, parse_decode, parse_prefill

    name, prefill, decode = given["grid"], given["prefill"], given["decode"]
    if prefill is not None and decode is not None:
        if name is not None:
            raise SetupError("--grid: no effect beside --prefill and --decode, which replace it; drop it")
        return Grid(parse_prefill(prefill), parse_decode(decode))
    if prefill is not None or decode is not None:
        one, other = ("--prefill", "--decode") if prefill is not None else ("--decode", "--prefill")
        raise SetupError(f"{one}: give {other} as well: the two replace a grid")
    if name is not None and name not in GRIDS:
        raise SetupError(f"--grid: expected one of {', '.join(GRIDS)}, got {name!r}{nearest(name, GRIDS)}")
    return None if name is None else GRIDS[name]


def _table(done: Calibration, shown: str) -> str:
    from mooncake_bench.cli.listing import render_list

    return render_list("Errors of the fit, %", [_errors(done.prefill), _errors(done.decode)], shown)


def _errors(phase: PhaseFit) -> dict[str, Any]:
    """One line of the answer: relative errors in %; None where there were too few rows to hold any out."""
    unseen, (median, _, worst) = phase.heldout, phase.in_sample
    names = ("median", "p90", "worst", "left_out_median", "left_out_p90")
    rounded = {name: None if unseen is None else round(getattr(unseen, name), 2) for name in names}
    mine = {"in_sample_median": round(median, 2), "in_sample_worst": round(worst, 2)}
    return {"phase": phase.phase, "rows": len(phase.rows), **rounded, **mine}


EXAMPLES = (
    Example("calibrate live", "a small model on this machine: live.toml and live.rows.csv"),
    Example(
        "calibrate live --prefill 16,32,64,96,16+64,64+64 --decode 1x64,2x64,4x64,1x128,2x128,4x128 -o few.toml",
        "shapes of one's own",
    ),
    Example(
        "calibrate live --device cpu --repeat 1 --prefill 16,32,48,64,80,96 --decode 1x64,2x64,4x64,1x96,2x96,4x96 "
        "-o quick.toml",
        "one round each, on the CPU",
    ),
)
COMMANDS: Commands = (("live", live, EXAMPLES),)
