"""The stage that measures a machine: copies between its memories."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autotm.model.files import save
from autotm.model.machine import Watch, provenance
from autotm.model.measurement import MachineRates
from autotm.stages.context import Context


def calibrate_stage(context: Context, patience_s: float, *, links: Path) -> None:
    """Measure copies between the tiers, the convolutions that emulated memory is balanced against, and the cores' best.

    What others disturb is measured again, for `patience_s` or three times as long as the rest takes.
    """
    from autotm.kernels.code import machine_target
    from autotm.kernels.making import co_runners, contraction_flop_per_s, multiply_add_flop_per_s
    from autotm.memory import calibrate_links, copy_bytes_per_s

    context = context.to_measure()
    came_from = provenance(context.machine, context.seed)
    watch = Watch(context.machine.cpus, patience_s)
    machine, target = context.machine, machine_target(context.machine)
    rate = contraction_flop_per_s(machine, target, watch)
    best = MachineRates(multiply_add_flop_per_s(machine, target, watch), copy_bytes_per_s(machine, watch))
    with co_runners(machine, target) as kernels:
        measured = calibrate_links(machine, context.devices_dir, rate, kernels, watch)
    save(links, "links", replace(measured, rates=best), came_from)
