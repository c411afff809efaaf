"""Machines by name, and what of them decides a measurement."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from autotm.model.machine import EmulatedTier, Machine, ModelledTier, deciding, load_machine
from autotm.model.study import load_gpu, read_yaml


def machine_named(config_dir: Path, name: str, threads: int | None, asked_in: object = None) -> Machine:
    """The machine `name` of `config/machines`, with as many threads as `asked_in` asks for.

    Raises:
        BadInputError: no such machine, a fault in its file, or no such device.
    """
    machine = load_machine(config_dir / "machines" / f"{name}.yaml", threads, asked_in)
    device_settings(config_dir, machine)
    return machine


def device_settings(config_dir: Path, machine: Machine) -> object:
    """The contents of the device file that the machine's slow tier is emulated after, and of the one it builds on.

    Of a modelled GPU its file; None where nothing is emulated or modelled.
    """
    if isinstance(machine.slow_tier, ModelledTier):
        return load_gpu(config_dir / "devices", machine.slow_tier.device).model_dump()
    if not isinstance(machine.slow_tier, EmulatedTier):
        return None
    settings = read_yaml(config_dir / "devices" / f"{machine.slow_tier.device}.yaml", "device")
    if not isinstance(settings, dict) or "hidden_as" not in settings:
        return settings
    return settings | {"hidden_as": read_yaml(config_dir / "devices" / f"{settings['hidden_as']}.yaml", "device")}


def machine_settings(config_dir: Path, machine: Machine) -> dict[str, Any]:
    """What of the machine decides a measurement; comments and wording of its file do not."""
    settings = asdict(machine) | {"slow_tier": deciding(machine.slow_tier)}
    for key in ("file_hash", "slurm"):
        del settings[key]
    if settings["cores"] is None:
        del settings["cores"]
    else:
        del settings["cores"]["source"]
    for key in ("memory_mode", "cache_bytes"):  # results from before there were such keys stay valid
        if not settings[key]:
            del settings[key]
    return settings | {"device": device_settings(config_dir, machine)}
