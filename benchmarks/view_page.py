"""How long the page of a plan takes to open in Chromium, by the number of its stays.

    python benchmarks/view_page.py                         # 5000, 20000 and 50000 stays, five times each
    python benchmarks/view_page.py --stays 50000 --rounds 9

One line per size: bytes of the file, and the median of the milliseconds from opening the page to its first drawing. The
sizes take turns, each in a page of its own. It needs what `make test-view` installs.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from playwright.sync_api import sync_playwright
from synthetic_plans import laid_out

from autotm.study.view.page import write_page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main() -> None:
    """Write a page of each size, open them in turn, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stays", type=int, nargs="+", default=(5000, 20_000, 50_000))
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        sys.exit("no Chromium here: sudo apt-get install chromium")
    plans = {stays: laid_out(stays) for stays in asked.stays}
    drawn_ms: dict[int, list[float]] = {stays: [] for stays in plans}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        files = {stays: Path(folder) / f"{stays}.html" for stays in plans}
        for stays, placed in plans.items():
            write_page(placed, files[stays])
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        for _ in range(asked.rounds):
            for stays in plans:
                page = browser.new_page(viewport={"width": 1400, "height": 1000})
                page.goto(files[stays].as_uri())
                page.wait_for_function("window.autotm")
                drawn_ms[stays].append(page.evaluate("autotm.drawnAfterMs"))
                page.close()
        for stays, file in files.items():
            print(f"{stays:7} stays {file.stat().st_size / 1e6:7.1f} MB {statistics.median(drawn_ms[stays]):7.0f} ms")
        browser.close()


if __name__ == "__main__":
    main()
