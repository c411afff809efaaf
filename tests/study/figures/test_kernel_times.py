"""Figures of kernel times: all placements of a convolution, and quick ways of timing against the slow one."""

from __future__ import annotations

import gzip
import io
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import small_step
from matplotlib.figure import Figure
from synthetic_figures import BASE_NS, EXTRA_NS, write_convolution

from autotm.kernels.library import KernelLibrary
from autotm.memory.opening import open_tiers
from autotm.model.config import StyleConfig
from autotm.model.errors import BadInputError
from autotm.model.files import save
from autotm.model.graph import slow_traffic
from autotm.model.kernel_studies import ConfigurationTime, TimingMethod, TimingMethodCost, TimingStudy
from autotm.model.profile import read_profile, write_profile
from autotm.model.provenance import provenance
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.timing_study import measure
from autotm.study import drawing
from autotm.study.columns import MEANINGS
from autotm.study.figures.kernel_times import (
    OPERANDS,
    RECORDED,
    draw_kernel_plot,
    draw_timing_study,
    make_timing_figure,
    summary,
    sums_of_recorded,
    table_of_convolution,
    timing_table,
)
from autotm.study.tables import read_table


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
    timings = {key: timing for key, timing in whole.timings.items() if key[2] != "DPP"}
    write_profile(profile, replace(whole, timings=timings))
    with pytest.raises(BadInputError, match="no time with output, weight in slow memory"):
        table_of_convolution(graph, profile)


STYLE = StyleConfig(dots_per_inch=60)
QUICK = ProfileOptions(patience_s=0.05, min_repeats=3, max_repeats=5, kernel_s=0.002, rotation_bytes=1_000_000)
SHIFT = dict(zip(TimingMethod, (1.0, 1.01, 1.5, 1.02, 0.98), strict=True))
SECONDS = dict(zip(TimingMethod, (40.0, 40.0, 10.0, 8.0, 4.0), strict=True))


def made_up() -> TimingStudy:
    """Three kernels of two tensors; runs of one configuration spread over 4 % of their median."""
    times = []
    for (method, shift), kernel, slow in itertools.product(SHIFT.items(), range(3), range(3)):
        time_us = shift * 100.0 * (kernel + 1) * (slow + 1)
        is_sum = method is TimingMethod.ADDITIVE and slow == 2
        timed = (0, None, None) if is_sum else (5, 0.98 * time_us, 1.02 * time_us)
        times.append(ConfigurationTime(method, f"k{kernel}", "op", ("DD", "PD", "PP")[slow], slow, time_us, *timed))
    costs = tuple(TimingMethodCost(method, seconds, 9) for method, seconds in SECONDS.items())
    return TimingStudy("mnist", "tiny", 2, "test", 1, "emulated", 20, 5, costs, tuple(times))


def write_recorded(path: Path) -> Path:
    """Two kernels of two operands: one whose slow operands add up, one that takes 20 % longer than the sum."""
    rows = ["kernel_id,op,input_config,output_config,time_us"]
    for kernel, both in ((0, 180), (1, 216)):
        rows += [f"{kernel},Add,D,D,100", f"{kernel},Add,P,D,130", f"{kernel},Add,D,P,150", f"{kernel},Add,P,P,{both}"]
    rows += ["2,Add,D,D,99", "2,Add,P,P,300", "3,Add,P,P,300", "4,Add,D,D,100", "4,Add,P,P,120"]
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    return path


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    file = tmp_path / "timing_study.json"
    save(file, "timing_study", made_up(), provenance(small_step.machine(), 20))
    return file


def test_the_summary_says_what_the_times_say(study_file: Path) -> None:
    table = timing_table(study_file)
    assert set(table) | set(summary(table)) <= set(MEANINGS)
    assert RECORDED not in set(table["source"])
    by_method = summary(table).set_index("way")
    assert by_method["median_difference_percent"].tolist() == pytest.approx([0, 1, 50, 2, 2])
    assert by_method.loc[TimingMethod.ADDITIVE, "sum_difference_percent"] == pytest.approx(-2)
    assert by_method["speedup"].tolist() == pytest.approx([1, 1, 4, 5, 10])
    assert by_method["spread_percent"].tolist() == pytest.approx([4] * 5)
    assert by_method["inside_noise"].to_dict() == {method: method is not TimingMethod.TOGETHER for method in SHIFT}
    assert by_method.index[by_method["fastest_inside_noise"]].tolist() == [TimingMethod.ADDITIVE]

    wrong = table.assign(
        difference_percent=table["difference_percent"].where(table["way"] != TimingMethod.ADDITIVE, 96)
    )
    by_method = summary(wrong).set_index("way")
    assert by_method.index[by_method["fastest_inside_noise"]].tolist() == [TimingMethod.ISOLATED]


