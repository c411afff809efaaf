"""A study for the tests of this folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "pipeline"))
sys.path.insert(0, str(Path(__file__).parent))

from cluster import Cluster, make_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    if "AUTOTM_TEST_SLURM" not in os.environ:  # never on a cluster that happens to be there
        pytest.skip("make test-slurm starts a Slurm for these tests")
    return make_cluster(tmp_path_factory.mktemp("slurm") / "shared")
