"""The cores' best rate of copies within fast memory."""

from autotm.memory.calibration import copy_bytes_per_s
from autotm.model.cores import Watch
from autotm.model.machine import Machine


def test_the_rate_is_one_of_a_memory(machine: Machine) -> None:
    assert 1e7 < copy_bytes_per_s(machine, Watch(machine.cpus, 0.0), 8 << 20) < 1e13
