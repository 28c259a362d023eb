"""``capacity``: the highest load within the SLOs, or the smallest cluster for a load."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.listing import facts_csv, render_report
from mooncake_bench.cli.options import Example, option
from mooncake_bench.cli.output import answer, json_answer, policies_print_to_stderr, tell
from mooncake_bench.cli.planned import plan_parameters, resolve
from mooncake_bench.cli.points import check_points, points_options, store_points
from mooncake_bench.cli.progress import progress_bar
from mooncake_bench.errors import NothingToConclude, SetupError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

    from mooncake_bench.cli.options import Commands
    from mooncake_bench.cli.planned import Planned
    from mooncake_bench.report.sheets import Report
    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.studies.capacity.find import Bench, Limits

SEARCHES = ("load", "cluster")
BY = ("request", "slo")
FASTEST = 1e9  # a setup's speedup
_of_load = ("seeds", "tolerance", "least", "most")
_how = partial(option, panel="The search")


@options.takes(
    *plan_parameters(),
    _how("search", str | None, ("--search",), "What to look for: load, or cluster [default: load]", metavar="WHAT"),
    _how(
        "attain",
        str | None,
        ("--attain",),
        "Share of offered requests that must keep the SLOs [default: 0.9]",
        metavar="SHARE",
    ),
    _how(
        "attain_by",
        str | None,
        ("--attain-by",),
        "request: all SLOs of a request; slo: each SLO by itself, as percentiles are [default: request]",
        metavar="request|slo",
    ),
    _how(
        "clusters",
        str | None,
        ("--clusters",),
        "Several clusters to compare, such as 8P+8D,6P+10D [default: that of --cluster]",
        metavar="SPEC,...",
    ),
    _how(
        "seeds", str | None, ("--seeds",), "Seeds; from the second on, arrivals move by up to 1 ms [default: 1]",
        metavar="N",
    ),
    _how(
        "tolerance", str | None, ("--tolerance",), "How exactly a load is found, as a share of it [default: 2%]",
        metavar="SHARE",
    ),
    _how("least", str | None, ("--least",), "Lowest speedup to try [x; default: 1/64]", metavar="X"),
    _how("most", str | None, ("--most",), "Highest speedup to try [x; default: 64]", metavar="X"),
    *points_options("every replay of the search"),
    options.format_option(),
    option("quiet", bool, ("-q", "--quiet"), "No progress and notices on stderr [default: off]", False, panel="Output"),
)  # fmt: skip
def capacity(**given: Any) -> None:
    """Find the highest load at which SLOs hold.

    For each policy or cluster; or the smallest cluster that carries a load.

    The search for a load begins at --speedup, doubles or halves it until it has both a load that holds and one that
    does not, and then bisects. That for a cluster takes --cluster as the most nodes of each role there may be, and
    --speedup as the load.

    A request that is rejected or fails keeps no SLO, so nothing is gained by turning requests away.
    """
    shown = options.chosen_format(given["format"])
    search = _word(given["search"], "--search", SEARCHES)
    _refuse_idle(given, search)
    limits = _limits(given)
    planned = resolve(given)
    for line in planned.notices:
        tell(given, line)
    bench = _bench(planned, given)
    with progress_bar("capacity", given["quiet"]) as progress, policies_print_to_stderr():
        bench.watch = lambda done: progress.say(f"{done} replays")
        run = _search_loads if search == "load" else _search_clusters
        content, values, concluded = run(bench, limits)
    store_points(given, lambda: _points(bench))
    answer(_text(content, values, shown))
    if not concluded:
        raise NothingToConclude("the rule holds at nothing that was tried, for any of them")


def _text(content: Report, values: dict[str, Any], shown: str) -> str:
    if shown == "json":
        return json_answer(values)
    return facts_csv(values) if shown == "csv" else render_report(content, shown)


def _points(bench: Bench) -> pa.Table:
    from mooncake_bench.studies.capacity.show import points

    return points(bench)


def _search_loads(bench: Bench, limits: Limits) -> tuple[Report, dict[str, Any], bool]:
    from mooncake_bench.studies.capacity.find import capacities
    from mooncake_bench.studies.capacity.show import load_report, load_values

    start = next(iter(bench.contenders.values())).speedup
    if not limits.least <= start <= limits.most:
        bounds = f"--least {limits.least:g} and --most {limits.most:g}"
        raise SetupError(f"the search begins at speedup {start:g} (--speedup): expected one between {bounds}")
    limits = replace(limits, start=start)
    found = capacities(bench, limits)
    concluded = any(each.speedup is not None for each in found)
    return load_report(bench, found, limits), load_values(bench, found, limits), concluded


def _search_clusters(bench: Bench, limits: Limits) -> tuple[Report, dict[str, Any], bool]:
    from mooncake_bench.studies.capacity.show import cluster_report, cluster_values
    from mooncake_bench.studies.capacity.split import Shape, smallest

    found = smallest(bench, Shape.of(next(iter(bench.contenders.values()))))
    return cluster_report(bench, found), cluster_values(bench, found), any(each.clusters for each in found)


def _bench(planned: Planned, given: dict[str, Any]) -> Bench:
    from mooncake_bench.studies.capacity.find import Bench
    from mooncake_bench.studies.capacity.rule import Rule

    rule = Rule(_share(given["attain"], "--attain", 0.9), _word(given["attain_by"], "--attain-by", BY))
    folders = given["policy_dir"] or ()
    return Bench(planned.trace, _contenders(planned.setups, given["clusters"], folders), rule, folders)


def _contenders(setups: Sequence[Setup], clusters: str | None, folders: Sequence[Path]) -> dict[str, Setup]:
    """A setup for each policy on each cluster, by label: what differs names it."""
    from mooncake_bench.plugins import build

    specs = [spec.strip() for spec in clusters.split(",")] if clusters else [setups[0].cluster]
    if not all(specs):
        raise SetupError(f"--clusters {clusters!r}: expected clusters between commas, such as 8P+8D,6P+10D")
    if len(set(specs)) < len(specs):
        raise SetupError(f"--clusters {clusters}: names one twice; drop it")
    found = {}
    for setup in setups:
        for spec in specs:
            words = [build(setup.policy, folders).label] if len(setups) > 1 or len(specs) == 1 else []
            found[" ".join([*words, *([spec] if len(specs) > 1 else [])])] = replace(setup, cluster=spec)
    return found


def _limits(given: dict[str, Any]) -> Limits:
    from mooncake_bench.sim.parsing import integer, number
    from mooncake_bench.studies.capacity.find import Limits

    usual = Limits()
    seeds = usual.seeds if given["seeds"] is None else integer(given["seeds"], "--seeds")
    least, most = (
        getattr(usual, name) if given[name] is None else number(given[name], f"--{name}") for name in ("least", "most")
    )
    tolerance = _share(given["tolerance"], "--tolerance", usual.tolerance)
    if not 1 <= seeds <= 1000:
        raise SetupError(f"--seeds: expected 1 to 1000, got {seeds}")
    if not 0 < least < most <= FASTEST:
        raise SetupError(
            f"--least {least:g}, --most {most:g}: expected two speedups above 0 and up to {FASTEST:g}, the second the "
            "higher"
        )
    return Limits(tolerance=tolerance, least=least, most=most, seeds=seeds)


def _share(text: str | None, flag: str, usual: float) -> float:
    """A share above 0, at most 1: ``0.9`` or ``90%``."""
    from mooncake_bench.sim.parsing import number

    if text is None:
        return usual
    value = number(text.strip().removesuffix("%"), flag) / (100 if text.strip().endswith("%") else 1)
    if not 0 < value <= 1:
        raise SetupError(f"{flag}: expected a share above 0 and up to 1, such as 0.9 or 90%, got {text!r}")
    return value


def _word(text: str | None, flag: str, known: Sequence[str]) -> str:
    if text is not None and text not in known:
        raise SetupError(f"{flag}: expected one of {', '.join(known)}, got {text!r}{nearest(text, known)}")
    return text or known[0]


def _refuse_idle(given: dict[str, Any], search: str) -> None:
    if search == "cluster":
        for name in (*_of_load, "clusters"):
            if given[name] is not None:
                raise SetupError(f"--{name}: no effect with --search cluster; drop it")
    if given["clusters"] and given["cluster"]:
        raise SetupError("--cluster: no effect beside --clusters; drop one of the two")
    check_points(given)


EXAMPLES = (
    Example(
        "capacity conversation-like -p load-balancing -p kvcache-centric --max-requests 200",
        "the highest load of two routers",
    ),
    Example(
        "capacity conversation-like --clusters 2P+2D,1P+3D --max-requests 200 --seeds 2", "of two clusters, 2 seeds"
    ),
    Example(
        "capacity conversation-like --search cluster --cluster 6P+2D --max-requests 200",
        "the smallest cluster up to 6P+2D",
    ),
)
COMMANDS: Commands = (("capacity", capacity, EXAMPLES),)
