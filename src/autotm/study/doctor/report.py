"""The findings for a terminal, and a first machine file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from autotm.model.files import BadInputError, write_atomically
from autotm.model.machine import MachineFile, cpu_model
from autotm.study.doctor.facts import Finding
from autotm.study.tables import columns

DEVICE = "optane-dcpmm"


def findings_text(found: Sequence[Finding]) -> str:
    """A line for each."""
    return columns([("", "found", "", ""), *((one.what, one.found, str(one.use), one.why) for one in found)], left=4)


def write_machine_file(path: Path) -> None:
    """Write a machine file for this computer: all its cores, slow memory emulated.

    Raises:
        BadInputError: there is a file of that name.
    """
    if path.exists():
        raise BadInputError(f"{path}: there is such a machine; give another name, or remove the file")
    contents = {
        "description": f"{cpu_model()}, with persistent memory emulated beside its DRAM.",
        "threads": "auto",
        "slow_tier": {"kind": "emulated", "device": DEVICE, "share": "balanced"},
    }
    MachineFile.model_validate(contents)
    text = yaml.safe_dump(contents, sort_keys=False, width=1000)
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
