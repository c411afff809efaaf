"""What every stage is told: machine, devices, seed, and what limits count."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from autotm.model.machine import Machine
from autotm.model.step import Counts


@dataclass(frozen=True)
class Context:
    """Where and with which randomness a stage runs, and what limits count."""

    machine: Machine
    devices_dir: Path
    seed: int
    counts: Counts = Counts.INTERMEDIATES

    def to_measure(self) -> Context:
        """With a machine that this process may take times on, and whose memories it can have.

        Raises:
            BadInputError: as `Machine.to_measure_on` and `open_tiers`.
        """
        from autotm.memory import open_tiers

        machine = self.machine.to_measure_on()
        open_tiers(machine, None, 0, 0, self.devices_dir, stretch=1.0).close()
        return replace(self, machine=machine)
