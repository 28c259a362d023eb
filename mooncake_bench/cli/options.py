"""The command line's options, declared once: setup options come from :mod:`mooncake_bench.sim.setup`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer
from typer.core import TyperCommand

from mooncake_bench.errors import SetupError, nearest
from mooncake_bench.sim.setup import Setup, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FORMATS = ("table", "json", "csv", "markdown", "latex")

# Setup field -> (flags, metavar; empty: its choices). An option left out stays None: "given" and "default" differ.
SETUP_FLAGS = {
    "cluster": (("--cluster",), "SPEC"),
    "model": (("--model",), "NAME"),
    "node": (("--node",), "NAME"),
    "engine": (("--engine",), "NAME"),
    "cost": (("--cost",), ""),
    "live_repeat": (("--live-repeat",), "N"),
    "live_device": (("--live-device",), "NAME"),
    "live_dtype": (("--live-dtype",), ""),
    "live_layers": (("--live-layers",), "A,B,C"),
    "live_cache": (("--live-cache",), "DIR"),
    "pool_blocks": (("--pool",), "SIZE"),
    "pool_scope": (("--pool-scope",), ""),
    "ssd_blocks": (("--ssd",), "SIZE"),
    "ssd_read_gbytes_per_s": (("--ssd-read",), "RATE"),
    "ssd_write_gbytes_per_s": (("--ssd-write",), "RATE"),
    "touch_order": (("--touch-order",), ""),
    "vram_tokens": (("--vram",), "SIZE"),
    "nic_gbytes_per_s": (("--nic",), "RATE"),
    "nic_core_gbytes_per_s": (("--nic-core",), "RATE"),
    "prefill_group": (("--prefill-group",), "X"),
    "prefill_chunk": (("--prefill-chunk",), "N"),
    "prefill_layers": (("--prefill-layers",), ""),
    "dram_gbytes_per_s": (("--dram-rate",), "RATE"),
    "decode_load_gbytes_per_s": (("--decode-load",), "RATE"),
    "decode_preemption": (("--decode-preemption",), ""),
    "decode_inline": (("--decode-inline",), ""),
    "slo_classes": (("--slo-class",), "PRIORITY=SLOS"),
    "tbt_metric": (("--tbt-metric",), ""),
    "first_gap": (("--first-gap",), ""),
    "speedup": (("--speedup",), "X"),
    "view": (("--view",), "VIEW"),
    "estimate_error": (("--estimate-error",), "SIGMA"),
    "schedule": (("--schedule",), ""),
    "step_tokens": (("--step-tokens",), "TOKENS"),
    "sequences": (("--sequences",), "N"),
    "prefix_cache": (("--prefix-cache",), ""),
    "events": (("--event",), "TIME:ACTION:ROLE:N"),
    "faults_requests": (("--fault-requests",), ""),
    "client_retries": (("--retries",), "N"),
    "client_backoff_ms": (("--backoff",), "TIME"),
    "client_backoff_factor": (("--backoff-factor",), "X"),
    "client_jitter": (("--jitter",), "SHARE"),
    "client_loop": (("--loop",), ""),
    "client_think_speedup": (("--think-speedup",), "X"),
    "client_patience_ms": (("--patience",), "TIME"),
    "seed": (("--seed",), "N"),
    "block_tokens": (("--block-size",), "TOKENS"),
    "timestamp_unit": (("--timestamp-unit",), ""),
    "columns": (("--column",), "NAME=COLUMN,..."),
    "failures": (("--failures",), ""),
    "max_requests": (("--max-requests",), "N"),
    "start_ms": (("--start",), "TIME"),
    "end_ms": (("--end",), "TIME"),
    "warm_from": (("--warm-from",), "TRACE|RUN"),
    "warmup_ms": (("--warmup",), "TIME"),
}
REPEATED = ("events", "slo_classes")  # may be given several times
SETUP_PANEL = "The cluster and the work"
_TIMES = "; bare number: ms, or 30s, 100ms, 250us"
_MORE_HELP = {
    "pool_blocks": "; bare number: blocks, or 3Mtok, 1TB, 64GiB",
    "ssd_blocks": ", where evicted blocks go; bare number: blocks, or 3Mtok, 1TB, 64GiB",
    "ssd_read_gbytes_per_s": "; bare number: GB/s",
    "ssd_write_gbytes_per_s": "; bare number: GB/s",
    "vram_tokens": "; bare number: tokens, or 64GiB",
    "nic_gbytes_per_s": "; bare number: GB/s, or 800Gbps",
    "nic_core_gbytes_per_s": "; bare number: GB/s, or 800Gbps",
    "warm_from": "; of the same block size; a run has to have had the same pools",
    "prefill_group": "; policies see each group as one instance",
    "prefill_layers": ": as the fitted times hold it; layer by layer beside computing; before and after it",
    "dram_gbytes_per_s": "; bare number: GB/s, or 800Gbps",
    "decode_load_gbytes_per_s": ", before a request joins a batch; bare number: GB/s, or 800Gbps",
    "decode_preemption": " (its whole context is prefilled again, while the batch pauses)",
    "decode_inline": ": whole, where no TBT SLO is broken and the first token comes sooner",
    "view": ". exact: the state of this moment; delayed: the state of so long ago, with the policy's own decisions "
    "since; router-only: what a router learns from its decisions, first tokens, ends and rejections, each pool taken "
    "for an LRU",
    "estimate_error": "; 0 to 0.57, for it is uniform around 1 and no time may be negative",
    "schedule": ". prefill-first: prompts that wait, else the batch; chunked: the batch and parts of prompts; "
    "one-at-a-time: a request from prefill to last token, then the next",
    "step_tokens": "; of whole prompts the first may have more",
    "events": ", the Nth instance of that role as set up, from 0, such as 600s:fail:prefill:3; in replayed time, after "
    "--start and --speedup; repeatable",
    "faults_requests": ": routed anew, or failed",
    "slo_classes": ", such as 1=ttft:10s,tbt:50ms; repeatable",
    "client_backoff_ms": ", unless the admission policy says when",
    "client_loop": " after the answer before it",
    "client_think_speedup": "; --speedup leaves them as they are",
    "client_patience_ms": "; it leaves wherever it is then",
    "start_ms": "; as in the trace, before --speedup",
    "end_ms": "; as in the trace, before --speedup",
    "warmup_ms": "; in replayed time, after --start and --speedup",
}


class Example(NamedTuple):
    """A command line that works as printed, and what it is for."""

    line: str
    purpose: str


Commands: TypeAlias = "Sequence[tuple[str, Callable[..., Any], Sequence[Example]]]"
"""Name, function and examples of each command."""


class Command(TyperCommand):
    """A command whose help is plain text: options in named groups, examples at the end."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record:
                panel = getattr(param, "rich_help_panel", None) or "Options"
                panels.setdefault("Arguments" if param.param_type_name == "argument" else panel, []).append(record)
        for panel, records in panels.items():
            with formatter.section(panel):
                formatter.write_dl(records, col_max=24)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        write_examples(self.epilog, formatter)


