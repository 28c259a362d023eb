"""``metrics list``: every metric once, under the requests or instances that it is of."""

from __future__ import annotations

import csv
import io

import pytest

from mooncake_bench.cli.app import run
from mooncake_bench.results.metrics import METRICS


def test_each_population_is_a_heading_over_its_metrics(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["metrics", "list"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for population in {metric.population for metric in METRICS}:
        assert text.count(population) == 1
    head, *groups = text.strip().split("\n\n")
    assert head.split() == ["name", "unit", "better", "definition"]
    found: dict[str, str] = {}
    for group in groups:
        title, *lines = group.split("\n")
        names = [line.split()[0] for line in lines if not line.startswith(" ")]
        found |= {name: title.removeprefix("Of ").removesuffix(":") for name in names}
    assert found == {metric.name: metric.population for metric in METRICS}


def test_for_programs_the_population_is_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["metrics", "list", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["name"], row["population"]) for row in rows] == [(each.name, each.population) for each in METRICS]
