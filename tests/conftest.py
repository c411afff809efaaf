"""Makes the tests' helpers, and those of the benchmarks, importable from every test folder."""

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parent / "helpers"))

import pytest

from autotm.kernels.library.library import KernelLibrary
from autotm.model.machine import cores


@pytest.fixture(scope="session", autouse=True)
def cores_of_our_own() -> Iterator[None]:
    """No test waits for its neighbours on this machine to leave: a round counts whoever else is there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cores, "lost_ns", lambda _: 0)
        yield


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where steps from Python keep what was measured and compiled: copies are timed once, not in each test."""
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="session")
def library_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import small_step

    path = tmp_path_factory.mktemp("kernels") / "kernels.so"
    small_step.build_library(path)
    return path


@pytest.fixture(scope="session")
def library(library_path: Path) -> KernelLibrary:
    return KernelLibrary.load(library_path)
