"""Two plans or two records side by side; what cannot be compared is one message."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_figures import SOURCE
from synthetic_plans import solved
from synthetic_records import record

from autotm.cli.main import main
from autotm.model.files import save
from autotm.model.graph import Tier
from autotm.study.explain import compare


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("plans")
    for name, optimizer in (("a", "static"), ("b", "synchronous")):
        save(folder / f"{name}.json", "plan", solved(optimizer, layers=3).plan, SOURCE)
    return folder / "a.json", folder / "b.json"


def test_two_plans_differ_in_where_tensors_live(plans: tuple[Path, Path]) -> None:
    found, both = compare(*plans), (solved("static", layers=3).plan, solved("synchronous", layers=3).plan)
    assert found.fields["objective_us"] == tuple(plan.objective_us for plan in both)
    assert found.fields["moves"] == (0, len(both[1].moves))
    assert found.differing
    for name, values in found.differing.items():
        for plan, value in zip(both, values, strict=True):
            fast = [stay.end - stay.start for stay in plan.stays if stay.tensor == name and stay.tier is Tier.DRAM]
            assert value == sum(fast)
    assert "B/A" in found.text()


def test_a_plan_does_not_differ_from_itself(plans: tuple[Path, Path]) -> None:
    assert "No difference" in compare(plans[0], plans[0]).text()


def test_two_records_differ_in_what_kernels_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name, slower in (("a", 1.0), ("b", 3.0)):
        measured = replace(record("static", "4:1"), kernel_times_us={"same": 5.0, "slower": 7.0 * slower})
        files.append(tmp_path / f"{name}.json")
        save(files[-1], "record", measured, SOURCE)
    assert compare(*files).differing == {"slower": (7.0, 21.0)}
    assert main(["compare", *map(str, files), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differing"] == {"slower": [7.0, 21.0]}


def test_what_cannot_be_compared_is_named(
    plans: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ran = tmp_path / "record.json"
    save(ran, "record", record("static", "4:1"), SOURCE)
    (tmp_path / "text").write_text("no JSON", encoding="utf-8")
    for other, message in (
        (ran, "is a plan, "),
        (tmp_path / "text", "neither a plan nor a record"),
        (tmp_path / "away.json", "no such file; give two plan.json or two record.json"),
    ):
        assert main(["compare", str(plans[0]), str(other)]) == 1
        assert message in caplog.text
        caplog.clear()
