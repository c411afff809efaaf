"""docs/formats.md says of every field what it means, as the code that reads and writes the files does."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import BaseModel

from autotm.model.machine import load_machine
from autotm.model.provenance import Provenance, provenance

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "site"))

import formats  # noqa: E402 - lies beside the documents
from fields import MeaninglessError, fields_of  # noqa: E402


def test_the_page_is_what_the_classes_say() -> None:
    assert (ROOT / "docs" / "formats.md").read_text(encoding="utf-8") == formats.text(), "make formats"


@dataclass
class Silent:
    """Of a field, nothing is said.

    Attributes:
        told: what it is.
    """

    told: int
    untold: int


@dataclass
class Stale:
    """Something is said of a field that is gone.

    Attributes:
        kept, gone: what they are.
    """

    kept: int


@dataclass
class Unitless:
    """A number with a fraction, of what?

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
        (Silent, "Silent.untold: has no meaning"),
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


def extras() -> Iterator[str]:
    """Names that files add to their provenance, as far as calls name them."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "provenance":
                yield from (keyword.arg for keyword in node.keywords if keyword.arg)


def test_what_files_add_to_it_is_told() -> None:
    found = set(extras())
    assert {"options", "sizes"} <= found <= Provenance.__optional_keys__
