"""`check`, `run` and `profile` of a bundle, as its launcher calls them, and the bundle's files that they read."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from autotm.kernels.compute_rates import CalibrationKernels
from autotm.kernels.library import FatbinLibrary, KernelLibrary
from autotm.memory.gpu.links import StreamTimer, copy_times
from autotm.model.errors import AutotmError
from autotm.model.files import load, require_writable, save, write_results
from autotm.model.graph import ALIGNMENT_BYTES, Graph, OpClass, Tier
from autotm.model.limit import Counts, Limit, counting
from autotm.model.links import Links
from autotm.model.machine import load_machine
from autotm.model.paths import Paths
from autotm.model.plan import Plan
from autotm.model.profile import Profile, read_profile, write_profile
from autotm.model.program import Program
from autotm.model.provenance import provenance
from autotm.model.record import Record
from autotm.profile.copies import measure_links
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.step_profile import profile_step
from autotm.profile.store import KernelStore
from autotm.runtime.run import run
from autotm.runtime.step_times import RunOptions
from autotm.runtime.streams.executor import (
    OpenDevice,
    StreamExecutor,
    open_machines_gpu,
    plain_on_device,
    prepare_streams,
)
from autotm.runtime.streams.run import operand_bytes, profile_on, run_on_device
from autotm.runtime.streams.schedule import DeviceArguments, device_bytes
from autotm.runtime.verify import digested, verified, verify

# The files of a bundle that are of one step: what was compiled and planned at home, and how it is to be measured.

CPU, CUDA = "cpu", "cuda"


@dataclass(frozen=True)
class Settings:
    """Description of a bundle, and how the study measures it (`step/bundle.json`).

    Attributes:
        target: of the kernels: `cpu` or `cuda`.
        network, scale, optimizer, limit: of the program, as commands take them; `all-fast` and `0:1` without a plan.
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
        devices_dir: files of emulated devices.
        settings: what the bundle is of.
        machine: this computer as the bundle's machine file has it.
    """

    def __init__(self, folder: Path, threads: int | None) -> None:
        """Use `threads` threads; if None, as many as the kernels were built for.

        Raises:
            BadInputError: this computer has too few cores, or not the slow memory of the file.
        """
        self.folder, self.devices_dir = folder, folder / "devices"
        self.settings = self.read(Settings)
        wanted, asked = (self.settings.threads, "the bundle") if threads is None else (threads, "--threads")
        self.machine = load_machine(folder / f"{self.settings.machine}.yaml", wanted, asked).to_measure_on()

    def read(self, kind: type[T]) -> T:
        """Read settings, the step's graph, its plan or program, or the links of the machine that it was planned for."""
        return load(self.folder / f"{_KINDS[kind]}.json", _KINDS[kind], kind)

    @property
    def library(self) -> KernelLibrary:
        """The compiled kernels."""
        return KernelLibrary.load(self.folder / "kernels.so")

    def open_gpu(self) -> OpenDevice:
        """Return the function that opens the machine's GPU with the kernels for GPUs."""
        return partial(open_machines_gpu, self.machine, FatbinLibrary.load(self.folder / "kernels.fatbin.zip"))

    def calibration(self, name: str) -> tuple[KernelLibrary, CalibrationKernels]:
        """Load kernels of known work: `rates`, which calibration times, or `co_runners`, which run during copies."""
        known = load(self.folder / f"{name}.json", name, CalibrationKernels)
        return KernelLibrary.load(self.folder / f"{name}.so"), known

    def output(self, to: Path | None, kind: str) -> Path:
        """Return the file that results of a kind go to: `to`, or one next to the bundle.

        Raises:
            OSError: it cannot be written.
        """
        file = to or self.folder.parents[1] / f"{self.settings.network}-{kind}.zip"
        require_writable(file)
        return file


# A step on a GPU: compared with the plain step, timed kernel by kernel and copy by copy, by events of its streams.

