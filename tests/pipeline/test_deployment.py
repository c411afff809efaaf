"""What others set up and deploy the study by: environments, locks, packaging, schema; container, catalog, rules."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from workplace import ROOT, TARGET, Workplace, make_workplace

from autotm.model.config import StudyConfig, load_scale
from autotm.model.errors import validated
from autotm.model.limit import Limit

ENVS = sorted((ROOT / "envs").glob("*.yaml"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, GROUPS = PYPROJECT["project"], PYPROJECT["dependency-groups"]
ALSO_LOCKED = {"cuda.txt": ["cuda", "nvcc"]}
"""Extras of a lock that is not one extra's."""
MARK = re.compile(r"^([a-z0-9-]+)==([^ ;\\]+)(?: ; ([^\\]+))?", re.MULTILINE)
BY_NAME = pytest.mark.parametrize("path", ENVS, ids=lambda path: path.name)


def lock_text(name: str) -> str:
    return (ROOT / "requirements" / name).read_text(encoding="utf-8")


def locked(name: str) -> dict[str, set[str]]:
    """Every version of each package in a lock file; several where Python versions differ."""
    versions: dict[str, set[str]] = {}
    for package, version, _ in MARK.findall(lock_text(name)):
        versions.setdefault(package, set()).add(version)
    return versions


def python_of(env: dict[str, Any]) -> str:
    """The Python of an environment, e.g. 3.11."""
    return next(entry.removeprefix("python=") for entry in env["dependencies"] if str(entry).startswith("python="))


def pins_of(env: dict[str, Any]) -> dict[str, str]:
    """Every pinned package of an environment."""
    (pins,) = (entry["pip"] for entry in env["dependencies"] if isinstance(entry, dict))
    return dict(pin.split("==") for pin in pins)


def on(python: str) -> dict[str, str]:
    """What markers of requirements see in an environment."""
    linux = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}
    return linux | {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}


def unlocked(env: dict[str, Any], lock: str) -> set[str]:
    """Pins of an environment that are not the lock's for its Python."""
    here = on(python_of(env))
    versions = {
        package: version
        for package, version, marker in MARK.findall(lock)
        if not marker or Marker(marker.strip()).evaluate(here)
    }
    return {package for package, version in pins_of(env).items() if versions.get(package) != version}


@BY_NAME
def test_conda_environments_pin_what_the_lock_pins(path: Path) -> None:
    text, lock = path.read_text(encoding="utf-8"), lock_text("run.txt")
    env = yaml.safe_load(text)
    assert env["channels"] == ["conda-forge", "nodefaults"]
    assert unlocked(env, lock) == set(), "run: make lock"
    # A pin that changes in one place only is found, in either place.
    version = pins_of(env)["numpy"]
    assert unlocked(yaml.safe_load(text.replace(f"numpy=={version}", "numpy==1.0")), lock) == {"numpy"}
    assert unlocked(env, lock.replace(f"numpy=={version}", "numpy==1.0")) == {"numpy"}


@BY_NAME
def test_conda_environments_hold_their_group_and_what_it_requires(path: Path) -> None:
    env = yaml.safe_load(path.read_text(encoding="utf-8"))
    pins, python = pins_of(env), python_of(env)
    assert SpecifierSet(PROJECT["requires-python"]).contains(f"{python}.0")
    required, resolved = set(GROUPS[path.stem]), set()
    while required - resolved:
        package = min(required - resolved)
        resolved.add(package)
        required |= {
            one.name.lower().replace("_", "-")
            for one in map(Requirement, metadata.requires(package) or [])
            if one.marker is None or one.marker.evaluate(on(python))
        }
    assert set(pins) == resolved, "run: make lock"


def test_every_rule_has_its_environment() -> None:
    rules = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "rules").glob("*.smk"))
    assert set(re.findall(r'"\.\./(envs/[a-z]+\.yaml)"', rules)) == {f"envs/{path.name}" for path in ENVS}


@pytest.mark.parametrize("name", ["run.txt", "test.txt", "browser.txt", "slurm.txt", "cuda.txt"])
def test_the_lock_satisfies_the_packaging(name: str) -> None:
    versions, extras = locked(name), PROJECT["optional-dependencies"]
    wanted = PROJECT["dependencies"] + [
        text for extra in ALSO_LOCKED.get(name, [name.removesuffix(".txt")]) for text in extras.get(extra, [])
    ]
    for text in wanted:
        requirement = Requirement(text)
        for version in versions[requirement.name.lower()]:
            assert requirement.specifier.contains(version), f"{name}: {requirement.name} {version} is not {requirement}"


