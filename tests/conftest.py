"""Makes the tests' helpers, and those of the benchmarks, importable from every test folder."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parent / "helpers"))

import pytest
from hypothesis import HealthCheck, settings

from autotm.model import cores

if TYPE_CHECKING:
    from autotm.kernels.library import KernelLibrary

# An idle thread of TVM's yields 300 000 times before it sleeps, and takes that from the tests beside it.
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "100")

# The same cases every time, and no time is judged. `make test-all` asks for all.
COMMON = {"derandomize": True, "deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=10, **COMMON)
settings.register_profile("all", max_examples=100, **COMMON)
settings.load_profile(os.environ.get("AUTOTM_TEST_EXAMPLES", "quick"))


# Collecting tests makes objects that stay: to look for garbage among them takes seconds of each worker.
gc.disable()


def pytest_collection_finish() -> None:
    """Leave what imports made out of collections of garbage: one is made before everything that is timed."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def cores_of_our_own() -> Iterator[None]:
    """No test waits for its neighbours on this machine to leave: a round counts whoever else is there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cores, "lost_ns", lambda _: 0)
        yield


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where steps from Python keep what was measured and compiled, with copies that nobody timed."""
    import small_step

    folder = tmp_path_factory.mktemp("results")
    small_step.write_links(folder)
    return folder


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Machine code of kernels, by a hash of all that decides it: what one test compiled, no other need compile."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "objects"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def library_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import small_step_kernels

    path = tmp_path_factory.mktemp("kernels") / "kernels.so"
    small_step_kernels.build_library(path)
    return path


@pytest.fixture(scope="session")
def library(library_path: Path) -> "KernelLibrary":
    from autotm.kernels.library import KernelLibrary

    return KernelLibrary.load(library_path)
