"""`check`, `run` and `profile` of a bundle, as its launcher calls them, and the bundle's files that they read."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from autotm.kernels.compute_rates import CalibrationKernels
from autotm.kernels.library import FatbinLibrary, KernelLibrary
from autotm.model.errors import AutotmError
from autotm.model.files import load, require_writable, save, write_results
from autotm.model.graph import Graph
from autotm.model.limit import Counts
from autotm.model.links import Links
from autotm.model.machine import load_machine
from autotm.model.plan import Plan
from autotm.model.profile import Profile, read_profile, write_profile
from autotm.model.program import Program
from autotm.model.provenance import provenance
from autotm.model.record import Record
from autotm.profile import host_gpu
from autotm.profile.copies import measure_links
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.step_profile import profile_step
from autotm.profile.store import KernelStore
from autotm.runtime.run import run
from autotm.runtime.step_times import RunOptions
from autotm.runtime.streams.executor import OpenDevice, open_machines_gpu
from autotm.runtime.streams.run import run_on_device
from autotm.runtime.verify import verified

# The files of a bundle that are of one step: what was compiled and planned at home, and how it is to be measured.

CPU, CUDA = "cpu", "cuda"


@dataclass(frozen=True)
class Settings:
    """Description of a bundle, and how the study measures it (`step/bundle.json`).

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


T = TypeVar("T")
_KINDS: dict[type, str] = {Settings: "bundle", Graph: "graph", Plan: "plan", Program: "program", Links: "links"}
"""Kind of the file that each type is read from; the file has that name."""


class Contents:
    """A bundle's folder `step` on this computer; every file is read when it is asked for.

    Attributes:
        folder: that folder.
        settings: what the bundle is of.
        machine: this computer as the bundle's machine file has it.
    """

    def __init__(self, folder: Path, threads: int | None) -> None:
        """Use `threads` threads; if None, as many as the kernels were built for.

        Raises:
            BadInputError: this computer has too few cores, or not the slow memory of the file.
        """
        self.folder = folder
        self.settings = self.read(Settings)
        wanted, asked = (self.settings.threads, "the bundle") if threads is None else (threads, "--threads")
        self.machine = load_machine(folder / f"{self.settings.machine}.yaml", wanted, asked).to_measure_on()

    def read(self, kind: type[T]) -> T:
        """Settings, the step's graph, its plan or program, or the links of the machine that it was planned for."""
        return load(self.folder / f"{_KINDS[kind]}.json", _KINDS[kind], kind)

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

    def open_gpu(self) -> OpenDevice:
        """Return the function that opens the machine's GPU with these kernels."""
        return partial(open_machines_gpu, self.machine, self.fatbin)

    def calibration(self, name: str) -> tuple[KernelLibrary, CalibrationKernels]:
        """Kernels of known work: `rates`, which calibration times, or `co_runners`, to run beside copies."""
        known = load(self.folder / f"{name}.json", name, CalibrationKernels)
        return KernelLibrary.load(self.folder / f"{name}.so"), known

    @property
    def devices_dir(self) -> Path:
        """Files of emulated devices."""
        return self.folder / "devices"

    def output(self, to: Path | None, what: str) -> Path:
        """The file that results go to: `to`, or one beside the bundle.

        Raises:
            OSError: it cannot be written.
        """
        file = to or self.folder.parents[1] / f"{self.settings.network}-{what}.zip"
        require_writable(file)
        return file


log = logging.getLogger("autotm")

_DONE, _FAULT = 0, 1
_CHECKED_STEPS = 2


def main(folder: Path, arguments: Sequence[str], program: str) -> int:
    """Run one command of the bundle in `folder`; returns the exit status.

    Args:
        folder: of the bundle, unpacked.
        arguments: what follows its name.
        program: how it was called, for the help.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    asked = _parsed(arguments, program)
    to = None if asked.to is None else asked.to.absolute()
    try:
        os.chdir(folder / "step")  # Values of tensors lie where the graph says, from here.
        asked.command(Contents(folder / "step", asked.threads), to)
    except AutotmError as error:
        log.error("%s", error)  # noqa: TRY400 - the message is all a user needs
        return _FAULT
    except OSError as error:
        if error.filename is None:
            raise
        log.error("%s: %s; give another place with --to", error.filename, error.strerror)  # noqa: TRY400 - as above
        return _FAULT
    return _DONE


def check(contents: Contents, to: Path | None) -> None:
    """Load everything, and compare steps of the program with the plain step's, bit for bit; dead memory is NaN."""
    del to
    settings, program, machine = contents.settings, contents.read(Program), contents.machine
    if settings.target == CUDA:
        _tell_same(settings, program, _compared_on_gpu(contents, program), "on the GPU")
        return
    names = verified(
        contents.read(Graph),
        contents.library,
        program,
        settings.counts,
        machine,
        contents.read(Links),
        settings.seed,
        _CHECKED_STEPS,
        contents.devices_dir,
    )
    _tell_same(settings, program, len(names), f"on {machine.threads} threads")


def _compared_on_gpu(contents: Contents, program: Program) -> int:
    settings = contents.settings
    return host_gpu.compared(
        contents.read(Graph), program, settings.counts, settings.seed, _CHECKED_STEPS, contents.open_gpu()
    )


