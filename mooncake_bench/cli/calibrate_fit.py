"""``calibrate fit``: the cost model fitted to tables of measured times, or with ``--served`` to a served log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import calibrate_served, options
from mooncake_bench.cli.listing import render_list, render_report
from mooncake_bench.cli.options import Example, argument, option
from mooncake_bench.cli.output import answer, json_answer, note
from mooncake_bench.errors import SetupError, nearest

if TYPE_CHECKING:
    from mooncake_bench.cli.options import Commands
    from mooncake_bench.hardware.calibrate.fitting import PhaseFit
    from mooncake_bench.hardware.calibrate.reading import Measurements
    from mooncake_bench.hardware.presets import Node, NodeCosts

MODEL, BASE = "llama-3-70b", "a100"
STATUSES = ("measured", "derived")
TABLES, PRESET, OUTPUT = "Measured times", "The node's preset", "Output"
SHARED = ("model", "columns")
"""Options that mean the same thing with ``--served`` and without."""

PARAMETERS = [
    argument("files", list[Path] | None, "Tables of measured times: CSV or parquet", None, metavar="FILE"),
    option(
        "where", str | None, ("--where",), "Rows to read: columns and their values, such as hw=a100_sxm,tp=8 [default: "
        "all]", panel=TABLES, metavar="COLUMN=VALUE,...",
    ),
    option(
        "columns", str | None, ("--columns",),
        "What the files call n, s, prefix, isl, batch, tokens, context, ms or phase, such as n=computed,ms=time; with "
        "--served the log's columns: arrival, input, output, ttft or first, and end, e2e or gaps, a time's unit (s, "
        "ms, us, ns) after a colon [default: those names]",
        panel=TABLES, metavar="KEY=COLUMN,...",
    ),
    option(
        "root", bool, ("--root",), "Try a term with the square root of the batch in decode steps, as mixtures of "
        "experts need; it stays where it helps on rows not seen [default: off]", False, panel=TABLES,
    ),
    option(
        "seed", int | None, ("--seed",), "Of the random halves that are held out [default: 0]", panel=TABLES,
        metavar="N",
    ),
    option(
        "example", Path | None, ("--example",), "Write a table as it is read, filled with times that --base's preset "
        "predicts, and leave [default: none]", panel=TABLES, metavar="FILE.csv",
    ),
    option("served", Path | None, ("--served",), "Fit an engine's overheads to this log of a served benchmark instead "
           "[default: none]", panel=calibrate_served.PANEL, metavar="LOG"),
    *(one for one in calibrate_served.PARAMETERS if one.name not in SHARED),
    option("model", str | None, ("--model",), f"Model that was measured or served [default: {MODEL}; with --served "
           "none, it must be said]", panel=PRESET,
           metavar="NAME"),
    option(
        "base", str | None, ("--base",), "Node that times are compared with, and that all else is taken from: GPUs, "
        f"DRAM pool, network, KV capacity, and the phase that has no rows [default: {BASE}]",
        panel=PRESET, metavar="NODE",
    ),
    option("name", str | None, ("--name",), "Description of the node [default: says it is a fit, and the base]",
           panel=PRESET, metavar="TEXT"),
    option("vram_tokens", int | None, ("--vram-tokens",), "KV capacity [tokens; default: the base's for the model, "
           "known or predicted]",
           panel=PRESET, metavar="N"),
    option("gpus", int | None, ("--gpus",), "GPUs of the node [default: the base's]", panel=PRESET, metavar="N"),
    option("status", str | None, ("--status",), "measured: on this very hardware; derived: computed from others' "
           "[default: measured]", panel=PRESET, metavar="|".join(STATUSES)),
    option("source", str | None, ("--source",), "Where the times come from [default: the files' names]", panel=PRESET,
           metavar="TEXT"),
    option("out", Path | None, ("-o", "--out"), "Preset to write: a node for --node FILE, with --served an engine for "
           "--engine FILE [default: none]", panel=OUTPUT, metavar="FILE.toml"),
    option("plot", Path | None, ("--plot",), "Picture of predicted against measured times to write: .png, .svg or .pdf "
           "[default: none]", panel=OUTPUT, metavar="FILE"),
    option("force", bool, ("--force",), "Overwrite files [default: off]", False, panel=OUTPUT),
    options.format_option(),
    option("quiet", bool, ("-q", "--quiet"), "No notices or paths on stderr [default: off]", False, panel=OUTPUT),
]  # fmt: skip
NEEDS_OUT = ("name", "gpus", "status", "source", "vram_tokens")
ONLY_TABLES = ("files", "where", "root", "seed", "example", "base", "plot", *NEEDS_OUT)
ONLY_SERVED = tuple(name for name in calibrate_served.NAMES if name not in SHARED)
WITH_EXAMPLE = ("example", "base", "model", "force", "quiet")


@options.takes(*PARAMETERS)
def fit(**given: Any) -> None:
    """Fit the cost model to measured times, say how far off it is on times held out, and write a node's preset.

    A prefill has n (computed tokens) and ms, and may have prefix (cached tokens) or s (the sum of n p + n^2 / 2); or
    batch and isl in place of n. A decode step has batch, ms and tokens (of all sequences) or context (of each). A table
    of both has a column phase: prefill or decode.
    """
    if given["served"] is not None:
        _refuse(given, ONLY_TABLES, "with --served, which reads a log of a served benchmark")
        calibrate_served.run(given["served"], given)
        return
    _refuse(given, ONLY_SERVED, "without --served LOG")
    if given["example"] is not None:
        _refuse(
            given, [name for name in given if name not in WITH_EXAMPLE], "with --example, which only writes a table"
        )
        _write_example(given)
        return
    _check(given)
    shown = options.chosen_format(given["format"])
    base = _base(given)
    from mooncake_bench.hardware.calibrate.preset import write_node
    from mooncake_bench.hardware.calibrate.reading import parse_pairs, read_tables

    rows = read_tables(given["files"], parse_pairs(given["where"], "--where"), _columns(given))
    fits = _fits(rows, given)
    node = None if given["out"] is None else _node(fits, base, given)
    notices = [*rows.notices, *_doubts(fits, base)]
    if node is not None:
        write_node(node, given["out"], force=given["force"])
    if given["plot"] is not None:
        _draw(fits, given)
    _print(fits, notices, given, shown)
    for path in () if given["quiet"] else filter(None, (given["out"], given["plot"])):
        note(f"written: {path}" + (f"; use it with --node {path}" if path == given["out"] else ""))


def _refuse(given: dict[str, Any], names: Any, why: str) -> None:
    for name in names:
        if given[name] not in (None, False, [], ()):
            flag = "FILE" if name == "files" else f"--{name.replace('_', '-')}"
            raise SetupError(f"{flag}: no effect {why}; drop it")


def _columns(given: dict[str, Any]) -> dict[str, str]:
    from mooncake_bench.hardware.calibrate.reading import parse_pairs

    return parse_pairs(given["columns"], "--columns")


def _check(given: dict[str, Any]) -> None:
    """Everything that can be seen to be wrong before any work is done."""
    if not given["files"]:
        raise SetupError(
            "FILE is missing: a table of measured times, CSV or parquet; calibrate fit --example rows.csv writes one"
        )
    if given["status"] is not None and given["status"] not in STATUSES:
        expected = " or ".join(STATUSES)
        raise SetupError(f"--status: expected {expected}, got {given['status']!r}{nearest(given['status'], STATUSES)}")
    for name in ("gpus", "vram_tokens"):
        if given[name] is not None and given[name] < 1:
            raise SetupError(f"--{name.replace('_', '-')}: must be at least 1, got {given[name]}")
    if given["seed"] is not None and given["seed"] < 0:
        raise SetupError(f"--seed: must be at least 0, got {given['seed']}")
    if given["out"] is None:
        _refuse(given, NEEDS_OUT, "without -o FILE.toml, which it goes into")
        if given["force"] and given["plot"] is None:
            raise SetupError("--force: no effect without -o or --plot; drop it, or name a file")
    else:
        from mooncake_bench.hardware.calibrate.preset import check_node

        check_node(given["out"], force=given["force"])
    if given["plot"] is not None:
        from mooncake_bench.report import plots

        plots.check_target(given["plot"], force=given["force"])


def _fits(rows: Measurements, given: dict[str, Any]) -> list[PhaseFit]:
    from mooncake_bench.hardware.calibrate.fitting import decode_fitted, prefill_fitted

    if given["root"] and rows.decode is None:
        raise SetupError("--root: no effect, for the files hold no decode steps; drop it")
    seed = given["seed"] or 0
    fits = [] if rows.prefill is None else [prefill_fitted(rows.prefill, seed=seed)]
    return fits if rows.decode is None else [*fits, decode_fitted(rows.decode, root=given["root"], seed=seed)]


def _base(given: dict[str, Any]) -> tuple[Node, str, NodeCosts | None]:
    """The node that all else is taken from, the model's name for costs, and what is known of it there: None, nothing.

    What is predicted is so for as many GPUs as ``--gpus`` says.
    """
    from dataclasses import replace

    from mooncake_bench.hardware.build import costs_on
    from mooncake_bench.hardware.presets import load_model, load_node

    node, model = load_node(given["base"] or BASE), load_model(given["model"] or MODEL)
    node = replace(node, gpus=given["gpus"] or node.gpus)
    try:
        return node, model.costs_of, costs_on(node, model)
    except SetupError:
        return node, model.costs_of, None


def _doubts(fits: list[PhaseFit], base: tuple[Node, str, NodeCosts | None]) -> list[str]:
    """What the rows do not tell, and times that are rather of another unit."""
    from mooncake_bench.hardware.calibrate.doubts import doubts, unit_doubts

    node, model, known = base
    found = [] if known is None else [
        line for fit in fits for line in unit_doubts(fit, known.coefficients, f"{model} on {node.name}")
    ]  # fmt: skip
    return [*found, *(line for fit in fits for line in doubts(fit))]


def _node(fits: list[PhaseFit], taken_from: tuple[Node, str, NodeCosts | None], given: dict[str, Any]) -> Node:
    """The node to be written."""
    from mooncake_bench.hardware.calibrate.preset import fitted_costs, with_costs

    base, model, known = taken_from
    vram = given["vram_tokens"] or (known and known.vram_tokens)
    if not vram:
        raise SetupError(f"node {base.name} says no KV capacity for {model}; give --vram-tokens N, or another --base")
    by_phase = {fit.phase: fit for fit in fits}
    where = f", rows with {given['where']}" if given["where"] else ""
    costs = fitted_costs(
        by_phase.get("prefill"),
        by_phase.get("decode"),
        vram_tokens=vram,
        source=given["source"] or f"times in {', '.join(path.name for path in given['files'])}{where}",
        status=given["status"] or "measured",
        base=known,
        base_name=base.name,
    )
    about = given["name"] or f"a fit of {model}; pool and network of {base.name}"
    return with_costs(base, model, costs, about)


def _draw(fits: list[PhaseFit], given: dict[str, Any]) -> None:
    from mooncake_bench.report import calibration_plot, plots

    with plots.style():
        rows = f"; rows with {given['where']}" if given["where"] else ""
        title = f"{', '.join(path.name for path in given['files'])}{rows}"
        plots.save(calibration_plot.draw(fits, title), given["plot"], force=given["force"])


def _print(fits: list[PhaseFit], notices: list[str], given: dict[str, Any], shown: str) -> None:
    from mooncake_bench.report import calibration_sheets
    from mooncake_bench.report.calibration_sheets import as_json

    if shown == "json":
        answer(json_answer({"fits": [as_json(one) for one in fits], "notices": notices, "written": _written(given)}))
        return
    if shown == "csv":
        items = [item for one in fits for item in calibration_sheets.flat(one)]
        answer(render_list("Fits", items, "csv"))
        far = [line for one in fits for line in calibration_sheets.far_rows(one)]
        for line in () if given["quiet"] else (*notices, *far):
            note(line)
        return
    answer(render_report(calibration_sheets.report(fits, (), notices), shown))


def _written(given: dict[str, Any]) -> list[str]:
    return [str(given[name]) for name in ("out", "plot") if given[name] is not None]


def _write_example(given: dict[str, Any]) -> None:
    """A table of what a preset predicts: something to look at, and to try the command with."""
    from mooncake_bench.hardware.calibrate.example import example_csv
    from mooncake_bench.outfile import writing

    node, model, known = _base(given)
    if known is None:
        raise SetupError(f"node {node.name} has no costs for {model}; it has: {', '.join(node.costs) or 'none'}")
    path = given["example"]
    with writing(path, force=given["force"], label=f"--example {path}", error=SetupError) as partial:
        partial.write_text(example_csv(known.coefficients, f"{model} on {node.name}"), encoding="utf-8")
    answer(f"{path}: predictions of the preset {node.name} for {model}, not measurements")


EXAMPLES = (
    Example("calibrate fit --example rows.csv", "what a table looks like, filled with a preset's predictions"),
    Example(
        "calibrate fit rows.csv -o mine.toml --status derived", "a node's preset from a table, for --node mine.toml"
    ),
    Example("calibrate fit rows.csv --where phase=decode --format json", "errors alone, of some of the rows"),
)
COMMANDS: Commands = (("fit", fit, EXAMPLES),)
