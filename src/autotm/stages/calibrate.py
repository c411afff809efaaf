"""The stage that measures a machine: copies between its memories."""

from __future__ import annotations

from pathlib import Path

from autotm.model.files import save
from autotm.model.machine import Watch, provenance
from autotm.stages.context import Context


def calibrate_stage(context: Context, patience_s: float, *, links: Path) -> None:
    """Measure copies between the tiers, and the rate of convolutions that emulated memory is balanced against.

    What others disturb is measured again, for `patience_s` or three times as long as the rest takes.
    """
    from autotm.kernels.code import machine_target
    from autotm.kernels.making import co_runners, contraction_flop_per_s
    from autotm.memory import calibrate_links

    came_from = provenance(context.machine, context.seed)
    watch = Watch(context.machine.cpus, patience_s)
    rate = contraction_flop_per_s(context.machine, machine_target(context.machine), watch)
    with co_runners(context.machine, machine_target(context.machine)) as kernels:
        measured = calibrate_links(context.machine, context.devices_dir, rate, kernels, watch)
    save(links, "links", measured, came_from)
