"""Figures that compare networks over a few limits (7, 9 and 11): their table, their files, what their bars share."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from autotm.model.errors import unknown_name
from autotm.model.limit import Limit
from autotm.model.study_config import StyleConfig
from autotm.study.records import table_of_records
from autotm.study.style import caption, read_table, save_figure, styled, write_caption, write_table

FIGURES = ("fig7", "fig9", "fig11")
"""Modules of `autotm.study`, each with `draw(table, style)` that gives the figure and what its caption adds."""

Drawn = tuple[Figure, str]

TITLES = {
    "densenet264": "DenseNet-264",
    "inception_v4": "Inception v4",
    "resnet50": "ResNet-50",
    "resnet200": "ResNet-200",
    "test_vgg": "VGG19 (small)",
    "vgg19": "VGG19",
    "vgg416": "VGG416",
}
_GROUP_WIDTH = 0.8


def make_figure(name: str, records: Sequence[Path], csv: Path, pdf: Path, png: Path, style: StyleConfig) -> None:
    """Records -> .csv -> .pdf and .png.

    Raises:
        DamagedFileError: a record cannot be read.
        BadInputError: no such figure, or the records are not of one study with an all-fast run of each network.
    """
    write_table(table_of_records(records), csv)
    draw(name, csv, pdf, png, style)


def draw(name: str, csv: Path, pdf: Path, png: Path, style: StyleConfig) -> None:
    """Draw a figure from its table alone: no records, no machine."""
    if name not in FIGURES:
        raise unknown_name("figure", name, FIGURES)
    draw_figure: Callable[[pd.DataFrame, StyleConfig], Drawn] = importlib.import_module(f"autotm.study.{name}").draw
    table = read_table(csv)
    with styled(style):
        figure, remark = draw_figure(table, style)
        text = f"{caption(table)} {remark}"
        if style.caption:
            write_caption(figure, text, style)
        save_figure(figure, pdf, png, text, style)


def title(network: str) -> str:
    """A network's name for people."""
    return TITLES.get(network, network)


def limits_of(table: pd.DataFrame, *, ends: bool) -> list[str]:
    """The limits of a table, least fast memory first; with `ends`, all slow and all fast too."""
    slow_parts = {text: Limit.parse(text) for text in dict.fromkeys(table["limit"])}
    is_end = {text: limit.size_bytes is None and 0 in {limit.slow, limit.fast} for text, limit in slow_parts.items()}
    order = table.groupby("limit")["dram_limit_bytes"].median().sort_values(kind="stable").index
    return [text for text in order if ends or not is_end[text]]


def bars(axes: Axes, places: Sequence[str], series: Sequence[tuple[str, Sequence[float], object]]) -> None:
    """Grouped bars: one group for each place on x, one bar in it for each (label, heights, colour)."""
    width = _GROUP_WIDTH / len(series)
    for number, (label, heights, color) in enumerate(series):
        shift = (number - (len(series) - 1) / 2) * width
        middles = [place + shift for place in range(len(places))]
        axes.bar(middles, heights, 0.92 * width, color=color, label=label, linewidth=0)
    axes.set_xticks(range(len(places)), places)
    axes.grid(visible=False, axis="x")


def values(table: pd.DataFrame, places: Sequence[str], column: str) -> list[float]:
    """The column at each limit; what was not run has no bar."""
    found = table.drop_duplicates("limit").set_index("limit")[column]
    return [float(found.get(place, float("nan"))) for place in places]
