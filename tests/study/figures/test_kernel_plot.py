"""The kernel plot shows all eight placements of one convolution."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_figures import BASE_NS, EXTRA_NS, write_convolution

from autotm.model.config import StyleConfig
from autotm.model.errors import BadInputError
from autotm.model.profile import Profile, read_profile, write_profile
from autotm.study.figures.kernel_times import OPERANDS, draw_kernel_plot, table_of_convolution


def test_bars_carry_the_labels_of_their_placements(tmp_path: Path) -> None:
    """The original swapped the labels of the middle bars."""
    figure, text = draw_kernel_plot(table_of_convolution(*write_convolution(tmp_path)), StyleConfig())
    (axes,) = figure.axes
    labels = [tick.get_text().split("\n") for tick in axes.get_xticklabels()]
    assert labels[:3] == [["fast", "fast", "fast"], ["fast", "fast", "slow"], ["fast", "slow", "fast"]]
    for label, bar in zip(labels, axes.containers[1], strict=True):
        slow = [name for name, tier in zip(OPERANDS, label, strict=True) if tier == "slow"]
        assert bar.get_height() == pytest.approx(1 + sum(EXTRA_NS[name] for name in slow) / BASE_NS)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["measured", "emulated"]
    assert "8x48x48x128" in text


def test_a_missing_placement_is_named(tmp_path: Path) -> None:
    graph, profile = write_convolution(tmp_path)
    whole = read_profile(profile)
    kept = {key: timing for key, timing in whole.timings.items() if key[2] != "DPP"}
    write_profile(profile, Profile(whole.graph_hash, kept, whole.provenance))
    with pytest.raises(BadInputError, match="no time with output, weight in slow memory"):
        table_of_convolution(graph, profile)