def write_examples(epilog: str | None, formatter: Any) -> None:
    """The examples at the end of a help page, unwrapped so that they can be copied."""
    if epilog:
        with formatter.section("Examples"):
            for line in epilog.splitlines():
                formatter.write(f"  {line}\n")


def examples(*lines: Example) -> str:
    """The epilog of a command: each example under a comment that says its purpose."""
    return "\n".join(f"# {example.purpose}\nmooncake-bench {example.line}" for example in lines)


def option(
    name: str, kind: Any, flags: Sequence[str], text: str, default: Any = None, panel: str = "Options", **more: Any
) -> inspect.Parameter:
    """One option of a command as a parameter that Typer reads."""
    declared = typer.Option(*flags, help=text, rich_help_panel=panel, show_default=False, **more)
    return _parameter(name, Annotated[kind, declared], default)


def argument(name: str, kind: Any, text: str, default: Any = inspect.Parameter.empty, **more: Any) -> inspect.Parameter:
    """One positional of a command as a parameter that Typer reads."""
    more.setdefault("metavar", name.upper())
    return _parameter(name, Annotated[kind, typer.Argument(help=text, show_default=False, **more)], default)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def takes(*parameters: inspect.Parameter) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a ``**given`` function the parameters that Typer reads."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        function.__annotations__ = {p.name: p.annotation for p in parameters}
        return function

    return decorate


def setup_options() -> list[inspect.Parameter]:
    """An option for every field of the setup that has a flag."""
    return [
        option(
            name,
            list[str] | None if name in REPEATED else str | None,
            flags,
            _setup_help(name),
            panel=SETUP_PANEL,
            metavar=metavar or "|".join(settings()[name].choices),
        )
        for name, (flags, metavar) in SETUP_FLAGS.items()
    ]


def _setup_help(name: str) -> str:
    setting = settings()[name]
    default = Setup.__dataclass_fields__[name].default
    shown = setting.unset if default is None else f"{default:g}" if isinstance(default, float) else default
    unit = _TIMES if setting.unit == "ms" else ""
    more = _MORE_HELP.get(name, "")
    return f"{setting.help[0].upper()}{setting.help[1:]}{unit}{more} [{_unit(setting.unit)}default: {shown}]"


def _unit(unit: str) -> str:
    return f"{unit}; " if unit else ""


def format_option(*formats: str) -> inspect.Parameter:
    """``--format``, for every command that prints a table."""
    text = f"How the answer is printed: {', '.join(formats or FORMATS)} [default: table]"
    return option("format", str | None, ("--format",), text, panel="Output", metavar="FORMAT")


def chosen_format(given: str | None, *formats: str) -> str:
    """The format asked for, ``table`` unless told. Raises SetupError for an unknown one."""
    known = formats or FORMATS
    if given is not None and given not in known:
        raise SetupError(f"--format: expected one of {', '.join(known)}, got {given!r}{nearest(given, known)}")
    return given or "table"


def by_option() -> inspect.Parameter:
    """``--by``: split the table."""
    text = "Also split the answer by input_tokens, session or priority [default: not split]"
    return option("by", str | None, ("--by",), text, panel="Output", metavar="KEY")


def out_option(text: str) -> inspect.Parameter:
    """``-o/--out``: the folder of run folders."""
    return option("out", Path | None, ("-o", "--out"), f"{text} [default: results]", panel="Output", metavar="DIR")


def runs_argument() -> inspect.Parameter:
    """RUN...: the runs of a command, the first as the reference."""
    text = "Runs, the first is the reference: a folder, a number, a --name, @last or @last:N"
    return argument("runs", list[str], text, metavar="RUN")


def policy_dir_option() -> inspect.Parameter:
    """``--policy-dir``: more folders of policy files."""
    text = "Folder of policy files to search as well; repeatable [default: none]"
    return option("policy_dir", list[Path] | None, ("--policy-dir",), text, panel="Policies", metavar="DIR")
