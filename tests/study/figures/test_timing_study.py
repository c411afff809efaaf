"""The timing study: measured on a real small step; judged and drawn from made-up times whose answer is known."""

from __future__ import annotations

import gzip
import io
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import small_step
from matplotlib.figure import Figure

from autotm.kernels.library import KernelLibrary
from autotm.memory.tiers import open_tiers
from autotm.model.config import StyleConfig
from autotm.model.errors import BadInputError
from autotm.model.files import save
from autotm.model.graph import slow_traffic
from autotm.model.kernel_studies import ConfigurationTime, TimingMethod, TimingMethodCost, TimingStudy
from autotm.model.provenance import provenance
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.timing_study import measure
from autotm.study import drawing
from autotm.study.columns import MEANINGS
from autotm.study.figures.kernel_times import (
    RECORDED,
    draw_timing_study,
    make_timing_figure,
    summary,
    sums_of_recorded,
    timing_table,
)
from autotm.study.tables import read_table

STYLE = StyleConfig(dots_per_inch=60)
QUICK = ProfileOptions(patience_s=0.05, min_repeats=3, max_repeats=5, kernel_s=0.002, rotation_bytes=1_000_000)
SHIFT = {
    TimingMethod.SINGLE: 1.0,
    TimingMethod.AGAIN: 1.01,
    TimingMethod.TOGETHER: 1.5,
    TimingMethod.ISOLATED: 1.02,
    TimingMethod.ADDITIVE: 0.98,
}
SECONDS = {
    TimingMethod.SINGLE: 40.0,
    TimingMethod.AGAIN: 40.0,
    TimingMethod.TOGETHER: 10.0,
    TimingMethod.ISOLATED: 8.0,
    TimingMethod.ADDITIVE: 4.0,
}


def made_up() -> TimingStudy:
    """Three kernels of two tensors; runs of one configuration spread over 4 % of their median."""
    times = []
    for way, shift in SHIFT.items():
        for kernel in range(3):
            for slow, config in enumerate(("DD", "PD", "PP")):
                time_us = shift * 100.0 * (kernel + 1) * (slow + 1)
                is_sum = way is TimingMethod.ADDITIVE and slow == 2
                quartiles = (None, None) if is_sum else (0.98 * time_us, 1.02 * time_us)
                repeats = 0 if is_sum else 5
                times.append(ConfigurationTime(way, f"k{kernel}", "op", config, slow, time_us, repeats, *quartiles))
    costs = tuple(TimingMethodCost(way, seconds, 9) for way, seconds in SECONDS.items())
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


def make(study_file: Path, folder: Path, recorded: Path | None = None) -> pd.DataFrame:
    files = [folder / name for name in ("t.csv", "summary.csv", "t.pdf", "t.png")]
    return make_timing_figure(study_file, recorded, *files, STYLE)


def test_the_summary_says_what_the_times_say(study_file: Path) -> None:
    table = timing_table(study_file)
    assert set(table) | set(summary(table)) <= set(MEANINGS)
    found = summary(table).set_index("way")
    assert found.loc[TimingMethod.TOGETHER, "median_difference_percent"] == pytest.approx(50)
    assert found.loc[TimingMethod.ADDITIVE, "median_difference_percent"] == pytest.approx(2)
    assert found.loc[TimingMethod.ADDITIVE, "sum_difference_percent"] == pytest.approx(-2)
    assert found["speedup"].tolist() == pytest.approx([1, 1, 4, 5, 10])
    assert found["spread_percent"].tolist() == pytest.approx([4] * 5)
    assert found["inside_noise"].to_dict() == {way: way is not TimingMethod.TOGETHER for way in SHIFT}
    assert found.index[found["fastest_inside_noise"]].tolist() == [TimingMethod.ADDITIVE]


def test_a_wrong_quick_way_is_not_the_quickest(tmp_path: Path) -> None:
    study = made_up()
    times = [replace(one, time_us=2 * one.time_us) if one.way is TimingMethod.ADDITIVE else one for one in study.times]
    save(tmp_path / "s.json", "timing_study", replace(study, times=tuple(times)), {})
    found = summary(timing_table(tmp_path / "s.json")).set_index("way")
    assert found.index[found["fastest_inside_noise"]].tolist() == [TimingMethod.ISOLATED]


