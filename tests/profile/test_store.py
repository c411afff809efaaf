"""The kernel store keeps what was put into it, by every part of its key; as a file it goes to other machines."""

from __future__ import annotations

import json
import logging
import sqlite3
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotm.model.errors import DamagedFileError
from autotm.model.profile import Timing
from autotm.profile.store import SCHEMAS, KernelStore, Merged, StoreKey, _hash, export_store, import_store

KEY = StoreKey("context", "identity", "default", "DP", 17)
TIMING = Timing(1, 3, 2, 4, 9)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "machine" / "kernels.sqlite"


def test_the_last_timing_is_there_after_reopening_by_every_part_of_its_key(path: Path) -> None:
    with KernelStore(path) as store:
        store.put({KEY: TIMING})
        assert store.get(KEY) == TIMING
        store.put({KEY: replace(TIMING, median_ns=5)})
    with KernelStore(path) as store:
        assert store.get(KEY) == replace(TIMING, median_ns=5)
        assert store.connection.execute("SELECT COUNT(*) FROM timings").fetchone() == (1,)
        for change in ("context", "identity", "implementation", "configuration", "delay_ns"):
            assert store.get(replace(KEY, **{change: 18 if change == "delay_ns" else "x"})) is None


def test_a_store_with_a_table_that_nobody_reads_any_more_is_kept(path: Path) -> None:
    with KernelStore(path) as store:
        store.put({KEY: TIMING})
        store.connection.execute("CREATE TABLE schedules (workload TEXT PRIMARY KEY, trace TEXT) WITHOUT ROWID")
    with KernelStore(path) as store:
        assert store.get(KEY) == TIMING
    assert [file.name for file in path.parent.iterdir()] == ["kernels.sqlite"]


def overwrite_start(path: Path) -> None:
    path.write_bytes(b"garbage!" * 1000)


def overwrite_middle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xab" * (len(content) - 4096)
    path.write_bytes(bytes(content))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def newer_version(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


@pytest.mark.parametrize("damage", [overwrite_start, overwrite_middle, cut, newer_version])
def test_a_damaged_store_is_set_aside_with_a_warning(
    path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    with KernelStore(path) as store:
        store.put({replace(KEY, identity=f"id{i}"): TIMING for i in range(2000)})
    neighbour = path.with_name("links.json")
    neighbour.write_text("kept")
    damage(path)
    damaged = path.read_bytes()
    with caplog.at_level(logging.WARNING), KernelStore(path) as store:
        assert store.get(replace(KEY, identity="id7")) is None
        store.put({KEY: TIMING})
    (aside,) = (file for file in path.parent.iterdir() if ".damaged-" in file.name)
    assert aside.read_bytes() == damaged
    assert "set aside" in caplog.text
    assert neighbour.read_text() == "kept"
    with KernelStore(path) as store:
        assert store.get(KEY) == TIMING


def filled_store(path: Path, timing: Timing = TIMING, key: StoreKey = KEY) -> KernelStore:
    store = KernelStore(path)
    store.put({key: timing})
    store.describe(key.context, "{}")
    return store


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.zip"
    with filled_store(tmp_path / "from.sqlite") as store:
        assert export_store(store, path, {"machine": "server-2t"}) == {"contexts": 1, "timings": 1}
    return path


def test_an_empty_store_takes_everything_and_the_file_says_where_it_comes_from(file: Path, tmp_path: Path) -> None:
    with KernelStore(tmp_path / "to.sqlite") as store:
        assert import_store(store, file) == Merged(added=1)
        assert store.get(KEY) == TIMING
        assert import_store(store, file) == Merged(kept=1), "nothing is new the second time"
    manifest = json.loads(zipfile.ZipFile(file).read("manifest.json"))
    assert manifest["provenance"] == {"machine": "server-2t"}
    assert manifest["tables"]["timings"] == {"schema": 2, "entries": 1}


@pytest.mark.parametrize("context", ["mine", KEY.context])
def test_timings_of_ones_own_stay_and_those_of_another_processor_beside_them(
    file: Path, tmp_path: Path, context: str
) -> None:
    own, timing = replace(KEY, context=context), Timing(7, 7, 7, 7, 7)
    with filled_store(tmp_path / "to.sqlite", key=own, timing=timing) as store:
        assert import_store(store, file) == (Merged(kept=1) if own == KEY else Merged(added=1))
        assert store.get(own) == timing
        assert store.get(KEY) == (timing if own == KEY else TIMING)


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, str]], None], *, rehash: bool = True) -> None:
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        texts = {name: archive.read(f"{name}.jsonl").decode() for name in SCHEMAS}
    change(manifest, texts)
    if rehash:
        manifest["contents_hash"] = _hash({f"{name}.jsonl": text.encode() for name, text in texts.items()})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for name, text in texts.items():
            archive.writestr(f"{name}.jsonl", text)


def test_entries_of_another_schema_are_skipped_and_counted(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rewritten(file, lambda manifest, _: manifest["tables"].update(timings={"schema": 3, "entries": 5}))
    with KernelStore(tmp_path / "to.sqlite") as store, caplog.at_level(logging.WARNING):
        assert import_store(store, file) == Merged(skipped=5)
    assert "schema 3" in caplog.text


@pytest.mark.parametrize(
    "line",
    [
        '["context"]',
        '["c", "i", "default", "DP", 0, -1, 3, 2, 4, 9, null, 0, null, 0, "now"]',
        '["c", "i", "default", "DP", 0, "1", 3, 2, 4, 9, null, 0, null, 0, "now"]',
        '["c", null, "default", "DP", 0, 1, 3, 2, 4, 9, null, 0, null, 0, "now"]',
    ],
)
def test_what_is_no_entry_is_skipped_and_counted(line: str, file: Path, tmp_path: Path) -> None:
    rewritten(file, lambda _, texts: texts.update(timings=texts["timings"] + line + "\n"))
    with KernelStore(tmp_path / "to.sqlite") as store:
        assert import_store(store, file) == Merged(added=1, skipped=1)


def test_tables_that_nobody_reads_any_more_are_ignored(file: Path, tmp_path: Path) -> None:
    def with_schedules(manifest: dict[str, Any], texts: dict[str, str]) -> None:
        manifest["tables"]["schedules"] = {"schema": 1, "entries": 1}
        texts["schedules"] = '["w", "t", 2, "c", "v", "op", "[]", "own", 900, 1000, 64, "now"]\n'

    rewritten(file, with_schedules)
    with KernelStore(tmp_path / "to.sqlite") as store:
        assert import_store(store, file) == Merged(added=1)
        assert store.get(KEY) == TIMING


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(b"timings.jsonl") + 40] ^= 0xFF
    path.write_bytes(bytes(content))


def changed(path: Path) -> None:
    rewritten(path, lambda _, texts: texts.update(timings=""), rehash=False)


@pytest.mark.parametrize("damage", [cut_short, flipped, changed])
def test_a_damaged_file_is_refused_with_the_remedy(damage: Callable[[Path], None], file: Path, tmp_path: Path) -> None:
    damage(file)
    with KernelStore(tmp_path / "to.sqlite") as store:
        with pytest.raises(DamagedFileError, match=r"autotm kernels export kernels.zip"):
            import_store(store, file)
        assert store.get(KEY) is None
