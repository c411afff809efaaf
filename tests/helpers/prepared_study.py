"""A study of the tiny MLP that every command has something to do in: made once by the commands, then copied."""

from __future__ import annotations

import json
import shutil
import sqlite3
import zipfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import small_step
import yaml
from command_server import CommandServer

from autotm.model.files import load_with_provenance, save
from autotm.model.record import Record

CONFIG = Path(__file__).parents[2] / "config"
NETWORK = Path("results", "laptop-1t", "tiny", "mlp")
PLAN = NETWORK / "synchronous" / "4to1" / "plan.json"
OPTIONS = ("--scale", "tiny")
_MADE_BY = (
    "profile mlp", "solve mlp synchronous 4:1", "solve mlp static 4:1", "compile mlp synchronous 4:1",
    "compile mlp static 4:1", "run mlp synchronous 4:1", "run mlp static 4:1",
    "export mlp mlp.zip", "kernels export kernels.zip",
)  # fmt: skip


def prepare(server: CommandServer, study: Path) -> Path:
    """Make the study in a folder; its links are made up, all else is measured, and one record is called disturbed."""
    shutil.copytree(CONFIG, study / "config")
    file = study / "config" / "config.yaml"
    config = yaml.safe_load(file.read_text(encoding="utf-8"))
    for stage in ("profile", "run"):
        config[stage]["patience_s"] = 0.0
    config["threads"] = 1
    config["workloads"]["conventional"]["networks"] = ["mlp"]
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    save(study / "results" / "laptop-1t" / "links.json", "links", small_step.links(), {})
    for made_by in _MADE_BY:
        ended = server.call([*made_by.split(), *OPTIONS], study)
        assert ended.status == 0, (made_by, ended)
    for optimizer in ("static", "synchronous"):
        file = study / NETWORK / optimizer / "4to1" / "record.json"
        record, provenance = load_with_provenance(file, "record", Record)
        save(file, "record", replace(record, disturbed_steps_count=optimizer == "static"), provenance)
    return study


def contents(study: Path) -> dict[str, bytes]:
    """Every file of a study by its path in it."""
    return {str(path.relative_to(study)): path.read_bytes() for path in sorted(study.rglob("*")) if path.is_file()}


_ENDS = {".csv": b"\n", ".html": b">\n", ".pdf": b"%%EOF\n", ".png": b"IEND\xaeB`\x82"}
_BEGINS = {".so": b"\x7fELF", ".o": b"\x7fELF", ".xz": b"\xfd7zXZ"}
_READ: Mapping[str, Callable[[Path], object]] = {
    ".json": lambda path: json.loads(path.read_text(encoding="utf-8")),
    ".parquet": pq.read_table,
    ".yaml": lambda path: yaml.safe_load(path.read_text(encoding="utf-8")),
}
_KNOWN = {*_ENDS, *_BEGINS, *_READ, ".zip", ".xz", ".sqlite", ".md"}


def require_whole(study: Path) -> None:
    """Raise where a file of a study is half written, or was left over."""
    for name, content in contents(study).items():
        path, kind = study / name, Path(name).suffix
        assert not path.name.startswith("."), f"{name} was left over"
        assert content or kind == ".sqlite", f"{name} is empty"  # To SQLite such a file is a database without tables.
        assert kind in _KNOWN, f"{name}: what is this?"
        assert content.endswith(_ENDS.get(kind, b"")), f"{name} is cut"
        assert content.startswith(_BEGINS.get(kind, b"")), f"{name} is something else"
        _READ.get(kind, Path.stat)(path)
        if kind == ".zip":
            with zipfile.ZipFile(path) as archive:
                assert archive.testzip() is None, name
        if kind == ".sqlite":
            with closing(sqlite3.connect(path)) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",), name