def test_the_figure_is_drawn_from_its_table_alone(
    study_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved once: files without a date are those of every figure (`test_figures.py`)."""
    pictures = []

    def save_figure(figure: Figure, pdf: Path, png: Path, text: str, style: StyleConfig) -> None:
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=style.dots_per_inch)
        pictures.append((picture.getvalue(), pdf.name, png.name, text))

    monkeypatch.setattr(drawing, "save_figure", save_figure)
    told = make(study_file, tmp_path, write_recorded(tmp_path / "r.csv.gz"))
    study_file.unlink()
    draw_timing_study(tmp_path / "t.csv", tmp_path / "again" / "t.pdf", tmp_path / "again" / "t.png", STYLE)
    once, again = pictures
    assert once == again
    assert once[1:3] == ("t.pdf", "t.png")
    written = read_table(tmp_path / "summary.csv")
    assert written["way"].tolist() == told["way"].tolist()
    assert len(written) == len(TimingMethod) + 1
    assert b"emulated" in (tmp_path / "t.csv").read_bytes()


def test_without_recorded_kernels_none_are_told(study_file: Path) -> None:
    assert RECORDED not in set(timing_table(study_file)["source"])


def test_sums_of_recorded_kernels(tmp_path: Path) -> None:
    found = sums_of_recorded(write_recorded(tmp_path / "r.csv.gz")).set_index("kernel")
    assert found["time_us"].to_dict() == {"0": 180.0, "1": 180.0}, "others are too short or lack a row"
    assert found["single_us"].to_dict() == {"0": 180.0, "1": 216.0}
    assert set(found["slow_operands"]) == {2}


def test_what_is_no_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no such table"):
        sums_of_recorded(tmp_path / "r.csv")
    (tmp_path / "r.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(BadInputError, match="lacks column kernel_id"):
        sums_of_recorded(tmp_path / "r.csv")
    (tmp_path / "r.csv.gz").write_bytes(b"not zipped")
    with pytest.raises(BadInputError, match="not a table"):
        sums_of_recorded(tmp_path / "r.csv.gz")


def test_every_way_measures_the_same_configurations(library: KernelLibrary) -> None:
    graph = small_step.graph()
    repeats = 3
    study = measure(graph, library, small_step.machine(), small_step.links(), QUICK, repeats, small_step.DEVICES)
    by_way = {way: {(t.kernel, t.configuration): t for t in study.times if t.way is way} for way in TimingMethod}
    assert len({frozenset(found) for found in by_way.values()}) == 1
    assert all(one.repeats == repeats for one in by_way[TimingMethod.SINGLE].values())
    costs = {cost.way: cost for cost in study.costs}
    assert costs[TimingMethod.TOGETHER].runs < costs[TimingMethod.SINGLE].runs == costs[TimingMethod.AGAIN].runs
    assert costs[TimingMethod.ADDITIVE].runs < costs[TimingMethod.ISOLATED].runs == len(by_way[TimingMethod.ISOLATED])
    sums = [one for one in by_way[TimingMethod.ADDITIVE].values() if one.repeats == 0]
    assert sums
    assert all(one.slow_operands > 1 for one in sums)


def test_what_is_configured_slow_waits(library: KernelLibrary) -> None:
    graph, machine, links = small_step.graph(), small_step.machine(), small_step.links()
    study = measure(graph, library, machine, links, QUICK, 3, small_step.DEVICES)
    kernels = {kernel.name: kernel for kernel in graph.kernels}
    with open_tiers(machine, links, 64, 64, small_step.DEVICES) as tiers:
        for one in study.times:
            kernel = kernels[one.kernel]
            wait_ns = tiers.kernel_delay_ns(kernel.op_class, *slow_traffic(graph, kernel, one.configuration))
            assert (wait_ns > 0) == (one.slow_operands > 0)
            if one.repeats:
                assert 1e3 * one.time_us >= wait_ns
