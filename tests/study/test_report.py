"""What a report shows of the pipeline's files, each by a directive of reStructuredText."""

from __future__ import annotations

from pathlib import Path

from docutils.core import publish_string
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from autotm.model.files import save
from autotm.study.report import register_directives


def shown(directive: str, path: Path) -> str:
    register_directives()
    text = publish_string(f".. {directive}:: {path}", writer="pseudoxml", settings_overrides={"report_level": 5})
    return " ".join(str(text, "utf-8").split())


def test_a_file_tells_where_it_comes_from(tmp_path: Path) -> None:
    path, came_from = tmp_path / "plan.json", {"seed": 20, "options": {"gap": 0.01}, "load": [0.5, 1], "note": None}
    save(path, "links", {}, came_from)
    found = shown("provenance", path)
    for name, text in (("seed", "20"), ("options", "gap 0.01"), ("load", "0.5, 1")):
        assert f"<field_name> {name} <field_body> <paragraph> {text}" in found
    assert "note" not in found


def test_a_picture_shows_its_caption_and_a_log_its_lines(tmp_path: Path) -> None:
    caption = PngInfo()
    caption.add_text("Description", "Emulated; seed 20.")
    Image.new("L", (1, 1)).save(tmp_path / "fig.png", pnginfo=caption)
    (tmp_path / "run.log").write_text("measured *here*\n", encoding="utf-8")
    assert "<paragraph> Emulated; seed 20." in shown("picture-caption", tmp_path / "fig.png")
    assert "measured *here*" in shown("log-file", tmp_path / "run.log")


def test_what_cannot_be_read_is_told_of_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text("{", encoding="utf-8")
    for directive in ("provenance", "picture-caption", "log-file"):
        assert f"{tmp_path}/gone cannot be read: " in shown(directive, tmp_path / "gone")
    assert f"{tmp_path}/cut.json cannot be read: " in shown("provenance", tmp_path / "cut.json")
