"""The emulation model: exact delays, additive over operands, stretched as the machine file says."""

from pathlib import Path

import pytest

from autotm.memory.device_file import load_device
from autotm.memory.emulation import Emulation, emulation_stretch, stretch_of
from autotm.model.errors import BadInputError
from autotm.model.graph import OpClass, Tier
from autotm.model.links import Link, Links
from autotm.model.machine import EmulatedTier

BALANCED = EmulatedTier(kind="emulated", device="plain", share="balanced")
WHOLE = EmulatedTier(kind="emulated", device="plain", share="whole")


@pytest.fixture
def emulation(devices_dir: Path) -> Emulation:
    return Emulation(load_device(devices_dir, "plain"), 1.0)


@pytest.mark.parametrize(
    ("op_class", "reads", "writes", "expected_ns"),
    [
        (OpClass.ELEMENTWISE, (), (), 0),
        (OpClass.ELEMENTWISE, (1000,), (), 500),
        (OpClass.ELEMENTWISE, (), (1000,), 2000),
        (OpClass.ELEMENTWISE, (1000, 600), (100, 50), 1100),
        (OpClass.CONV_FORWARD, (1000, 600), (100, 50), 2200),
        (OpClass.REDUCTION, (1,), (), 0),
        (OpClass.REDUCTION, (3,), (), 2),
    ],
)
def test_delay_is_the_sum_over_slow_operands(
    emulation: Emulation, op_class: OpClass, reads: tuple[int, ...], writes: tuple[int, ...], expected_ns: int
) -> None:
    delay = emulation.kernel_delay_ns(op_class, reads, writes)
    assert delay == expected_ns
    assert isinstance(delay, int)


def test_workspace_counts_as_written_and_read(emulation: Emulation) -> None:
    assert emulation.kernel_delay_ns(OpClass.MATMUL, (1000,), (1000,)) == 2500


def test_first_touch_is_charged_per_written_operand_when_asked(emulation: Emulation) -> None:
    assert emulation.kernel_delay_ns(OpClass.MATMUL, (64,), (64, 64), first_touch=True) == 32 + 256 + 2000


def test_stretch_scales_delays_and_moves(devices_dir: Path) -> None:
    stretched = Emulation(load_device(devices_dir, "plain"), 2.5)
    assert stretched.kernel_delay_ns(OpClass.ELEMENTWISE, (1000,), (1000,)) == 6250
    assert stretched.move_ns(Tier.FAST, 1000) == 2500
    assert stretched.move_ns(Tier.SLOW, 1000) == 5000


def test_this_machines_fast_memory_is_not_stretched(devices_dir: Path) -> None:
    device = load_device(devices_dir, "plain")
    assert Emulation(device, 2.5).fast_ns(1000) == 0, "not measured"
    assert Emulation(device, 2.5, fast_bytes_per_s=2e9).fast_ns(1000) == 500


def test_balanced_stretch_keeps_compute_to_memory_ratio(devices_dir: Path) -> None:
    device = load_device(devices_dir, "plain")
    assert emulation_stretch(device, BALANCED, 0.5e12) == 4
    assert emulation_stretch(device, BALANCED, 8e12) == 0.25
    assert emulation_stretch(device, WHOLE, 0.5e12) == 1


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_impossible_rates_are_refused(devices_dir: Path, rate: float) -> None:
    with pytest.raises(BadInputError, match="contraction rate"):
        emulation_stretch(load_device(devices_dir, "plain"), BALANCED, rate)


def test_stretch_comes_from_calibration() -> None:
    links = Links(Link(Tier.FAST, ((1, 1), (2, 2))), Link(Tier.SLOW, ((1, 1), (2, 2))), 1e12, 3.5)
    assert stretch_of(BALANCED, links) == 3.5
    assert stretch_of(WHOLE, None) == 1
    with pytest.raises(BadInputError, match="rule calibrate"):
        stretch_of(BALANCED, None)
