"""Figure 10 from records to files: the table decides the picture."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from synthetic_records import IO_BYTES, LIMITS, PEAK_BYTES, write_study, write_workload

from autotm.model.config import StyleConfig
from autotm.model.errors import BadInputError
from autotm.stages.figures import figure_stage
from autotm.study import tables
from autotm.study.figures import limits
from autotm.study.figures.figures import FigureFiles, draw
from autotm.study.tables import read_table, table_of_records

STYLE = StyleConfig(dots_per_inch=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fig10")
    figure_stage(STYLE, {"records": write_study(folder / "records")}, csv=files(folder).csv)
    return folder


def files(folder: Path) -> FigureFiles:
    return FigureFiles.of(folder / "fig10.csv")


def test_the_table_survives_its_file(folder: Path, tmp_path: Path) -> None:
    table = read_table(folder / "fig10.csv")
    tables.write_table(table, tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == (folder / "fig10.csv").read_bytes()


def test_files_say_that_memory_was_emulated_and_hold_no_date(folder: Path) -> None:
    pdf = (folder / "fig10.pdf").read_bytes()
    assert b"EMULATED" in pdf
    assert b"CreationDate" not in pdf
    with Image.open(folder / "fig10.png") as image:
        assert "EMULATED" in image.info["Description"]
        assert image.width > 3 * 8 / 2.54 * STYLE.dots_per_inch * 0.9


def test_a_look_changes_the_picture_and_leaves_matplotlib_as_it_was(folder: Path, tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    (tmp_path / "fig10.csv").write_bytes((folder / "fig10.csv").read_bytes())
    draw(files(tmp_path), STYLE.model_copy(update={"font_size_pt": 11.0}))
    assert (tmp_path / "fig10.png").read_bytes() != (folder / "fig10.png").read_bytes()
    assert dict(mpl.rcParams) == before


def test_panels_show_the_table(folder: Path) -> None:
    table = read_table(folder / "fig10.csv")
    figure, _ = limits.draw_fig10(table, StyleConfig())
    slowdown, traffic, movement = figure.axes

    assert _line(slowdown, "static-AutoTM") == pytest.approx(_points(table, "static", "slowdown"))
    assert _line(slowdown, "sync-AutoTM") == pytest.approx(_points(table, "synchronous", "slowdown"))
    assert _line(traffic, "static-AutoTM: inputs") == pytest.approx(_points(table, "static", "dram_input_fraction"))
    assert len([line for line in traffic.lines if ":" in str(line.get_label())]) == 4
    assert traffic.yaxis.get_major_formatter()(0.5) == "50%"
    assert _line(movement, "fast → slow") == pytest.approx(_points(table, "synchronous", "bytes_moved_pmem"))
    assert movement.get_ylabel() == "moved in one step (GB)"
    assert movement.yaxis.get_major_formatter()(1.5e9) == "1.5"
    for axes in (slowdown, traffic, movement):
        assert axes.get_xlabel() == "fast memory allowed, with I/O tensors (GB)"
        marks = [line for line in axes.lines if set(line.get_xdata()) == {PEAK_BYTES + IO_BYTES}]
        assert len(marks) == 1, "the whole step's memory is marked where the x axis counts it, I/O included"


def test_pictures_for_a_talk_share_their_axes(folder: Path) -> None:
    table = read_table(folder / "fig10.csv")
    pictures = [limits.draw_fig10a(table, StyleConfig(), limit)[0] for limit in ("0:1", "1:0")]
    everything, _ = limits.draw_fig10a(table, StyleConfig())
    (whole,) = everything.axes
    assert _line(whole, "sync-AutoTM") == pytest.approx(_points(table, "synchronous", "slowdown"))
    for picture, limit in zip(pictures, ("0:1", "1:0"), strict=True):
        (axes,) = picture.axes
        assert (axes.get_xlim(), axes.get_ylim()) == (whole.get_xlim(), whole.get_ylim())
        point = table[(table["limit"] == limit) & (table["optimizer"] == "synchronous")]
        ((x, y),) = axes.lines[0].get_xydata()
        assert (x, y) == (point["dram_limit_bytes"].item() + IO_BYTES, point["slowdown"].item())
    with pytest.raises(BadInputError, match='at limit "1:0"'):
        limits.draw_fig10a(table[table["limit"] != "1:0"], StyleConfig(), "1:0")


def test_runs_of_two_networks_are_no_case_study(tmp_path: Path) -> None:
    table = table_of_records(write_workload(tmp_path, ("vgg19", "resnet50"), ("1:0", "0:1")))
    with pytest.raises(BadInputError, match="records of one network"):
        limits.draw_fig10(table, StyleConfig())


def _line(axes: mpl.axes.Axes, label: str) -> np.ndarray:
    line = next(line for line in axes.lines if line.get_label() == label and len(line.get_xdata()) == len(LIMITS))
    return np.asarray(line.get_xydata())


def _points(table: pd.DataFrame, optimizer: str, column: str) -> np.ndarray:
    runs = table[table["optimizer"] == optimizer]
    return np.column_stack([runs["dram_limit_bytes"] + IO_BYTES, runs[column]])
