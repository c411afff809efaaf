"""Vector width follows the target's CPU, not the host's."""

from dataclasses import replace

import pytest
import small_step
import tvm

from autotm.kernels.target import TargetInfo, host_target, machine_target, target_info
from autotm.model.errors import BadInputError


@pytest.mark.parametrize(
    ("cpu", "lanes", "registers"),
    [("x86-64", 4, 16), ("core-avx2", 8, 16), ("znver3", 8, 16), ("znver5", 16, 32), ("sapphirerapids", 16, 32)],
)
def test_lanes_follow_the_instruction_set(cpu: str, lanes: int, registers: int) -> None:
    info = target_info(tvm.target.Target({"kind": "llvm", "mcpu": cpu}))
    assert (info.lanes, info.registers) == (lanes, registers)
    assert 8 << 10 <= info.l1_bytes < info.l2_bytes


def test_host_target_carries_the_thread_count() -> None:
    assert int(host_target(3).attrs["num-cores"]) == 3


@pytest.mark.parametrize("text", ["no such target", '{"kind": "llvm", "mcpu": 3}'])
def test_a_target_that_tvm_does_not_know_is_refused_with_an_example(text: str) -> None:
    machine = replace(small_step.machine(), target=text)
    with pytest.raises(BadInputError, match=r"^machine 'test': target: .* is not a TVM target \(.+\); give host, or"):
        machine_target(machine)


def test_impossible_properties_are_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        TargetInfo(lanes=0, registers=16, l1_bytes=1, l2_bytes=1)
