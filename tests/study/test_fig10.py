from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))

from synthetic_records import IO_BYTES, LIMITS, PEAK_BYTES, write_study

from autotm.model.study_config import StyleConfig
from autotm.study import fig10, style
from autotm.study.fig10 import draw, make_figure
from autotm.study.style import read_table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fig10")
    make_figure(
        write_study(folder / "records"), folder / "fig10.csv", folder / "fig10.pdf", folder / "fig10.png", StyleConfig()
    )
    return folder


def test_the_same_table_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    draw(folder / "fig10.csv", tmp_path / "fig10.pdf", tmp_path / "fig10.png", StyleConfig())
    for name in ("fig10.pdf", "fig10.png"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_the_table_survives_its_file(folder: Path, tmp_path: Path) -> None:
    table = read_table(folder / "fig10.csv")
    style.write_table(table, tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == (folder / "fig10.csv").read_bytes()


def test_files_say_that_memory_was_emulated_and_hold_no_date(folder: Path) -> None:
    pdf = (folder / "fig10.pdf").read_bytes()
    assert b"EMULATED" in pdf
    assert b"CreationDate" not in pdf
    with Image.open(folder / "fig10.png") as image:
        assert "EMULATED" in image.info["Description"]
        assert image.width > 3 * 8 / 2.54 * 200 * 0.9


def test_a_look_changes_the_picture(folder: Path, tmp_path: Path) -> None:
    draw(folder / "fig10.csv", tmp_path / "f.pdf", tmp_path / "f.png", StyleConfig(font_size_pt=11.0))
    assert (tmp_path / "f.png").read_bytes() != (folder / "fig10.png").read_bytes()


def test_panels_show_the_table(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn = {}
    monkeypatch.setattr(fig10, "save_figure", lambda figure, *_: drawn.setdefault("figure", figure))
    draw(folder / "fig10.csv", tmp_path / "f.pdf", tmp_path / "f.png", StyleConfig())
    table = read_table(folder / "fig10.csv")
    slowdown, traffic, movement = drawn["figure"].axes

    assert _line(slowdown, "static") == pytest.approx(_points(table, "static", "slowdown"))
    assert _line(slowdown, "synchronous") == pytest.approx(_points(table, "synchronous", "slowdown"))
    assert _line(traffic, "static: inputs") == pytest.approx(_points(table, "static", "dram_input_fraction"))
    assert len([line for line in traffic.lines if ":" in str(line.get_label())]) == 4
    assert traffic.yaxis.get_major_formatter()(0.5) == "50%"
    assert _line(movement, "fast → slow") == pytest.approx(_points(table, "synchronous", "bytes_moved_pmem"))
    assert movement.get_ylabel() == "moved in one step (GB)"
    assert movement.yaxis.get_major_formatter()(1.5e9) == "1.5"
    for axes in (slowdown, traffic, movement):
        assert axes.get_xlabel() == "fast memory allowed, with I/O tensors (GB)"
        marks = [line for line in axes.lines if set(line.get_xdata()) == {PEAK_BYTES + IO_BYTES}]
        assert len(marks) == 1, "the whole step's memory is marked where the x axis counts it, I/O included"


def test_drawing_leaves_matplotlib_as_it_was(folder: Path, tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    draw(folder / "fig10.csv", tmp_path / "f.pdf", tmp_path / "f.png", StyleConfig())
    assert dict(mpl.rcParams) == before


def _line(axes: mpl.axes.Axes, label: str) -> np.ndarray:
    line = next(line for line in axes.lines if line.get_label() == label and len(line.get_xdata()) == len(LIMITS))
    return np.asarray(line.get_xydata())


def _points(table: pd.DataFrame, optimizer: str, column: str) -> np.ndarray:
    runs = table[table["optimizer"] == optimizer]
    return np.column_stack([runs["dram_limit_bytes"] + IO_BYTES, runs[column]])