COPIED_BYTES = (ALIGNMENT_BYTES, *(4096 * 4**power for power in range(8)))
"""Sizes of copies that are timed: a copy's latency, then 4 KiB to 64 MiB."""
_CONTRACTIONS = {OpClass.CONV_FORWARD, OpClass.CONV_DATA_GRADIENT, OpClass.CONV_WEIGHT_GRADIENT, OpClass.MATMUL}
_WARM_UP = 2  # steps before those that are timed


def compared(graph: Graph, program: Program, counts: Counts, seed: int, steps: int, opened: OpenDevice) -> int:
    """Run steps of a program and of the plain step; return how many results were the same, bit for bit.

    Memory of the program is overwritten as soon as its tensor is dead. Where the device has too little memory for the
    plain step, that is run kernel by kernel.

    Raises:
        VerificationError: a result differs, or is not finite.
        AutotmError: as `opened`.
    """
    chosen = graph.computed_by(program.implementations)
    with plain_on_device(chosen, opened) as (_, plain):
        expected = digested(chosen, plain, seed, steps)
    with _prepared(graph, program, counts, opened, poison=True) as executor:
        executor.arguments.fill(seed)
        verify(chosen, executor, expected, steps)
    return len(expected[0])


def step_seconds(
    graph: Graph, program: Program, counts: Counts, seed: int, rounds: int, opened: OpenDevice
) -> list[float]:
    """Time `rounds` whole steps after a warm-up, each waited for; return the seconds of each."""
    seconds = []
    with _prepared(graph, program, counts, opened) as executor:
        executor.arguments.fill(seed)
        for _ in range(_WARM_UP + rounds):
            start = time.perf_counter()
            executor.step()
            seconds.append(time.perf_counter() - start)
    return seconds[_WARM_UP:]


def profiled(
    graph: Graph, counts: Counts, options: ProfileOptions, opened: OpenDevice, came_from: Mapping[str, Any]
) -> tuple[Profile, Links]:
    """Time every kernel by each of its implementations, and copies; both alone.

    Kernels use device memory only, so there are no other configurations. The profile's provenance names the GPU.

    Raises:
        AutotmError: as `opened`.
    """
    counted = counting(graph, counts)
    with opened(operand_bytes(counted), ALIGNMENT_BYTES) as (device, kernels):
        timed = profile_on(device, kernels, counted, options.min_repeats, {**came_from, "gpu": device.name})
    with opened(COPIED_BYTES[-1], COPIED_BYTES[-1]) as (device, _):
        alone_ns = StreamTimer(device).alone_ns
        curves = (copy_times(alone_ns, tier, COPIED_BYTES) for tier in (Tier.FAST, Tier.SLOW))
        links = Links(*curves, _contraction_flop_per_s(graph, timed), 1.0)
    return timed, links


def _contraction_flop_per_s(graph: Graph, profile: Profile) -> float:
    """Return the rate of the step's contractions, or else of its kernels, in floating-point operations a second."""
    kernels = [each for each in graph.computed_by(()).kernels if each.op_class in _CONTRACTIONS] or graph.kernels
    seconds = sum(profile.base_us(kernel) for kernel in kernels) / 1e6
    if not seconds:
        raise AutotmError(f"network '{graph.network}': its kernels took no time that events could tell")
    return sum(kernel.flops for kernel in kernels) / seconds


@contextmanager
def _prepared(
    graph: Graph, program: Program, counts: Counts, opened: OpenDevice, *, poison: bool = False
) -> Iterator[StreamExecutor]:
    placed, chosen = program.step_of(counting(graph, counts)), graph.computed_by(program.implementations)
    with opened(device_bytes(chosen, placed, program), max(program.slow_bytes, ALIGNMENT_BYTES)) as (device, kernels):
        arguments = DeviceArguments.of(chosen, placed, program, device)
        yield prepare_streams(placed, kernels, program, arguments, poison=poison)


# The commands.

log = logging.getLogger("autotm")

_DONE, _FAULT = 0, 1  # exit statuses
_CHECKED_STEPS = 2  # the second begins with the weights that the first leaves


