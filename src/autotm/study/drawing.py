"""The common parts of all figures: fonts, colours, names, panels, captions, and how they are saved."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from autotm.model.config import StyleConfig
from autotm.model.files import write_atomically
from autotm.model.plan import GPU_RIVALS, Status
from autotm.study.tables import DISTURBED_BEFORE, DISTURBED_SEPARATOR, PAGES, is_disturbed

Drawn = tuple[Figure, str]
"""A figure without its caption, and the caption."""

GRAY = "0.35"
_NETWORKS = ("inception_v4", "resnet200", "vgg19", "densenet264", "vgg416", "resnet50", "transformer", "dlrm")
OPTIMIZER_ORDER = ("static", "synchronous", "asynchronous", "numa", "memory-mode", "all-fast", "all-slow")
_LINUX = {
    "linux-preferred": "0.78",
    "linux-interleave": "0.62",
    "linux-weighted-interleave": "0.46",
    "linux-balancing": "0.25",
}
"""The policies of Linux are one family, so they share a hue: gray, by brightness."""
_SAME_COLOR = {"test_vgg": "vgg19"}
"""A small version of a network has the colour of the network."""


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
    """Return the colour of each optimizer and GPU rival: the same in every figure, whichever of them it shows."""
    own = dict(zip(OPTIMIZER_ORDER, sns.color_palette(style.palette, len(OPTIMIZER_ORDER)), strict=True))
    rivals = dict(zip(GPU_RIVALS, sns.color_palette(style.palette, 10)[-len(GPU_RIVALS) :], strict=True))
    return own | {name: to_rgb(gray) for name, gray in _LINUX.items()} | rivals


def network_colors(style: StyleConfig, networks: Iterable[str]) -> dict[str, tuple[float, float, float]]:
    """Return the colour of each network, the same in every figure; a user's own networks get the colours left over."""
    known = {*_NETWORKS, *_SAME_COLOR}
    names = [*_NETWORKS, *(name for name in dict.fromkeys(networks) if name not in known)]
    colors = dict(zip(names, sns.color_palette(style.palette, len(names)), strict=True))
    return colors | {name: colors[other] for name, other in _SAME_COLOR.items()}


_TITLES = {
    "densenet264": "DenseNet-264",
    "inception_v4": "Inception v4",
    "resnet50": "ResNet-50",
    "resnet200": "ResNet-200",
    "dlrm": "DLRM",
    "mlp": "MLP",
    "test_vgg": "VGG19 (small)",
    "transformer": "Transformer",
    "vgg19": "VGG19",
    "vgg416": "VGG416",
}
_SERIES = {
    "static": "static-AutoTM",
    "synchronous": "sync-AutoTM",
    "asynchronous": "async-AutoTM",
    "linux-preferred": "Linux: preferred",
    "linux-interleave": "Linux: interleave",
    "linux-weighted-interleave": "Linux: weighted",
    "linux-balancing": "Linux: NUMA balancing",
    "managed-memory": "managed memory",
    "lru-paging": "LRU paging",
    "swap-all": "swap all (vDNN)",
    "recompute": "recompute (segments)",
    "save-on-cpu": "save_on_cpu (PyTorch)",
}


def title(network: str) -> str:
    """Return a network's name for people."""
    return _TITLES.get(network, network)


def series_name(optimizer: str) -> str:
    """Return an optimizer's name in a legend: the paper's, where it has one."""
    return _SERIES.get(optimizer, optimizer)


_CM_PER_INCH = 2.54
_UNITS = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}


def panels(count: int, style: StyleConfig, *, columns: int = 0, widen: float = 1.0) -> tuple[Figure, list[Axes]]:
    """Return panels by row, `columns` (0: all) in each, `widen` times the usual width; the last row may be short."""
    columns = columns or count
    rows = -(-count // columns)
    width, height = widen * style.panel_width_cm / _CM_PER_INCH, style.panel_height_cm / _CM_PER_INCH
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).reshape(-1).tolist()
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def finish(axes: Axes, letter: str, title: str) -> None:
    """Draw a panel's letter (where there are several) and title; no lines where there is no data."""
    axes.set_title(f"({letter})  {title}" if letter else title, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=2.5, width=0.6, color=GRAY)


def count_bytes(axis: Axis, largest: float) -> str:
    """Let an axis of bytes count in the unit that keeps `largest` above 0.1 of it; return the unit."""
    unit = _unit(largest)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / _UNITS[unit]:g}"))
    axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    return unit


