"""The kernel store as a file: what is taken over from another machine, and what is not."""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotm.model.errors import DamagedFileError
from autotm.model.profile import Timing
from autotm.profile import store_exchange
from autotm.profile.store import KernelStore, StoreKey
from autotm.profile.store_exchange import Merged, export_store, import_store

KEY = StoreKey("context", "identity", "default", "DP", 17)
TIMING = Timing(1, 3, 2, 4, 9)


def made(path: Path, timing: Timing = TIMING, key: StoreKey = KEY) -> KernelStore:
    store = KernelStore(path)
    store.put({key: timing})
    store.describe(key.context, "{}")
    return store


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.zip"
    with made(tmp_path / "from.sqlite") as store:
        assert export_store(store, path, {"machine": "server-2t"}) == {"contexts": 1, "timings": 1}
    return path


def test_an_empty_store_takes_everything(file: Path, tmp_path: Path) -> None:
    with KernelStore(tmp_path / "to.sqlite") as store:
        assert import_store(store, file) == Merged(added=1)
        assert store.get(KEY) == TIMING
        assert import_store(store, file) == Merged(kept=1), "nothing is new the second time"


def test_the_file_says_where_it_comes_from(file: Path) -> None:
    manifest = json.loads(zipfile.ZipFile(file).read("manifest.json"))
    assert manifest["provenance"] == {"machine": "server-2t"}
    assert manifest["tables"]["timings"] == {"schema": 2, "entries": 1}


def test_timings_of_another_processor_stay_apart(file: Path, tmp_path: Path) -> None:
    with made(tmp_path / "to.sqlite", key=replace(KEY, context="mine"), timing=Timing(7, 7, 7, 7, 7)) as store:
        import_store(store, file)
        assert store.get(replace(KEY, context="mine")) == Timing(7, 7, 7, 7, 7)
        assert store.get(KEY) == TIMING


def test_a_timing_of_ones_own_is_never_replaced(file: Path, tmp_path: Path) -> None:
    with made(tmp_path / "to.sqlite", timing=Timing(7, 7, 7, 7, 7)) as store:
        assert import_store(store, file) == Merged(kept=1)
        assert store.get(KEY) == Timing(7, 7, 7, 7, 7)


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, str]], None], *, rehash: bool = True) -> None:
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        texts = {name: archive.read(f"{name}.jsonl").decode() for name in store_exchange.SCHEMAS}
    change(manifest, texts)
    if rehash:
        manifest["contents_hash"] = store_exchange._hash(texts)
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


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(b"timings.jsonl") + 40] ^= 0xFF
    path.write_bytes(bytes(content))


def changed(path: Path) -> None:
    rewritten(path, lambda _, texts: texts.update(timings=""), rehash=False)


def of_another_kind(path: Path) -> None:
    rewritten(path, lambda manifest, _: manifest.update(kind="photo album"))


def of_a_later_format(path: Path) -> None:
    rewritten(path, lambda manifest, _: manifest.update(format=2))


def emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, flipped, changed, of_another_kind, of_a_later_format, emptied])
def test_a_damaged_file_is_refused_with_the_remedy(damage: Callable[[Path], None], file: Path, tmp_path: Path) -> None:
    damage(file)
    with KernelStore(tmp_path / "to.sqlite") as store:
        with pytest.raises(DamagedFileError, match=r"autotm kernels export kernels.zip"):
            import_store(store, file)
        assert store.get(KEY) is None


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with (
        KernelStore(tmp_path / "to.sqlite") as store,
        pytest.raises(DamagedFileError, match=r"away\.zip: no such file"),
    ):
        import_store(store, tmp_path / "away.zip")
