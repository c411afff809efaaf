"""What the bars of figures that compare networks or optimizers share: names, order, limits, groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from autotm.model.step import Limit

TITLES = {
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
_GROUP_WIDTH = 0.8
_SERIES = {"static": "static-AutoTM", "synchronous": "sync-AutoTM", "asynchronous": "async-AutoTM"}


def title(network: str) -> str:
    """A network's name for people."""
    return TITLES.get(network, network)


def series_name(optimizer: str) -> str:
    """An optimizer's name in a legend: the paper's, where it has one."""
    return _SERIES.get(optimizer, optimizer)


def in_order(networks: Iterable[str], order: Sequence[str]) -> list[str]:
    """The distinct networks, those of `order` first."""
    found = list(dict.fromkeys(networks))
    return [*(name for name in order if name in found), *(name for name in found if name not in order)]


def limits_of(table: pd.DataFrame, *, ends: bool) -> list[str]:
    """The limits of a table, least fast memory first; with `ends`, all slow and all fast too."""
    slow_parts = {text: Limit.parse(text) for text in dict.fromkeys(table["limit"])}
    is_end = {text: limit.size_bytes is None and 0 in {limit.slow, limit.fast} for text, limit in slow_parts.items()}
    order = table.groupby("limit")["dram_limit_bytes"].median().sort_values(kind="stable").index
    return [text for text in order if ends or not is_end[text]]


def bars(
    axes: Axes,
    places: Sequence[str],
    series: Sequence[tuple[str, Sequence[float], Any]],
    hollow: Sequence[Sequence[bool]] = (),
) -> None:
    """Grouped bars: one group for each place on x, one bar in it for each (label, heights, colour).

    `hollow` says of each bar, series by series, whether it is drawn as an outline, since its run was disturbed.
    """
    width = _GROUP_WIDTH / len(series)
    for number, (label, heights, color) in enumerate(series):
        shift = (number - (len(series) - 1) / 2) * width
        middles = [place + shift for place in range(len(places))]
        drawn = axes.bar(middles, heights, 0.92 * width, color=color, label=label, linewidth=0)
        for bar, is_hollow in zip(drawn, hollow[number] if hollow else (), strict=False):
            if is_hollow:
                bar.set(facecolor="none", edgecolor=color, linewidth=1.0)
    axes.set_xticks(range(len(places)), places)
    axes.grid(visible=False, axis="x")


def values(table: pd.DataFrame, places: Sequence[str], column: str) -> list[float]:
    """The column at each limit; what was not run has no bar."""
    found = table.drop_duplicates("limit").set_index("limit")[column]
    return [float(found.get(place, float("nan"))) for place in places]