def text_in_bytes(size: float) -> str:
    """Return a number of bytes for people, three digits, in the unit that keeps it above 0.1."""
    unit = _unit(size)
    return f"{size / _UNITS[unit]:.3g} {unit}"


def _unit(largest: float) -> str:
    return next((name for name, size in _UNITS.items() if largest >= 0.1 * size), "B")


def hollow_marks(axes: Axes, runs: pd.DataFrame, x: str, y: str, **look: Any) -> None:
    """Empty the marks of disturbed runs, whose line and marks are drawn; `look` is that of the marks."""
    shown = runs[is_disturbed(runs)]
    if not shown.empty:
        axes.plot(shown[x], shown[y], linestyle="none", markerfacecolor="white", markeredgewidth=1.0, zorder=4, **look)


# Captions, from the table that a figure is drawn from: machine, proof, disturbances, prices.

_NO_GAP = 1e-6
"""A smaller gap is the solver's rounding error."""


def machine_text(row: Mapping[Hashable, Any]) -> str:
    """Return the machine, processor, threads, and how real its slow memory is; `row` has the names of records.

    `slow_memory` in it, if there is any, says which memory that is (`model.machine.slow_memory_text`).
    """
    reality = {
        "real": "real slow memory",
        "emulated": "slow memory EMULATED: DRAM plus injected delay",
        "modelled": "slow memory MODELLED: times computed, not run",
        "stand-in": "NO SLOW MEMORY: ordinary memory stands in for it, its times say nothing about slow memory",
    }[str(row["tier_reality"])]
    which = row.get("slow_memory")
    if isinstance(which, str) and which:
        reality += f" ({which})"
    return f"machine {row['machine']}: {row['cpu_model']}, {row['threads']} threads; {reality}"


def caption(table: pd.DataFrame) -> str:
    """Return the caption of a figure of runs: machine, tier reality, threads, gap, seed and versions."""
    first, seconds, all_fast = table.iloc[0], table["all_fast_runtime_s"].dropna(), ""
    batches = table.drop_duplicates("network")
    networks = ", ".join(f"{row['network']} (batch {row['batch']})" for _, row in batches.iterrows())
    if len(seconds):
        ends = " to ".join(f"{one:.3g}" for one in sorted({seconds.min(), seconds.max()}))
        all_fast = f"; all-fast steps took {ends} s"
    return (
        f"{networks}, scale {first['scale']}; {machine_text(first)}. Runtimes are medians of at least "
        f"{table['samples'].min()} timed steps{all_fast}. "
        f"{disturbed_text(table)}{proven_text(table)}{pages_text(table)}Outputs of "
        f"{table['verified_steps'].min()} steps a point compared bit for bit with the unplanned step; "
        f"seed {first['seed']}. {first['versions']}."
    )


def proven_text(table: pd.DataFrame) -> str:
    """State the gap of the plans of optimizers that search; the others have one plan, and no bound to be near."""
    searched = table[table["solver_status"] != str(Status.NOT_OPTIMIZED)]
    if searched.empty:
        return ""
    names = ", ".join(dict.fromkeys(searched["optimizer"]))
    return f"Plans ({names}) {gap_text(searched['gap'].max())} on the predicted runtime. "


def pages_text(table: pd.DataFrame) -> str:
    """State whether Linux or a simulation of it placed the pages of its policies; empty where it placed none."""
    texts = {
        "simulated": "where they are is SIMULATED, by the rules it documents",
        "linux": "placed by this machine's kernel, in fast memory that was filled but for the limit",
    }
    names = {how: ", ".join(dict.fromkeys(table.loc[table[PAGES] == how, "optimizer"])) for how in texts}
    return "".join(f"Pages by Linux ({names[how]}): {text}. " for how, text in texts.items() if names[how])


def gap_text(gap: float) -> str:
    """Say in words how near a plan is to its bound; a gap that is only rounding error counts as 0."""
    return f"within {100 * gap if gap > _NO_GAP else 0:.2g} % of a proven bound"


