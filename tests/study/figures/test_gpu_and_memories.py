"""Figures of GPUs and of slow memories: figure 12, devices, links, and the addresses of a plan."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from shipped_study import CONFIG, shipped_study
from synthetic_figures import DEVICES, SOURCE, write_links, write_program
from synthetic_records import PROVENANCE, record, write_devices, write_modelled

from autotm.layout.packing import layout_of
from autotm.model.config import StyleConfig
from autotm.model.errors import BadInputError
from autotm.model.files import load, read_yaml, save
from autotm.model.graph import Graph
from autotm.model.links import Links
from autotm.model.plan import Plan
from autotm.model.program import Program
from autotm.study import inputs
from autotm.study.drawing import styled
from autotm.study.figures import gpu, slow_memories
from autotm.study.figures.gpu import table_of_steps
from autotm.study.figures.heap import draw, table_of_heap
from autotm.study.figures.slow_memories import draw_links, table_of_devices, table_of_links
from autotm.study.setup import Study

PLACES = {"inception_v4": (64, 128), "vgg19": (64,)}
MEASURED = {"samples": 9, "verified_steps": 2, "verified_against": "plain step", "disturbed": False}
MEASURED |= {"gpu_driver": "580", "cpu_model": "a host"}


@pytest.fixture
def modelled(tmp_path: Path) -> pd.DataFrame:
    source = PROVENANCE | {"seed": 20, "machine": "modelled-rtx-2080-ti-1t", "tier_reality": "modelled"}
    return table_of_steps(write_modelled(tmp_path, source, PLACES))


def test_a_disturbed_step_is_hollow_and_named_and_modelled_ones_are_filled(modelled: pd.DataFrame) -> None:
    measured = modelled.assign(tier_reality="real", **MEASURED)
    measured.loc[(measured["optimizer"] == "lru-paging") & (measured["batch"] == 128), "disturbed"] = True
    for table, count in ((modelled, 0), (measured, 1)):
        figure, text = gpu.draw_fig12(table, StyleConfig())
        bars = [bar for axes in figure.axes for bar in axes.patches]
        assert (sum(bar.get_facecolor()[3] == 0 for bar in bars), len(bars)) == (count, 8 * 3)
        assert ("others held the cores during inception_v4 lru-paging" in text) == bool(count)


@pytest.mark.parametrize("reality", ["real", "modelled"])
def test_a_cross_at_the_edge_is_within_the_axes(modelled: pd.DataFrame, reality: str) -> None:
    table = modelled[modelled["optimizer"] != "recompute"].assign(tier_reality=reality, **MEASURED)
    figure, _ = gpu.draw_fig12(table, StyleConfig())
    axes = figure.axes[1]
    crosses = [text.get_position()[0] for text in axes.texts if text.get_text() == "\N{MULTIPLICATION SIGN}"]
    assert len(crosses) == 3
    assert all(axes.get_xlim()[0] < place < axes.get_xlim()[1] for place in crosses)


@pytest.fixture
def records(tmp_path: Path) -> list[Path]:
    return write_devices(tmp_path, tuple(DEVICES))


def study(**changes: object) -> Study:
    figures = read_yaml(CONFIG / "config.yaml", "study")["figures"]
    return shipped_study(figures=figures | {"devices": figures["devices"] | changes})


def test_each_bar_is_the_slowdown_on_its_own_machine(records: list[Path]) -> None:
    table = table_of_devices(records, DEVICES)
    assert list(dict.fromkeys(table["device"])) == list(DEVICES.values())
    with styled(StyleConfig()):
        figure, text = slow_memories.draw_devices(table, StyleConfig())
    (axes,) = figure.axes
    labels = [label.get_text() for label in axes.get_legend().get_texts()]
    assert labels == ["predicted", "all slow", "numa 4:1", "sync-AutoTM 4:1"]
    order = [("synchronous", "1:0"), ("numa", "4:1"), ("synchronous", "4:1")]
    by_run = table.set_index(["optimizer", "limit", "device"])
    for bars, run in zip(axes.containers, order, strict=True):
        expected = [by_run["slowdown"][(*run, device)] for device in DEVICES.values()]
        assert [bar.get_height() for bar in bars] == expected == sorted(expected, reverse=True)
    predicted = [by_run["predicted_slowdown"][(*run, device)] for run in order for device in DEVICES.values()]
    assert list(axes.lines[0].get_ydata()) == predicted
    assert "named by their slow memory (laptop-2t has optane-dcpmm)" in text
    assert "EMULATED" in text


def test_what_does_not_compare_is_refused(records: list[Path], tmp_path: Path) -> None:
    left = [path for path in records if "cxl-x8" not in path.parts]
    with pytest.raises(BadInputError, match="machine cxl-x8 has no record"):
        table_of_devices(left, DEVICES)
    with pytest.raises(BadInputError, match="machine laptop-2t"):
        table_of_devices(records, {name: name for name in DEVICES if name != "laptop-2t"})
    run, other = record("synchronous", "8:1", machine="cxl-x8"), tmp_path / "other.json"
    for change in ({"tier_reality": "real"}, {"threads": 4}, {"network": "vgg19"}):
        save(other, "record", replace(run, **change), PROVENANCE)
        with pytest.raises(BadInputError, match=f"records of one {next(iter(change))}"):
            table_of_devices([*left, other], DEVICES)
    save(other, "record", run, PROVENANCE)
    with pytest.raises(BadInputError, match="runs at one limit"):
        slow_memories.draw_devices(table_of_devices([*left, other], DEVICES), StyleConfig())


def test_each_device_file_is_compared_on_the_machine_that_emulates_it() -> None:
    shipped, files = study(), (CONFIG / "devices").glob("*.yaml")
    assert sorted(inputs.device_names(shipped).values()) == sorted(path.stem for path in files)
    machines = inputs.device_machines(shipped)
    paths = [path for machine in machines for path in inputs.device_records(shipped.on(machine))]
    assert len(paths) == len(set(paths)) == 3 * len(machines)
    assert str(paths[3]) == "results/remote-socket-1t/tiny/inception_v4/numa/4to1/record.json"
    with pytest.raises(BadInputError, match=r"cxl-x9"):
        inputs.device_machines(study(machines=["laptop", "cxl-x9"]))


def test_machines_of_one_device_keep_their_own_names(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    shutil.copytree(CONFIG, folder)
    (folder / "machines" / "whole.yaml").write_text(
        "description: d\nslow_tier: {kind: emulated, device: cxl-x8, share: whole}\n", encoding="utf-8"
    )
    one = replace(study(machines=["laptop", "cxl-x8", "whole"]), config_dir=folder)
    assert inputs.device_names(one) == {"laptop": "optane-dcpmm", "cxl-x8": "cxl-x8", "whole": "whole"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": "inception"}, "figures.devices.network: unknown network 'inception'"),
        ({"optimizers": ["statik"]}, "figures.devices.optimizers: unknown optimizer 'statik'"),
        ({"limit": "4-1"}, "figures.devices.limit"),
        ({"machines": []}, "figures.devices.machines"),
        ({"machines": ["laptop", "laptop"]}, "appears twice"),
    ],
)
def test_a_bad_choice_is_named_before_anything_runs(changes: dict[str, object], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        study(**changes)


def test_rates_are_those_of_the_files(tmp_path: Path) -> None:
    table = table_of_links(*write_links(tmp_path))
    rates = table.groupby(["to", "series", "team", "stores", "mode"])["bytes_per_s"].last()
    assert rates["pmem", "copy", 4, "streaming", ""] == pytest.approx(80e9, rel=0.01)
    assert rates["dram", "move", 0, "", "blocking"] == pytest.approx(5e9, rel=0.01)
    assert rates["dram", "published", 0, "", "blocking"] == 10e9
    assert rates["dram", "device", 0, "", "blocking"] == 5e9, "stretched twice"
    assert rates["pmem", "device", 0, "", "asynchronous"] == 0.5e9


def test_the_picture_holds_every_series_in_both_directions(tmp_path: Path) -> None:
    figure, text = draw_links(table_of_links(*write_links(tmp_path)), StyleConfig())
    labels = [entry.get_text() for entry in figure.legends[0].get_texts()]
    assert len(labels) == len(set(labels)) == 10
    for axes in figure.axes:
        assert sorted(axes.get_legend_handles_labels()[1]) == sorted(labels)
    for part in ("EMULATED wait", "imaginary", "nobody's paper"):
        assert part in text


def test_real_memory_has_no_device_beside_it_and_disturbed_links_say_so(tmp_path: Path) -> None:
    links, device = write_links(tmp_path)
    save(links, "links", replace(load(links, "links", Links), disturbed=("copies",)), SOURCE)
    assert "Others held the cores" in draw_links(table_of_links(links, device), StyleConfig())[1]
    save(links, "links", load(links, "links", Links), SOURCE | {"tier_reality": "real"})
    table = table_of_links(links, None)
    assert set(table["series"]) == {"copy", "move"}
    _, text = draw_links(table, StyleConfig())
    assert "EMULATED" not in text
    assert "real slow memory" in text


@pytest.fixture(scope="module", params=["static", "synchronous", "asynchronous"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path, Path]:
    return write_program(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def table(files: tuple[Path, Path, Path, Path]) -> pd.DataFrame:
    return table_of_heap(*files)


def test_addresses_are_those_that_were_packed(files: tuple[Path, Path, Path, Path], table: pd.DataFrame) -> None:
    graph, _, plan, program = files
    step, placed, laid = load(graph, "graph", Graph), load(plan, "plan", Plan), load(program, "program", Program)
    assert table["offset_bytes"].tolist() == list(layout_of(step, placed).offsets)
    tops = (table["offset_bytes"] + table["size_bytes"]).groupby(table["tier"]).max()
    assert (tops.get("dram", 0), tops.get("pmem", 0)) == (laid.fast_bytes, laid.slow_bytes)


def test_time_is_that_of_kernels_and_moves_are_marked(
    files: tuple[Path, Path, Path, Path], table: pd.DataFrame
) -> None:
    placed = load(files[2], "plan", Plan)
    assert bool(placed.moves) == (placed.optimizer != "static")
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
    assert fast.get_position().x0 == slow.get_position().x0, "one above the other, on one axis of time"
    ends = (table["offset_bytes"] + table["size_bytes"]).groupby(table["tier"]).max()
    assert all(axes.get_ylim()[1] >= ends.get(tier, 0) for axes, tier in ((fast, "dram"), (slow, "pmem")))
    rectangles = sum(len(group.get_paths()) for axes in figure.axes for group in axes.collections[:2])
    assert rectangles == len(table)
    assert f"{len(placed.moves)} moves" in text
    named, kinds = {text.get_text() for text in figure.legends[0].get_texts()}, set(table["began"])
    expected = {"tensor that stays", "limit", "tensor that moves" if kinds != {"born"} else "limit"}
    arrivals = {"asynchronous": "beside kernels", "blocking": "that the step waits for"}
    assert named == expected | {f"arrives by a move {how}" for kind, how in arrivals.items() if kind in kinds}
