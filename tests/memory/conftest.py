"""A machine with emulated slow memory, and a device whose constants are easy to calculate with."""

from pathlib import Path

import pytest

from autotm.model.cores import usable_cpus
from autotm.model.graph import OpClass
from autotm.model.machine import EmulatedTier, Machine

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def repository() -> Path:
    """Root of the checkout."""
    return REPOSITORY


@pytest.fixture
def devices_dir(tmp_path: Path) -> Path:
    """A folder with one device, `plain`: reads 0.5 ns/B, writes 2 ns/B, but twice both for convolutions."""
    folder = tmp_path / "devices"
    folder.mkdir()
    costs = "\n".join(
        f"  {op_class}: {{read_ns_per_byte: {1.0 if 'conv' in op_class else 0.5}, "
        f"write_ns_per_byte: {4.0 if 'conv' in op_class else 2.0}}}"
        for op_class in OpClass
    )
    (folder / "plain.yaml").write_text(
        "description: round numbers\n"
        "source: none\n"
        "moves: {to_fast_bytes_per_s: 1.0e+9, to_slow_bytes_per_s: 0.5e+9}\n"
        "asynchronous_moves: {to_fast_bytes_per_s: 0.25e+9, to_slow_bytes_per_s: 0.125e+9}\n"
        "contraction_flop_per_s: 2.0e+12\n"
        "first_touch_ns: 1000\n"
        f"kernels:\n{costs}\n",
        encoding="utf-8",
    )
    return folder


@pytest.fixture
def machine() -> Machine:
    """This computer with the device `plain`, balanced."""
    tier = EmulatedTier(kind="emulated", device="plain", share="balanced")
    cpus = usable_cpus()[:2]
    return Machine("test", len(cpus), cpus, "host", tier, "0" * 16)
