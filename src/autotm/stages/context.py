"""Context of a stage (machine, devices, seed, what limits count), and the inputs of a placement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from autotm.model.files import load
from autotm.model.graph import CountedGraph, Graph
from autotm.model.limit import Counts, counting
from autotm.model.links import Links
from autotm.model.machine import CudaTier, Machine
from autotm.model.paths import Paths
from autotm.model.profile import Profile, read_profile


@dataclass(frozen=True)
class Context:
    """Where and with which randomness a stage runs, and what limits count."""

    machine: Machine
    devices_dir: Path
    seed: int
    counts: Counts = Counts.INTERMEDIATES

    def to_measure(self, *, on_gpu: bool = False) -> Context:
        """Return this context with a machine that this process may measure, and whose memories it can have.

        Args:
            on_gpu: whether the stage measures on a GPU where the machine has one; it opens that GPU's memory itself.

        Raises:
            BadInputError: as `Machine.to_measure_on` and `open_tiers`.
        """
        from autotm.memory.opening import open_tiers

        machine = self.machine.to_measure_on()
        if not (on_gpu and isinstance(machine.slow_tier, CudaTier)):
            open_tiers(machine, None, 0, 0, self.devices_dir, stretch=1.0).close()
        return replace(self, machine=machine)


@dataclass(frozen=True)
class PlacementInputs:
    """Step, profile and links of a network; the file of each is read once, when it is first asked for.

    Raises:
        DamagedFileError: one of them cannot be read.
    """

    paths: Paths

    def read(self, counts: Counts) -> tuple[CountedGraph, Profile, Links]:
        """Return the step, the times and the copies."""
        return self.step(counts), self.times, self.copies

    def step(self, counts: Counts) -> CountedGraph:
        """Return the step as limits that count so see it."""
        return counting(self.lowered, counts)

    @cached_property
    def times(self) -> Profile:
        """Times of the step's kernels."""
        return read_profile(self.paths.profile)

    @cached_property
    def copies(self) -> Links:
        """Measured copies between the tiers."""
        return load(self.paths.links, "links", Links)

    @cached_property
    def lowered(self) -> Graph:
        """The step as compiled."""
        return load(self.paths.graph, "graph", Graph)
