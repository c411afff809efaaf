"""Two networks, each planned once."""

from pathlib import Path

import pytest
from planned_streams import Planned, planned_step


# Convolutions are among the quick tests where orders of streams are tried, in test_schedule.py.
@pytest.fixture(scope="session", params=["mlp", pytest.param("mnist", marks=pytest.mark.slow)])
def planned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, objects: Path) -> Planned:
    return planned_step(request.param, tmp_path_factory.mktemp(request.param), objects)
