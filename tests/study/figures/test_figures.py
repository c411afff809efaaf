"""What holds of every figure: drawn from its table alone, the same bytes each time, and said where it comes from."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image
from synthetic_figures import LARGE, LIMITS, tables
from synthetic_records import IO_BYTES, LINUX, PEAK_BYTES, write_workload

from autotm.model.config import PricesConfig, StyleConfig
from autotm.model.errors import BadInputError
from autotm.model.limit import Limit
from autotm.study.columns import MEANINGS
from autotm.study.drawing import network_colors, styled
from autotm.study.figures import comparisons, memory_prices
from autotm.study.figures.figures import FIGURES, FigureFiles, draw
from autotm.study.tables import ratio_price, read_table, table_of_records, with_prices, write_table

STYLE = StyleConfig(dots_per_inch=60)
AGAIN = """
import sys
from pathlib import Path
from autotm.model.config import StyleConfig
from autotm.study.figures.figures import FigureFiles, draw
for csv in sys.argv[1:]:
    draw(FigureFiles.of(Path(csv)), StyleConfig(dots_per_inch=60))
"""
SAVED = ("fig8",)
"""The figure whose files are always compared; those of the others take a second or more each, twice."""
OTHERS = [name for name in FIGURES if name not in SAVED]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table of every figure."""
    folder = tmp_path_factory.mktemp("figures")
    for name, table in tables(folder / "sources").items():
        write_table(table, folder / f"{name}.csv")
    return folder


def table_of(folder: Path, name: str) -> pd.DataFrame:
    return read_table(folder / f"{name}.csv")


@functools.cache
def drawn(folder: Path, name: str) -> tuple[Figure, str]:
    with styled(STYLE):
        return FIGURES[name](table_of(folder, name), STYLE)


@pytest.mark.parametrize("name", FIGURES)
def test_every_column_has_a_meaning(folder: Path, name: str) -> None:
    assert set(table_of(folder, name)) <= set(MEANINGS)


@pytest.mark.parametrize(
    "names",
    [SAVED, *(pytest.param(OTHERS[place::4], marks=pytest.mark.slow) for place in range(4))],
    ids=" ".join,
)
def test_the_same_table_gives_the_same_files_without_a_date(folder: Path, tmp_path: Path, names: list[str]) -> None:
    """In another process, whose strings hash and whose clock stands otherwise."""
    here, there = tmp_path / "here", tmp_path / "there"
    for place, name in itertools.product((here, there), names):
        place.mkdir(exist_ok=True)
        shutil.copy(folder / f"{name}.csv", place)
    for name in names:
        draw(FigureFiles.of(here / f"{name}.csv"), STYLE)
    environment = os.environ | {"PYTHONHASHSEED": "4711", "TZ": "Pacific/Kiritimati"}
    copies = [there / f"{name}.csv" for name in names]
    subprocess.run([sys.executable, "-c", AGAIN, *copies], env=environment, check=True, timeout=280)
    for name in names:
        for kind in ("pdf", "png"):
            assert (there / f"{name}.{kind}").read_bytes() == (here / f"{name}.{kind}").read_bytes(), name
        assert b"CreationDate" not in (here / f"{name}.pdf").read_bytes()
        with Image.open(here / f"{name}.png") as image:
            assert image.info["Description"] == drawn(folder, name)[1]


@pytest.mark.parametrize("name", FIGURES)
def test_captions_say_where_figures_come_from(folder: Path, name: str) -> None:
    said = drawn(folder, name)[1]
    measured = ("EMULATED", "machine laptop-2t", "Imaginary CPU", "2 threads")
    modelled = ("MODELLED", "achine modelled-rtx-2080-ti-1t", "RTX 2080 Ti")
    of_machine = modelled if name.startswith("fig12") else measured
    for part in (*of_machine, "eed 20", "apache-tvm 0.27.0.post1"):
        assert part in said


@pytest.mark.parametrize("name", FIGURES)
def test_legends_stay_clear_of_panels_and_of_each_other(folder: Path, name: str) -> None:
    figure, _ = drawn(folder, name)
    figure.draw_without_rendering()
    boxes = [legend.get_window_extent() for legend in figure.legends]
    panels = [axes.get_tightbbox() for axes in figure.axes]
    assert not [box for box in boxes for panel in panels if box.overlaps(panel)]
    assert not [pair for pair in itertools.combinations(boxes, 2) if pair[0].overlaps(pair[1])]


