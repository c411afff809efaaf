"""What all figures share: look, panels, captions, names, and how they are saved."""

from autotm.study.drawing.captions import (
    caption,
    disturbed_text,
    machine_text,
    modelled_caption,
    near_text,
    pages_text,
    prices_remark,
)
from autotm.study.drawing.look import GRAY, Drawn, network_colors, optimizer_colors, rival_colors, styled
from autotm.study.drawing.names import in_order, limits_of, series_name, title
from autotm.study.drawing.panels import count_bytes, finish, grid, hollow_marks, panels, text_in_bytes
from autotm.study.drawing.saving import fix_legends, save_figure, write_caption

__all__ = [
    "GRAY",
    "Drawn",
    "caption",
    "count_bytes",
    "disturbed_text",
    "finish",
    "fix_legends",
    "grid",
    "hollow_marks",
    "in_order",
    "limits_of",
    "machine_text",
    "modelled_caption",
    "near_text",
    "network_colors",
    "optimizer_colors",
    "pages_text",
    "panels",
    "prices_remark",
    "rival_colors",
    "save_figure",
    "series_name",
    "styled",
    "text_in_bytes",
    "title",
    "write_caption",
]
