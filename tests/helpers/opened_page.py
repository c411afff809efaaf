"""The page of a plan in a browser without a network: what it drew, and where its stays must be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

from autotm.model.graph import Tier
from autotm.study.placed import Placed

Box = tuple[float, float, float, float]
"""Left, top, width, height in CSS pixels of the stage."""
_RECORD_RECTANGLES = """
window.filled = [];
for (const name of ["fillRect", "clearRect"]) {
  const real = CanvasRenderingContext2D.prototype[name];
  CanvasRenderingContext2D.prototype[name] = function (...box) {
    if (this.canvas.id === "base") {
      if (name === "clearRect") window.filled = [];
      else window.filled.push([this.fillStyle, ...box]);
    }
    return real.apply(this, box);
  };
}
"""
THINNEST = 0.6
"""Pixels that a rectangle has at least, to be seen."""


class OpenedPage:
    """One page, and what it said and asked for.

    Attributes:
        page: Playwright's.
        faults: errors on its console and in its scripts.
        requests: addresses that it asked for.
    """

    def __init__(self, page: Any, placed: Placed) -> None:
        self.page = page
        self.placed = placed
        self.faults: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: message.type in {"error", "warning"} and self.faults.append(message.text))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def settle(self) -> None:
        """Wait until what was asked for is drawn."""
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def view(self) -> dict[str, Any]:
        """What is in view: `axis`, `from`, `to`, `low` and `high` by tier."""
        found: dict[str, Any] = self.page.evaluate("autotm.view")
        return found

    def filled(self) -> list[tuple[str, Box]]:
        """Every rectangle that the last drawing filled on the base canvas, with its colour."""
        return [(style, tuple(box)) for style, *box in self.page.evaluate("filled")]

    def edges(self) -> list[float]:
        """Where kernels begin on the time axis in view, from the plan: numbers, or predicted microseconds."""
        placed = self.placed
        count = len(placed.step.kernels)
        if self.view()["axis"] == "kernels":
            return [float(index) for index in range(count + 1)]
        took = list(placed.kernels_us)
        for move, move_us in zip(placed.plan.moves, placed.moves_us, strict=True):
            window = range(move.start, move.before) if move.is_asynchronous else (move.before,)
            for index in window:
                took[index] += move_us / len(window)
        return [0.0, *accumulate(took)]

    def boxes(self) -> list[Box]:
        """Where each stay of the plan must be, from the plan, its addresses and the view."""
        view, rows, plot, edges = (
            self.view(),
            *map(self.page.evaluate, ("autotm.rows()", "autotm.plot()")),
            self.edges(),
        )
        per_unit = plot["width"] / (view["to"] - view["from"])
        found = []
        for stay, offset in zip(self.placed.plan.stays, self.placed.offsets, strict=True):
            tier = int(stay.tier is Tier.SLOW)
            row, low = rows[("fast", "slow")[tier]], view["low"][tier]
            per_byte = row["height"] / (view["high"][tier] - low)
            size = self.placed.step.by_name[stay.tensor].allocated_bytes
            left = plot["left"] + (edges[stay.start] - view["from"]) * per_unit
            top = row["top"] + row["height"] - (offset + size - low) * per_byte
            width, height = (edges[stay.end] - edges[stay.start]) * per_unit, size * per_byte
            found.append((left, top, max(width, THINNEST), max(height, THINNEST)))
        return found

    def point_at(self, box: Box) -> None:
        """Move the mouse to the middle of a box of the stage."""
        stage = self.page.locator("#stage").bounding_box()
        left, top, width, height = box
        self.page.mouse.move(stage["x"] + left + width / 2, stage["y"] + top + height / 2)
        self.settle()

    def text(self, where: str) -> str:
        """The text of an element, its white space as one space."""
        return " ".join(self.page.locator(where).inner_text().split())


@contextmanager
def opened(browser: Any, placed: Placed, file: Path, **look: Any) -> Iterator[OpenedPage]:
    """Open a page that lies at `file`, with no network, and wait for its first drawing."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, **look)
    context.set_offline(offline=True)
    page = context.new_page()
    page.add_init_script(_RECORD_RECTANGLES)
    found = OpenedPage(page, placed)
    page.goto(file.as_uri())
    page.wait_for_function("window.autotm")
    found.settle()
    try:
        yield found
    finally:
        context.close()
