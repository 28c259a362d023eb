"""``calibrate fit --served``: engine overheads from a served log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.cli.listing import render_list, render_report
from mooncake_bench.cli.options import chosen_format, option
from mooncake_bench.cli.output import answer, json_answer, note
from mooncake_bench.cli.progress import progress_bar
from mooncake_bench.errors import SetupError, nearest

if TYPE_CHECKING:
    from pathlib import Path

    from mooncake_bench.studies.served.show import Served

PANEL = "With --served"
SCHEDULING = ("async", "sync")

PARAMETERS = [
    option(
        "node", str | None, ("--node",), "Node that served: a preset or a .toml file [default: none, it must be said]",
        panel=PANEL, metavar="NAME",
    ),
    option("model", str | None, ("--model",), "Model that was served", panel=PANEL, metavar="NAME"),
    option(
        "engine", str | None, ("--engine",), "Overheads that are tried first [default: none]", panel=PANEL,
        metavar="NAME",
    ),
    option(
        "columns",
        str | None,
        ("--columns",),
        "Columns of a CSV, JSONL or parquet log: arrival, input, output, ttft or first, and end, e2e or gaps; a time's "
        "unit after a colon (s, ms, us, ns) [default unit: ms]",
        panel=PANEL,
        metavar="KEY=COLUMN,...",
    ),
    option(
        "max_batched_tokens", int | None, ("--max-batched-tokens",),
        "Tokens of one engine step, as the server was started [default: 8192]", panel=PANEL, metavar="TOKENS",
    ),
    option(
        "max_seqs", int | None, ("--max-seqs",), "Sequences that run at once, as the server was started [default: 256]",
        panel=PANEL, metavar="N",
    ),
    option(
        "scheduling",
        str | None,
        ("--scheduling",),
        "async: a step is made up while the one before runs, so that who arrives meanwhile waits a step more; sync: "
        "between steps [default: both are fitted; sync where it fits much better, else async]",
        panel=PANEL,
        metavar="|".join(SCHEDULING),
    ),
]  # fmt: skip
NAMES = tuple(parameter.name for parameter in PARAMETERS)


def run(log: Path, given: dict[str, Any]) -> None:
    """Fit, print predicted against observed, and write the engine preset where ``-o`` asks for one."""
    from mooncake_bench.studies.served import show

    shown, out = chosen_format(given["format"]), given["out"]
    if given["force"] and out is None:
        raise SetupError("--force: no effect without -o FILE; drop it, or name a file")
    if out is not None:
        show.check_preset(out, force=given["force"])
    served = _fitted(log, given)
    written = None if out is None else show.write_preset(served, out, force=given["force"])
    if shown == "json":
        answer(json_answer(show.as_json(served, written)))
    elif shown == "csv":
        answer(render_list("Served", show.flat(served), "csv"))
        for line in () if given["quiet"] else show.notices(served):
            note(line)
    else:
        answer(_render(served, shown))
    if written is not None and not given["quiet"]:
        note(f"written: {written}; use it with --engine {written}")


def _fitted(log: Path, given: dict[str, Any]) -> Served:
    for name in ("node", "model"):
        if given[name] is None:
            raise SetupError(f"--served: --{name} is missing: which {name} served? See: mooncake-bench hardware list")
    from mooncake_bench.studies.served.engine import Limits
    from mooncake_bench.studies.served.study import fit_served

    scheduling = given["scheduling"]
    if scheduling not in (None, *SCHEDULING):
        expected = " or ".join(SCHEDULING)
        raise SetupError(f"--scheduling {scheduling!r}: expected {expected}{nearest(scheduling, SCHEDULING)}")
    asked = {"batched_tokens": given["max_batched_tokens"], "sequences": given["max_seqs"]}
    limits = Limits(ahead=scheduling != "sync", **{key: value for key, value in asked.items() if value is not None})
    with progress_bar("fit", given["quiet"], "overheads") as bar:
        return fit_served(
            log,
            node=given["node"],
            model=given["model"],
            limits=limits,
            compare=scheduling is None,
            engine=given["engine"] or "none",
            columns=given["columns"],
            progress=lambda done, total: bar(done, total, 0.0),
        )


def _render(served: Served, shown: str) -> str:
    from mooncake_bench.studies.served.show import report

    content = report(served)
    return render_report(content, shown)
