"""The cores' best rate of multiply-adds: positive, and more than what a contraction reaches."""

from __future__ import annotations

import small_step

from autotm.kernels.code.target import host_target
from autotm.kernels.making.multiply_adds import multiply_add_flop_per_s, register_loop
from autotm.model.machine.cores import Watch


def test_the_loop_counts_what_it_does() -> None:
    run, flops = register_loop(host_target(), 1)
    run()
    assert flops == 2 * register_loop(host_target(), 2)[1] // 4


def test_the_rate_is_one_of_a_processor() -> None:
    machine = small_step.machine()
    assert 1e8 < multiply_add_flop_per_s(machine, host_target(), Watch(machine.cpus, 0.0)) < 1e13
