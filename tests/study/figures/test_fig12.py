"""Bars of figure 12: filled, hollow where a measured step was disturbed, a cross within the axes where none fits."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from matplotlib import pyplot as plt
from synthetic_modelled import write_modelled
from synthetic_records import PROVENANCE

from autotm.model.config import StyleConfig
from autotm.study.figures import gpu
from autotm.study.figures.gpu import table_of_modelled_steps

PLACES = {"inception_v4": (64, 128), "vgg19": (64,)}
MEASURED = {
    "gpu_driver": "580",
    "samples": 9,
    "verified_steps": 2,
    "verified_against": "plain step",
    "disturbed": False,
    "cpu_model": "a host",
}


@pytest.fixture
def modelled(tmp_path: Path) -> pd.DataFrame:
    source = PROVENANCE | {"seed": 20, "machine": "modelled-rtx-2080-ti-1t", "tier_reality": "modelled"}
    return table_of_modelled_steps(write_modelled(tmp_path, source, PLACES))


def hollow(table: pd.DataFrame) -> tuple[int, int]:
    """How many bars are outlines, and how many there are."""
    figure, _ = gpu.draw_fig12(table, StyleConfig())
    bars = [bar for axes in figure.axes for bar in axes.patches]
    plt.close(figure)
    return sum(bar.get_facecolor()[3] == 0 for bar in bars), len(bars)


def test_modelled_bars_are_filled(modelled: pd.DataFrame) -> None:
    assert hollow(modelled) == (0, 8 * 3)


def test_a_disturbed_step_is_hollow_and_named(modelled: pd.DataFrame) -> None:
    table = modelled.assign(tier_reality="real", **MEASURED)
    table.loc[(table["optimizer"] == "lru-paging") & (table["batch"] == 128), "disturbed"] = True
    assert hollow(table) == (1, 8 * 3)
    _, text = gpu.draw_fig12(table, StyleConfig())
    assert "others held the cores during inception_v4 lru-paging" in text


@pytest.mark.parametrize("reality", ["real", "modelled"])
def test_a_cross_at_the_edge_is_within_the_axes(modelled: pd.DataFrame, reality: str) -> None:
    table = modelled[modelled["optimizer"] != "recompute"].assign(tier_reality=reality, **MEASURED)
    figure, _ = gpu.draw_fig12(table, StyleConfig())
    axes = figure.axes[1]
    crosses = [text.get_position()[0] for text in axes.texts if text.get_text() == "\N{MULTIPLICATION SIGN}"]
    assert len(crosses) == 3
    assert all(axes.get_xlim()[0] < place < axes.get_xlim()[1] for place in crosses)
    plt.close(figure)
