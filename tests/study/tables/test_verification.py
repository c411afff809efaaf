"""The table of verified programs fails when a program ran without being compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from synthetic_records import PROVENANCE, record

from autotm.model.errors import BadInputError
from autotm.model.files import save
from autotm.model.plan import RUN_RIVALS
from autotm.study.records import UnverifiedError, verify_records
from autotm.study.setup import Study, load_study, optimizer_names
from autotm.study.tables import read_table
from autotm.zoo import networks

CONFIG = Path(__file__).parents[3] / "config"


def study(**verification: object) -> Study:
    raw = yaml.safe_load((CONFIG / "config.yaml").read_text(encoding="utf-8"))
    changed = raw | {"scale": "tiny", "threads": 1, "verification": raw["verification"] | verification}
    return load_study(changed, "test", CONFIG, Path("results"))


def written(folder: Path, *verified_steps: int) -> list[Path]:
    paths = []
    for number, steps in enumerate(verified_steps):
        paths.append(folder / f"{number}.json")
        one = replace(record("static", "4:1", network=f"net{number}"), verified_steps=steps)
        save(paths[-1], "record", one, PROVENANCE | {"program_hash": "0123"})
    return paths


def test_a_row_a_program_with_what_was_verified(tmp_path: Path) -> None:
    verify_records(written(tmp_path, 2, 1), tmp_path / "verification.csv")
    table = read_table(tmp_path / "verification.csv")
    assert list(table["network"]) == ["net0", "net1"]
    assert table["is_verified"].all()
    assert list(table["verified_steps"]) == [2, 1]


def test_an_unverified_program_fails_by_name_after_the_table_is_written(tmp_path: Path) -> None:
    with pytest.raises(UnverifiedError, match="1 of 2 programs ran unverified: net1 static 4:1"):
        verify_records(written(tmp_path, 2, 0), tmp_path / "verification.csv")
    assert list(read_table(tmp_path / "verification.csv")["is_verified"]) == [True, False]


def test_what_exceeds_its_limit_did_not_run_and_is_no_failure(tmp_path: Path) -> None:
    paths = written(tmp_path, 2)
    unfit = replace(record("swap-all", "4:1", network="net1"), verified_steps=0, fits=False)
    save(tmp_path / "unfit.json", "record", unfit, PROVENANCE)
    table = verify_records([*paths, tmp_path / "unfit.json"], tmp_path / "verification.csv")
    assert list(table["is_verified"]) == [True, False]


def test_every_network_meets_every_optimizer() -> None:
    found = study()
    pairs = {(path.parents[2].name, path.parents[1].name) for path in found.verification_records()}
    able = found.runnable(optimizer_names())
    assert pairs == {(network, optimizer) for network in found.scale.networks for optimizer in able}
    assert {*optimizer_names()} - {*able} == {*RUN_RIVALS}, "what others do on a GPU needs one"
    assert {network for network, _ in pairs} == set(networks()), "the tiny scale leaves no network out"
    limits = {(path.parents[1].name == "all-fast", path.parent.name) for path in found.verification_records()}
    assert limits == {(True, "0to1"), (False, "4to1")}


def test_config_narrows_it_down() -> None:
    found = study(networks=["mlp"], optimizers=["numa", "static"], limit="8:1").verification_records()
    assert [path.parts[-4:-1] for path in found] == [("mlp", "numa", "8to1"), ("mlp", "static", "8to1")]
    with pytest.raises(BadInputError, match="verification: unknown network"):
        study(networks=["mpl"]).verification_records()
    with pytest.raises(BadInputError, match="verification: unknown optimizer"):
        study(optimizers=["statik"]).verification_records()
