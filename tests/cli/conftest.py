"""What tests of every command share: a process that calls them, and a study that each has something to do in."""

from __future__ import annotations

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
    return prepared_study.prepare(server, tmp_path_factory.mktemp("prepared") / "study")


@pytest.fixture
def study(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "study"))
