"""The page of a plan: its parts put into one file that asks for nothing."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from autotm.model.files import write_atomically
from autotm.study.view.contents import contents
from autotm.study.view.placed import Placed

_PARTS = files("autotm.study.view") / "assets"
_SCRIPTS = ("data", "format", "index", "scale", "map", "strips", "overlay", "facts", "search", "input", "main")
"""In this order they are one module: each may use the names of those before it."""


def page_of(placed: Placed) -> str:
    """The page as one text.

    Raises:
        BadInputError: the program was made from another plan.
        AutotmError: the profile lacks a kernel.
    """
    shown = contents(placed)
    name = ", ".join((shown["heading"]["network"], shown["heading"]["optimizer"], shown["heading"]["limit"]))
    return _filled(name, json.dumps(shown, separators=(",", ":"), allow_nan=False, ensure_ascii=False))


def write_page(placed: Placed, path: Path) -> None:
    """Write the page, whole.

    Raises:
        as `page_of`.
    """
    text = page_of(placed)
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _filled(name: str, data: str) -> str:
    """The template with style, scripts and data. No `<` of the data can end its element."""
    scripts = "\n".join(_part(f"{script}.js") for script in _SCRIPTS)
    return Template(_part("page.html")).substitute(
        title=escape(name), style=_part("page.css"), data=data.replace("<", "\\u003c"), script=scripts
    )


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="utf-8")
