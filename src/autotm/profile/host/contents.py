"""The files of a bundle that are of one step: what was compiled and planned at home, and how it is to be measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotm.kernels.library import FatbinLibrary, KernelLibrary, Yardstick, Yardsticks
from autotm.model.files import load
from autotm.model.machine import Machine, load_machine
from autotm.model.measurement import Links, Profile, read_profile
from autotm.model.plan import Plan, Program
from autotm.model.step import Counts, Graph, OpClass

CPU, CUDA = "cpu", "cuda"


@dataclass(frozen=True)
class Settings:
    """What is in a bundle, and how the study measures it (`step/bundle.json`).

    Attributes:
        target: of the kernels: `cpu` or `cuda`.
        network, scale, optimizer, limit: of the plan, as commands take them.
        plan_folder: where plan, program and record lie below the network's results.
        machine: name of the machine file.
        threads: that kernels were built for.
        counts: what the limit counts.
        seed: of what is drawn.
        run: how runs are verified and timed (`run` of the study).
        timing: how kernels are timed (`profile` of the study).
        step_tolerance: share by which kernels and whole steps may differ before that is told.
        patience_s: for which what others disturbed is measured again.
    """

    target: str
    network: str
    scale: str
    optimizer: str
    limit: str
    plan_folder: str
    machine: str
    threads: int
    counts: Counts
    seed: int
    run: Mapping[str, Any]
    timing: Mapping[str, Any]
    step_tolerance: float
    patience_s: float


@dataclass(frozen=True)
class CoRunners:
    """What `co_runners.so` holds.

    Attributes:
        kernels: milliseconds each; the op class is the symbol.
    """

    kernels: Mapping[OpClass, Yardstick]


@dataclass(frozen=True)
class Contents:
    """A bundle's folder `step`; every file is read when it is asked for.

    Attributes:
        folder: that folder.
    """

    folder: Path

    @property
    def settings(self) -> Settings:
        """What the bundle is of."""
        return load(self.folder / "bundle.json", "bundle", Settings)

    @property
    def graph(self) -> Graph:
        """The step."""
        return load(self.folder / "graph.json", "graph", Graph)

    @property
    def plan(self) -> Plan:
        """Where its tensors are."""
        return load(self.folder / "plan.json", "plan", Plan)

    @property
    def is_planned(self) -> bool:
        """Whether its program follows a plan."""
        return (self.folder / "plan.json").exists()

    @property
    def program(self) -> Program:
        """The plan with addresses."""
        return load(self.folder / "program.json", "program", Program)

    @property
    def links(self) -> Links:
        """Copies of the machine that the plan was made for."""
        return load(self.folder / "links.json", "links", Links)

    @property
    def profile(self) -> Profile:
        """Kernel times that the plan was made from."""
        return read_profile(self.folder / "profile.json")

    @property
    def library(self) -> KernelLibrary:
        """The compiled kernels."""
        return KernelLibrary.load(self.folder / "kernels.so")

    @property
    def fatbin(self) -> FatbinLibrary:
        """Kernels for GPUs."""
        return FatbinLibrary.load(self.folder / "kernels.fatbin.zip")

    @property
    def yardsticks(self) -> tuple[KernelLibrary, Yardsticks]:
        """Kernels of known work, which calibration times."""
        known = load(self.folder / "yardsticks.json", "yardsticks", Yardsticks)
        return KernelLibrary.load(self.folder / "yardsticks.so"), known

    @property
    def co_runners(self) -> tuple[KernelLibrary, Mapping[OpClass, Yardstick]]:
        """A kernel of each op class, to run beside copies."""
        known = load(self.folder / "co_runners.json", "co_runners", CoRunners)
        return KernelLibrary.load(self.folder / "co_runners.so"), known.kernels

    @property
    def devices_dir(self) -> Path:
        """Files of emulated devices."""
        return self.folder / "devices"

    def machine(self, threads: int | None) -> Machine:
        """This computer as the bundle's machine file has it, with as many threads as the kernels were built for.

        Raises:
            BadInputError: it has too few cores, or not the slow memory of the file.
        """
        wanted, asked = (self.settings.threads, "the bundle") if threads is None else (threads, "--threads")
        return load_machine(self.folder / f"{self.settings.machine}.yaml", wanted, asked).to_measure_on()
