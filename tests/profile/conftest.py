from pathlib import Path

import pytest

import small_step
from autotm.kernels.library import KernelLibrary


@pytest.fixture(scope="session")
def library_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kernels") / "kernels.so"
    small_step.build_library(path)
    return path


@pytest.fixture(scope="session")
def library(library_path: Path) -> KernelLibrary:
    return KernelLibrary.load(library_path)
