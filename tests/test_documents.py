"""What documents tell a reader to type exists: targets, commands, files."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from autotm.cli.main import _parser
from autotm.model.study.study_config import parse_study, read_yaml

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
BY_NAME = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def commands() -> set[str]:
    return {
        name
        for action in _parser()._actions
        if isinstance(action, argparse._SubParsersAction)
        for name in action.choices
    }


@BY_NAME
def test_commands_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    named = set(re.findall(r"`autotm ([a-z-]+)", text)) | set(re.findall(r"^autotm ([a-z-]+)", text, re.MULTILINE))
    assert named <= commands()


@BY_NAME
def test_figures_are_targets(document: Path) -> None:
    rules = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "rules").glob("*.smk"))
    targets = set(re.findall(r'"figures/(?:\{on\})?(?:\{folder\})?([a-z0-9_]+\.(?:pdf|csv))"', rules))
    study = parse_study(read_yaml(ROOT / "config" / "config.yaml", "study"), "config.yaml")  # type: ignore[arg-type]
    folders = {f"{name}/" for name in study.workloads} | {"", "NAME/"}
    for folder, name in re.findall(r"figures/([A-Za-z_]+/)?([a-z0-9_]+\.(?:pdf|csv))", document.read_text("utf-8")):
        assert folder in folders
        assert name in targets


@BY_NAME
def test_targets_of_make_exist(document: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = re.findall(r"(?:`|^)make ([a-z-]+)(?=[`\s])", document.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(named) <= targets


def test_files_that_the_architecture_names_exist() -> None:
    named = re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:/|\.py))`", (ROOT / "docs" / "architecture.md").read_text("utf-8"))
    house = ROOT / "src" / "autotm"
    lost = [
        name for name in named if not any((at / name).exists() for at in (house, ROOT)) and not [*house.rglob(name)]
    ]
    assert not lost


def test_the_readme_is_read() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@BY_NAME
def test_links_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
        assert link.startswith("https://") or (document.parent / link).exists(), link
