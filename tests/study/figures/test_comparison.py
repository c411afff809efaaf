"""Figures 7, 9 and 11 divide, price and name what their tables say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from synthetic_records import LINUX, PROVENANCE, record, write_workload

from autotm.model.config import PricesConfig, StyleConfig
from autotm.model.errors import BadInputError
from autotm.model.files import save
from autotm.model.limit import Limit
from autotm.stages.figures import figure_stage
from autotm.study.figures import comparisons, figures
from autotm.study.tables import read_table, table_of_records, with_prices, write_table

NETWORKS = ("resnet200", "vgg19", "densenet264")
LIMITS = ("0:1", "1:0", "1:1", "4:1", "8:1")
SHARES = {"1:0": 0.0, "8:1": 1 / 9, "4:1": 0.2, "1:1": 0.5, "0:1": 1.0}
STYLE = StyleConfig()
FIGURES = ("fig7", "fig9")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_workload(tmp_path_factory.mktemp("workload"), NETWORKS, LIMITS)


@pytest.fixture(scope="module")
def folder(records: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its table, as each of the figures reads it."""
    folder = tmp_path_factory.mktemp("figures")
    for name in FIGURES:
        write_table(with_prices(table_of_records(records), PricesConfig()), folder / f"{name}.csv")
    return folder


def predicted_too_long(times: float, limit: str) -> float:
    """Per cent of a step for whose slow memory 4 % too much is predicted."""
    measured = slow_down(times, limit)
    return 100 * ((1 + 1.04 * (measured - 1)) / measured - 1)


def drawn(name: str, folder: Path) -> tuple[Figure, str]:
    figure, remark = figures.FIGURES[name](read_table(folder / f"{name}.csv"), STYLE)
    return figure, remark


def heights(axes: Axes, series: int) -> list[float]:
    return [bar.get_height() for bar in axes.containers[series]]


def slow_down(times: float, limit: str) -> float:
    return 1 + times * (1 - SHARES[limit]) ** 2


def test_a_table_holds_every_run_by_network_optimizer_and_limit(folder: Path) -> None:
    table = read_table(folder / "fig7.csv")
    assert len(table) == len(NETWORKS) * 3 * len(LIMITS)
    assert list(dict.fromkeys(table["network"])) == list(NETWORKS)
    assert list(table["limit"][:5]) == ["1:0", "8:1", "4:1", "1:1", "0:1"]
    assert table.groupby("network")["all_fast_runtime_s"].first()[list(NETWORKS)].tolist() == [1.0, 2.0, 3.0]


def test_figure_7_divides_by_the_slowest_all_slow_run(folder: Path) -> None:
    figure, _ = drawn("fig7", folder)
    axes = figure.axes[1]
    assert axes.get_title(loc="left") == "(b)  VGG19"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["8:1", "4:1", "1:1"]
    for series, times in enumerate((4.2, 3.5, 1.4)):
        expected = [(1 + 4.2) / slow_down(times, limit) for limit in ("8:1", "4:1", "1:1")]
        assert heights(axes, series) == pytest.approx(expected)
    (line,) = [line for line in axes.lines if line.get_label() == "all fast"]
    assert set(line.get_ydata()) == {5.2}


def test_figure_7_shows_rivals_and_says_that_they_are_simulated(records: list[Path], tmp_path: Path) -> None:
    rivals = write_workload(tmp_path, NETWORKS, LIMITS[2:], LINUX)
    figure, text = comparisons.draw_fig7(table_of_records([*records, *rivals]), STYLE)
    axes = figure.axes[1]
    names = [bars.get_label() for bars in axes.containers]
    assert names[-4:] == ["Linux: preferred", "Linux: interleave", "Linux: weighted", "Linux: NUMA balancing"]
    expected = [(1 + 4.2) / slow_down(3.8, limit) for limit in ("8:1", "4:1", "1:1")]
    for series in range(3, 7):
        assert heights(axes, series) == pytest.approx(expected)
    assert f"Pages by Linux ({', '.join(LINUX)}): where they are is SIMULATED" in text
    assert "SIMULATED" not in comparisons.draw_fig7(table_of_records(records), STYLE)[1]


def test_figure_9_shows_performance_and_price(folder: Path) -> None:
    figure, _ = drawn("fig9", folder)
    (axes,) = figure.axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1:0", "8:1", "4:1", "1:1"]
    assert heights(axes, 0) == pytest.approx([1 / slow_down(1.4, limit) for limit in ("1:0", "8:1", "4:1", "1:1")])
    (prices,) = axes.collections
    heights_of_prices = [segment[0][1] for segment in prices.get_segments()]
    assert heights_of_prices == pytest.approx([0.476, 0.534, 0.581, 0.738], abs=5e-4), "as in the paper"
    assert [bars.get_label() for bars in axes.containers] == ["VGG19", "DenseNet-264", "ResNet-200"], "as published"


