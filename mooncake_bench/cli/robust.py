"""``robust``: does the conclusion survive?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.listing import facts_csv, render_report
from mooncake_bench.cli.options import Example, option
from mooncake_bench.cli.output import answer, json_answer, policies_print_to_stderr, tell
from mooncake_bench.cli.planned import plan_parameters, resolve
from mooncake_bench.cli.points import check_points, points_options, store_points
from mooncake_bench.cli.progress import progress_bar
from mooncake_bench.errors import NothingToConclude, SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mooncake_bench.cli.options import Commands
    from mooncake_bench.results.metric import Metric
    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.studies.robust.run import Row
    from mooncake_bench.studies.robust.worlds import Errors

GOODPUT = "request_goodput_ratio"
_how = partial(option, panel="The study")


@options.takes(
    *plan_parameters(),
    _how("metric", str | None, ("--metric",), f"What is compared [default: {GOODPUT}]", metavar="NAME"),
    _how(
        "seeds", str | None, ("--seeds",), "Jittered replays, and other seeds of the policies [default: 3]", metavar="N"
    ),
    _how(
        "cost_error",
        str | None,
        ("--cost-error",),
        "Relative error of prefill and decode costs, such as 7%,6% [default: the held-out p90 errors of the preset]",
        metavar="P,D",
    ),
    *points_options("every value"),
    options.format_option(),
    option("quiet", bool, ("-q", "--quiet"), "No progress and notices on stderr [default: off]", False, panel="Output"),
)  # fmt: skip
def robust(**given: Any) -> None:
    """Test whether a difference between policies survives.

    Replays all of them again with arrivals moved by up to 1 ms, a coarse grid of arrivals spread, other seeds, a view
    that is a second old, a router's own view, prefill and decode costs off by their p90 error either way, and 10 % less
    and more load. Prints who is ahead in each, by how much, and in how many the conclusion holds.
    """
    shown = options.chosen_format(given["format"])
    check_points(given)
    metric, seeds = _metric(given["metric"]), _seeds(given["seeds"])
    planned = resolve(given)
    contenders = _contenders(planned.setups, given["policy_dir"] or ())
    for line in planned.notices:
        tell(given, line)
    errors = _errors(given["cost_error"], planned.setups[0])
    rows, notes = _study(planned, contenders, metric, seeds, errors, given)
    _finish(rows, notes, metric, shown, given)


def _study(
    planned: Any, contenders: dict[str, Setup], metric: Metric, seeds: int, errors: Errors, given: dict[str, Any]
) -> tuple[list[Row], list[str]]:
    from mooncake_bench.studies.robust.run import study, without_idle
    from mooncake_bench.studies.robust.show import idle_words
    from mooncake_bench.studies.robust.worlds import worlds

    made, notes = worlds(planned.trace, planned.setups[0], seeds, errors)
    with progress_bar("robust", given["quiet"], "replays") as progress, policies_print_to_stderr():
        rows = study(
            contenders, made, metric, given["policy_dir"] or (), lambda done, total: progress(done, total, 0.0)
        )
    rows, idle = without_idle(rows, "seed")
    return rows, [*notes, *([idle_words(seeds)] if idle else []), f"costs: {errors.source}"]


def _finish(rows: list[Row], notes: list[str], metric: Metric, shown: str, given: dict[str, Any]) -> None:
    from mooncake_bench.studies.robust import show
    from mooncake_bench.studies.robust.run import verdict

    store_points(given, lambda: show.points(rows, metric))
    found = verdict(rows)
    if shown in ("json", "csv"):
        values = show.values(rows, found, metric, notes)
        answer(json_answer(values) if shown == "json" else facts_csv(values))
    else:
        answer(render_report(show.report(rows, found, metric, notes), shown))
    if found.winner is None:
        raise NothingToConclude("as it is, the best two cannot be told apart")


def _metric(name: str | None) -> Metric:
    from mooncake_bench.results.metrics import find

    metric = find(name or GOODPUT)
    if metric.better == "none":
        raise SetupError(f"--metric {metric.name}: neither more nor less of it is better; name another")
    return metric


def _seeds(text: str | None) -> int:
    from mooncake_bench.sim.parsing import integer

    seeds = 3 if text is None else integer(text, "--seeds")
    if not 0 <= seeds <= 100:
        raise SetupError(f"--seeds: expected 0 to 100, got {seeds}")
    return seeds


def _errors(text: str | None, setup: Setup) -> Errors:
    from mooncake_bench.sim.parsing import number
    from mooncake_bench.studies.robust.worlds import Errors, cost_errors

    if setup.cost == "live":
        raise SetupError("--cost live: robust changes fitted costs; drop it")
    if text is None:
        return cost_errors(setup)
    parts = [part.strip() for part in text.split(",")]
    found = [
        number(part.removesuffix("%"), "--cost-error") / (100 if part.endswith("%") else 1) for part in parts if part
    ]
    if len(found) != 2 or not all(0 < each < 1 for each in found):
        raise SetupError(f"--cost-error: expected two shares above 0 and below 1, such as 7%,6%, got {text!r}")
    return Errors(found[0], found[1], "as given")


def _contenders(setups: Sequence[Setup], folders: Sequence[Path]) -> dict[str, Setup]:
    from mooncake_bench.plugins import build

    if len(setups) < 2:
        raise SetupError("robust: compares policies; give two or more, as in -p load-balancing -p kvcache-centric")
    return {build(setup.policy, folders).label: setup for setup in setups}


EXAMPLES = (
    Example(
        "robust conversation-like -p random -p kvcache-centric --max-requests 200 --speedup 4 --seeds 1",
        "is more within its SLOs?",
    ),
    Example(
        "robust conversation-like -p load-balancing -p kvcache-centric --max-requests 200 --seeds 1 "
        "--metric mean_ttft_ms",
        "is it faster?",
    ),
    Example(
        "robust conversation-like -p random -p kvcache-centric --max-requests 200 --speedup 4 --seeds 0 "
        "--cost-error 10%,10%",
        "with errors of the costs of your own",
    ),
)
COMMANDS: Commands = (("robust", robust, EXAMPLES),)
