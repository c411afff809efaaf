"""The cores' best rate of multiply-adds: positive, and more than what a contraction reaches."""

from __future__ import annotations

import math
from pathlib import Path

import small_step

from autotm.kernels.library import KernelLibrary
from autotm.kernels.target import host_target
from autotm.kernels.yardstick_kernels import make_yardsticks, register_loop
from autotm.kernels.yardsticks import multiply_add_flop_per_s
from autotm.model.cores import Watch


def test_the_loop_counts_what_it_does() -> None:
    run, flops = register_loop(host_target(), 1)
    run()
    assert flops == 2 * register_loop(host_target(), 2)[1] // 4


def test_a_rate_is_measured(tmp_path: Path) -> None:
    machine, path = small_step.machine(), tmp_path / "yardsticks.so"
    known = make_yardsticks(host_target(machine.threads), machine.threads, path)
    rate = multiply_add_flop_per_s(KernelLibrary.load(path), known, machine, Watch(machine.cpus, 0.0))
    assert 0 < rate < math.inf
