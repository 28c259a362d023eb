"""One headless Chromium for all tests of the page; they are skipped, with the reason, where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")  # Debian's first
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder is marked ``browser``."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("browser")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser, offline."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[browser]'")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    sandbox = [] if os.name == "nt" or os.getuid() else ["--no-sandbox"]  # which root may not use
    with api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=sandbox)
        yield browser
        browser.close()


Opened = Callable[..., Any]


@pytest.fixture
def opened(chromium: Any) -> Iterator[Opened]:
    """Opens a file; afterwards nothing may have gone wrong in it, and it may have asked for nothing else."""
    watched: list[tuple[Any, list[str], list[str], str]] = []

    def open_file(path: Path, width: int = 1280, height: int = 900, scheme: str = "light") -> Any:
        context = chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, offline=True, accept_downloads=True
        )
        page = context.new_page()
        faults: list[str] = []
        requests: list[str] = []
        page.on("console", lambda message: faults.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: (faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: requests.append(request.url))
        watched.append((context, faults, requests, path.as_uri()))
        page.goto(path.as_uri())
        return page

    yield open_file
    for context, faults, requests, url in watched:
        context.close()
        assert faults == []
        assert [each for each in requests if not each.startswith("blob:")] == [url]


@pytest.fixture
def download() -> Callable[[Any, str], str]:
    """Clicks what a selector finds, and gives the text of the file that comes."""

    def click(page: Any, selector: str) -> str:
        with page.expect_download() as found:
            page.click(selector)
        return Path(found.value.path()).read_text(encoding="utf-8")

    return click
