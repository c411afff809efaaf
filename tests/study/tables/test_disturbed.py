"""Runs that others disturbed are hollow in figures, named in captions, and left out of the headline numbers."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from matplotlib.figure import Figure
from synthetic_figures import tables

from autotm.model.config import StyleConfig
from autotm.model.record import Record
from autotm.study.drawing import caption, disturbed_text, styled
from autotm.study.figures.figures import FIGURES
from autotm.study.records import headlines
from autotm.study.tables import DISTURBED, DISTURBED_BEFORE, _row, at_limits, marked

OF_RUNS = (
    "fig7", "fig8", "fig9", "fig10", "fig10a_all_slow", "fig10a_synchronous", "fig11", "front", "price_performance",
    "cost_performance", "devices",
)  # fmt: skip


@pytest.fixture(scope="module")
def all_tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pd.DataFrame]:
    return tables(tmp_path_factory.mktemp("figures"))


def one_disturbed(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    """The table with one of its synchronous runs marked, between the ends if there is one."""
    of_planned = table[table["optimizer"] == "synchronous"]
    between = of_planned[~of_planned["limit"].isin(["1:0", "0:1"])]
    index = between.index[0] if "4:1" in set(table["limit"]) or "5:2" in set(table["limit"]) else of_planned.index[0]
    return table.assign(**{DISTURBED: table.index == index}), table.loc[index]


def hollow_shapes(figure: Figure) -> int:
    """Bars without a filling, and marks filled with white."""
    count = 0
    for axes in figure.axes:
        count += sum(bar.get_facecolor()[3] == 0 and bar.get_edgecolor()[3] > 0 for bar in axes.patches)
        lines = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
        count += sum(len(line.get_xdata()) for line in lines)
        for marks in axes.collections:
            count += sum(tuple(color[:3]) == (1.0, 1.0, 1.0) for color in marks.get_facecolors())
    return count


@pytest.mark.parametrize("name", OF_RUNS)
def test_a_disturbed_run_is_hollow_and_named(name: str, all_tables: dict[str, pd.DataFrame]) -> None:
    table = all_tables[name]
    if name == "fig10a_all_slow":
        marked_table, run = table.assign(**{DISTURBED: table["limit"] == "1:0"}), table[table["limit"] == "1:0"].iloc[0]
    else:
        marked_table, run = one_disturbed(table)
    with styled(StyleConfig()):
        sound, text = FIGURES[name](table, StyleConfig())
        shown, named = FIGURES[name](marked_table, StyleConfig())
    assert hollow_shapes(sound) == 0
    assert hollow_shapes(shown) >= 1
    assert "Hollow" not in text
    assert f"{run['network']} " in named.split("Hollow, too slow: ")[1]


def test_where_all_slow_was_disturbed_all_speed_ups_over_it_are(all_tables: dict[str, pd.DataFrame]) -> None:
    table = all_tables["fig7"]
    network = table["network"].iloc[0]
    slow = table.assign(**{DISTURBED: (table["network"] == network) & (table["limit"] == "1:0")})
    with styled(StyleConfig()):
        figure, _ = FIGURES["fig7"](slow, StyleConfig())
    bars = [bar for bar in figure.axes[0].patches if bar.get_height() > 0]
    assert hollow_shapes(figure) == len(bars) > 0


def test_solution_times_do_not_depend_on_who_held_the_cores(all_tables: dict[str, pd.DataFrame]) -> None:
    table, _ = one_disturbed(all_tables["ilp_times"])
    with styled(StyleConfig()):
        _, text = FIGURES["ilp_times"](table, StyleConfig())
    assert "Hollow" not in text


def test_captions_name_all_of_them(all_tables: dict[str, pd.DataFrame]) -> None:
    table = all_tables["fig7"]
    table = table.assign(**{DISTURBED: table["limit"].isin(["4:1", "1:1"]) & (table["optimizer"] == "static")})
    assert caption(table).count(" static ") == marked(table).sum() == 2 * table["network"].nunique()


def test_captions_name_what_plans_were_made_from(all_tables: dict[str, pd.DataFrame]) -> None:
    table = all_tables["fig10"]
    sound = "predictions are made from"
    assert sound not in caption(table)
    found = caption(table.assign(**{DISTURBED_BEFORE: "kernels of inception_v4; copies"}))
    assert found.count("kernels of inception_v4; copies. ") == 1
    assert "Hollow" not in found


def test_a_table_from_before_has_none(all_tables: dict[str, pd.DataFrame]) -> None:
    table = all_tables["fig7"].drop(columns=[DISTURBED, DISTURBED_BEFORE])
    assert not marked(table).any()
    assert disturbed_text(table) == ""
    assert at_limits(table, ["4:1", "none"]) == [False, False]


def test_headlines_are_those_of_sound_runs(all_tables: dict[str, pd.DataFrame]) -> None:
    table = all_tables["fig7"]
    network = table["network"].iloc[0]
    table = table.assign(**{DISTURBED: (table["network"] == network) & (table["limit"] == "4:1")})
    at = {str(one.limit): one for one in headlines(table[~marked(table)])}["4:1"]
    assert network not in at.losses["synchronous"].networks
    assert len(at.losses["synchronous"].networks) == table["network"].nunique() - 1


def test_a_record_says_whether_its_disturbed_steps_count(made_record: Record) -> None:
    assert _row(made_record, {})[DISTURBED] is False
    assert _row(replace(made_record, disturbed_steps=9, disturbed_steps_count=True), {})[DISTURBED] is True
    assert _row(replace(made_record, disturbed_steps=9), {})[DISTURBED] is False, "they were left out"


@pytest.fixture
def made_record() -> Record:
    from synthetic_records import record

    return record("static", "4:1")