def main(folder: Path, arguments: Sequence[str], program: str) -> int:
    """Run one command of the bundle in `folder`; return the exit status.

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


def check(contents: Contents, to: Path | None = None) -> None:
    """Load everything, and compare steps of the program with the plain step's, bit for bit; dead memory is NaN."""
    del to
    settings, program, machine = contents.settings, contents.read(Program), contents.machine
    graph = contents.read(Graph)
    if settings.target == CUDA:
        results = compared(graph, program, settings.counts, settings.seed, _CHECKED_STEPS, contents.open_gpu())
        where = "on the GPU"
    else:
        names = verified(
            graph,
            contents.library,
            program,
            settings.counts,
            machine,
            contents.read(Links),
            settings.seed,
            _CHECKED_STEPS,
            contents.devices_dir,
        )
        results, where = len(names), f"on {machine.threads} threads"
    sys.stdout.write(
        f"{settings.network}, {program.optimizer} at {program.limit}: {_CHECKED_STEPS} steps equal the plain step bit "
        f"for bit in all {results} results, {where}\n"
    )


def run_program(contents: Contents, to: Path | None) -> None:
    """Verify and time the program, and write what `autotm import` takes in at home."""
    settings, machine = contents.settings, contents.machine
    graph, program = contents.read(Graph), contents.read(Program)
    if settings.target == CUDA and not (contents.folder / "plan.json").exists():
        check(contents)
        rounds = settings.run["min_steps"]
        seconds = step_seconds(graph, program, settings.counts, settings.seed, rounds, contents.open_gpu())
        sys.stdout.write(f"{median(seconds):.6g} s measured a step, the median of {rounds}; nothing is planned yet\n")
        return
    file = contents.output(to, "run")
    plan, links, profile = contents.read(Plan), contents.read(Links), read_profile(contents.folder / "profile.json")
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
    """Calibrate this host, time every kernel of the step, and write a file for `autotm import` at home."""
    settings, machine, devices = contents.settings, contents.machine, contents.devices_dir
    file, graph = contents.output(to, "profile"), contents.read(Graph)
    options = ProfileOptions(**settings.timing, seed=settings.seed)
    if settings.target == CUDA:
        opened, came_from = contents.open_gpu(), provenance(machine, settings.seed)
        timed, links = profiled(graph, settings.counts, options, opened, came_from)
    else:
        library, rates = contents.calibration("rates")
        links = measure_links(
            machine, devices, library, rates, lambda _: contents.calibration("co_runners"), settings.patience_s
        )
        kernels = contents.library
        with (
            tempfile.TemporaryDirectory(prefix="autotm-") as folder,
            KernelStore(Path(folder) / "kernels.sqlite") as store,
        ):
            tolerance = settings.step_tolerance
            timed = profile_step(graph, settings.counts, kernels, machine, links, store, options, tolerance, devices)
    _export(contents, file, links, timed, None)
    sys.stdout.write(f"{len(timed.timings)} times of kernels; {file}\n")


def _export(contents: Contents, file: Path, links: Links, profile: Profile, record: Record | None) -> None:
    """Write one file for `autotm import`; with a record also the links, plan and program that it is of."""
    settings, folder = contents.settings, contents.folder
    paths = Paths(Path(), contents.machine, settings.scale, settings.network)
    came_from = provenance(contents.machine, settings.seed)
    with tempfile.TemporaryDirectory(prefix="autotm-") as temporary:
        scratch = Path(temporary)
        write_profile(scratch / "profile.json", profile)
        files = {paths.graph: folder / "graph.json", paths.profile.with_suffix(".json"): scratch / "profile.json"}
        if record is None:
            save(scratch / "links.json", "links", links, came_from)
            files[paths.links] = scratch / "links.json"
        else:
            save(scratch / "record.json", "record", record, came_from | {"tier_reality": record.tier_reality})
            placement = settings.optimizer, Limit.parse(settings.limit)
            files[paths.links] = folder / "links.json"
            files[paths.plan(*placement)] = folder / "plan.json"
            files[paths.program(*placement)] = folder / "program.json"
            files[paths.record(*placement)] = scratch / "record.json"
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
