"""A fit to a served log for people and programs: a report, plain values, an engine preset that carries its error."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench import outfile
from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.analytic import EngineOverhead
from mooncake_bench.report.sheets import Report, Sheet
from mooncake_bench.results.words import clean, integer, ms
from mooncake_bench.studies.served.fit import TOLD_APART

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mooncake_bench.studies.served.engine import Limits
    from mooncake_bench.studies.served.fit import Fit, Quantity
    from mooncake_bench.studies.served.log import ServedLog

FAR_OVERHEAD = 20.0
FAR_OFF = 3.0
"""Beyond these, times that the shortest step or the observed median takes, a unit is suspected."""
NAMES = {"ttft": "TTFT", "tpot": "TPOT", "tbt": "TBT"}


@dataclass(frozen=True)
class Served:
    """A fit and all that it was made of."""

    log: ServedLog
    node: str
    model: str
    vram_tokens: int
    """KVCache that the node holds."""
    costs_short: str
    """What is known of the kernels' costs underneath."""
    limits: Limits
    least: EngineOverhead
    """The lowest overheads looked at."""
    fit: Fit
    rejected_loss: float | None = None
    """Of the other way of scheduling, where both were fitted."""


def report(served: Served) -> Report:
    """The held-out half first, then the half that was fitted."""
    fit = served.fit
    held = _sheet(
        f"Later half, not fitted: {_counted(fit.heldout)} requests, ms",
        fit.heldout,
        "off: predicted over observed; each: median over requests of how far its own prediction is off; TTFT = first "
        "token - arrival; TPOT = (last - first token) / (output - 1)",
    )
    seen = _sheet(f"Earlier half, fitted: {_counted(fit.fitted)} requests, ms", fit.fitted, "in-sample")
    return Report(tuple(_head(served)), (held, seen), notices(served))


def _head(served: Served) -> Iterable[str]:
    fit, limits = served.fit, served.limits
    log = served.log
    yield f"{log.label}: {log.format}, {len(log):,} answered requests, {log.failed:,} failed"
    yield f"{served.model} on {served.node}: {served.costs_short}"
    yield (
        f"engine: {limits.batched_tokens:,} tokens and {limits.sequences:,} sequences a step, scheduled "
        f"{_scheduled(limits.ahead)}"
    )
    yield (
        f"o_pre {fit.overhead.prefill_ms:g} ms a prompt, o_dec {fit.overhead.decode_ms:g} ms a decode step (tried "
        f"first: {fit.start.prefill_ms:g} and {fit.start.decode_ms:g})"
    )
    yield f"later half: {short(fit.heldout)}; by the overheads tried first: {short(fit.unfitted)}"


def _scheduled(ahead: bool) -> str:
    return "a step ahead" if ahead else "between steps"


def notices(served: Served) -> tuple[str, ...]:
    """What keeps the fit from saying more."""
    answers, limits = served.fit.answers, served.limits
    found = [*served.log.notes, *_scheduling(served), *_units(served), *_negative(served.fit.overhead)]
    most = served.log.most_decoding()
    if most > limits.sequences:
        found.append(
            f"in the log up to {most:,} requests decode at once, the model has room for {limits.sequences:,}: set "
            "--max-seqs as the server had it"
        )
    elif answers.most_sequences > 1.1 * most + 1:
        found.append(
            f"the model runs up to {answers.most_sequences:,} sequences at once, in the log at most {most:,} decode: "
            "if the server had a limit, set --max-seqs"
        )
    overhead = served.fit.overhead
    if overhead.prefill_ms < 0.95 * served.least.prefill_ms or overhead.decode_ms < 0.95 * served.least.decode_ms:
        found.append(
            "an overhead is as low as is looked at, half of the shortest step below 0: the node's costs are not this "
            "server's, or it was started with other limits"
        )
    if answers.peak_kv_tokens > served.vram_tokens:
        found.append(
            f"the model holds up to {answers.peak_kv_tokens:,} tokens of KVCache, the node has room for "
            f"{served.vram_tokens:,}: the engine would preempt requests, which is not modelled"
        )
    return tuple(found)


