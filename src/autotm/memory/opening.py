"""Opens the two memories of a machine, by the kind of its slow memory."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from autotm.memory import kinds
from autotm.memory.tiers import Tiers
from autotm.model.links import Links
from autotm.model.machine import Machine, require_runnable
from autotm.model.program import Program


def open_tiers(
    machine: Machine,
    links: Links | None,
    fast_bytes: int,
    slow_bytes: int,
    devices_dir: Path,
    *,
    stretch: float | None = None,
) -> Tiers:
    """Allocate and touch both pools of `machine`.

    Args:
        machine: says what plays slow memory, and which cores copy.
        links: calibration results, which also say how copies are made; None only where nothing is stretched or
            `stretch` is given.
        fast_bytes: size of the pool in fast memory.
        slow_bytes: size of the pool in slow memory.
        devices_dir: folder of the device files (`config/devices`).
        stretch: factor on emulated delays in place of the one in `links`; for calibration, which has no links yet.

    Raises:
        BadInputError: unknown kind or device, a faulty device file, or missing calibration results.
        AutotmError: the system does not give the memory.
    """
    module = _module_of(machine)
    opened: Tiers = module.open_kind(machine, links, fast_bytes, slow_bytes, devices_dir, stretch=stretch)
    if links is not None:
        opened.copy_as_measured(links.curves)
    return opened


def open_for(program: Program, machine: Machine, links: Links, devices_dir: Path) -> Tiers:
    """Open a program's pools as `open_tiers` does, or, where Linux is to place its pages and can, as `open_paged` does.

    Raises:
        as `open_tiers`; BadInputError, too, where the machine has no such cache, or Linux cannot follow the policy.
    """
    if program.cache_traffic_bytes or program.paged_traffic:
        require_runnable(machine, program.optimizer)
    if program.paged_traffic and (open_paged := getattr(_module_of(machine), "open_paged", None)):
        paged: Tiers = open_paged(program, machine)
        return paged
    return open_tiers(machine, links, program.fast_bytes, program.slow_bytes, devices_dir)


def _module_of(machine: Machine) -> ModuleType:
    """Find the module of the machine's kind of slow tier, one that a machine file can choose."""
    return importlib.import_module(f"{kinds.__name__}.{machine.slow_tier.kind}")
