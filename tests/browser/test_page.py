"""The page in a real Chromium: it opens without a fault or a request, and shows what the parquet says."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from test_results_compare import b_rejected
from test_results_tiny import tiny_run

from mooncake_bench.cli.app import run
from mooncake_bench.report.html.page import render
from mooncake_bench.report.html.runs import of_runs
from mooncake_bench.results.compare import compare

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)></textarea>"
PHONE, DESKTOP = (390, 844), (1280, 900)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of some hundred requests, some of them rejected, and the page of them."""
    made = tmp_path_factory.mktemp("page")
    named = [
        word for policy in ("random", "load-balancing", "kvcache-centric") for word in ("-p", f"{policy}+predictive")
    ]
    words = ["--max-requests", "400", "--cluster", "2P+2D", "--out", str(made / "results"), "-q"]
    assert run(["replay", "conversation-like", *named, *words]) == 0
    assert run(["report", "1", "2", "3", "--results", str(made / "results"), "-o", str(made / "page.html")]) == 0
    return made


@pytest.fixture(scope="module")
def requests(folder: Path) -> list[dict[str, Any]]:
    """The columns of each run's requests.parquet."""
    tables = [pq.read_table(path) for path in sorted(folder.glob("results/*/requests.parquet"))]
    return [
        {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.schema.names} for table in tables
    ]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two runs whose names all try to be more than text."""
    runs = [tiny_run(policy_label=HOSTILE, reasons=(HOSTILE, "full")), b_rejected()]
    runs[0].manifest["trace"] = {**runs[0].manifest["trace"], "name": HOSTILE, "metadata": {HOSTILE: HOSTILE}}
    runs[0].manifest["policy"] = {**runs[0].manifest["policy"], "sources": {HOSTILE: "ab" * 32}}
    path = tmp_path_factory.mktemp("hostile") / "page.html"
    path.write_text(render(of_runs(compare(runs), HOSTILE)), encoding="utf-8")
    return path


def cells(page: Any, table: str, column: int) -> list[str]:
    """A column of a table as a reader sees it."""
    found: list[str] = page.eval_on_selector_all(
        f"#table-{table} tbody tr", f"rows => rows.map(row => row.cells[{column}].innerText)"
    )
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [PHONE, DESKTOP])
def test_it_opens_without_a_fault_and_is_as_wide_as_the_screen(
    folder: Path, opened: Callable[..., Any], width: int, height: int, scheme: str
) -> None:
    page = opened(folder / "page.html", width, height, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator("h1").inner_text() == page.title()
    outside = page.evaluate(
        """() => [...document.querySelectorAll('h1, h2, h3, p, figure, button, .scroll, li')].filter((each) => {
          const box = each.getBoundingClientRect();
          return box.width && (box.left < 0 || box.right > innerWidth + 1) && !each.closest('.scroll');
        }).map((each) => each.outerHTML.slice(0, 80))"""
    )
    assert outside == []


def test_tables_and_bars_show_what_the_parquet_says(
    folder: Path, opened: Callable[..., Any], requests: list[dict[str, Any]]
) -> None:
    page = opened(folder / "page.html")
    done = [columns["status"] == "completed" for columns in requests]
    assert cells(page, "requests", 2) == [f"{int(each.sum()):,}" for each in done]
    means = [columns["ttft_ms"][each].mean() for columns, each in zip(requests, done, strict=True)]
    assert cells(page, "ttft-of-completed-requests", 2) == [
        f"{mean:,.0f}" if mean >= 1000 else f"{mean:.1f}" for mean in means
    ]
    heights = page.evaluate(
        """() => [...document.querySelectorAll('figure[id$=outcomes] .panel:first-child .series')]
        .map((run) => [...run.querySelectorAll('.bar')].map((bar) => bar.getBoundingClientRect().height))"""
    )
    for (offered, completed, *_), each in zip(heights, done, strict=True):  # bars have an edge of a pixel
        assert completed / offered == pytest.approx(each.mean(), abs=0.01)


def test_a_curve_is_drawn_where_the_parquet_s_quantiles_lie(
    folder: Path, opened: Callable[..., Any], requests: list[dict[str, Any]]
) -> None:
    page = opened(folder / "page.html")
    heights = page.evaluate(
        """(shares) => [...document.querySelectorAll('figure[id$=ttft-cdf] .panel .series .line')].map((line) => {
          const panel = JSON.parse(document.getElementById('numbers').textContent)
            .find((each) => each.name === 'ttft-cdf').panels[0];
          const x = (pixel) => panel.x.low + (pixel - panel.x.start) / (panel.x.end - panel.x.start)
            * (panel.x.high - panel.x.low);
          const up = (share) => panel.y.start + share * (panel.y.end - panel.y.start);
          const points = Array.from({length: 801}, (_, i) => line.getPointAtLength(line.getTotalLength() * i / 800));
          return shares.map((share) => x(points.find((point) => point.y <= up(share) + .05).x));
        })""",
        [0.25, 0.5, 0.75],
    )
    for drawn, columns in zip(heights, requests, strict=True):
        ttft_s = columns["ttft_ms"][columns["status"] == "completed"] / 1000
        wanted = np.quantile(ttft_s, [0.25, 0.5, 0.75], method="higher")
        assert drawn == [pytest.approx(each, abs=0.02 * ttft_s.max()) for each in wanted]


def test_a_click_sorts_a_table_and_another_turns_it_round(
    folder: Path, opened: Callable[..., Any], requests: list[dict[str, Any]]
) -> None:
    page = opened(folder / "page.html")
    counts = [int((columns["status"] == "completed").sum()) for columns in requests]
    assert len(set(counts)) == 3
    button = page.locator("#table-requests th button").nth(1)  # completed: after offered
    button.click()
    assert cells(page, "requests", 2) == [f"{count:,}" for count in sorted(counts, reverse=True)]
    head = page.locator("#table-requests th").nth(2)
    assert head.get_attribute("aria-sort") == "descending"
    page.keyboard.press("Enter")
    assert cells(page, "requests", 2) == [f"{count:,}" for count in sorted(counts)]
    assert head.get_attribute("aria-sort") == "ascending"
    page.locator("#table-requests th button").nth(2).click()
    assert head.get_attribute("aria-sort") is None


def paper(page: Any) -> int:
    """How bright the page's background is, of 255."""
    colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return int(colour.removeprefix("rgb(").split(",")[0])


