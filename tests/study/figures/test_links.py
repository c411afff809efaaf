"""The figure of the links: measured copies and moves beside the device's constants, never without their label."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_figures import SOURCE, write_links

from autotm.model.config import StyleConfig
from autotm.model.files import load, save
from autotm.model.links import Links
from autotm.study.figures.slow_memories import draw_links, table_of_links


def rate(table: object, **what: object) -> float:
    rows = table
    for column, value in what.items():
        rows = rows[rows[column] == value]
    return float(rows["bytes_per_s"].iloc[-1])


def test_rates_are_those_of_the_files(tmp_path: Path) -> None:
    table = table_of_links(*write_links(tmp_path))
    streaming = {"to": "pmem", "series": "copy", "team": 4, "stores": "streaming"}
    assert rate(table, **streaming) == pytest.approx(80e9, rel=0.01)
    assert rate(table, to="dram", series="move", mode="blocking") == pytest.approx(5e9, rel=0.01)
    assert rate(table, to="dram", series="published", mode="blocking") == 10e9
    assert rate(table, to="dram", series="device", mode="blocking") == 5e9, "stretched twice"
    assert rate(table, to="pmem", series="device", mode="asynchronous") == 0.5e9


def test_the_picture_holds_every_series_in_both_directions(tmp_path: Path) -> None:
    figure, text = draw_links(table_of_links(*write_links(tmp_path)), StyleConfig())
    labels = [entry.get_text() for entry in figure.legends[0].get_texts()]
    assert len(labels) == len(set(labels)) == 10
    for axes in figure.axes:
        assert sorted(axes.get_legend_handles_labels()[1]) == sorted(labels)
    assert "EMULATED wait" in text
    assert "imaginary" in text
    assert "nobody's paper" in text


def test_real_memory_has_no_device_beside_it(tmp_path: Path) -> None:
    links, _ = write_links(tmp_path)
    save(links, "links", load(links, "links", Links), SOURCE | {"tier_reality": "real"})
    table = table_of_links(links, None)
    assert set(table["series"]) == {"copy", "move"}
    _, text = draw_links(table, StyleConfig())
    assert "EMULATED" not in text
    assert "real slow memory" in text


def test_disturbed_links_say_so(tmp_path: Path) -> None:
    links, device = write_links(tmp_path)
    save(links, "links", replace(load(links, "links", Links), disturbed=("copies",)), SOURCE)
    assert "Others held the cores" in draw_links(table_of_links(links, device), StyleConfig())[1]
