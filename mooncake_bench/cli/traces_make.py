"""``traces synth`` and ``traces fit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.listing import render_list
from mooncake_bench.cli.options import Example, argument, option
from mooncake_bench.cli.output import answer, json_answer, note
from mooncake_bench.cli.reading import read_given, reading_options, trace_argument
from mooncake_bench.cli.trace_out import checked_out, write_given, writing_options
from mooncake_bench.errors import SetupError

if TYPE_CHECKING:
    import inspect
    from collections.abc import Sequence

    from mooncake_bench.cli.options import Commands
    from mooncake_bench.trace import Trace

SOURCE, ARRIVALS, LENGTHS, SHARING = "What is made", "Arrivals", "Lengths", "What prompts share"
SPEC_FORMATS = ("table", "json")
RECIPE = ("arrivals", "requests", "input", "output", "turn_input", "lengths", "share")


def _word(name: str, text: str, panel: str, metavar: str, kind: Any = str | None) -> inspect.Parameter:
    return option(name, kind, (f"--{name.replace('_', '-')}",), text, panel=panel, metavar=metavar)


_OPTIONS = (
    _word(
        "preset",
        "A workload by name, whose parts the other options replace: arxiv-summarization-like, l-eval-like, "
        "simulated-16k, -32k, -64k, -128k, conversation-like, toolagent-like, real-like; list shows them with the "
        "options that they stand for [default: none]",
        SOURCE,
        "NAME",
    ),
    option(
        "spec",
        str | None,
        ("--from",),
        "A specification that `traces fit` wrote [default: none]",
        None,
        SOURCE,
        metavar="FILE.toml",
    ),
    _word("servegen", "A folder of ServeGen's client files, one model's [default: none]", SOURCE, "DIR"),
    _word("clients", "Which of its clients, such as 0,3-5 [default: all]", SOURCE, "LIST"),
    _word("start", "Where in their day to begin [ms, or 8h; default: 0]", SOURCE, "TIME"),
    option("seed", int, ("--seed",), "Seed of all that is random [default: 0]", 0, SOURCE, metavar="N", min=0),
    option(
        "block_size",
        str | None,
        ("--block-size",),
        "Block size [tokens; default: 512]",
        None,
        SOURCE,
        metavar="TOKENS",
    ),
    _word(
        "arrivals",
        "poisson, gamma:cv=2, mmpp:rates=1/10,dwell=60s/5s (a ring of states), diurnal:period=24h,depth=0.8 (lowest "
        "at the start) or replay:TRACE,jitter=100ms; with sessions: of their first turns [default: poisson]",
        ARRIVALS,
        "KIND",
    ),
    _word("rate", "Mean rate [requests/s; default: that of mmpp, replay or the clients, else 1]", ARRIVALS, "R"),
    _word("requests", "How many requests [default: 1000, unless --duration]", ARRIVALS, "N"),
    _word("duration", "How long [ms, or 1h; default: as --requests needs; 1h of clients]", ARRIVALS, "TIME"),
    _word(
        "input",
        "A request's own text, beside what it shares: lognormal:mean=8k,cv=1,max=100k (max= may be left out), "
        "uniform:100,200, fixed:8192 or empirical:TRACE [tokens; k: 1,000, Ki: 1,024; default: lognormal:mean=8k,cv=1]",
        LENGTHS,
        "LENGTHS",
    ),
    _word("output", "Its answer, spelled as --input [tokens; default: lognormal:mean=300,cv=1]", LENGTHS, "LENGTHS"),
    _word("turn_input", "Own text of a session's later turns [tokens; default: as --input]", LENGTHS, "LENGTHS"),
    _word(
        "lengths",
        "Draw input and output together from a trace or a CSV file of lengths (Vidur's) [default: apart]",
        LENGTHS,
        "FILE",
    ),
    _word(
        "share",
        "none, system:count=8,tokens=2048,zipf=1.2 (prompts that conversations open with), "
        "documents:tokens=32k,cv=0.5,questions=5 (each asked 5 times; spread=100: within about 100 conversations; "
        "count=50,zipf=1 in place of questions: a fixed shelf) or sessions:turns=4,think=60s (means; vary=fixed: "
        "4 turns each; answer=30ms: a token of the answer before takes that long; context=128k: longest prompt); "
        "sessions begin before the trace and run past its end, and those have fewer turns in it; repeatable with "
        "another kind [default: none]",
        SHARING,
        "KIND",
        list[str] | None,
    ),
)


@options.takes(
    argument("out", str, "File to write: .arrow, .parquet, .csv, .jsonl, .csv.gz or .jsonl.gz; - is stdout", ""),
    *_OPTIONS,
    *writing_options(),
)
def synth(**given: Any) -> None:
    """Make a trace from a few words: arrivals, lengths, and what prompts share.

    The same options and seed give the same trace everywhere. Blocks are prefix-chained; a partial last block has an id
    of its own. Only whole blocks are shared.
    """
    options.chosen_format(given["format"], *SPEC_FORMATS)
    if given["preset"] == "list":
        from mooncake_bench.trace.synthetic import presets

        answer(_presets(presets.listed(), given["format"]))
        return
    if not given["out"]:
        raise SetupError("OUT is missing: the file to write; see mooncake-bench traces synth --help")
    checked_out(given)
    trace = _made(given)
    cut = trace.metadata.get("sessions_cut")
    write_given(trace, given, more=f"{cut} sessions begin before it or go on after it" if cut else "")


def _made(given: dict[str, Any]) -> Trace:
    from mooncake_bench.trace.synthetic import presets

    sources = [name for name in ("preset", "spec", "servegen") if given[name] is not None]
    if len(sources) > 1:
        raise SetupError("--preset, --from and --servegen: give one of them")
    if given["servegen"] is None:
        _refuse(given, ("clients", "start"), "goes with --servegen")
    if given["servegen"] is not None:
        _refuse(given, RECIPE, "has no effect with --servegen: the client files say it")
        return _sampled(given)
    if given["spec"] is not None:
        _refuse(given, (*RECIPE, "rate", "duration", "block_size"), "has no effect with --from: the file says it")
        from mooncake_bench.trace.synthetic.redraw import trace_of

        return trace_of(given["spec"], given["seed"])
    if given["preset"] is not None and presets.find(given["preset"]) is None:
        _refuse(given, (*RECIPE, "rate", "duration", "block_size"), f"has no effect with --preset {given['preset']}")
        return presets.bundled(given["preset"], given["seed"])
    from mooncake_bench.trace.synthetic import recipe, wording

    return recipe.make(wording.recipe({word: given[word] for word in wording.WORDS}, given["preset"]), given["seed"])


def _refuse(given: dict[str, Any], names: tuple[str, ...], why: str) -> None:
    """Raises SetupError for the first of these options that was given."""
    name = next((name for name in names if given[name] not in (None, [], ())), None)
    if name is not None:
        raise SetupError(f"--{name.replace('_', '-')} {why}; leave it out")


def _sampled(given: dict[str, Any]) -> Trace:
    from mooncake_bench.trace.synthetic import servegen, spelling, wording

    rate = None if given["rate"] is None else wording.rate_rps(given["rate"])
    start = spelling.duration_ms(given["start"] or "0", "--start")
    length = wording.duration_ms(given["duration"] or "1h")
    size = wording.block_tokens(given["block_size"])
    return servegen.sample(given["servegen"], given["clients"], start, length, rate, given["seed"], size)


@options.takes(
    trace_argument(),
    argument("out", str, "Specification to write, .toml"),
    *reading_options(),
    option("seed", int, ("--seed",), "Seed of the copy that is compared [default: 0]", 0, "Output", metavar="N", min=0),
    option("force", bool, ("--force",), "Overwrite an existing file [default: off]", False, "Output"),
    options.format_option(*SPEC_FORMATS),
)
def fit(**given: Any) -> None:
    """Describe a trace by a generator's specification that holds none of its requests, and say how close a copy is.

    The specification has counts, quantiles and shares: no request, no id, no block. `traces synth --from` makes a
    trace of it. How far a copy may be from the original is in the table: read it before relying on one.
    """
    shown = options.chosen_format(given["format"], *SPEC_FORMATS)
    from mooncake_bench.trace.synthetic import closeness, redraw, specfile
    from mooncake_bench.trace.synthetic.fit import specification

    specfile.check_target(given["out"], given["force"])
    trace = read_given(given)
    spec = specification(trace)
    rows = closeness.rows(trace, redraw.draw(spec, given["seed"]))
    specfile.write(spec, given["out"], given["force"])
    note(f"wrote {given['out']}")
    if shown == "json":
        answer(json_answer({"out": given["out"], "copy_seed": given["seed"], "closeness": rows}))
    else:
        answer(render_list(f"{trace.name} and a copy", [closeness.shown(row) for row in rows], shown))


def _presets(listed: Sequence[dict[str, Any]], shown: str | None) -> str:
    """The presets; in a table the options stand on a line of their own, to be copied."""
    if shown == "json":
        return json_answer(listed)
    return "\n".join(f"{item['name']}: {item['about']}\n    {item['options']}" for item in listed)


COMMANDS: Commands = (
    (
        "synth",
        synth,
        (
            Example("traces synth long.arrow --preset l-eval-like --rate 2 --seed 1", "long documents, asked 8 times"),
            Example(
                "traces synth chat.arrow --rate 2 --duration 10min --share sessions:turns=4,think=30s "
                "--share system:count=8,tokens=2048,zipf=1.2",
                "conversations that open with one of eight system prompts",
            ),
            Example("traces synth --preset list", "the presets, and the options that they stand for"),
        ),
    ),
    (
        "fit",
        fit,
        (
            Example("traces fit conversation-like chat.toml", "what can be shared when the trace cannot"),
            Example("traces fit conversation-like chat2.toml --format json", "how close a copy is, for a program"),
            Example("traces fit conversation-like other.toml --seed 7", "compared with another copy"),
        ),
    ),
)
