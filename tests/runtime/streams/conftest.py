"""Two networks, each planned once."""

import pytest
from planned_streams import SIZES, Planned, planned_step


@pytest.fixture(scope="session", params=sorted(SIZES))
def planned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Planned:
    return planned_step(request.param, tmp_path_factory.mktemp(request.param))
