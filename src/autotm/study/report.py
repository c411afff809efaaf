"""Directives of reStructuredText for `workflow/report/*.rst`: each shows a part of a file that the pipeline made.

`.. picture-caption:: FILE.png`, `.. provenance:: FILE.json`, `.. log-file:: FILE`; paths as Snakemake gives them. Where
a file cannot be read the report says so and goes on: logs may have been deleted since.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from PIL import Image


class _OfFile(Directive):
    """A directive whose argument is a file."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Show the file, or why it cannot be read."""
        path = Path(self.arguments[0])
        try:
            return [_NODES[self.name](path)]
        except (OSError, ValueError, KeyError) as error:
            return [nodes.paragraph(text=f"{path} cannot be read: {error}")]


def _picture_caption(path: Path) -> nodes.Node:
    with Image.open(path) as picture:  # `study/drawing.py` keeps the caption in this field.
        return nodes.paragraph(text=picture.info["Description"])


def _provenance(path: Path) -> nodes.Node:
    document = json.loads(path.read_text(encoding="utf-8"))
    fields = nodes.field_list()
    for name, value in document["provenance"].items():
        if value is None:
            continue
        parts = [f"{key} {one}" for key, one in value.items()] if isinstance(value, Mapping) else value
        text = ", ".join(map(str, parts)) if isinstance(parts, list) else str(parts)
        fields += nodes.field("", nodes.field_name(text=name), nodes.field_body("", nodes.paragraph(text=text)))
    return fields


def _log(path: Path) -> nodes.Node:
    text = path.read_text(encoding="utf-8")
    return nodes.literal_block(text, text)


_NODES = {"picture-caption": _picture_caption, "provenance": _provenance, "log-file": _log}


def register_directives() -> None:
    """Make the directives known to docutils; a second call changes nothing."""
    for name in _NODES:
        directives.register_directive(name, _OfFile)
