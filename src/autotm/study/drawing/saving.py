"""Figures as files: the same table gives the same bytes."""

from __future__ import annotations

import textwrap
from pathlib import Path

from matplotlib.figure import Figure

from autotm.model.files import write_atomically
from autotm.model.study import StyleConfig
from autotm.study.drawing.look import GRAY

_POINTS_PER_INCH = 72.0


_CAPTION_GAP_POINTS = 4.0


_NO_BREAK = "\N{NO-BREAK SPACE}"


_CAPTION_CHARACTERS_PER_INCH = 124.0
"""Times the size in points: a character of the font is about 0.55 em wide."""


def fix_legends(figure: Figure) -> None:
    """Lay the figure out, for good: legends beside the panels keep their place when a caption makes it taller."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for legend in figure.legends:
        corner = figure.transFigure.inverted().transform(legend.get_window_extent().min)
        legend.borderaxespad = 0.0
        legend.set_loc("lower left")
        legend.set_bbox_to_anchor(tuple(corner), transform=figure.transFigure)


def write_caption(figure: Figure, text: str, style: StyleConfig) -> None:
    """Put `text` below the figure, legends included, wrapped to its width; saving makes room for it."""
    points = style.font_size_pt - 2.0
    columns = int(figure.get_figwidth() * _CAPTION_CHARACTERS_PER_INCH / points)
    lines = textwrap.wrap(text.replace(" %", _NO_BREAK + "%"), columns, break_on_hyphens=False)
    look = {"fontsize": points, "color": GRAY, "ha": "left", "va": "top", "linespacing": 1.3}
    figure.text(0.008, -_CAPTION_GAP_POINTS / _POINTS_PER_INCH / figure.get_figheight(), "\n".join(lines), **look)


def save_figure(figure: Figure, pdf: Path, png: Path, text: str, style: StyleConfig) -> None:
    """Write both files, each whole; neither holds a date."""
    described = {"Title": pdf.stem, "Subject": text, "Creator": "autotm"}
    metadata = {**described, "CreationDate": None, "Producer": None}
    write_atomically(pdf, lambda path: figure.savefig(path, format="pdf", metadata=metadata, bbox_inches="tight"))
    described_png = {"Title": pdf.stem, "Description": text, "Software": None}
    write_atomically(
        png,
        lambda path: figure.savefig(
            path, format="png", dpi=style.dots_per_inch, metadata=described_png, bbox_inches="tight"
        ),
    )
