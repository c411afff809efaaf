"""Files: versions that another autotm wrote, hashes of what they hold, and where they come from."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter
from random_graphs import random_case

from autotm.model import files, provenance
from autotm.model.errors import DamagedFileError, FileVersionError
from autotm.model.files import content_hash, hash_of, read_json, read_results, schema_version, write_json, write_results
from autotm.model.graph import Graph
from autotm.model.limit import Limit
from autotm.model.plan import Plan
from autotm.model.profile import read_profile, write_profile
from autotm.profile.store import KernelStore, export_store, import_store
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve
from autotm.stages.exchange import import_results_stage


def of_version(path: Path, version: object) -> None:
    """Give a JSON file another version."""
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": version}))


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("links", "`autotm calibrate` or "),
        ("graph", "`autotm profile NETWORK` or "),
        ("profile", "`autotm profile NETWORK` or "),
        ("plan", "`autotm solve NETWORK OPTIMIZER LIMIT` or "),
        ("program", "`autotm compile NETWORK OPTIMIZER LIMIT` or "),
        ("record", "`autotm run NETWORK OPTIMIZER LIMIT` or "),
        ("modelled_step", ""),
    ],
)
def test_a_json_file_of_another_version_says_what_makes_it_again(kind: str, command: str, tmp_path: Path) -> None:
    path, reads = tmp_path / "file.json", schema_version(kind)
    write_json(path, kind, {})
    assert read_json(path, kind)["kind"] == kind
    for version, age in ((reads - 1, "an older"), (reads + 1, "a newer")):
        of_version(path, version)
        with pytest.raises(FileVersionError) as caught:
            read_json(path, kind)
        assert str(caught.value) == (
            f"{path}: made by {age} autotm: schema {version}, this one reads {reads}; "
            f"{'update autotm, or ' if version > reads else ''}"
            f"make it again with {command}`snakemake --force {path}`"
        )


@pytest.mark.parametrize("version", [None, "3", True])
def test_a_version_that_is_no_number_is_damage(version: object, tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    write_json(path, "links", {})
    of_version(path, version)
    with pytest.raises(DamagedFileError, match=r"damaged links file: its schema_version is .*links\.json") as caught:
        read_json(path, "links")
    assert not isinstance(caught.value, FileVersionError)


@pytest.mark.parametrize("name", ["profile.parquet", "profile.json"])
def test_so_does_a_profile(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write_profile(path, random_case(1).profile)
    if path.suffix == ".json":
        of_version(path, 2)
    else:
        table = pq.ParquetFile(path).read()
        pq.write_table(table.replace_schema_metadata(table.schema.metadata | {b"schema_version": b"2"}), path)
    with pytest.raises(FileVersionError, match=r"schema 2, this one reads 1; .*`autotm profile NETWORK` or") as caught:
        read_profile(path)
    assert pickle.loads(pickle.dumps(caught.value)).origin == caught.value.origin


def test_so_does_an_export_that_holds_such_a_file(tmp_path: Path) -> None:
    links, file, results = tmp_path / "links.json", tmp_path / "mlp.zip", tmp_path / "results"
    write_json(links, "links", {})
    of_version(links, 1)
    write_results(file, {"laptop-2t/links.json": links.read_bytes()}, {})
    with pytest.raises(FileVersionError) as caught:
        import_results_stage(file=file, results=results, replaces=False)
    assert str(caught.value) == (
        f"{file}: laptop-2t/links.json was made by an older autotm: schema 1, this one reads 3; nothing was imported. "
        "Export it again where it comes from: autotm export NETWORK mlp.zip"
    )
    assert not results.exists()


def of_format(path: Path, value: object) -> None:
    """Give an archive another format."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    contents["manifest.json"] = json.dumps(json.loads(contents["manifest.json"]) | {"format": value}).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)


@pytest.mark.parametrize("archive", ["results", "kernels"])
def test_so_does_an_export_of_another_format(archive: str, tmp_path: Path) -> None:
    file = tmp_path / "export.zip"
    newer, damaged = r"made by a newer autotm: format 2, this one reads 1", r"damaged .* export: its format is '2'"
    with KernelStore(tmp_path / "kernels.sqlite") as store:
        write_results(file, {}, {}) if archive == "results" else export_store(store, file, {})
        for version, error, message in ((2, FileVersionError, newer), ("2", DamagedFileError, damaged)):
            of_format(file, version)
            with pytest.raises(error, match=rf"{message}.*export\.zip"):
                read_results(file) if archive == "results" else import_store(store, file)


def test_a_hash_is_that_of_the_whole_text() -> None:
    case = random_case(0, kernels=6)
    plan = solve(*case, "synchronous", Limit(2, 1))
    assert isinstance(plan, Plan)
    for value in (case.graph, plan, Graph("without long fields", "tiny", 1, (), ()), SolveOptions()):
        assert hash_of(value) == content_hash(TypeAdapter(type(value)).dump_python(value, mode="json"))


def test_a_hash_is_worked_out_once_and_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, hashed = replace(random_case(0).graph), []
    pieces = files._pieces
    monkeypatch.setattr(files, "_pieces", lambda value: hashed.append(value) or pieces(value))
    assert hash_of(graph) == hash_of(graph)
    assert hashed == [graph]
    assert hash_of(replace(graph, batch=graph.batch + 1)) != hash_of(graph)
    assert len(hashed) == 2


def test_asking_for_the_commit_leaves_the_checkout_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git would note in its index that a file of another time is the same; who is ended meanwhile leaves a lock."""
    file = Path(shutil.copy(__file__, tmp_path))
    for words in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm a"):
        subprocess.run(["git", *words.split()], check=True, cwd=tmp_path)
    os.utime(file, (1e9, 1e9))
    before = (tmp_path / ".git" / "index").read_bytes()
    monkeypatch.setattr(provenance, "__file__", str(file))
    commit = provenance.commit.__wrapped__()
    assert commit is not None
    assert not commit.endswith("+")
    assert (tmp_path / ".git" / "index").read_bytes() == before
