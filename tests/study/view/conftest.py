"""A real browser for the page of a plan; without one its tests are skipped, and say how to get one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium, driven by Playwright."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("!!! SKIPPED: no Chromium here, so no page was opened: sudo apt-get install chromium")
    playwright = pytest.importorskip(
        "playwright.sync_api",
        reason="!!! SKIPPED: Playwright is not installed, so no page was opened: make setup-browser",
    )
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()
