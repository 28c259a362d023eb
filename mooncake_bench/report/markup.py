"""Reports as Markdown, LaTeX, CSV and JSON. Names come from users: each format escapes them its own way."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import TYPE_CHECKING, Any

from mooncake_bench.results.words import clean, csv_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mooncake_bench.report.sheets import Report, Sheet
    from mooncake_bench.results.compare import Comparison, Pairing
    from mooncake_bench.results.metrics import Value
    from mooncake_bench.results.run import Run

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "×": r"$\times$", "–": "--", "±": r"$\pm$",
    "<": r"$<$", ">": r"$>$", "µ": r"$\mu$", "|": r"\textbar{}", '"': "''",
}  # fmt: skip


def text_columns(sheet: Sheet) -> list[bool]:
    """Which columns hold words: the first, and those where no cell begins as a number or a gap does."""
    words = [
        not any(cell[:1].isdigit() or cell[:1] in tuple("-+–<>×!") for cell in column) for column in _columns(sheet)
    ]
    return [True, *words[1:]]


def _columns(sheet: Sheet) -> Iterable[list[str]]:
    return ([row[i] for row in sheet.rows if row[i]] or ["–"] for i in range(len(sheet.headers)))


# ---- Markdown


def markdown(report: Report) -> str:
    """GitHub-flavoured Markdown."""
    lines = [f"{_md(line)}  " for line in report.head]
    for sheet in report.sheets:
        lines += ["", f"### {_md(sheet.title)}", "", *_md_table(sheet), *_md_notes(sheet.notes)]
    if report.notices:
        lines += ["", "### Notices", "", *(f"- {_md(notice)}" for notice in report.notices)]
    return "\n".join(lines) + "\n"


def _md_table(sheet: Sheet) -> Iterable[str]:
    yield "| " + " | ".join(_md(header) for header in sheet.headers) + " |"
    yield "| " + " | ".join("---" if words else "---:" for words in text_columns(sheet)) + " |"
    for row in sheet.rows:
        yield "| " + " | ".join(_md(cell) for cell in row) + " |"


def _md_notes(notes: Sequence[str]) -> Iterable[str]:
    for note in notes:
        yield ""
        yield f"*{_md(note)}*"


def _md(text: str) -> str:
    escaped = re.sub(r"([\\`*_\[\]|#~])", r"\\\1", clean(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# ---- LaTeX


def latex(report: Report) -> str:
    """One ``table`` a sheet; needs the package booktabs."""
    head = [r"% needs \usepackage{booktabs}", *(f"% {clean(line)}" for line in report.head)]
    notices = [f"% notice: {clean(notice)}" for notice in report.notices]
    labels = _tex_labels([sheet.title for sheet in report.sheets])
    tables = [line for sheet, label in zip(report.sheets, labels, strict=True) for line in _latex_table(sheet, label)]
    return "\n".join([*head, *notices, *tables]) + "\n"


def _tex_labels(titles: Sequence[str]) -> list[str]:
    """A name to refer to each table by: the letters and digits of its title up to any detail, numbered where taken."""
    names = ["-".join(re.findall(r"[a-z0-9]+", re.split("[:,]", title.lower())[0])) or "table" for title in titles]
    return [
        f"tab:{name}" if name not in names[:i] else f"tab:{name}-{names[:i].count(name) + 1}"
        for i, name in enumerate(names)
    ]


def _latex_table(sheet: Sheet, label: str) -> Iterable[str]:
    yield ""
    yield r"\begin{table}"
    yield rf"\caption{{{' '.join(_tex(line) + '.' for line in (sheet.title, *sheet.notes))}}}"
    yield rf"\label{{{label}}}"
    yield rf"\begin{{tabular}}{{{''.join('l' if words else 'r' for words in text_columns(sheet))}}}"
    yield r"\toprule"
    yield " & ".join(_tex(header) for header in sheet.headers) + r" \\"
    yield r"\midrule"
    for row in sheet.rows:
        yield " & ".join(_tex(cell) for cell in row) + r" \\"
    yield r"\bottomrule"
    yield r"\end{tabular}"
    yield r"\end{table}"


def _tex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in clean(text))


# ---- CSV: one line a metric of a run, numbers in full

CSV_COLUMNS = ("label", "run_dir", "metric", "value", "unit", "better", "n", "ratio_to_reference")


def table_csv(comparison: Comparison) -> str:
    """Every metric of every run; an undefined number is an empty field."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for i, run in enumerate(comparison.runs):
        for name, value in comparison.metrics[i].items():
            ratio = comparison.ratio(name, i)
            row = (csv_text(comparison.labels[i]), csv_text(_folder(run)), name, value.value, value.unit, value.better)
            writer.writerow(["" if cell is None else cell for cell in (*row, value.n, ratio)])
    return out.getvalue()


# ---- JSON: strict, undefined is null


def table_json(
    comparison: Comparison,
    groups: Sequence[dict[str, Any]] = (),
    *,
    ascii_only: bool = False,
    more: Mapping[str, Any] | None = None,
) -> str:
    """Runs with all their metrics, pairs and notices; ``groups`` are the rows of a table split with ``--by``.

    ``more`` is added as it is.

    ``ascii_only`` escapes other letters, as JSON allows, for a reader whose encoding lacks them.
    """
    answer = {
        "reference": comparison.labels[comparison.reference],
        "runs": [_json_run(comparison, i) for i in range(len(comparison.runs))],
        "paired": [
            {"label": label, **_json_pair(pair)}
            for label, pair in zip(comparison.labels, comparison.pairs, strict=True)
            if pair is not None
        ],
        "notices": list(comparison.notices),
        **({"groups": list(groups)} if groups else {}),
        **(more or {}),
    }
    return json.dumps(answer, indent=2, ensure_ascii=ascii_only, allow_nan=False) + "\n"


def _json_run(comparison: Comparison, i: int) -> dict[str, Any]:
    run = comparison.runs[i]
    return {
        "label": comparison.labels[i],
        "run_dir": _folder(run),
        "status": run.manifest["status"],
        "policy": run.manifest["policy"],
        "trace": {key: run.manifest["trace"].get(key) for key in ("name", "sha256", "requests", "block_tokens")},
        "setup": run.manifest["setup"],
        "cost": run.manifest["cost"],
        "counts": run.manifest.get("counts"),
        "rejections": [group._asdict() for group in run.rejections()],
        "metrics": json_values(comparison.metrics[i]),
        "ratios_to_reference": {name: comparison.ratio(name, i) for name in comparison.metrics[i]},
        "policy_decision_us": run.manifest.get("policy_decision_us"),
        "wall_s": run.manifest.get("wall_s"),
        "notices": run.notices,
    }


def json_values(values: Any) -> dict[str, dict[str, Any]]:
    """Metrics as JSON carries them."""
    named: dict[str, Value] = dict(values)
    return {name: value._asdict() for name, value in named.items()}


def _json_pair(pair: Pairing) -> dict[str, Any]:
    differences = {name: difference._asdict() for name, difference in pair.differences.items()}
    goodput = None if pair.goodput is None else pair.goodput._asdict()
    return {**pair._asdict(), "differences": differences, "goodput": goodput}


def _folder(run: Run) -> str | None:
    return None if run.path is None else str(run.path)