def test_light_and_dark_follow_the_system_and_the_button(folder: Path, opened: Callable[..., Any]) -> None:
    page = opened(folder / "page.html", scheme="dark")
    assert paper(page) < 50
    page.click("#theme")
    assert paper(page) == 255
    assert page.locator("#theme").inner_text() == "Dark"
    page.click("#theme")
    assert paper(page) < 50
    assert paper(opened(folder / "page.html", scheme="light")) == 255


def test_paper_is_light_whole_and_without_buttons(folder: Path, opened: Callable[..., Any]) -> None:
    page = opened(folder / "page.html", scheme="dark")
    page.emulate_media(media="print")
    assert paper(page) == 255
    assert not page.locator("#theme").is_visible()
    assert not page.locator("nav").is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_a_legend_hides_a_run_and_shows_it_again(folder: Path, opened: Callable[..., Any]) -> None:
    page = opened(folder / "page.html")
    figure = page.locator("figure[id$=outcomes]")
    bars = figure.locator(".panels .series").nth(1)
    figure.locator(".legend button").nth(1).click()
    assert not bars.is_visible()
    figure.locator(".legend button").nth(1).click()
    assert bars.is_visible()


def test_the_readout_says_the_numbers_under_the_pointer(
    folder: Path, opened: Callable[..., Any], requests: list[dict[str, Any]]
) -> None:
    page = opened(folder / "page.html")
    bar = page.locator("figure[id$=outcomes] .panel").first.locator(".series").nth(1).locator(".bar").nth(1)
    bar.hover()
    text = page.locator("#readout").inner_text()
    counts = [int((columns["status"] == "completed").sum()) for columns in requests]
    assert text.splitlines()[0] == "completed"
    assert [int(line.rsplit(": ")[1].replace(",", "")) for line in text.splitlines()[1:]] == counts
    page.mouse.move(0, 0)
    assert not page.locator("#readout").is_visible()


def test_the_numbers_of_figures_and_tables_can_be_downloaded(
    folder: Path, opened: Callable[..., Any], download: Callable[[Any, str], str], requests: list[dict[str, Any]]
) -> None:
    page = opened(folder / "page.html")
    rows = list(csv.DictReader(io.StringIO(download(page, "figure[id$=outcomes] .get"))))
    completed = [float(row["y"]) for row in rows if (row["panel"], row["x"]) == ("Requests", "completed")]
    assert completed == [(columns["status"] == "completed").sum() for columns in requests]
    busy = list(csv.DictReader(io.StringIO(download(page, "figure[id$=instances] .get"))))
    assert {row["panel"] for row in busy}
    assert all(-1e-9 <= float(row["y"]) <= 1 + 1e-9 for row in busy if "prefill" in row["panel"] and row["y"])
    table = list(csv.reader(io.StringIO(download(page, "#table-requests .get"))))
    assert [row[2] for row in table[1:]] == cells(page, "requests", 2)


def test_hostile_names_stay_text(
    hostile: Path, opened: Callable[..., Any], download: Callable[[Any, str], str]
) -> None:
    page = opened(hostile)
    assert page.title() == HOSTILE
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert HOSTILE in cells(page, "requests", 0)[0]
    assert HOSTILE in page.locator("figure[id$=outcomes] .legend").inner_text()
    page.locator("figure[id$=outcomes] .panel .bar").first.hover()
    assert HOSTILE in page.locator("#readout").inner_text()
    rows = list(csv.DictReader(io.StringIO(download(page, "figure[id$=outcomes] .get"))))
    assert rows[0]["series"] == HOSTILE


def test_a_downloaded_name_is_no_formula(
    tmp_path: Path, opened: Callable[..., Any], download: Callable[[Any, str], str]
) -> None:
    path = tmp_path / "page.html"
    label = '=HYPERLINK("x")'
    path.write_text(render(of_runs(compare([tiny_run(policy_label=label)]))), encoding="utf-8")
    page = opened(path)
    assert list(csv.reader(io.StringIO(download(page, "#table-requests .get"))))[1][0] == f"'{label}"
    assert list(csv.reader(io.StringIO(download(page, "figure[id$=outcomes] .get"))))[1][1] == f"'{label}"
