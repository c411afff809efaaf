"""Where the files of a study lie. The rules write the same paths as patterns; a test compares the two."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotm.model.graph import Tier
from autotm.model.limit import Limit
from autotm.model.machine import Machine

FRAMEWORK_FILE = "torch.json"
"""Name of the file that records a framework's own step; a program's run is recorded in `record.json`."""


@dataclass(frozen=True)
class MachinePaths:
    """The files that all networks on one machine share, under `results`."""

    results: Path
    machine: Machine

    @property
    def _of_machine(self) -> Path:
        return self.results / self.machine.slug

    @property
    def links(self) -> Path:
        """The file with the speeds of copies and the rates that calibration measured."""
        return self._of_machine / "links.json"

    @property
    def store(self) -> Path:
        """The kernel store: timings kept across networks and runs; a cache, not a result."""
        return self._of_machine / "kernels.sqlite"

    @property
    def fusion_store(self) -> Path:
        """The store of kernels as fusion times them, their operands in the caches; a cache, not a result."""
        return self._of_machine / "fusion.sqlite"

    @property
    def objects(self) -> Path:
        """Machine code of kernels, kept across networks and runs; a cache, not a result."""
        return self._of_machine / "objects"

    @property
    def values(self) -> Path:
        """Weights and inputs that came with networks, each in a file named after its content; steps read them."""
        return self._of_machine / "values"


@dataclass(frozen=True)
class ConvolutionPaths(MachinePaths):
    """The files of the kernel plot's convolution at one scale on one machine, beside those of the networks."""

    scale: str

    @property
    def graph(self) -> Path:
        """The convolution as a step of its own."""
        return self._of_machine / self.scale / "convolution_graph.json"

    @property
    def library(self) -> Path:
        """The file with the convolution's compiled kernel."""
        return self._of_machine / self.scale / "convolution_kernels.so"

    @property
    def profile(self) -> Path:
        """The file with the convolution's times in all placements of its tensors."""
        return self._of_machine / self.scale / "convolution_profile.parquet"


@dataclass(frozen=True)
class ControlPaths(MachinePaths):
    """The files of one model with control flow at one scale on one machine, beside those of the networks."""

    scale: str
    model: str

    def study(self, case: str) -> Path:
        """Return the times of all systems in a case, such as `b1` or `hidden`; of all rewrites in `search`."""
        return self._of_machine / self.scale / "control_flow" / self.model / f"{case}.json"


@dataclass(frozen=True)
class Paths(MachinePaths):
    """The files of one network at one scale on one machine, under `results`."""

    scale: str
    network: str

    @property
    def _of_network(self) -> Path:
        return self._of_machine / self.scale / self.network

    @property
    def graph(self) -> Path:
        """The training step."""
        return self._of_network / "graph.json"

    @property
    def library(self) -> Path:
        """The file with the step's compiled kernels."""
        return self._of_network / "kernels.so"

    @property
    def profile(self) -> Path:
        """Times of its kernels by configuration."""
        return self._of_network / "profile.parquet"

    @property
    def timing_study(self) -> Path:
        """The file with the times of the network's kernels, measured in several ways."""
        return self._of_network / "timing_study.json"

    @property
    def reference(self) -> Path:
        """The file with results of the plain step, which other steps are verified against; a cache, not a result."""
        return self._of_network / "reference.json"

    def plan(self, optimizer: str, limit: Limit) -> Path:
        """Return the solver's answer."""
        return self._of_network / optimizer / limit.slug / "plan.json"

    def program(self, optimizer: str, limit: Limit) -> Path:
        """Return the plan with addresses."""
        return self._of_network / optimizer / limit.slug / "program.json"

    def record(self, optimizer: str, limit: Limit) -> Path:
        """Return the file with the measurements of a run of the program."""
        return self._of_network / optimizer / limit.slug / "record.json"

    def framework(self, optimizer: str, limit: Limit) -> Path:
        """Return the file with the measurements of a framework's own step, on a machine with a GPU."""
        return self._of_network / optimizer / limit.slug / FRAMEWORK_FILE

    def modelled(self, optimizer: str, limit: Limit) -> Path:
        """Return the step of the plan, or of a rival, on a GPU that is modelled."""
        return self._of_network / optimizer / limit.slug / "modelled.json"

    def fusion(self, step: str, what: str = "optimum") -> Path:
        """Return a file on the groupings of a step's operators, `training` or `inference`: by default of the best."""
        return self.fusion_learning(f"{self.network}/{step}/{what}")

    @property
    def placements(self) -> Path:
        """The file with what searches for placements of the tensors found."""
        return self._of_network / "placements.json"

    def fusion_learning(self, what: str) -> Path:
        """Return a file on what is learned about fusion from several networks."""
        return self._of_machine / self.scale / "fusion" / f"{what}.json"

    def fusion_search(self, algorithm: str, seed: int) -> Path:
        """Return the file with what a search for the best grouping of the training step's operators found."""
        return self.fusion("training", f"{algorithm}-{seed}")

    def view(self, optimizer: str, limit: Limit) -> Path:
        """Return the plan as a page; nothing depends on it."""
        return self._of_network / optimizer / limit.slug / "view.html"

    def trace(self, optimizer: str, limit: Limit) -> Path:
        """Return a measured step of the program, for trace viewers; nothing depends on it."""
        return self._of_network / optimizer / limit.slug / "trace.json"

    def stays(self, optimizer: str, limit: Limit) -> dict[Tier, Path]:
        """Return the buffers of each pool, for packers; nothing depends on them."""
        folder = self._of_network / optimizer / limit.slug
        return {Tier.FAST: folder / "stays_fast.csv", Tier.SLOW: folder / "stays_slow.csv"}

    def sweep(self, optimizer: str) -> Path:
        """Return the folder of what `autotm sweep` found; nothing depends on it."""
        return self._of_network / optimizer / "sweep"

    def sensitivity(self, limit: Limit) -> Path:
        """Return the file with the effect of resampled kernel times on the plans for a limit; nothing depends on it."""
        return self._of_network / "sensitivity" / f"{limit.slug}.json"
