"""How every figure looks, and how it is saved: the same table gives the same bytes."""

from __future__ import annotations

import textwrap
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from autotm.model.files import write_atomically
from autotm.model.plan import Status
from autotm.model.study import StyleConfig
from autotm.study.disturbed import disturbed_text

CM_PER_INCH = 2.54
_UNITS = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}
GRAY = "0.35"
NETWORK_ORDER = ("inception_v4", "resnet200", "vgg19", "densenet264", "vgg416", "resnet50", "transformer", "dlrm")
OPTIMIZER_ORDER = ("static", "synchronous", "asynchronous", "numa", "memory-mode", "all-fast", "all-slow")
_SAME_COLOR = {"test_vgg": "vgg19"}
Drawn = tuple[Figure, str]
"""A figure without its caption, and the caption."""
_POINTS_PER_INCH = 72.0
_CAPTION_GAP_POINTS = 4.0
_NO_BREAK = "\N{NO-BREAK SPACE}"
_NO_GAP = 1e-6
_CAPTION_CHARACTERS_PER_INCH = 124.0
"""Times the size in points: a character of the font is about 0.55 em wide."""


@contextmanager
def styled(style: StyleConfig) -> Iterator[None]:
    """Draw under the project's look."""
    look = {
        "font.size": style.font_size_pt,
        "axes.labelsize": style.font_size_pt,
        "axes.titlesize": style.font_size_pt + 1,
        "xtick.labelsize": style.font_size_pt - 1,
        "ytick.labelsize": style.font_size_pt - 1,
        "legend.fontsize": style.font_size_pt - 1.5,
        "legend.labelspacing": 0.35,
        "legend.framealpha": 0.85,
        "legend.edgecolor": "none",
        "legend.handlelength": 2.6,
        "font.family": "DejaVu Sans",
        "axes.edgecolor": GRAY,
        "axes.linewidth": 0.6,
        "grid.linewidth": 0.4,
        "grid.color": "0.88",
        "lines.linewidth": 1.3,
        "lines.markersize": 3.6,
        "pdf.fonttype": 42,
        "svg.hashsalt": "autotm",
    }
    with sns.axes_style("whitegrid"), mpl.rc_context(look):
        yield


def optimizer_colors(style: StyleConfig) -> dict[str, tuple[float, float, float]]:
    """One colour an optimizer, the same in every figure whichever of them it shows."""
    return dict(zip(OPTIMIZER_ORDER, sns.color_palette(style.palette, len(OPTIMIZER_ORDER)), strict=True))


def network_colors(style: StyleConfig, networks: Iterable[str]) -> dict[str, tuple[float, float, float]]:
    """One colour a network, the same in every figure; networks of one's own get those that are left."""
    known = {*NETWORK_ORDER, *_SAME_COLOR}
    names = [*NETWORK_ORDER, *(name for name in dict.fromkeys(networks) if name not in known)]
    colors = dict(zip(names, sns.color_palette(style.palette, len(names)), strict=True))
    return colors | {name: colors[other] for name, other in _SAME_COLOR.items()}


def panels(count: int, style: StyleConfig, *, widen: float = 1.0) -> tuple[Figure, list[Axes]]:
    """A row of panels, `widen` times as wide as usual, with room for a caption below."""
    return grid(count, count, style, widen=widen)


def grid(count: int, columns: int, style: StyleConfig, *, widen: float = 1.0) -> tuple[Figure, list[Axes]]:
    """Panels row by row, `columns` in each; places of the last row that no panel needs stay empty."""
    rows = -(-count // columns)
    width, height = widen * style.panel_width_cm / CM_PER_INCH, style.panel_height_cm / CM_PER_INCH
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).reshape(-1).tolist()
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def finish(axes: Axes, letter: str, title: str) -> None:
    """Panel letter (where there are several panels) and title; no lines where there is no data."""
    axes.set_title(f"({letter})  {title}" if letter else title, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=2.5, width=0.6, color=GRAY)


def count_bytes(axis: Axis, largest: float) -> str:
    """Let an axis of bytes count in the unit that keeps `largest` above 0.1 of it; returns the unit."""
    unit = _unit(largest)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / _UNITS[unit]:g}"))
    axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    return unit


def text_in_bytes(size: float) -> str:
    """A number of bytes for people, three digits, in the unit that keeps it above 0.1."""
    unit = _unit(size)
    return f"{size / _UNITS[unit]:.3g} {unit}"


def _unit(largest: float) -> str:
    return next((name for name, size in _UNITS.items() if largest >= 0.1 * size), "B")


def machine_text(row: Mapping[Hashable, Any]) -> str:
    """Machine, processor, threads, and how real its slow memory is; `row` holds them under the names of records."""
    reality = {
        "real": "real slow memory",
        "emulated": "slow memory EMULATED: DRAM plus injected delay",
        "modelled": "slow memory MODELLED: times computed, not run",
    }[str(row["tier_reality"])]
    return f"machine {row['machine']}: {row['cpu_model']}, {row['threads']} threads; {reality}"


def caption(table: pd.DataFrame) -> str:
    """What a reader must know to trust a figure of runs: machine, tier reality, threads, gap, seed, versions."""
    first = table.iloc[0]
    batches = table.drop_duplicates("network")
    networks = ", ".join(f"{row['network']} (batch {row['batch']})" for _, row in batches.iterrows())
    return (
        f"{networks}, scale {first['scale']}; {machine_text(first)}. Runtimes are medians of at least "
        f"{table['samples'].min()} timed steps{_all_fast(table)}. "
        f"{disturbed_text(table)}{proven_text(table)}Outputs of "
        f"{table['verified_steps'].min()} steps a point compared bit for bit with the unplanned step; "
        f"seed {first['seed']}. {first['versions']}."
    )


def _all_fast(table: pd.DataFrame) -> str:
    seconds = table["all_fast_runtime_s"].dropna()
    if seconds.empty:
        return ""
    return f"; all-fast steps took {' to '.join(f'{one:.3g}' for one in sorted({seconds.min(), seconds.max()}))} s"


def proven_text(table: pd.DataFrame) -> str:
    """How good the plans of optimizers that search are; the others have one plan, and no bound to be near."""
    searched = table[table["solver_status"] != str(Status.NOT_OPTIMIZED)]
    if searched.empty:
        return ""
    names = ", ".join(dict.fromkeys(searched["optimizer"]))
    return f"Plans ({names}) {near_text(searched['gap'].max())} on the predicted runtime. "


def near_text(gap: float) -> str:
    """How near a plan is to its bound, in words; a gap that is rounding error is none."""
    return f"within {100 * gap if gap > _NO_GAP else 0:.2g} % of a proven bound"


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


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write the table; numbers keep every digit, so that a figure drawn from the file is the same figure."""
    write_atomically(path, lambda temporary: table.to_csv(temporary, index=False, lineterminator="\n"))


def read_table(path: Path) -> pd.DataFrame:
    """Read what `write_table` wrote, digit for digit."""
    return pd.read_csv(path, keep_default_na=False, na_values=[""])
