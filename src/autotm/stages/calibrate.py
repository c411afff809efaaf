"""The stage that measures a machine: copies between its memories."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from autotm.model.files import require_writable, save
from autotm.model.machine import ModelledTier, provenance
from autotm.model.step import OpClass
from autotm.model.study import load_gpu
from autotm.stages.context import Context
from autotm.stages.gpu import gpu_links, has_gpu


def calibrate_stage(context: Context, patience_s: float, *, links: Path) -> None:
    """Measure copies between the tiers, the convolutions that emulated memory is balanced against, and the cores' best.

    What others disturb is measured again, for `patience_s` or three times as long as the rest takes. On a modelled
    machine nothing is measured: its links follow from the facts of its GPU. On a GPU copies are timed by events.
    """
    tier = context.machine.slow_tier
    if isinstance(tier, ModelledTier):
        from autotm.profile.gpu import modelled_links

        require_writable(links)
        modelled = modelled_links(load_gpu(context.devices_dir, tier.device))
        save(links, "links", modelled, provenance(context.machine, context.seed))
        return
    if has_gpu(context.machine):
        machine = context.machine.to_measure_on()
        require_writable(links)
        save(links, "links", gpu_links(machine), provenance(machine, context.seed))
        return
    from autotm.kernels.code import machine_target
    from autotm.kernels.library import KernelLibrary, Yardstick
    from autotm.kernels.making import make_co_runners, make_yardsticks
    from autotm.profile.copies import measure_links

    context = context.to_measure()
    require_writable(links)
    machine = context.machine
    came_from = provenance(machine, context.seed)
    target = machine_target(machine)
    with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
        path, other = Path(folder) / "yardsticks.so", Path(folder) / "co_runners.so"
        known = make_yardsticks(target, machine.threads, path)

        def beside(flop_per_s: float) -> tuple[KernelLibrary, Mapping[OpClass, Yardstick]]:
            made = make_co_runners(target, machine.threads, other, flop_per_s)
            return KernelLibrary.load(other), made

        measured = measure_links(machine, context.devices_dir, KernelLibrary.load(path), known, beside, patience_s)
    save(links, "links", measured, came_from)