def test_the_figure_is_drawn_from_its_table_alone(
    study_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved once: files without a date are those of every figure (`test_figures.py`)."""
    pictures, figures = [], []

    def save_figure(figure: Figure, file: Path, text: str, style: StyleConfig) -> None:
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=style.dots_per_inch)
        pictures.append((picture.getvalue(), file.stem, text))
        figures.append(figure)

    monkeypatch.setattr(drawing, "save_figure", save_figure)
    csv, summary_csv, recorded = tmp_path / "t.csv", tmp_path / "summary.csv", write_recorded(tmp_path / "r.csv.gz")
    methods = make_timing_figure(study_file, recorded, csv, summary_csv, STYLE)["way"].tolist()
    drawing.draw_to_files(draw_timing_study, read_table(csv), tmp_path / "again" / "t.csv", STYLE)
    once, again = pictures
    assert once == again
    assert once[1] == "t"
    assert read_table(summary_csv)["way"].tolist() == methods == [*TimingMethod, "additive, recorded Optane"]
    assert b"emulated" in csv.read_bytes()
    labels = ["difference, %", "interquartile range, %", "wall time, s", "difference, %"]
    assert [axes.get_ylabel() for axes in figures[0].axes] == labels


def test_sums_of_recorded_kernels(tmp_path: Path) -> None:
    sums = sums_of_recorded(write_recorded(tmp_path / "r.csv.gz")).set_index("kernel")
    assert sums["time_us"].to_dict() == {"0": 180.0, "1": 180.0}, "others are too short or lack a row"
    assert sums["single_us"].to_dict() == {"0": 180.0, "1": 216.0}
    assert set(sums["slow_operands"]) == {2}
    (tmp_path / "lacking.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    (tmp_path / "damaged.csv.gz").write_bytes(b"not zipped")
    messages = {"gone.csv": "no such table", "lacking.csv": "lacks column kernel_id", "damaged.csv.gz": "not a table"}
    for name, message in messages.items():
        with pytest.raises(BadInputError, match=message):
            sums_of_recorded(tmp_path / name)


def test_every_method_measures_the_same_configurations_and_slow_operands_wait(library: KernelLibrary) -> None:
    graph, machine, links, repeats = small_step.graph(), small_step.machine(), small_step.links(), 3
    study = measure(graph, library, machine, links, QUICK, repeats, small_step.DEVICES)
    by_method = {each: {(t.kernel, t.configuration): t for t in study.times if t.way is each} for each in TimingMethod}
    assert len({frozenset(times) for times in by_method.values()}) == 1
    assert all(one.repeats == repeats for one in by_method[TimingMethod.SINGLE].values())
    costs = {cost.way: cost for cost in study.costs}
    assert costs[TimingMethod.TOGETHER].runs < costs[TimingMethod.SINGLE].runs == costs[TimingMethod.AGAIN].runs
    isolated = by_method[TimingMethod.ISOLATED]
    assert costs[TimingMethod.ADDITIVE].runs < costs[TimingMethod.ISOLATED].runs == len(isolated)
    assert (sums := [one for one in by_method[TimingMethod.ADDITIVE].values() if one.repeats == 0])
    assert all(one.slow_operands > 1 for one in sums)
    kernels = {kernel.name: kernel for kernel in graph.kernels}
    with open_tiers(machine, links, 64, 64, small_step.DEVICES) as tiers:
        for one in study.times:
            kernel = kernels[one.kernel]
            wait_ns = tiers.kernel_delay_ns(kernel.op_class, *slow_traffic(graph, kernel, one.configuration))
            assert (wait_ns > 0) == (one.slow_operands > 0)
            if one.repeats:
                assert 1e3 * one.time_us >= wait_ns
