"""What documents tell a reader to type exists: targets, commands, files. The page on formats tells of every field."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from PIL import Image
from pydantic import BaseModel

import autotm
from autotm.cli.main import SECTIONS
from autotm.model.config import StudyConfig
from autotm.model.errors import validated
from autotm.model.files import read_yaml
from autotm.model.machine import MachineFile, load_machine
from autotm.model.provenance import Provenance, provenance
from autotm.study.inputs import CONTROL_FIGURES, FUSION_FIGURES

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / ".ci"), str(ROOT / "docs" / "site")]

import documents_commands  # noqa: E402 - lies beside .ci/run
import formats  # noqa: E402 - lies beside the documents
from fields import MeaninglessError, fields_of  # noqa: E402

DOCUMENTS = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
BY_NAME = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


@BY_NAME
def test_commands_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL))
    named = set(re.findall(r"`autotm ([a-z-]+)", text)) | set(re.findall(r"^autotm ([a-z-]+)", blocks, re.MULTILINE))
    assert named <= {name for section in SECTIONS.values() for name in section}


@BY_NAME
def test_figures_are_targets(document: Path) -> None:
    rules = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "rules").glob("*.smk"))
    shown = document.read_text(encoding="utf-8")  # A document may add a rule.
    names = re.findall(r'^\+?    "([a-z0-9_]+)": \(', rules + shown, re.MULTILINE)
    targets = {f"{name}.{kind}" for name in names for kind in ("pdf", "csv")}
    targets |= set(re.findall(r'"\{folder\}/([a-z0-9_]+\.(?:pdf|csv))"', rules))
    of_studies = {"control_flow": CONTROL_FIGURES, "fusion": FUSION_FIGURES}
    targets |= {
        f"{of}/{name}.{kind}" for of, several in of_studies.items() for name in several for kind in ("pdf", "csv")
    }
    study = validated(StudyConfig, read_yaml(ROOT / "config" / "config.yaml", "study"), "config.yaml")
    folders = {f"{name}/" for name in study.workloads} | {"", "NAME/"}
    for folder, name in re.findall(
        r"figures/((?!control_flow|fusion)[A-Za-z_]+/)?((?:control_flow/|fusion/)?[a-z0-9_]+\.(?:pdf|csv))", shown
    ):
        assert folder in folders
        assert name in targets


@BY_NAME
def test_targets_of_make_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = re.findall(r"(?:`|^)make ([a-z-]+)(?=[`\s])", document.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(named) <= targets


def test_files_that_the_architecture_names_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:/|\.(?:py|c|smk|yaml)))`", text)
    package = ROOT / "src" / "autotm"
    assert not [n for n in named if not ((package / n).exists() or (ROOT / n).exists() or [*package.rglob(n)])]


@BY_NAME
def test_every_command_is_run_or_says_why_not(document: Path) -> None:
    documents_commands.commands(document.read_text(encoding="utf-8"))


def test_a_command_that_nobody_runs_is_seen_and_one_that_is_said_again_runs_once() -> None:
    with pytest.raises(ValueError, match="rm -rf"):
        documents_commands.commands("Then:\n\n```bash\nrm -rf results\n```\n")
    assert documents_commands.commands("<!-- checked by .ci/run -->\n```bash\n# why\nls\n```\n") == ["ls"]
    assert documents_commands.commands("<!-- not run by .ci/run: slow -->\n```bash\nls\n```\n") == []
    repeated = ["autotm a", "  b", "autotm  a", "autotm b", "  b"]
    assert documents_commands.once(repeated) == ["autotm a", "  b", "autotm b", "  b"]


def test_everything_public_is_told() -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    assert set(autotm.__all__) <= set(re.findall(r"^::: autotm(?:\.\w+)*\.(\w+)$", page, re.MULTILINE))


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "images").glob("*.png")), ids=lambda path: path.name)
def test_pictures_say_where_they_come_from_and_stand_on_a_page(picture: Path) -> None:
    said = Image.open(picture).text["Description"]
    for part in (r"[Mm]achine ", r"EMULATED|MODELLED", r"seed \d+|Seed \d+", r"autotm [\d.]+, .*commit [0-9a-f]{12}"):
        assert re.search(part, said), part
    assert any(f"images/{picture.name})" in page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md"))


def test_machine_files_are_machine_files() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "machines.md").read_text("utf-8"), re.DOTALL)
    assert blocks
    for text in blocks:
        MachineFile.model_validate(yaml.safe_load(text))


def test_the_readme_is_read() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@BY_NAME
def test_links_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
        assert link.startswith("https://") or (document.parent / link).exists(), link


def test_the_page_on_formats_is_what_the_classes_say() -> None:
    assert (ROOT / "docs" / "formats.md").read_text(encoding="utf-8") == formats.text(), "make formats"


@dataclass
class Silent:
    """A class whose docstring says nothing about one of its fields.

    Attributes:
        described: what it is.
    """

    described: int
    undescribed: int


@dataclass
class Stale:
    """A class whose docstring describes a field that it has no more.

    Attributes:
        kept, gone: what they are.
    """

    kept: int


@dataclass
class Unitless:
    """A class with a fractional number whose unit is not named.

    Attributes:
        weight: of a tensor.
    """

    weight: float


class Undescribed(BaseModel):
    """A model without a description."""

    name: str


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Silent, "Silent.undescribed: has no meaning"),
        (Stale, "no field of it: .*gone"),
        (Unitless, "Unitless.weight: is a number without a unit"),
        (Undescribed, "Undescribed.name: has no meaning"),
    ],
)
def test_a_field_that_nobody_could_understand_is_refused(kind: type, message: str) -> None:
    with pytest.raises(MeaninglessError, match=message):
        fields_of(kind)


def test_provenance_is_what_it_says() -> None:
    written = provenance(load_machine(ROOT / "config" / "machines" / "laptop.yaml"), seed=1)
    assert set(written) == Provenance.__required_keys__


def test_what_files_add_to_it_is_told() -> None:
    """Names that calls of `provenance` give."""
    nodes = [
        node for path in (ROOT / "src").rglob("*.py") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    ]
    calls = (node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "provenance")
    names = {keyword.arg for call in calls for keyword in call.keywords if keyword.arg}
    assert {"options", "sizes"} <= names <= Provenance.__optional_keys__