def test_figure_8_divides_what_memory_mode_took(folder: Path) -> None:
    figure, text = drawn(folder, "fig8")
    (axes,) = figure.axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [
        "VGG416 (8)", "Inception v4 (8)", "ResNet-200 (8)", "DenseNet-264 (8)",
    ]  # fmt: skip
    linux = ["Linux: preferred", "Linux: interleave", "Linux: weighted", "Linux: NUMA balancing"]
    assert [bars.get_label() for bars in axes.containers] == ["static-AutoTM", "sync-AutoTM", *linux]
    slow = (5 / 7) ** 2
    for bars, times in zip(axes.containers, (3.5, 1.4, *[3.8] * 4), strict=True):
        for place, bar in enumerate(bars):
            suffers = 1 + 0.3 * place
            expected = (1 + suffers * 6.0 * slow) / (1 + suffers * times * slow)
            assert bar.get_height() == pytest.approx(expected, rel=1e-6)
    assert "each over the all-fast step of its own minutes" in text
    assert f"Pages by Linux ({', '.join(LINUX)}): where they are is SIMULATED" in text
    talk, _ = drawn(folder, "fig8_talk")
    assert "higher is better" in talk.axes[0].get_ylabel()


def test_figure_8_needs_no_all_fast_step(tmp_path: Path) -> None:
    runs = write_workload(tmp_path, LARGE, ("5:2",), ("memory-mode", "static"), side_by_side=False)
    table = table_of_records(runs, needs_all_fast=False)
    assert table["slowdown"].isna().all()
    assert comparisons.speedups(table)["speedup"].tolist() == pytest.approx(
        [(1 + 6 * 25 / 49) / (1 + 3.5 * 25 / 49)] * 4
    )
    _, text = comparisons.draw_fig8(table, STYLE)
    assert "timed one after the other" in text
    assert "all-fast steps took" not in text


@pytest.mark.parametrize(
    ("optimizers", "base"),
    [
        (("linux-preferred", "static"), "Linux: preferred"),
        (("numa", "static"), "numa"),
        (("static", "synchronous"), "static-AutoTM"),
    ],
)
def test_figure_8_on_real_slow_memory_has_no_cache_to_compare_with(
    tmp_path: Path, optimizers: tuple[str, ...], base: str
) -> None:
    table = table_of_records(write_workload(tmp_path, LARGE, ("5:2",), optimizers)).assign(tier_reality="real")
    assert len(comparisons.speedups(table)) == len(LARGE)
    figure, text = comparisons.draw_fig8(table, STYLE)
    assert figure.axes[0].get_ylabel() == f"speed-up over {base}"
    assert "There is no memory-mode here: fast memory is no cache of slow memory that programs address." in text
    assert f"Bars: {base}'s slow-down over the optimizer's" in text


def test_a_caption_says_when_the_kernel_placed_pages(tmp_path: Path) -> None:
    table = table_of_records(write_workload(tmp_path, LARGE, ("5:2",), ("linux-preferred", "static")))
    _, text = comparisons.draw_fig8(table.assign(tier_reality="real", page_placement="linux"), STYLE)
    assert "Pages by Linux (linux-preferred, static): placed by this machine's kernel" in text
    assert "SIMULATED" not in text


def test_figure_8_asks_for_memory_mode_and_one_limit(tmp_path: Path) -> None:
    table = table_of_records(write_workload(tmp_path, LARGE, ("5:2", "0:1", "1:1"), ("memory-mode", "static")))
    with pytest.raises(BadInputError, match="records of one limit"):
        comparisons.draw_fig8(table, STYLE)
    one = table[table["limit"] != "1:1"]
    assert len(comparisons.speedups(one)) == len(LARGE)
    with pytest.raises(BadInputError, match="vgg416 was not run with optimizer 'memory-mode'"):
        comparisons.draw_fig8(one[one["optimizer"] == "static"], STYLE)


