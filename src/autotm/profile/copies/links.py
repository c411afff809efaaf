"""What a machine can do: copies between its memories, its cores at best, what copies and kernels cost each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from autotm.kernels.library import (
    KernelLibrary,
    Yardstick,
    Yardsticks,
    co_runners,
    contraction_flop_per_s,
    multiply_add_flop_per_s,
)
from autotm.memory import calibrate_links, copy_bytes_per_s
from autotm.model.machine import Machine, Watch
from autotm.model.measurement import Links, MachineRates
from autotm.model.step import OpClass

Beside = Callable[[float], tuple[KernelLibrary, Mapping[OpClass, Yardstick]]]
"""A kernel of each op class for cores whose convolutions reach a rate, in floating-point operations a second."""


def measure_links(
    machine: Machine, devices_dir: Path, library: KernelLibrary, known: Yardsticks, beside: Beside, patience_s: float
) -> Links:
    """Copies between the tiers, the convolutions that emulated memory is balanced against, and the cores' best.

    What others disturb is measured again, for `patience_s` or three times as long as the rest takes.

    Args:
        machine: the machine this process runs on.
        devices_dir: folder of the device files.
        library: holds the kernels of `known`.
        known: what tells the cores' rate, compiled for the machine's threads.
        beside: kernels to run beside copies.
        patience_s: as above.

    Raises:
        AutotmError: kernels run on fewer threads than the machine asks for.
    """
    watch = Watch(machine.cpus, patience_s)
    rate = contraction_flop_per_s(library, known, machine, watch)
    best = MachineRates(multiply_add_flop_per_s(library, known, machine, watch), copy_bytes_per_s(machine, watch))
    with co_runners(*beside(rate), machine) as kernels:
        measured = calibrate_links(machine, devices_dir, rate, kernels, watch)
    return replace(measured, rates=best)