def _tell_same(settings: Settings, program: Program, results: int, where: str) -> None:
    sys.stdout.write(
        f"{settings.network}, {program.optimizer} at {program.limit}: {_CHECKED_STEPS} steps equal the plain step bit "
        f"for bit in all {results} results, {where}\n"
    )


def run_program(contents: Contents, to: Path | None) -> None:
    """Verify and time the program, and write what `autotm import` takes in at home."""
    settings, machine, program = contents.settings, contents.machine, contents.read(Program)
    if settings.target == CUDA and not (contents.folder / "plan.json").exists():
        _tell_same(settings, program, _compared_on_gpu(contents, program), "on the GPU")
        graph, rounds = contents.read(Graph), settings.run["min_steps"]
        seconds = host_gpu.step_seconds(graph, program, settings.counts, settings.seed, rounds, contents.open_gpu())
        sys.stdout.write(f"{median(seconds):.6g} s measured a step, the median of {rounds}; nothing is planned yet\n")
        return
    file = contents.output(to, "run")
    graph, plan, links, profile = contents.read(Graph), contents.read(Plan), contents.read(Links), contents.profile
    options = RunOptions(**settings.run, seed=settings.seed)
    if settings.target == CUDA:
        record, _ = run_on_device(graph, program, plan, machine, links, profile, options, contents.open_gpu())
    else:
        if profile.provenance.get("cpu_model") != provenance(machine, settings.seed)["cpu_model"]:
            log.warning(
                "the plan was made from times of another processor (%s): what is predicted is of that one. Profile "
                "here, import that at home, solve, and make the bundle again",
                profile.provenance.get("cpu_model", "none is named"),
            )
        devices = contents.devices_dir
        record = run(graph, contents.library, program, plan, machine, links, profile, options, devices, None)
    _export(contents, file, links, profile, record)
    sys.stdout.write(f"{record}; {file}\n")


def profile_kernels(contents: Contents, to: Path | None) -> None:
    """Calibrate this host, time every kernel of the step, and write what `autotm import` takes in at home."""
    settings, machine, devices = contents.settings, contents.machine, contents.devices_dir
    file = contents.output(to, "profile")
    options = ProfileOptions(**settings.timing, seed=settings.seed)
    if settings.target == CUDA:
        graph, opened, came_from = contents.read(Graph), contents.open_gpu(), provenance(machine, settings.seed)
        timed, links = host_gpu.profiled(graph, settings.counts, options, opened, came_from)
    else:
        library, rates = contents.calibration("rates")
        links = measure_links(
            machine, devices, library, rates, lambda _: contents.calibration("co_runners"), settings.patience_s
        )
        graph, kernels = contents.read(Graph), contents.library
        with (
            tempfile.TemporaryDirectory(prefix="autotm-") as folder,
            KernelStore(Path(folder) / "kernels.sqlite") as store,
        ):
            tolerance = settings.step_tolerance
            timed = profile_step(graph, settings.counts, kernels, machine, links, store, options, tolerance, devices)
    _export(contents, file, links, timed, None)
    sys.stdout.write(f"{len(timed.timings)} times of kernels; {file}\n")


def _export(contents: Contents, file: Path, links: Links, profile: Profile, record: Record | None) -> None:
    """One file for `autotm import`; with a record also what it is of, so that all of it belongs together."""
    settings = contents.settings
    of_machine = Path(contents.machine.slug)
    of_network = of_machine / settings.scale / settings.network
    of_plan = of_network / settings.plan_folder
    came_from = provenance(contents.machine, settings.seed)
    with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
        made = Path(folder)
        write_profile(made / "profile.json", profile)
        files = {
            of_network / "graph.json": contents.folder / "graph.json",
            of_network / "profile.json": made / "profile.json",
        }
        if record is None:
            save(made / "links.json", "links", links, came_from)
            files[of_machine / "links.json"] = made / "links.json"
        else:
            save(made / "record.json", "record", record, came_from | {"tier_reality": record.tier_reality})
            files[of_machine / "links.json"] = contents.folder / "links.json"
            files[of_plan / "plan.json"] = contents.folder / "plan.json"
            files[of_plan / "program.json"] = contents.folder / "program.json"
            files[of_plan / "record.json"] = made / "record.json"
        write_results(file, {path.as_posix(): source.read_bytes() for path, source in files.items()}, came_from)


Command = Callable[[Contents, Path | None], None]
_COMMANDS: dict[str, tuple[Command, str]] = {
    "check": (check, "compare the program with the plain step, bit for bit"),
    "run": (run_program, "verify and time the program"),
    "profile": (profile_kernels, "calibrate this host and time every kernel of the step"),
}


def _parsed(arguments: Sequence[str], program: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(program, description="A training step, compiled and planned elsewhere.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (command, summary) in _COMMANDS.items():
        parsed = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        parsed.add_argument("--threads", type=_count, metavar="N", help="instead of what the kernels were built for")
        parsed.set_defaults(command=command, to=None)
        if name != "check":
            parsed.add_argument("--to", type=Path, metavar="FILE", help="a zip for `autotm import` at home")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"'{text}' is no number of threads: give 1 or more")
    return int(text)
