"""What cannot be run here is at least consistent: conda environments, the lock, the packaging and the schema."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from workplace import ROOT

from autotm.model.study.scale import load_scale
from autotm.model.study.study_config import StudyConfig, parse_study

ENVS = sorted((ROOT / "envs").glob("*.yaml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MARK = re.compile(r"^([a-z0-9-]+)==([^ ;\\]+)(?: ; ([^\\]+))?", re.MULTILINE)


def locked(name: str) -> dict[str, set[str]]:
    """Every version of each package in a lock file; several where Python versions differ."""
    found: dict[str, set[str]] = {}
    for package, version, _ in MARK.findall((ROOT / "requirements" / name).read_text(encoding="utf-8")):
        found.setdefault(package, set()).add(version)
    return found


@pytest.mark.parametrize("path", ENVS, ids=lambda path: path.name)
def test_conda_environments_pin_what_the_lock_pins(path: Path) -> None:
    contents = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert contents["channels"] == ["conda-forge", "nodefaults"]
    pins = next(part["pip"] for part in contents["dependencies"] if isinstance(part, dict))
    lock = locked("tune.txt" if path.stem == "tune" else "run.txt")
    for pin in pins:
        package, version = pin.split("==")
        assert version in lock[package], f"{path.name}: {pin}, locked are {sorted(lock[package])}"


def test_every_rule_has_its_environment() -> None:
    rules = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "rules").glob("*.smk"))
    assert set(re.findall(r'"\.\./(envs/[a-z]+\.yaml)"', rules)) == {f"envs/{path.name}" for path in ENVS}


@pytest.mark.parametrize("name", ["run.txt", "test.txt", "tune.txt", "slurm.txt"])
def test_the_lock_satisfies_the_packaging(name: str) -> None:
    versions = locked(name)
    wanted = PROJECT["dependencies"] + PROJECT["optional-dependencies"].get(name.removesuffix(".txt"), [])
    for text in wanted:
        requirement = Requirement(text)
        for version in versions[requirement.name.lower()]:
            assert requirement.specifier.contains(version), f"{name}: {requirement.name} {version} is not {requirement}"


@pytest.mark.parametrize("name", ["run.txt", "test.txt", "tune.txt", "slurm.txt", "uv.txt"])
def test_the_lock_names_no_index_and_has_a_hash_for_everything(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    assert "http" not in text
    assert "index-url" not in text
    entries = re.split(r"\n(?=[a-z0-9])", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    assert all("--hash=sha256:" in entry for entry in entries if entry.strip())


@pytest.mark.parametrize("name", ["test.txt", "tune.txt", "slurm.txt"])
def test_other_locks_hold_the_run_lock(name: str) -> None:
    run, other = locked("run.txt"), locked(name)
    assert {package: other.get(package) for package in run} == run


def test_the_schema_is_the_configs() -> None:
    written = json.loads((ROOT / "config" / "schema.json").read_text(encoding="utf-8"))
    assert written == StudyConfig.model_json_schema(), "run: make schema"


def test_every_key_of_the_study_is_described() -> None:
    for name, definition in StudyConfig.model_json_schema()["$defs"].items():
        for key, field in definition.get("properties", {}).items():
            assert "description" in field or "$ref" in field, f"{name}.{key} has no description"


def test_the_shipped_study_writes_every_default_out() -> None:
    raw = yaml.safe_load((ROOT / "config" / "config.yaml").read_text(encoding="utf-8"))
    assert parse_study(raw, "config.yaml").model_dump(mode="json") == raw


@pytest.mark.parametrize("path", sorted((ROOT / "config" / "scales").glob("*.yaml")), ids=lambda path: path.name)
def test_scales_know_the_zoo(path: Path) -> None:
    from autotm import zoo

    known, sized = set(zoo.networks()), set(load_scale(path).networks)
    # The sets beside the paper's main one have sizes for their own networks only.
    assert sized <= known if path.stem.startswith("paper-") else sized == known
