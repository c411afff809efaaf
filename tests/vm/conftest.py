"""The guest that `make test-vm` boots; elsewhere these tests are skipped."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "pipeline"))
sys.path.insert(0, str(Path(__file__).parent))

from autotm.kernels.library import KernelLibrary
from autotm.model.machine import DaxTier, Machine, NumaTier

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "AUTOTM_VM" not in os.environ:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="make test-vm boots the machine for these tests"))


def kernels_of(name: str) -> KernelLibrary:
    """What `guest_kernels.py` compiled."""
    return KernelLibrary.load(Path(os.environ["AUTOTM_VM_KERNELS"], f"{name}.so"))


@pytest.fixture(scope="session")
def library() -> KernelLibrary:
    """Kernels of the small step."""
    return kernels_of("small")


@pytest.fixture(scope="session")
def wide_library() -> KernelLibrary:
    """Kernels of the wide step."""
    return kernels_of("wide")


@pytest.fixture(scope="session")
def dax_folder() -> Path:
    """A file system mounted with DAX on persistent memory."""
    return Path(os.environ["AUTOTM_VM_DAX"])


@pytest.fixture(scope="session")
def dax_device() -> Path:
    """Persistent memory as a device."""
    return Path(os.environ["AUTOTM_VM_DEVICE"])


def machine(tier: NumaTier | DaxTier) -> Machine:
    """One core of the guest with a slow tier."""
    return Machine("guest", 1, (0,), "host", tier, "0" * 16)


@pytest.fixture
def numa() -> Machine:
    """Node 1, the CXL card, is slow."""
    return machine(NumaTier(kind="numa", fast_nodes=(0,), slow_nodes=(1,)))


@pytest.fixture
def dax(dax_folder: Path) -> Machine:
    """The file system on persistent memory is slow."""
    return machine(DaxTier(kind="dax", path=str(dax_folder), fast_nodes=(0,)))


@pytest.fixture
def device(dax_device: Path) -> Machine:
    """The device of persistent memory is slow."""
    return machine(DaxTier(kind="dax", path=str(dax_device), fast_nodes=(0,)))
