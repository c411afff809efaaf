"""The page of a plan in a real browser: what it draws is the plan, and mouse, search and keys find their way.

Without a browser these tests are skipped, and say how to get one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_plans import laid_out, solved

from autotm.model.graph import Role, Tier
from autotm.study.placed import Placed
from autotm.study.view.page import write_page

Box = tuple[float, float, float, float]
"""Left, top, width, height in CSS pixels of the stage."""
RECORD_RECTANGLES = """
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
    """Playwright's page, its faults on the console and in scripts, and the addresses that it asked for."""

    def __init__(self, page: Any, placed: Placed) -> None:
        self.page = page
        self.placed = placed
        self.faults: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: message.type in {"error", "warning"} and self.faults.append(message.text))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def wait_until_drawn(self) -> None:
        """Wait until what was asked for is drawn."""
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.wait_until_drawn()

    def view(self) -> dict[str, Any]:
        view: dict[str, Any] = self.page.evaluate("autotm.view")
        return view

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
        rows, plot = map(self.page.evaluate, ("autotm.rows()", "autotm.plot()"))
        view, edges = self.view(), self.edges()
        per_unit = plot["width"] / (view["to"] - view["from"])
        boxes = []
        for stay, offset in zip(self.placed.plan.stays, self.placed.offsets, strict=True):
            tier = int(stay.tier is Tier.SLOW)
            row, low = rows[("fast", "slow")[tier]], view["low"][tier]
            per_byte = row["height"] / (view["high"][tier] - low)
            size = self.placed.step.by_name[stay.tensor].allocated_bytes
            left = plot["left"] + (edges[stay.start] - view["from"]) * per_unit
            top = row["top"] + row["height"] - (offset + size - low) * per_byte
            width, height = (edges[stay.end] - edges[stay.start]) * per_unit, size * per_byte
            boxes.append((left, top, max(width, THINNEST), max(height, THINNEST)))
        return boxes

    def point_at(self, box: Box) -> None:
        """Move the mouse to the middle of a box of the stage."""
        stage = self.page.locator("#stage").bounding_box()
        left, top, width, height = box
        self.page.mouse.move(stage["x"] + left + width / 2, stage["y"] + top + height / 2)
        self.wait_until_drawn()

    def text(self, where: str) -> str:
        """The text of an element, its white space as one space."""
        return " ".join(self.page.locator(where).inner_text().split())


@contextmanager
def opened(browser: Any, placed: Placed, file: Path, **look: Any) -> Iterator[OpenedPage]:
    """Open a page that lies at `file`, with no network, and wait for its first drawing."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, **look)
    context.set_offline(offline=True)
    page = context.new_page()
    page.add_init_script(RECORD_RECTANGLES)
    shown = OpenedPage(page, placed)
    page.goto(file.as_uri())
    page.wait_for_function("window.autotm")
    shown.wait_until_drawn()
    try:
        yield shown
    finally:
        context.close()


READ_PIXELS = """
(places) => {
  const { canvas } = document.getElementById("base").getContext("2d");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return places.map(([x, y]) => [...data.slice(4 * (y * canvas.width + x), 4 * (y * canvas.width + x) + 3)]);
}
"""
ONE_PLAN = pytest.mark.parametrize("placed", ["synchronous"], indirect=True)
"""For what is the same whatever plan is shown."""
LEGIBLE = 4.5
"""Contrast of text, by the Web Content Accessibility Guidelines (1.4.3)."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium, driven by Playwright."""
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if executable is None:
        pytest.skip("!!! SKIPPED: no Chromium here, so no page was opened: sudo apt-get install chromium")
    reason = "!!! SKIPPED: Playwright is not installed, so no page was opened: make setup-browser"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module", params=["static", "synchronous", "asynchronous", "memory-mode"])
def placed(request: pytest.FixtureRequest) -> Placed:
    return solved(request.param, layers=8)


