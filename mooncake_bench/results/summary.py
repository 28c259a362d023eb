"""A run in plain text, without a terminal: what ``print(run.summary())`` shows."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from mooncake_bench.results.headline import headline
from mooncake_bench.results.words import decimal, integer, rate, share

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mooncake_bench.results.metrics import Value
    from mooncake_bench.results.run import Run

WIDTH = 100
LATENCIES = ("ttft_ms", "tbt_ms", "itl_ms", "tpot_ms", "e2e_ms")
STAGES = ("arrival", "prefill", "decode")
COLUMNS = ("mean", "p50", "p90", "p99", "max")


def summary(run: Run) -> str:
    """Head, accounts, latencies, goodput and work; undefined numbers are dashes."""
    values = run.metrics()
    lines = [f"policy {run.label} ({run.manifest['policy']['spec']})", *headline(run), ""]
    lines += [*_accounts(values), "", *_latencies(values), "", *_rest(values)]
    wrapped = [textwrap.fill(line, WIDTH, subsequent_indent="  ") if len(line) > WIDTH else line for line in lines]
    notices = [textwrap.fill(f"! {notice}", WIDTH, subsequent_indent="  ") for notice in run.notices]
    return "\n".join(wrapped + ([""] if notices else []) + notices) + "\n"


def _accounts(values: Mapping[str, Value]) -> list[str]:
    words = ("offered", "completed", "rejected", "failed", "unfinished")
    shown = "   ".join(f"{word} {integer(values[f'{word}_requests'].value)}" for word in words)
    stages = ", ".join(f"{integer(values[f'rejected_{stage}_requests'].value)} at {stage}" for stage in STAGES)
    return [shown, f"rejected: {stages}"]


def _latencies(values: Mapping[str, Value]) -> list[str]:
    head = "completed, ms".ljust(14) + "".join(name.rjust(12) for name in COLUMNS) + "samples".rjust(14)
    rows = [
        name.removesuffix("_ms").upper().ljust(14)
        + "".join(decimal(values[f"{column}_{name}"].value).rjust(12) for column in COLUMNS)
        + integer(values[f"mean_{name}"].n).rjust(14)
        for name in LATENCIES
    ]
    return [head, *rows]


def _rest(values: Mapping[str, Value]) -> list[str]:
    def of(name: str) -> str:
        return share(values[name].value)

    return [
        f"within SLOs    {of('request_goodput_ratio')} of offered requests, {of('goodput_tokens_ratio')} of their "
        f"prompt tokens; {rate(values['request_goodput_rps'].value)} requests/s",
        f"cache hits     {of('hit_ratio_tokens')} of prompt tokens whose prefill began (infinite cache: "
        f"{of('ceiling_ratio_tokens')}), {of('hit_ratio_blocks')} of their blocks",
        f"prefill time   {decimal(values['mean_prefill_gpu_ms'].value)} ms a request whose prefill began, "
        f"{of('wasted_prefill_ratio')} of it wasted",
        f"busy           prefill {of('prefill_utilisation_ratio')}, decode {of('decode_utilisation_ratio')} "
        f"of the arrival span; load correlation {decimal(values['load_correlation'].value)}",
    ]
