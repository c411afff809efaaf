"""What tests of every command share: a process that calls them, and a study that each has something to do in."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import prepared_study
import pytest
from command_server import CommandServer, mounts_allowed


@pytest.fixture(scope="session")
def server() -> Iterator[CommandServer]:
    with CommandServer(mounts=mounts_allowed()) as started:
        yield started


@pytest.fixture(scope="session")
def prepared(server: CommandServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made by the first worker that asks; the others wait for it."""
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "prepared"
    with place.with_suffix(".lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            prepared_study.prepare(server, place.with_name("preparing")).rename(place)
    return place


@pytest.fixture
def study(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "study"))
