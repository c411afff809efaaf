"""A study as read from `config/`: checked, every name resolved; its machines, and the compiler of kernels."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from autotm.model.config import ScaleFile, StudyConfig, scale_named, sizes_at
from autotm.model.errors import AutotmError, BadInputError, unknown_name, validated
from autotm.model.files import read_yaml
from autotm.model.limit import ALL_FAST, Limit
from autotm.model.machine import (
    EmulatedTier,
    Machine,
    ModelledTier,
    cannot_run,
    deciding,
    load_gpu,
    load_machine,
    require_runnable,
)
from autotm.model.network_source import NetworkSource
from autotm.model.paths import ConvolutionPaths, MachinePaths, Paths
from autotm.solve.options import optimizer_names

MOVER, FIRST_TOUCH, CACHED, SPILLED = "synchronous", "numa", "memory-mode", "linux-preferred"
"""Optimizers that figures and headline numbers single out."""

_COMPILERS = ("g++", "gcc", "clang++", "clang", "c++", "cc")


def compiler_path() -> str | None:
    """Return the compiler that kernels are linked with: $CXX, or the first on the path; None where there is none."""
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else []
    return next(filter(None, map(shutil.which, (*wanted, *_COMPILERS))), None)


def require_compiler() -> None:
    """Raise when no compiler that can link a kernel library is on the path.

    Raises:
        AutotmError: none of the compilers that TVM looks for is there.
    """
    if compiler_path() is None:
        raise AutotmError(
            f"no C compiler found (looked for $CXX, {', '.join(_COMPILERS)}); kernels are linked with one. "
            "Install one: sudo apt-get install g++"
        )


def machine_named(config_dir: Path, name: str, threads: int | None, asked_in: object = None) -> Machine:
    """Return the machine `name` of `config/machines`, with as many threads as `asked_in` asks for.

    Raises:
        BadInputError: no such machine, a fault in its file, or no such device.
    """
    machine = load_machine(config_dir / "machines" / f"{name}.yaml", threads, asked_in)
    device_settings(config_dir, machine)
    return machine


def device_settings(config_dir: Path, machine: Machine) -> object:
    """Return the contents of the device file that the slow tier is emulated after, and of the one it builds on.

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
    """Return the settings that a measurement depends on; comments and wording of the machine's file are none."""
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


CONVENTIONAL = "conventional"
"""The workload whose figures lie in no folder of their own."""


@dataclass(frozen=True)
class Study:
    """A checked study.

    Attributes:
        config_dir: the folder that holds scales, machines and devices.
        results: the folder that the files of the study lie in.
        config: what the person wrote.
        machine: of the config, with threads resolved.
        scale: the sizes of the networks.
    """

    config_dir: Path
    results: Path
    config: StudyConfig
    machine: Machine
    scale: ScaleFile

    def on(self, machine: Machine) -> Study:
        """Return the same study on another machine, or on as many threads as it has."""
        return replace(self, machine=machine)

    @property
    def devices_dir(self) -> Path:
        """Where the device files of emulated tiers are."""
        return self.config_dir / "devices"

    @property
    def machine_paths(self) -> MachinePaths:
        """The files that all networks on the study's machine share."""
        return MachinePaths(self.results, self.machine)

    @property
    def convolution_paths(self) -> ConvolutionPaths:
        """The files of the kernel plot's convolution."""
        return ConvolutionPaths(self.results, self.machine, self.config.scale)

    def paths(self, network: str) -> Paths:
        """Return the files of a network at the study's scale, on its machine."""
        return Paths(self.results, self.machine, self.config.scale, network)

    def network(self, name: str) -> NetworkSource:
        """Return the network of that name: one's own, or of the zoo at the study's scale.

        Raises:
            BadInputError: no such network, or its own file shows that it cannot give it.
        """
        return network_source(self.config_dir, self.config, self.config.scale, name)

    def records(self, network: str, points: Iterable[tuple[str, Limit]]) -> list[Path]:
        """Return the records of a network by optimizer and limit."""
        paths = self.paths(network)
        return [paths.record(optimizer, limit) for optimizer, limit in points]

    def workload_records(self, name: str) -> list[Path]:
        """Return the records of all networks, optimizers and limits of a workload, in the order of its config.

        Optimizers that cannot run on the study's machine are left out (`model.machine.runnable`).

        Raises:
            BadInputError: the study has no such workload, or its scale no sizes for one of its networks.
        """
        if name not in self.config.workloads:
            raise unknown_name("workload", name, self.config.workloads)
        workload = self.config.workloads[name]
        with _naming(f"scale {self.config.scale}, workloads.{name}.networks"):
            for network in workload.networks:
                self.network(network)
        points = list(itertools.product(self.runnable(workload.optimizers), workload.limits))
        return [record for network in workload.networks for record in self.records(network, points)]

    def runnable(self, optimizers: Iterable[str]) -> list[str]:
        """Return those of the optimizers that can run on the study's machine."""
        return [optimizer for optimizer in optimizers if cannot_run(self.machine, optimizer) is None]

    def further_records(self, name: str, kind: Literal["predicted", "rivals"]) -> list[Path]:
        """Return the records of a workload's further optimizers of a kind, each at its own limits."""
        limits: Mapping[str, Iterable[str]] = getattr(self.config.workloads[name], kind)
        points = [(optimizer, limit) for optimizer in self.runnable(limits) for limit in limits[optimizer]]
        return [record for network in self.config.workloads[name].networks for record in self.records(network, points)]

    def case_study_records(self) -> list[Path]:
        """Return the records that figure 10 reads, in the order of its config.

        Raises:
            BadInputError: one of its optimizers cannot run on the study's machine.
        """
        case = self.config.figures.fig10
        for optimizer in case.optimizers:
            require_runnable(self.machine, optimizer)
        return self.records(case.network, itertools.product(case.optimizers, case.limits))

    def table(self, name: str) -> Path:
        """Return a table over the networks of the study's scale, on its machine."""
        return self.results / self.machine.slug / self.config.scale / name

    def configured_records(self) -> list[Path]:
        """Return the records of all workloads that the scale gives sizes for, and of the case study, each once."""
        of_workloads: list[Path] = []
        for name in self.config.workloads:
            with contextlib.suppress(BadInputError):
                of_workloads += self.workload_records(name)
                of_workloads += self.further_records(name, "predicted") + self.further_records(name, "rivals")
        return list(dict.fromkeys([*of_workloads, *self.case_study_records()]))

    def verification_records(self) -> list[Path]:
        """Return a record of every network with every optimizer, as the study's `verification` narrows them down.

        `all-fast` has one limit that it can keep: 0:1.

        Raises:
            BadInputError: the scale has no sizes for a network, or there is no such optimizer, or one that is named
                cannot run on the study's machine; of `all`, those are left out.
        """
        config = self.config.verification
        networks = sorted(self.scale.networks) if config.networks == "all" else config.networks
        optimizers = self.runnable(optimizer_names()) if config.optimizers == "all" else config.optimizers
        with _naming("verification"):
            for network in networks:
                self.network(network)
            for optimizer in optimizers:
                require_optimizer(optimizer)
                require_runnable(self.machine, optimizer)
        points = [(optimizer, ALL_FAST if optimizer == "all-fast" else config.limit) for optimizer in optimizers]
        return [record for network in networks for record in self.records(network, points)]