@pytest.fixture(scope="module")
def file(placed: Placed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "view.html"
    write_page(placed, path)
    return path


@pytest.fixture
def shown(browser: Any, placed: Placed, file: Path) -> Iterator[OpenedPage]:
    """Whatever a test does, nothing is asked of the network and nothing is complained about."""
    with opened(browser, placed, file) as page:
        yield page
        assert page.faults == []
        assert page.requests == [file.as_uri()]


def kind_of(placed: Placed, tensor: str) -> str:
    if any(move.tensor == tensor for move in placed.plan.moves):
        return "moves"
    role = placed.step.by_name[tensor].role
    return {Role.INTERMEDIATE: "stays", Role.WORKSPACE: "workspace"}.get(role, "argument")


def colour_of(page: OpenedPage, name: str) -> str:
    return str(page.page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()"))


def assert_drawn(page: OpenedPage, *, all_of_them: bool) -> None:
    """Every stay of the plan is filled once where it must be, in its colour, and nothing else is filled."""
    colours = {name: colour_of(page, name) for name in ("stays", "moves", "workspace", "argument")}
    filled = page.filled()
    rectangles = np.array([box for _, box in filled])
    left = set(range(len(filled)))
    boxes = page.boxes()
    assert len(filled) == len(boxes) if all_of_them else len(filled) <= len(boxes)
    for stay, box in zip(page.placed.plan.stays, boxes, strict=True):
        near = np.flatnonzero(np.abs(rectangles - np.array(box)).max(axis=1) < 0.01)
        same = [index for index in near if filled[index][0] == colours[kind_of(page.placed, stay.tensor)]]
        matches = left.intersection(same)
        assert matches or not all_of_them, f"{stay} is nowhere drawn at {box}"
        left -= set(list(matches)[:1])
    assert not left, f"{len(left)} rectangles belong to no stay"


def test_rectangles_are_the_stays_of_the_plan(shown: OpenedPage) -> None:
    assert_drawn(shown, all_of_them=True)
    shown.page.check("input[value=time]")
    shown.wait_until_drawn()
    assert shown.view()["axis"] == "time"
    assert shown.view()["to"] == pytest.approx(shown.placed.plan.objective_us, rel=1e-5)
    filled = np.array([box for _, box in shown.filled()])
    assert len(filled) == len(shown.placed.plan.stays)
    for box in shown.boxes():
        assert np.abs(filled - np.array(box)).max(axis=1).min() < 0.05, "times on the page have six digits"


def test_what_is_filled_is_what_one_sees(shown: OpenedPage) -> None:
    """The middle of a rectangle that is large enough, and too low for a name, has the colour of its kind."""
    wanted = []
    for stay, (left, top, width, height) in zip(shown.placed.plan.stays, shown.boxes(), strict=True):
        kind = kind_of(shown.placed, stay.tensor)
        if kind != "moves" and width >= 6 and 6 < height < 14:
            wanted.append((kind, [round(left + width / 2), round(top + height / 2)]))
    pixels = shown.page.evaluate(READ_PIXELS, [at for _, at in wanted])
    for (kind, _), pixel in zip(wanted, pixels, strict=True):
        colour = colour_of(shown, kind)
        assert pixel == [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    assert len(wanted) > 3 or shown.placed.plan.optimizer == "memory-mode"


def test_the_cursor_shows_the_facts_of_a_tensor(shown: OpenedPage) -> None:
    placed, names = shown.placed, [kernel.name for kernel in shown.placed.step.kernels]
    stays = zip(placed.plan.stays, shown.boxes(), strict=True)
    large = [(stay, box) for stay, box in stays if min(box[2:]) >= 3]
    assert len(large) > 10
    for stay, box in large[:: max(len(large) // 40, 1)]:
        shown.point_at(box)
        text, tensor = shown.text("#tensor"), placed.step.by_name[stay.tensor]
        assert text.startswith(f"{tensor.name} role {tensor.role} values {tensor.dtype} ")
        assert f"({tensor.size_bytes:,}" in text
        assert tensor.producer is not None
        assert f"producer {tensor.producer} {names[tensor.producer]}" in text
        assert all(f"{reader} {names[reader]}" in text for reader in tensor.readers[:12])
        for one, offset in zip(placed.plan.stays, placed.offsets, strict=True):
            where = f"{'fast' if one.tier is Tier.FAST else 'slow'} [{one.start}, {one.end}) {offset:,}"
            assert one.tensor != tensor.name or where in text
        moves = [move for move in placed.plan.moves if move.tensor == tensor.name]
        assert text.count("blocking") == sum(not move.is_asynchronous for move in moves)
        assert text.count("asynchronous") == sum(move.is_asynchronous for move in moves)
    kernel = (stay.start + stay.end) // 2
    assert names[kernel] in shown.text("#kernel") or names[kernel - 1] in shown.text("#kernel")


@ONE_PLAN
def test_beside_the_pools_there_is_no_tensor(shown: OpenedPage) -> None:
    rows, plot = shown.page.evaluate("autotm.rows()"), shown.page.evaluate("autotm.plot()")
    row = rows.get("live") or rows["slow"]
    shown.point_at((plot["left"] + 20, row["top"] - 8, 2, 2))
    assert shown.text("#tensor") == "Point at a tensor, or search for one."
    assert shown.text("#kernel").startswith("Kernel ")


def test_the_wheel_zooms_where_the_cursor_is(shown: OpenedPage) -> None:
    plot = shown.page.evaluate("autotm.plot()")
    pool = "fast" if "fast" in shown.page.evaluate("autotm.rows()") else "slow"
    row = shown.page.evaluate("autotm.rows()")[pool]
    before, share = shown.view(), 0.3
    shown.point_at((plot["left"] + share * plot["width"], row["top"] + row["height"] / 2, 0, 0))
    shown.page.mouse.wheel(0, -600)
    shown.wait_until_drawn()
    after = shown.view()
    count = before["to"] - before["from"]
    assert 0 < after["to"] - after["from"] < 0.6 * count
    assert after["from"] + share * (after["to"] - after["from"]) == pytest.approx(share * count, abs=1e-3 * count)
    assert after["low"] == before["low"]
    assert_drawn(shown, all_of_them=False)
    shown.page.keyboard.down("Shift")
    shown.page.mouse.wheel(0, -600)
    shown.page.keyboard.up("Shift")
    shown.wait_until_drawn()
    tier = ("fast", "slow").index(pool)
    closer = shown.view()
    assert closer["high"][tier] - closer["low"][tier] < 0.6 * (after["high"][tier] - after["low"][tier])
    assert_drawn(shown, all_of_them=False)
    shown.page.click("#whole")
    shown.wait_until_drawn()
    assert shown.view() == before


@ONE_PLAN
def test_dragging_moves_the_view(shown: OpenedPage) -> None:
    shown.page.click("#closer", click_count=2)
    shown.wait_until_drawn()
    before, box = shown.view(), shown.page.locator("#stage").bounding_box()
    shown.page.mouse.move(box["x"] + 500, box["y"] + 40)
    shown.page.mouse.down()
    shown.page.mouse.move(box["x"] + 400, box["y"] + 40, steps=4)
    shown.page.mouse.up()
    shown.wait_until_drawn()
    plot, after = shown.page.evaluate("autotm.plot()"), shown.view()
    width = before["to"] - before["from"]
    assert after["from"] - before["from"] == pytest.approx(100 / plot["width"] * width, rel=1e-6)
    assert after["to"] - after["from"] == pytest.approx(width)


@ONE_PLAN
def test_a_search_finds_a_tensor_and_shows_it(shown: OpenedPage) -> None:
    stay = min(shown.placed.plan.stays, key=lambda one: one.end - one.start)
    shown.page.keyboard.press("/")
    shown.page.keyboard.type(stay.tensor.upper())
    names = [tensor.name for tensor in shown.placed.step.tensors if stay.tensor in tensor.name]
    plural = "tensor" if len(names) == 1 else "tensors"
    assert shown.text("#found") == f"{len(names)} {plural} found"
    shown.press("Enter")
    assert shown.text("#tensor").startswith(f"{stay.tensor} role")
    assert shown.text("#found") == f"1 of {len(names)}"
    view = shown.view()
    assert view["from"] <= stay.start < stay.end <= view["to"]
    assert view["to"] - view["from"] < len(shown.placed.step.kernels)
    shown.press("Escape")
    assert shown.text("#found") == ""
    assert shown.page.evaluate("document.activeElement.id") == "stage"
    shown.page.fill("#search", "no such tensor")
    assert shown.text("#found") == "0 tensors found"


@ONE_PLAN
def test_keys_go_where_the_mouse_goes(shown: OpenedPage) -> None:
    names = [kernel.name for kernel in shown.placed.step.kernels]
    shown.page.focus("#stage")
    for key, kernel in (("ArrowRight", 0), ("Shift+ArrowRight", 10), ("ArrowLeft", 9)):
        shown.press(key)
        assert shown.text("#kernel").startswith(f"Kernel {kernel} {names[kernel]}")
    here = {stay.tensor for stay in shown.placed.plan.stays if stay.start <= 9 < stay.end}
    selected = set()
    for _ in range(len(here) + 1):
        shown.press("ArrowUp")
        selected.add(shown.text("#tensor").split(" role")[0])
    assert selected == here
    shown.press("Enter", "z")
    assert shown.view()["to"] - shown.view()["from"] <= len(names)
    assert shown.text("#tensor").split(" role")[0] in here
    assert shown.page.locator("#said").inner_text() != ""
    shown.press("t")
    assert shown.view()["axis"] == "time"
    shown.press("0")
    assert shown.view()["from"] == 0


@ONE_PLAN
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible_in_light_and_dark(browser: Any, placed: Placed, file: Path, scheme: str) -> None:
    with opened(browser, placed, file, color_scheme=scheme) as page:
        pairs = [("ink", "ground"), ("ink", "panel"), ("quiet", "ground"), ("quiet", "panel"), ("accent", "panel")]
        pairs += [("label", kind) for kind in ("stays", "moves", "workspace", "argument")]
        for text, ground in pairs:
            light, dark = sorted((luminance(colour_of(page, name)) for name in (text, ground)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= LEGIBLE, f"{text} on {ground}"
        assert (luminance(colour_of(page, "ground")) > 0.5) == (scheme == "light")


def luminance(colour: str) -> float:
    """Relative luminance of a colour such as #1b232c."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@ONE_PLAN
def test_provenance_is_on_the_page(shown: OpenedPage) -> None:
    text = shown.text("body")
    for said in ("slow memory EMULATED", "Imaginary CPU", "2 threads", "seed 20", "autotm 0.1.0", "predicted"):
        assert said in text


@pytest.mark.parametrize("count", [5_000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_a_page_of_many_stays_is_drawn_and_answers(browser: Any, tmp_path: Path, count: int) -> None:
    """How long it takes is measured by `benchmarks/view_page.py`."""
    large = laid_out(count)
    write_page(large, tmp_path / "view.html")
    with opened(browser, large, tmp_path / "view.html") as page:
        assert len(page.filled()) == count
        page.point_at(page.boxes()[count // 2])
        assert page.text("#tensor").startswith("layer.")
        assert page.faults == []