def test_figure_11_shows_errors_and_names_those_that_are_large(records: list[Path]) -> None:
    table = table_of_records(records)
    is_far = (table["network"] == "vgg19") & (table["optimizer"] == "static") & (table["limit"] == "4:1")
    table.loc[is_far, "predicted_slowdown"] *= 1.25
    figure, remark = comparisons.draw_fig11(table, STYLE)
    static, synchronous = figure.axes
    assert "numa" not in {static.get_title(loc="left"), synchronous.get_title(loc="left")}, (
        "it does not place by prediction"
    )
    expected = [predicted_too_long(3.5, limit) for limit in SHARES]
    expected[2] = 100 * (1.25 * (1 + expected[2] / 100) - 1)
    assert heights(static, 1) == pytest.approx(expected, abs=1e-9)
    assert heights(synchronous, 1) == pytest.approx([predicted_too_long(1.4, limit) for limit in SHARES], abs=1e-9)
    assert expected[2] == pytest.approx(28.5, abs=0.05)
    assert "vgg19 static 4:1: +28.5 % (" in remark
    assert "largest 28.5 %" in remark
    assert "median 4.0 %, largest 4.0 %. Above 10 %: " in remark, "of predicted seconds"


def test_figure_11_says_what_an_outlier_is_made_of(tmp_path: Path) -> None:
    all_fast = record("synchronous", "0:1")
    held_up = replace(
        record("synchronous", "4:1"),
        predicted_runtime_s=2.0, move_time_us=300_000.0, actual_runtime_median_s=2.5, all_fast_samples_s=(1.0,),
        all_fast_predicted_s=1.25,
        kernel_times_us={"conv": 1_900_000.0, "relu": 150_000.0}, move_actual_us=310_000.0, stall_time_us=0.0,
        waited_s=(0.4, 0.36, 0.5),
    )  # fmt: skip
    older = replace(held_up, limit=Limit.parse("8:1"), move_actual_us=None, waited_s=())
    paths = [tmp_path / name for name in ("all_fast.json", "held_up.json", "older.json")]
    for path, one in zip(paths, (all_fast, held_up, older), strict=True):
        save(path, "record", one, PROVENANCE)
    table = table_of_records(paths)
    whole = {row["limit"]: comparisons.explained_errors(row) for _, row in table.iterrows()}
    known = "its step took 25.0 % longer than predicted, the all-fast one 20.0 % less, kernels by +350 ms"
    assert whole["4:1"] == f"{known}, moves by +10 ms, its threads waited 400 ms a step for cores that others held"
    assert whole["8:1"] == known, "records from before moves and waits were measured"
    _, remark = comparisons.draw_fig11(table, STYLE)
    assert f"inception_v4 synchronous 4:1: -30.0 % ({whole['4:1']})" in remark


def test_figure_11_shows_further_optimizers_at_their_own_limits(tmp_path: Path) -> None:
    workload = write_workload(tmp_path / "all", NETWORKS, LIMITS, ("static", "synchronous"))
    further = write_workload(tmp_path / "few", NETWORKS, ("4:1", "1:1"), ("asynchronous",))
    figure, _ = comparisons.draw_fig11(table_of_records([*workload, *further]), STYLE)
    assert [axes.get_title(loc="left")[5:] for axes in figure.axes] == ["static-AutoTM", "sync-AutoTM", "async-AutoTM"]
    last = figure.axes[-1]
    assert [tick.get_text() for tick in last.get_xticklabels()] == ["4:1", "1:1"]
    assert len(last.containers) == len(NETWORKS)


def test_runs_on_real_and_on_emulated_slow_memory_are_not_compared(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("cached.json", "static.json")]
    save(paths[0], "record", replace(record("memory-mode", "5:2"), tier_reality="real"), PROVENANCE)
    save(paths[1], "record", record("static", "5:2"), PROVENANCE)
    with pytest.raises(BadInputError) as caught:
        table_of_records(paths, needs_all_fast=False)
    assert "emulated: static; real: memory-mode" in str(caught.value)
    assert "memory_mode" in str(caught.value)
    assert table_of_records(paths[:1], needs_all_fast=False)["tier_reality"].tolist() == ["real"]


def test_what_a_figure_needs_is_asked_for(records: list[Path], tmp_path: Path) -> None:
    def make(name: str, without: str) -> None:
        kept = [path for path in records if without not in path.parts]
        figure_stage(STYLE, {"records": kept}, csv=tmp_path / f"{name}.csv")

    with pytest.raises(BadInputError, match='at limit "1:0"'):
        make("fig7", "1to0")
    for name in ("fig9", "price_performance", "cost_performance"):
        with pytest.raises(BadInputError, match="synchronous"):
            make(name, "synchronous")
    with pytest.raises(BadInputError, match="unknown figure 'fig6'"):
        make("fig6", "")
