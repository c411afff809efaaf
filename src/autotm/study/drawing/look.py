"""How every figure looks: fonts, lines, and one colour for each optimizer and network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import matplotlib as mpl
import seaborn as sns
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from autotm.model.plan import GPU_RIVALS
from autotm.model.study import StyleConfig

GRAY = "0.35"


NETWORK_ORDER = ("inception_v4", "resnet200", "vgg19", "densenet264", "vgg416", "resnet50", "transformer", "dlrm")


OPTIMIZER_ORDER = ("static", "synchronous", "asynchronous", "numa", "memory-mode", "all-fast", "all-slow")


LINUX_ORDER = ("linux-preferred", "linux-interleave", "linux-weighted-interleave", "linux-balancing")
"""What Linux does by itself: one family, in grays."""
_GRAYS = ("0.78", "0.62", "0.46", "0.25")


_SAME_COLOR = {"test_vgg": "vgg19"}


Drawn = tuple[Figure, str]
"""A figure without its caption, and the caption."""


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
    own = dict(zip(OPTIMIZER_ORDER, sns.color_palette(style.palette, len(OPTIMIZER_ORDER)), strict=True))
    return own | {name: to_rgb(gray) for name, gray in zip(LINUX_ORDER, _GRAYS, strict=True)}


def rival_colors(style: StyleConfig) -> dict[str, tuple[float, float, float]]:
    """One colour for each thing that others do on a GPU."""
    return dict(zip(GPU_RIVALS, sns.color_palette(style.palette, 10)[-len(GPU_RIVALS) :], strict=True))


def network_colors(style: StyleConfig, networks: Iterable[str]) -> dict[str, tuple[float, float, float]]:
    """One colour a network, the same in every figure; networks of one's own get those that are left."""
    known = {*NETWORK_ORDER, *_SAME_COLOR}
    names = [*NETWORK_ORDER, *(name for name in dict.fromkeys(networks) if name not in known)]
    colors = dict(zip(names, sns.color_palette(style.palette, len(names)), strict=True))
    return colors | {name: colors[other] for name, other in _SAME_COLOR.items()}
