"""The kernel store keeps what was put into it, by every part of its key."""

import logging
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotm.model.profile import Timing
from autotm.profile.store import KernelStore, StoreKey, count

KEY = StoreKey("context", "identity", "default", "DP", 17)
TIMING = Timing(1, 3, 2, 4, 9)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "machine" / "kernels.sqlite"


def test_what_was_put_is_there_after_reopening(path: Path) -> None:
    with KernelStore(path) as store:
        store.put({KEY: TIMING})
    with KernelStore(path) as store:
        assert store.get(KEY) == TIMING


@pytest.mark.parametrize(
    "change",
    [{"context": "x"}, {"identity": "x"}, {"implementation": "x"}, {"configuration": "PD"}, {"delay_ns": 18}],
)
def test_every_part_of_the_key_counts(path: Path, change: dict[str, object]) -> None:
    with KernelStore(path) as store:
        store.put({KEY: TIMING})
        assert store.get(replace(KEY, **change)) is None


def test_a_later_timing_replaces_the_earlier(path: Path) -> None:
    with KernelStore(path) as store:
        store.put({KEY: TIMING})
        store.put({KEY: replace(TIMING, median_ns=5)})
        assert store.get(KEY) == replace(TIMING, median_ns=5)
    assert count(path) == 1


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
