"""``hardware list`` and ``hardware show``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.listing import facts_csv, render_list, render_report
from mooncake_bench.cli.options import Example, argument, option
from mooncake_bench.cli.output import answer, json_answer

if TYPE_CHECKING:
    from mooncake_bench.cli.options import Commands

HELP = "The models, nodes, engines and links that costs are known for."
EXAMPLES = (
    Example("hardware list", "everything there is a preset for"),
    Example("hardware show a800 --model llama-3-70b", "coefficients, their errors, and what they come to"),
    Example("hardware show fast25-4x200", "a network's latency and bandwidth"),
)


@options.takes(
    argument("kind", str | None, "model, node, engine or link [default: all]", None, metavar="KIND"),
    options.format_option(),
)
def list_hardware(**given: Any) -> None:
    """List the models, nodes, engines and links that costs are known for, and how well."""
    shown = options.chosen_format(given["format"])
    from mooncake_bench.hardware.describe import list_presets

    answer(render_list("Hardware", list_presets(given["kind"]), shown))


@options.takes(
    argument("name", str, "A model, node, engine or link, or a node's FILE.toml"),
    option("model", str | None, ("--model",), "Of a node: only this model [default: every model it has]", None),
    option("engine", str | None, ("--engine",), "Of a node: add this engine's time [default: none]", None),
    options.format_option(),
)
def show(**given: Any) -> None:
    """Show a preset: its numbers with units, what they come to, where they are from and how far off they are."""
    shown = options.chosen_format(given["format"])
    from mooncake_bench.hardware.describe import describe

    facts = describe(given["name"], given["model"], given["engine"])
    if shown == "json":
        answer(json_answer(facts))
    elif shown == "csv":
        answer(facts_csv(facts))
    else:
        from mooncake_bench.report.hardware_sheets import hardware_report

        answer(render_report(hardware_report(facts), shown))


COMMANDS: Commands = (
    (
        "list",
        list_hardware,
        (
            EXAMPLES[0],
            Example("hardware list link", "networks, PCIe, NVLink and disks"),
            Example("hardware list node --format json", "nodes, for a program"),
        ),
    ),
    (
        "show",
        show,
        (
            EXAMPLES[1],
            EXAMPLES[2],
            Example("hardware show h100 --engine vllm-h100 --format csv", "every number, one a line"),
        ),
    ),
)