def disturbed_text(table: pd.DataFrame) -> str:
    """Return the caption's sentences on disturbed runs, and what plans were made from; empty without any."""
    sentences = ""
    if len(shown := table[is_disturbed(table)]):
        on = [f" on {device}" for device in shown["device"]] if "device" in shown else [""] * len(shown)
        runs = zip(shown["network"], shown["optimizer"], shown["limit"], on, strict=True)
        named = "; ".join(f"{network} {optimizer} {limit}{where}" for network, optimizer, limit, where in runs)
        sentences = f"Hollow, too slow: others held the cores during {named}. "
    texts = table[DISTURBED_BEFORE].dropna() if DISTURBED_BEFORE in table else ()
    measured = list(dict.fromkeys(one for text in texts for one in text.split(DISTURBED_SEPARATOR) if one))
    # `copies beside kernels (matmul)` and the like count as one, with their number.
    members, shown_as = Counter(one.split(" (")[0] for one in measured), {one.split(" (")[0]: one for one in measured}
    if named := "; ".join(
        one if members[name] == 1 else f"{name} ({members[name]} classes)" for name, one in shown_as.items()
    ):
        sentences += f"Others held the cores, too, while what predictions are made from was measured: {named}. "
    return sentences


def prices_remark(table: pd.DataFrame) -> str:
    """Return the caption's sentence about the assumed ratio of memory prices."""
    return f"A byte of fast memory is taken as {table['price_ratio'].iloc[0]:.3g} times as dear as one of slow memory."


def modelled_caption(table: pd.DataFrame) -> str:
    """Return the caption of a figure of modelled steps: where kernels were timed, and the errors of the prediction."""
    first, networks = table.iloc[0], table.drop_duplicates("network")
    errors = "; ".join(
        f"{row['network']} (batch {row['batch']}) {100 * row['step_error']:+.1f} %, single kernels "
        f"{100 * row['kernel_error']:.1f} %"
        for _, row in networks.iterrows()
    )
    return (
        f"Steps are MODELLED, not run: PREDICTED times at scale {first['scale']} from kernels timed at batches "
        f"{first['batches']}; {machine_text(first)}. {proven_text(table)}{pages_text(table)}"
        f"Error of the all-fast step at the largest of these "
        f"batches, predicted from the others: {errors}. Seed {first['seed']}. {first['versions']}."
    )


_POINTS_PER_INCH = 72.0
_CAPTION_GAP_POINTS = 4.0
_NO_BREAK = "\N{NO-BREAK SPACE}"
_CAPTION_CHARACTERS_PER_INCH = 124.0
"""Times the size in points: a character of the font is about 0.55 em wide."""


def draw_to_files(
    picture: Callable[[pd.DataFrame, StyleConfig], Drawn], table: pd.DataFrame, file: Path, style: StyleConfig
) -> None:
    """Draw `picture` of a table, its caption below where the style asks for it: a .pdf and a .png, named as `file`."""
    with styled(style):
        figure, text = picture(table, style)
        # Layout is fixed now: legends outside the panels keep their place when a caption makes the figure taller.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for legend in figure.legends:
            corner = figure.transFigure.inverted().transform(legend.get_window_extent().min)
            legend.borderaxespad = 0.0
            legend.set_loc("lower left")
            legend.set_bbox_to_anchor(tuple(corner), transform=figure.transFigure)
        if style.caption:
            write_caption(figure, text, style)
        save_figure(figure, file, text, style)


def write_caption(figure: Figure, text: str, style: StyleConfig) -> None:
    """Put `text` below the figure, legends included, wrapped to its width; saving makes room for it."""
    points = style.font_size_pt - 2.0
    columns = int(figure.get_figwidth() * _CAPTION_CHARACTERS_PER_INCH / points)
    lines = textwrap.wrap(text.replace(" %", _NO_BREAK + "%"), columns, break_on_hyphens=False)
    look = {"fontsize": points, "color": GRAY, "ha": "left", "va": "top", "linespacing": 1.3}
    figure.text(0.008, -_CAPTION_GAP_POINTS / _POINTS_PER_INCH / figure.get_figheight(), "\n".join(lines), **look)


def save_figure(figure: Figure, file: Path, text: str, style: StyleConfig) -> None:
    """Write both files, each whole; neither holds a date."""
    of_pdf = {"Title": file.stem, "Subject": text, "Creator": "autotm", "CreationDate": None, "Producer": None}
    of_png = {"Title": file.stem, "Description": text, "Software": None}
    for kind, look in (("pdf", {"metadata": of_pdf}), ("png", {"metadata": of_png, "dpi": style.dots_per_inch})):
        save = partial(figure.savefig, format=kind, bbox_inches="tight", **look)
        write_atomically(file.with_suffix(f".{kind}"), save)
