"""Measurements and plans go out as one file and come in elsewhere, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import logging
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from random_graphs import Case, training_step_case
from tiny_study import run, save_profiled

from autotm.cli.main import main


@pytest.fixture(scope="module")
def case() -> Case:
    return training_step_case(layers=2, branches=2)


@pytest.fixture
def results(case: Case, tmp_path: Path) -> Path:
    """A network called mlp, profiled, with one plan that has a program."""
    results = tmp_path / "here"
    save_profiled(results, case)
    for command in ("solve", "compile"):
        assert run(results, command, "mlp", "static", "2:1") == 0
    return results


@pytest.fixture
def exported(results: Path, tmp_path: Path) -> Path:
    file = tmp_path / "mlp.zip"
    assert run(results, "export", "mlp", str(file)) == 0
    return file


def files_below(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_goes_out_comes_in(
    results: Path, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there"
    assert main(["import", str(exported), "--results", str(there)]) == 0
    assert capsys.readouterr().out == "mlp static 2:1\n"
    assert files_below(there) == files_below(results)
    assert run(there, "check", "mlp", "static", "2:1") == 0
    assert main(["import", str(exported), "--results", str(there), "--json"]) == 0
    report = json.loads(capsys.readouterr().out.partition("\n{")[2].join(("{", "")))
    assert (len(report["added"]), len(report["replaced"]), len(report["kept"])) == (0, 0, 5)


def test_other_files_are_kept_unless_they_are_to_be_replaced(
    results: Path, exported: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    there = tmp_path / "there"
    links = there / "laptop-1t" / "links.json"
    links.parent.mkdir(parents=True)
    links.write_text("mine")
    assert main(["import", str(exported), "--results", str(there)]) == 1
    assert "1 of its files are there and differ" in caplog.text
    assert files_below(there) == {Path("laptop-1t/links.json"): b"mine"}
    assert main(["import", str(exported), "--results", str(there), "--replace"]) == 0
    assert files_below(there) == files_below(results)


def changed(contents: dict[str, bytes], change: Callable[[dict[str, bytes]], None], file: Path) -> None:
    change(contents)
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)


def _renamed(contents: dict[str, bytes]) -> None:
    manifest = json.loads(contents["manifest.json"])
    name = next(iter(manifest["files"]))
    evil = "../../links.json"
    manifest["files"][evil], contents[evil] = manifest["files"].pop(name), contents.pop(name)
    contents["manifest.json"] = json.dumps(manifest).encode()


def _swapped(contents: dict[str, bytes]) -> None:
    name = next(name for name in contents if name.endswith("graph.json"))
    contents[name] = contents[name][:-10]


def _unreadable(contents: dict[str, bytes]) -> None:
    manifest = json.loads(contents["manifest.json"])
    name = next(name for name in contents if name.endswith("plan.json"))
    contents[name] = b"{}"
    manifest["files"][name] = hashlib.sha256(b"{}").hexdigest()
    contents["manifest.json"] = json.dumps(manifest).encode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_renamed, "../../links.json is no place below the results"),
        (_swapped, "graph.json is not what was exported"),
        (_unreadable, "plan.json: "),
        (lambda contents: contents.pop("manifest.json"), "it cannot be read"),
        (lambda contents: contents.update({"manifest.json": b"[]"}), "it is not a results export"),
    ],
)
def test_damage_is_one_message_and_nothing_is_written(
    change: Callable[[dict[str, bytes]], None],
    message: str,
    exported: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with zipfile.ZipFile(exported) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    changed(contents, change, exported)
    assert main(["import", str(exported), "--results", str(tmp_path / "there")]) == 1
    assert message in caplog.text
    assert "nothing was imported" in caplog.text
    assert not (tmp_path / "there").exists()


def test_a_store_goes_out_and_comes_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "kernels.zip"
    with caplog.at_level(logging.INFO):
        assert run(tmp_path / "here", "kernels", "export", str(file)) == 0
        assert run(tmp_path / "there", "kernels", "import", str(file)) == 0
    assert "0 timings written" in caplog.text
    assert "0 timings added, 0 known before, 0 skipped" in caplog.text
    assert [path.parent.name for path in (tmp_path / "there").rglob("kernels.sqlite")] == ["laptop-1t"]