def _scheduling(served: Served) -> Iterable[str]:
    """Which way of scheduling was taken where it was not given, by which losses."""
    if served.rejected_loss is None:
        return
    taken, rejected = ("async", "sync") if served.limits.ahead else ("sync", "async")
    losses = (
        f"both were fitted, {taken} with a loss of {served.fit.loss:.3g}, {rejected} with {served.rejected_loss:.3g}"
    )
    if served.fit.loss < TOLD_APART * served.rejected_loss:
        yield f"--scheduling was not given: {losses}: {taken} is taken, which this log fits better"
    else:
        yield (
            f"--scheduling was not given: {losses}: {taken} is taken, but this log hardly tells them apart; give "
            "--scheduling as the server was started"
        )


def _units(served: Served) -> Iterable[str]:
    """Signs that a time is not in the unit that it was taken for."""
    overhead, signs = served.fit.overhead, []
    shortest = EngineOverhead(-2 * served.least.prefill_ms, -2 * served.least.decode_ms)
    for name, found, own in (
        ("o_pre", overhead.prefill_ms, shortest.prefill_ms),
        ("o_dec", overhead.decode_ms, shortest.decode_ms),
    ):
        if found > FAR_OVERHEAD * own:
            what = "prefill" if name == "o_pre" else "decode step"
            signs.append(f"{name} {found:.3g} ms is {found / own:.0f} times the node's shortest {what}")
    for each in served.fit.heldout:
        ratio = each.predicted["p50"] / each.observed["p50"]
        if each.metric in ("ttft", "tpot") and not 1 / FAR_OFF <= ratio <= FAR_OFF:
            signs.append(
                f"the later half's median {NAMES[each.metric]} is predicted {ratio:.2g} times as long as it was"
            )
    if signs:
        mapped = "--columns" in served.log.format
        fix = "a column's unit (--columns ttft=NAME:ms, :s, :us or :ns), " if mapped else ""
        yield f"{'; '.join(signs)}: {fix}the node or the model may be wrong"


def _negative(overhead: EngineOverhead) -> Iterable[str]:
    """What an overhead below 0 means."""
    below = [
        f"{name} is {value:g} ms"
        for name, value in (("o_pre", overhead.prefill_ms), ("o_dec", overhead.decode_ms))
        if value < 0
    ]
    if below:
        yield (
            f"{' and '.join(below)}, below 0: the kernels of node and model as given are slower than this engine's, or "
            "--max-seqs and --max-batched-tokens are not as the server was started"
        )


def _sheet(title: str, quantities: Sequence[Quantity], note: str) -> Sheet:
    columns = list(quantities[0].predicted)
    rows = []
    for each in quantities:
        name = NAMES[each.metric]
        observed, predicted = ([ms(values[c]) for c in columns] for values in (each.observed, each.predicted))
        rows.append((f"{name} observed", integer(each.requests), *observed, ""))
        rows.append((f"{name} predicted", "", *predicted, ""))
        off = [f"{each.error_percent(c):+.1f} %" for c in columns]
        rows.append((f"{name} off", "", *off, f"{each.request_error_percent:.1f} %"))
    return Sheet(title, ("", "n", *columns, "each"), tuple(rows), (note,))


def _counted(quantities: Sequence[Quantity]) -> str:
    return integer(quantities[0].requests)


def short(quantities: Sequence[Quantity]) -> str:
    """Between which errors all quantiles and the mean lie, metric by metric."""
    parts = []
    for each in quantities:
        errors = [each.error_percent(name) for name in each.predicted]
        parts.append(f"{NAMES[each.metric]} off by {min(errors):+.1f} to {max(errors):+.1f} %")
    return ", ".join(parts)