@pytest.mark.parametrize(
    "name", ["run.txt", "test.txt", "browser.txt", "slurm.txt", "cuda.txt", "uv.txt", "docs.txt", "conda.txt"]
)
def test_the_lock_names_no_index_and_has_a_hash_for_everything(name: str) -> None:
    text = lock_text(name)
    assert "http" not in text
    assert "index-url" not in text
    entries = re.split(r"\n(?=[a-z0-9])", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    assert all("--hash=sha256:" in entry for entry in entries if entry.strip())


@pytest.mark.parametrize("name", ["test.txt", "browser.txt", "slurm.txt", "cuda.txt"])
def test_other_locks_hold_the_run_lock(name: str) -> None:
    run, other = locked("run.txt"), locked(name)
    assert {package: other.get(package) for package in run} == run


def test_the_schema_is_the_configs() -> None:
    written = json.loads((ROOT / "config" / "schema.json").read_text(encoding="utf-8"))
    assert written == StudyConfig.model_json_schema(), "run: make schema"
    for name, definition in written["$defs"].items():
        for key, field in definition.get("properties", {}).items():
            assert "description" in field or "$ref" in field, f"{name}.{key} has no description"


def test_the_shipped_study_writes_every_default_out() -> None:
    raw = yaml.safe_load((ROOT / "config" / "config.yaml").read_text(encoding="utf-8"))
    written = validated(StudyConfig, raw, "config.yaml").model_dump(mode="json")
    of_paper = raw["figures"]["fig12"]["paper"]
    of_paper["limit"] = str(Limit.parse(of_paper["limit"]))
    assert written == raw


@pytest.mark.parametrize("path", sorted((ROOT / "config" / "scales").glob("*.yaml")), ids=lambda path: path.name)
def test_scales_know_the_zoo(path: Path) -> None:
    from autotm import zoo

    known, sized = set(zoo.networks()), set(load_scale(path).networks)
    # The sets beside the paper's main one have sizes for their own networks only.
    assert sized <= known if path.stem.startswith("paper-") else sized == known


# The container's file, the catalog's, and the picture of the rules.

DEPLOYED = """
configfile: "config/config.yaml"


module study:
    snakefile:
        "{snakefile}"
    config:
        config


use rule * from study
"""


def test_the_container_is_set_up_as_the_readme_says_and_leaves_out_what_git_does() -> None:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8").replace("\\\n", "")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    instructions = {word: [rest for other, rest in lines if other == word] for word, _ in lines}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    wanted = set(re.search(r"sudo apt-get install ([^`]+)`", readme)[1].split())
    install, *setup = instructions["RUN"]
    assert wanted < set(install.split())
    assert setup == ["make setup"], "it installs the lock and nothing else"
    assert not re.search(r"\b(pip|uv|conda)\b", install)
    assert instructions["FROM"] == ["docker.io/library/debian:12-slim"], "it has Python 3.11, which the Makefile takes"
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()}
    left_out = (ROOT / ".containerignore").read_text(encoding="utf-8").split()
    large = {"results", "figures", "logs", ".snakemake", "benchmarks/out"}
    assert large <= ignored
    assert large | {".venv", ".venv-*"} <= set(left_out)


def test_the_catalog_can_read_its_file() -> None:
    usage = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text(encoding="utf-8"))["usage"]
    assert set(usage) == {"mandatory-flags", "software-stack-deployment", "report"}
    assert set(usage["mandatory-flags"]) == {"desc", "flags"}
    assert usage["software-stack-deployment"] == {
        "conda": True, "apptainer": False, "apptainer+conda": False, "report": True,
    }  # fmt: skip
    assert (ROOT / "workflow" / "Snakefile").is_file()
    described = (ROOT / "config" / "README.md").read_text(encoding="utf-8")
    for entry in (ROOT / "config").iterdir():
        assert f"`{entry.name}" in described or entry.name == "README.md", f"config/README.md: {entry.name}"


@pytest.fixture
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A folder with a config, and a Snakefile that takes all rules from elsewhere, as `snakedeploy` makes it."""
    elsewhere = make_workplace(tmp_path_factory.mktemp("deployed") / "elsewhere", stand_in=True).folder
    place = Workplace(elsewhere.with_name("place"), is_forked=True)
    (place.folder / "workflow").mkdir(parents=True)
    shutil.move(elsewhere / "config", place.folder / "config")
    snakefile = DEPLOYED.format(snakefile=elsewhere / "workflow" / "Snakefile")
    (place.folder / "workflow" / "Snakefile").write_text(snakefile, encoding="utf-8")
    place.change("figures", "fig10", "limits", value=["1:1", "0:1"])
    place.change("figures", "fig10", "optimizers", value=["static"])
    return place


def test_a_deployed_study_runs(deployed: Workplace) -> None:
    done = deployed.snakemake(TARGET, "--resources", "timing=1")
    assert done.returncode == 0, done.stdout
    assert (deployed.folder / TARGET).exists()


def test_the_picture_of_the_rules_is_current(fresh: Workplace) -> None:
    drawn = fresh.snakemake("--rulegraph", "mermaid-js", "figures").stdout
    shown = (ROOT / "docs" / "rulegraph.md").read_text(encoding="utf-8")
    assert edges(shown) == edges(drawn), "run: make rulegraph"
    assert ("run", "figure") in edges(shown)


def edges(mermaid: str) -> set[tuple[str, str]]:
    names = dict(re.findall(r"^\t(\w+)\[(\w+)\]$", mermaid, re.MULTILINE))
    return {(names[a], names[b]) for a, b in re.findall(r"^\t(\w+) --> (\w+)$", mermaid, re.MULTILINE)}
