"""The findings for a terminal, and a first machine file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from autotm.model.files import BadInputError, write_atomically
from autotm.model.machine import MachineFile, cpu_model
from autotm.study.doctor.finding import Finding
from autotm.study.doctor.slow_memories import SlowMemory
from autotm.study.tables import columns

DEVICE = "optane-dcpmm"


def findings_text(found: Sequence[Finding]) -> str:
    """A line for each."""
    return columns([("", "found", "", ""), *((one.what, one.found, str(one.use), one.why) for one in found)], left=4)


def write_machine_file(path: Path, slow: Sequence[SlowMemory]) -> None:
    """Write a machine file for this computer: all its cores, and the first of `slow` that can be used, or emulated.

    Devices are left to people: a run overwrites what is in them.

    Raises:
        BadInputError: there is a file of that name.
    """
    if path.exists():
        raise BadInputError(f"{path}: there is such a machine; give another name, or remove the file")
    usable = next(((one, one.tier) for one in slow if one.tier is not None and not one.caution), None)
    tier: dict[str, object] = {"kind": "emulated", "device": DEVICE, "share": "balanced"}
    memory = "persistent memory emulated beside its DRAM"
    if usable is not None:
        memory = f"{usable[0].what} as slow memory"
        tier = {"kind": usable[1].kind} | usable[1].model_dump(mode="json", exclude_defaults=True)
    contents = {"description": f"{cpu_model()}, with {memory}.", "threads": "auto", "slow_tier": tier}
    MachineFile.model_validate(contents)
    text = yaml.safe_dump(contents, sort_keys=False, width=1000)
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