def test_the_front_figure_shows_steps_an_hour(folder: Path) -> None:
    figure, _ = drawn(folder, "front")
    (axes,) = figure.axes
    labels = [tick.get_text() for tick in axes.get_xticklabels()]
    assert [label.partition("\n")[0] for label in labels] == ["all slow", "numa", "sync-AutoTM", "all fast"]
    assert labels[2].endswith("0.7 GB fast\n+ 1.2 GB slow"), "0.4 GB of parameters and such, a fifth of 1.5 GB"
    expected = [3600 / 2.4, 3600 / (1 + 4.2 * 0.64), 3600 / (1 + 1.4 * 0.64), 3600]
    assert [bar.get_height() for bar in axes.patches] == pytest.approx(expected, rel=1e-6)
    table = table_of(folder, "front")
    with pytest.raises(BadInputError, match="no run of optimizer 'numa'"):
        memory_prices.draw_front(table[table["optimizer"] != "numa"], STYLE)
    with pytest.raises(BadInputError, match="runs at one limit"):
        memory_prices.draw_front(table[table["limit"] != "4:1"], STYLE)


def test_solution_times_are_those_of_the_slowest_limit(folder: Path) -> None:
    table = table_of(folder, "ilp_times")
    slowest = comparisons.longest_solves(table).set_index(["network", "optimizer"])
    assert set(slowest.index.get_level_values("optimizer")) == {"static", "synchronous"}, "numa does not search"
    assert set(slowest["limit"]) == {"1:0"}
    figure, text = drawn(folder, "ilp_times")
    (axes,) = figure.axes
    assert axes.get_yscale() == "log"
    assert [bar.get_height() for bar in axes.containers[0]] == pytest.approx([0.3 * k + 1.7 for k in (1, 2, 3, 4)])
    assert list(axes.lines[0].get_ydata()) == pytest.approx([0.3, 0.6, 0.9, 1.2])
    assert "densenet264 static 1:0" in text
    with pytest.raises(BadInputError, match="no run of an optimizer that searches"):
        comparisons.draw_ilp_times(table[table["optimizer"] == "numa"], STYLE)


def test_prices_are_those_of_the_memory_taken(folder: Path) -> None:
    table = table_of(folder, "price_performance").set_index(["network", "optimizer", "limit"])
    half = table.loc[("vgg19", "synchronous", "1:1")]
    fast = (PEAK_BYTES / 2 + IO_BYTES) * 2.1
    assert half["pools_price"] == pytest.approx((fast + PEAK_BYTES / 2) / ((PEAK_BYTES + IO_BYTES) * 2.1))
    assert table.xs("0:1", level="limit")["pools_price"].tolist() == pytest.approx([1.0] * 12)
    dear = with_prices(table.reset_index(), PricesConfig(rest=1e6))
    assert dear["pools_price"].min() > 0.999, "beside a dear machine, memory is cheap"


def test_a_ratio_costs_what_its_parts_cost() -> None:
    assert ratio_price(Limit(0, 1), PricesConfig()) == 1.0
    assert ratio_price(Limit(1, 0), PricesConfig()) == pytest.approx(1 / 2.1)
    assert pd.isna(ratio_price(Limit.parse("4500MB"), PricesConfig()))


def test_price_and_performance_are_shown_and_divided(folder: Path) -> None:
    table = table_of(folder, "price_performance")
    runs = table[(table["optimizer"] == "synchronous") & (table["network"] == "resnet200")]
    figure, _ = memory_prices.draw_price_performance(table, STYLE)
    (axes,) = figure.axes
    (line,) = [line for line in axes.lines if line.get_label() == "ResNet-200"]
    assert list(line.get_xdata()) == pytest.approx(runs["pools_price"].tolist())
    assert list(line.get_ydata()) == pytest.approx((1 / runs["slowdown"]).tolist())
    figure, _ = memory_prices.draw_cost_performance(table, STYLE)
    heights = [bar.get_height() for bar in figure.axes[0].containers[1]]
    assert heights == pytest.approx((runs["pools_price"] * runs["slowdown"]).tolist())
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == list(LIMITS)


def test_a_network_keeps_its_colour_whatever_is_shown_beside_it() -> None:
    alone, together = network_colors(STYLE, ["my_net"]), network_colors(STYLE, ["vgg19", "my_net", "test_vgg"])
    assert alone["my_net"] == together["my_net"]
    assert together["test_vgg"] == together["vgg19"] == alone["vgg19"]
    assert len({together[name] for name in together}) == len(together) - 1, "but for these two, all differ"
