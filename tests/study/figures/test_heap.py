"""The heap plot shows the addresses that were packed."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from synthetic_figures import SOURCE, write_program

from autotm.layout.packing import pack
from autotm.model.config import StyleConfig
from autotm.model.errors import BadInputError
from autotm.model.files import load, save
from autotm.model.graph import Graph
from autotm.model.plan import Plan
from autotm.model.program import Program
from autotm.study.figures.heap import draw, table_of_heap


@pytest.fixture(scope="module", params=["static", "synchronous", "asynchronous"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path, Path]:
    return write_program(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def table(files: tuple[Path, Path, Path, Path]) -> pd.DataFrame:
    return table_of_heap(*files)


def test_addresses_are_those_that_were_packed(files: tuple[Path, Path, Path, Path], table: pd.DataFrame) -> None:
    graph, _, plan, program = files
    step, placed, laid = load(graph, "graph", Graph), load(plan, "plan", Plan), load(program, "program", Program)
    assert table["offset_bytes"].tolist() == list(pack(step, placed).offsets)
    tops = (table["offset_bytes"] + table["size_bytes"]).groupby(table["tier"]).max()
    assert (tops.get("dram", 0), tops.get("pmem", 0)) == (laid.fast_bytes, laid.slow_bytes)


def test_rectangles_of_a_pool_do_not_overlap(table: pd.DataFrame) -> None:
    for _, stays in table.groupby("tier"):
        for one, other in itertools.combinations(stays.to_dict("records"), 2):
            together = one["start"] < other["end"] and other["start"] < one["end"]
            low, high = sorted((one, other), key=lambda stay: stay["offset_bytes"])
            assert not together or low["offset_bytes"] + low["size_bytes"] <= high["offset_bytes"]


def test_time_is_that_of_kernels_and_moves_are_marked(
    files: tuple[Path, Path, Path, Path], table: pd.DataFrame
) -> None:
    placed = load(files[2], "plan", Plan)
    assert (table["end_us"] > table["start_us"]).all()
    if placed.optimizer == "static":
        assert table["end_us"].max() == pytest.approx(placed.objective_us), "nothing moves: kernels are all there is"
    began = table["began"].value_counts()
    assert began.get("asynchronous", 0) == sum(move.is_asynchronous for move in placed.moves)
    assert began.get("blocking", 0) == sum(not move.is_asynchronous for move in placed.moves)
    assert (table["arrival_us"] >= table["start_us"]).all()
    figure, text = draw(table, StyleConfig())
    fast, slow = figure.axes
    assert (fast.get_title(loc="left"), slow.get_title(loc="left")) == ("(a)  fast pool", "(b)  slow pool")
    rectangles = sum(len(group.get_paths()) for axes in figure.axes for group in axes.collections[:2])
    assert rectangles == len(table)
    assert f"{len(placed.moves)} moves" in text


def test_some_of_these_plans_move_tensors(files: tuple[Path, Path, Path, Path]) -> None:
    placed = load(files[2], "plan", Plan)
    assert bool(placed.moves) == (placed.optimizer != "static")


def test_a_program_of_another_plan_is_refused(files: tuple[Path, Path, Path, Path], tmp_path: Path) -> None:
    graph, profile, _, program = files
    placed = load(files[2], "plan", Plan)
    other = tmp_path / "plan.json"
    save(other, "plan", replace(placed, objective_us=placed.objective_us + 1), SOURCE)
    with pytest.raises(BadInputError, match="made from another plan"):
        table_of_heap(graph, profile, other, program)


def test_the_legend_names_what_is_drawn(table: pd.DataFrame) -> None:
    figure, _ = draw(table, StyleConfig())
    (legend,) = figure.legends
    named = {text.get_text() for text in legend.get_texts()}
    began = set(table["began"])
    assert ("arrives by a move beside kernels" in named) == ("asynchronous" in began)
    assert ("arrives by a move that the step waits for" in named) == ("blocking" in began)
    assert ("tensor that moves" in named) == (began != {"born"})
    assert named >= {"tensor that stays", "limit"}
