"""A workplace for each test of the pipeline."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from workplace import LASTS, TARGET, WAITS_FOR_ANOTHER, Workplace, make_workplace


@pytest.fixture(scope="session")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A study with stand-in stages that ran to its figure; copy it before changing anything."""
    place = make_workplace(tmp_path_factory.mktemp("pipeline") / "finished", stand_in=True)
    for stage in ("calibrate", "kernel_profile", "run"):
        place.set_stand_in(stage, LASTS)
    place.set_stand_in("ilp_solve", WAITS_FOR_ANOTHER)
    done = place.snakemake(TARGET, cores=24)
    assert done.returncode == 0, done.stdout
    return place


@pytest.fixture
def finished(finished_once: Workplace, tmp_path: Path) -> Workplace:
    return finished_once.copied_to(tmp_path / "place")


@pytest.fixture
def fresh(tmp_path: Path) -> Workplace:
    """A study of which nothing was made."""
    return make_workplace(tmp_path / "place", stand_in=True)
