"""Every figure by name, and how one is made: what was measured -> table -> picture, drawn from the table alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from autotm.model.files import unknown_name
from autotm.model.study import PricesConfig, StyleConfig
from autotm.study.drawing import Drawn, fix_legends, save_figure, styled, write_caption
from autotm.study.figures import fig10, fig10a, front, heap, kernel_plot, links
from autotm.study.figures.comparisons import (
    cost_performance,
    devices,
    fig7,
    fig8,
    fig9,
    fig11,
    ilp_times,
    price_performance,
)
from autotm.study.figures.gpu import fig12, timeline
from autotm.study.tables import read_table, table_of_records, with_prices, write_table

FIGURES: Mapping[str, Callable[[pd.DataFrame, StyleConfig], Drawn]] = {
    "fig7": fig7.draw,
    "fig8": fig8.draw,
    "fig8_talk": fig8.draw_for_talk,
    "fig9": fig9.draw,
    "fig10": fig10.draw,
    "fig10a_all_fast": fig10a.draw_all_fast,
    "fig10a_all_slow": fig10a.draw_all_slow,
    "fig10a_synchronous": fig10a.draw_all_limits,
    "fig11": fig11.draw,
    "fig12": fig12.draw,
    "fig12_timeline": timeline.draw,
    "front": front.draw,
    "ilp_times": ilp_times.draw,
    "price_performance": price_performance.draw,
    "cost_performance": cost_performance.draw,
    "kernel_plot": kernel_plot.draw,
    "heap": heap.draw,
    "devices": devices.draw,
    "links": links.draw,
}
"""What gives the picture and its caption from the table."""


@dataclass(frozen=True)
class FigureFiles:
    """The files of one figure; its name is theirs."""

    csv: Path
    pdf: Path
    png: Path

    @classmethod
    def of(cls, csv: Path) -> FigureFiles:
        """Table and pictures side by side."""
        return cls(csv, csv.with_suffix(".pdf"), csv.with_suffix(".png"))

    @property
    def name(self) -> str:
        """The figure's name.

        Raises:
            BadInputError: no such figure.
        """
        if self.csv.stem not in FIGURES:
            raise unknown_name("figure", self.csv.stem, FIGURES)
        return self.csv.stem


def make_figure_of_records(
    records: Sequence[Path], files: FigureFiles, style: StyleConfig, prices: PricesConfig
) -> None:
    """Records -> .csv -> .pdf and .png.

    Raises:
        DamagedFileError: a record cannot be read.
        BadInputError: no such figure, or the records are not those that it needs.
    """
    make_figure(with_prices(table_of_records(records), prices), files, style)


def make_figure(table: pd.DataFrame, files: FigureFiles, style: StyleConfig) -> None:
    """Table -> .csv -> .pdf and .png.

    Raises:
        BadInputError: no such figure, or the table lacks what it needs.
    """
    write_table(table, files.csv)
    draw(files, style)


def draw(files: FigureFiles, style: StyleConfig) -> None:
    """Draw a figure from its .csv alone: no records, no machine; the same bytes each time.

    Raises:
        BadInputError: no such figure, or the table lacks what it needs.
    """
    picture = FIGURES[files.name]
    with styled(style):
        figure, text = picture(read_table(files.csv), style)
        fix_legends(figure)
        if style.caption:
            write_caption(figure, text, style)
        save_figure(figure, files.pdf, files.png, text, style)