def load_study(raw: Mapping[str, Any], source: object, config_dir: Path, results: Path) -> Study:
    """Check a study that was read from `source`, with every file and name that it refers to.

    Raises:
        BadInputError: names file, key, value and what is allowed.
    """
    config = validated(StudyConfig, dict(raw), source)
    threads = None if config.threads == "auto" else config.threads
    machine = machine_named(config_dir, config.machine, threads, source)
    scale = scale_named(config_dir / "scales", config.scale)
    figures = config.figures
    if taken := sorted(set(config.own_networks) & {*scale.networks, *scale.blocks}):
        raise BadInputError(f"{source}: own_networks.{taken[0]}: the zoo has a network of that name; give another")
    for key in ("fig10", "front", "heap", "devices"):
        with _naming(f"{source}: figures.{key}.network"):
            network_source(config_dir, config, config.scale, getattr(figures, key).network)
    if figures.fig8.workload not in config.workloads:
        unknown = unknown_name("workload", figures.fig8.workload, config.workloads)
        raise BadInputError(f"{source}: figures.fig8.workload: {unknown}")
    named = {"figures.heap.optimizer": [figures.heap.optimizer]}
    named |= {f"figures.{key}.optimizers": getattr(figures, key).optimizers for key in ("fig10", "devices", "fig12")}
    for name in {*config.fusion.training, *config.fusion.held_out} - {*scale.networks, *scale.blocks}:
        if name not in config.own_networks:
            with _naming(f"{source}: fusion"):  # A block that the scale has no sizes for.
                NetworkSource.imported(name, {}, f"{_BLOCKS}:{name}", config_dir.parent).require()
    for name, workload in config.workloads.items():
        named |= {f"workloads.{name}.{key}": getattr(workload, key) for key in ("optimizers", "predicted", "rivals")}
    for key, optimizers in named.items():
        with _naming(f"{source}: {key}"):
            for optimizer in optimizers:
                require_optimizer(optimizer)
    return Study(config_dir, results, config, machine, scale)


@contextlib.contextmanager
def _naming(where: str) -> Iterator[None]:
    """Name the key of the config that a fault within comes from."""
    try:
        yield
    except BadInputError as error:
        raise BadInputError(f"{where}: {error}") from None


_BLOCKS = "autotm.zoo.torch.blocks"
"""The module that has the blocks of scales: only those who use them need PyTorch."""


def network_source(config_dir: Path, config: StudyConfig, scale: str, name: str) -> NetworkSource:
    """Return where the network of that name comes from, at a scale.

    Raises:
        BadInputError: neither the scale nor the study's own networks have it, or its file cannot give it.
    """
    if name not in config.own_networks:
        of_scale = scale_named(config_dir / "scales", scale)
        if name in of_scale.blocks:
            return NetworkSource.imported(name, of_scale.blocks[name], f"{_BLOCKS}:{name}", config_dir.parent)
        if name not in of_scale.networks:
            raise unknown_name("network", name, {*of_scale.networks, *of_scale.blocks, *config.own_networks})
        return NetworkSource(name, of_scale.networks[name])
    own = config.own_networks[name]
    sizes, folder = sizes_at(scale, own.sizes), config_dir.parent
    if own.torch:
        source = NetworkSource.imported(name, sizes, own.torch, folder)
    else:
        source = NetworkSource(name, sizes, str(folder / own.file), own.function)
    source.require()
    return source


def require_optimizer(name: str) -> None:
    """Raise when no optimizer has that name.

    Raises:
        BadInputError: names the nearest and all known.
    """
    if name not in optimizer_names():
        raise unknown_name("optimizer", name, optimizer_names())