def as_json(served: Served, written: Path | None) -> dict[str, Any]:
    """The fit as values that strict JSON can hold."""
    fit = served.fit
    return {
        "log": served.log.label,
        "log_format": served.log.format,
        "requests": len(served.log),
        "failed_requests": served.log.failed,
        "node": served.node,
        "model": served.model,
        "limits": asdict(served.limits),
        "rejected_scheduling_loss": served.rejected_loss,
        "prefill_ms": fit.overhead.prefill_ms,
        "decode_ms": fit.overhead.decode_ms,
        "start": {"prefill_ms": fit.start.prefill_ms, "decode_ms": fit.start.decode_ms},
        "fitted_requests": fit.fitted_requests,
        "loss": fit.loss,
        "heldout": [_quantity(each) for each in fit.heldout],
        "fitted": [_quantity(each) for each in fit.fitted],
        "unfitted": [_quantity(each) for each in fit.unfitted],
        "notices": list(notices(served)),
        "written": [] if written is None else [str(written)],
    }


def flat(served: Served) -> list[dict[str, Any]]:
    """A line a half, metric and statistic."""
    halves = {"fitted": served.fit.fitted, "held out": served.fit.heldout}
    return [
        {
            "half": half,
            "metric": f"{each.metric}_ms",
            "statistic": name,
            "requests": each.requests,
            "observed": each.observed[name],
            "predicted": each.predicted[name],
            "error_percent": each.error_percent(name),
        }
        for half, quantities in halves.items()
        for each in quantities
        for name in each.predicted
    ]


def _quantity(each: Quantity) -> dict[str, Any]:
    return {
        "metric": f"{each.metric}_ms",
        "requests": each.requests,
        "predicted": each.predicted,
        "observed": each.observed,
        "error_percent": {name: each.error_percent(name) for name in each.predicted},
        "request_error_percent": each.request_error_percent,
    }


# ---- the preset


def preset(served: Served) -> str:
    """An engine preset as TOML, as ``--engine FILE.toml`` reads it; its errors are those of the held-out half."""
    fit, limits, log = served.fit, served.limits, served.log
    name = clean(Path(log.label).name)
    scheduled = _scheduled(limits.ahead)
    texts = {
        "description": f"the engine of {name}: {served.model} on {served.node}",
        "status": "measured",
        "source": f"{name} ({log.format}, {len(log):,} requests): fitted on the {fit.fitted_requests:,} earlier ones, "
        f"engine model with {limits.batched_tokens:,} tokens and {limits.sequences:,} sequences a step, scheduled "
        f"{scheduled}",
        "error": error(served),
        "short": f"whole steps, {_counted(fit.heldout)} held-out requests of a served log: {short(fit.heldout)}",
    }
    lines = ["# Written by: mooncake-bench calibrate fit --served. Times in ms: a prompt, a decode step."]
    lines += [f"{key} = {_text(value)}" for key, value in texts.items()]
    lines.append(f"fitted_on = [{_text(served.node)}]")
    lines += [f"prefill_ms = {fit.overhead.prefill_ms}", f"decode_ms = {fit.overhead.decode_ms}"]
    return "\n".join(lines) + "\n"


def error(served: Served) -> str:
    """The held-out errors, quantile by quantile, as one sentence of a report."""
    parts = []
    for each in served.fit.heldout:
        errors = ", ".join(f"{name} {each.error_percent(name):+.1f}" for name in each.predicted)
        parts.append(f"{NAMES[each.metric]} {errors} %")
    return (
        f"fitted with {served.model}; on {_counted(served.fit.heldout)} later requests that it was not fitted to, "
        f"predicted against observed: {'; '.join(parts)}"
    )


def _text(value: str) -> str:
    return json.dumps(clean(value), ensure_ascii=False)


def check_preset(path: Path, *, force: bool) -> None:
    """Raises SetupError for a path that :func:`write_preset` would refuse."""
    if path.suffix != ".toml":
        raise SetupError(f"-o {str(path)!r}: expected a file name that ends in .toml")
    outfile.check_target(path, force=force, label=f"-o {str(path)!r}", error=SetupError)


def write_preset(served: Served, path: Path, *, force: bool) -> Path:
    """Write :func:`preset` to a file, whole or not at all."""
    check_preset(path, force=force)
    with outfile.writing(path, force=force, label=f"-o {str(path)!r}", error=SetupError) as partial:
        partial.write_text(preset(served), encoding="utf-8")
    return path
