"""What documents tell a reader to type exists: targets, commands, files."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image

import autotm
from autotm.cli.main import SECTIONS
from autotm.model.config import StudyConfig
from autotm.model.errors import validated
from autotm.model.files import read_yaml
from autotm.model.machine import MachineFile

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / ".ci"))

import documents_commands  # noqa: E402 - lies beside .ci/run

DOCUMENTS = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
BY_NAME = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def commands() -> set[str]:
    return {name for section in SECTIONS.values() for name in section}


@BY_NAME
def test_commands_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL))
    named = set(re.findall(r"`autotm ([a-z-]+)", text)) | set(re.findall(r"^autotm ([a-z-]+)", blocks, re.MULTILINE))
    assert named <= commands()


@BY_NAME
def test_figures_are_targets(document: Path) -> None:
    rules = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "rules").glob("*.smk"))
    shown = document.read_text(encoding="utf-8")  # A document may add a rule.
    names = re.findall(r'^\+?    "([a-z0-9_]+)": \(', rules + shown, re.MULTILINE)
    targets = {f"{name}.{kind}" for name in names for kind in ("pdf", "csv")}
    targets |= set(re.findall(r'"\{folder\}/([a-z0-9_]+\.(?:pdf|csv))"', rules))
    study = validated(StudyConfig, read_yaml(ROOT / "config" / "config.yaml", "study"), "config.yaml")
    folders = {f"{name}/" for name in study.workloads} | {"", "NAME/"}
    for folder, name in re.findall(r"figures/([A-Za-z_]+/)?([a-z0-9_]+\.(?:pdf|csv))", shown):
        assert folder in folders
        assert name in targets


@BY_NAME
def test_targets_of_make_exist(document: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = re.findall(r"(?:`|^)make ([a-z-]+)(?=[`\s])", document.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(named) <= targets


def test_files_that_the_architecture_names_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:/|\.(?:py|c|smk|yaml)))`", text)
    package = ROOT / "src" / "autotm"
    lost = [
        name
        for name in named
        if not any((folder / name).exists() for folder in (package, ROOT)) and not [*package.rglob(name)]
    ]
    assert not lost


@BY_NAME
def test_every_command_is_run_or_says_why_not(document: Path) -> None:
    documents_commands.commands(document.read_text(encoding="utf-8"))


def test_a_command_that_nobody_runs_is_seen() -> None:
    with pytest.raises(ValueError, match="rm -rf"):
        documents_commands.commands("Then:\n\n```bash\nrm -rf results\n```\n")
    assert documents_commands.commands("<!-- checked by .ci/run -->\n```bash\n# why\nls\n```\n") == ["ls"]
    assert documents_commands.commands("<!-- not run by .ci/run: slow -->\n```bash\nls\n```\n") == []


def test_a_command_that_is_said_again_runs_once() -> None:
    said = ["autotm a", "  b", "autotm  a", "autotm b", "  b"]
    assert documents_commands.once(said) == ["autotm a", "  b", "autotm b", "  b"]


def test_everything_public_is_told() -> None:
    told = set(
        re.findall(r"^::: autotm(?:\.\w+)*\.(\w+)$", (ROOT / "docs" / "api.md").read_text("utf-8"), re.MULTILINE)
    )
    assert set(autotm.__all__) <= told


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "images").glob("*.png")), ids=lambda path: path.name)
def test_pictures_say_where_they_come_from_and_stand_on_a_page(picture: Path) -> None:
    said = Image.open(picture).text["Description"]
    for part in (r"[Mm]achine ", r"EMULATED|MODELLED", r"seed \d+|Seed \d+", r"autotm [\d.]+, .*commit [0-9a-f]{12}"):
        assert re.search(part, said), part
    assert any(f"images/{picture.name})" in page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md"))


def yaml_blocks() -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "machines.md").read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize("text", yaml_blocks())
def test_machine_files_are_machine_files(text: str) -> None:
    MachineFile.model_validate(yaml.safe_load(text))


def test_the_readme_is_read() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@BY_NAME
def test_links_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
        assert link.startswith("https://") or (document.parent / link).exists(), link
