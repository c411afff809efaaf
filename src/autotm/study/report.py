"""Directives of reStructuredText for `workflow/report/*.rst`: each shows a part of a file that the pipeline made.

`.. picture-caption:: FILE.png`, `.. provenance:: FILE.json`, `.. log-file:: FILE`; paths as Snakemake gives them. A
file that cannot be read is told of in its place instead of stopping the report: logs may have been deleted since.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from PIL import Image

_DESCRIPTION = "Description"
"""Where `drawing/saving.py` puts a picture's caption."""


def register_directives() -> None:
    """Make the directives known to docutils; a second call changes nothing."""
    for name, shown in (("picture-caption", _picture_caption), ("provenance", _provenance), ("log-file", _log)):
        directives.register_directive(name, _directive(shown))


def _directive(shown: Callable[[Path], nodes.Node]) -> type[Directive]:
    class OfFile(Directive):
        required_arguments = 1
        final_argument_whitespace = True

        def run(self) -> list[nodes.Node]:
            path = Path(self.arguments[0])
            try:
                return [shown(path)]
            except (OSError, ValueError, KeyError) as error:
                return [nodes.paragraph(text=f"{path} cannot be read: {error}")]

    return OfFile


def _picture_caption(path: Path) -> nodes.Node:
    with Image.open(path) as picture:
        return nodes.paragraph(text=picture.info[_DESCRIPTION])


def _provenance(path: Path) -> nodes.Node:
    document = json.loads(path.read_text(encoding="utf-8"))
    fields = nodes.field_list()
    for name, text in _lines(document["provenance"]):
        fields += nodes.field("", nodes.field_name(text=name), nodes.field_body("", nodes.paragraph(text=text)))
    return fields


def _log(path: Path) -> nodes.Node:
    text = path.read_text(encoding="utf-8")
    return nodes.literal_block(text, text)


def _lines(source: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in source.items():
        if isinstance(value, Mapping):
            yield key, ", ".join(f"{name} {text}" for name, text in value.items())
        elif isinstance(value, list):
            yield key, ", ".join(map(str, value))
        elif value is not None:
            yield key, str(value)
