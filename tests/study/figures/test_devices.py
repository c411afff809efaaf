"""The figure of devices: one network on several machines, told apart by their slow memory and not mixed up."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from synthetic_figures import DEVICES
from synthetic_records import PROVENANCE, record, write_devices

from autotm.model.config import StyleConfig
from autotm.model.errors import BadInputError
from autotm.model.files import save
from autotm.study import inputs
from autotm.study.drawing import styled
from autotm.study.figures import slow_memories
from autotm.study.figures.slow_memories import table_of_devices
from autotm.study.setup import Study, load_study

CONFIG = Path(__file__).parents[3] / "config"


@pytest.fixture
def records(tmp_path: Path) -> list[Path]:
    return write_devices(tmp_path, tuple(DEVICES))


def study(**changes: object) -> Study:
    raw = yaml.safe_load((CONFIG / "config.yaml").read_text(encoding="utf-8"))
    raw |= {"scale": "tiny", "threads": 1}
    raw["figures"]["devices"] |= changes
    return load_study(raw, "test.yaml", CONFIG, Path("results"))


def test_each_bar_is_the_slowdown_on_its_own_machine(records: list[Path]) -> None:
    table = table_of_devices(records, DEVICES)
    assert list(dict.fromkeys(table["device"])) == list(DEVICES.values())
    with styled(StyleConfig()):
        figure, text = slow_memories.draw_devices(table, StyleConfig())
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_legend().get_texts()] == [
        "predicted",
        "all slow",
        "numa 4:1",
        "sync-AutoTM 4:1",
    ]
    for bars, (optimizer, limit) in zip(
        axes.containers, (("synchronous", "1:0"), ("numa", "4:1"), ("synchronous", "4:1")), strict=True
    ):
        expected = table[(table["optimizer"] == optimizer) & (table["limit"] == limit)].set_index("device")["slowdown"]
        assert [bar.get_height() for bar in bars] == [expected[device] for device in DEVICES.values()]
        assert expected.is_monotonic_decreasing
    marks = axes.lines[0].get_ydata()
    order = [("synchronous", "1:0"), ("numa", "4:1"), ("synchronous", "4:1")]
    predicted = table.set_index(["optimizer", "limit", "device"])["predicted_slowdown"]
    assert list(marks) == [predicted[(*run, device)] for run in order for device in DEVICES.values()]
    assert "named by their slow memory (laptop-2t has optane-dcpmm)" in text
    assert "EMULATED" in text


def test_what_does_not_compare_is_refused(records: list[Path], tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="machine cxl-x8 has no record"):
        table_of_devices([path for path in records if "cxl-x8" not in path.parts], DEVICES)
    with pytest.raises(BadInputError, match="machine laptop-2t"):
        table_of_devices(records, {name: name for name in DEVICES if name != "laptop-2t"})
    other = tmp_path / "other.json"
    for change, column in (
        ({"tier_reality": "real"}, "tier_reality"),
        ({"threads": 4}, "threads"),
        ({"network": "vgg19"}, "network"),
    ):
        run = replace(record("synchronous", "1:0", machine="cxl-x8"), **change)
        save(other, "record", run, PROVENANCE)
        left = [path for path in records if "cxl-x8" not in path.parts]
        with pytest.raises(BadInputError, match=f"records of one {column}"):
            table_of_devices([*left, other], DEVICES)


def test_several_limits_do_not_fit_one_group(tmp_path: Path) -> None:
    paths = write_devices(tmp_path / "a", ("laptop",)) + write_devices(tmp_path / "b", ("cxl-x8",), "8:1")
    table = table_of_devices(paths, {"laptop": "laptop", "cxl-x8": "cxl-x8"})
    with pytest.raises(BadInputError, match="runs at one limit"):
        slow_memories.draw_devices(table, StyleConfig())


def test_the_shipped_study_names_a_machine_for_each_device() -> None:
    """Each device file is compared, on the machine that emulates it."""
    shipped = study()
    assert sorted(inputs.device_names(shipped).values()) == sorted(
        path.stem for path in (CONFIG / "devices").glob("*.yaml")
    )
    machines = inputs.device_machines(shipped)
    found = [path for machine in machines for path in inputs.device_records(shipped.on(machine))]
    assert len(found) == len(set(found)) == 3 * len(machines)
    assert str(found[3]) == "results/remote-socket-1t/tiny/inception_v4/numa/4to1/record.json"


def test_machines_of_one_device_keep_their_own_names(tmp_path: Path) -> None:
    """Otherwise their bars would stand for one another."""
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


def test_an_unknown_machine_is_named() -> None:
    with pytest.raises(BadInputError, match=r"cxl-x9"):
        inputs.device_machines(study(machines=["laptop", "cxl-x9"]))
