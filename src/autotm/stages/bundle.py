"""The stage that packs a planned step for hosts without a compiler.

A bundle holds the program, its kernels, and the modules of autotm that run them.
"""

from __future__ import annotations

import logging
import platform
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import autotm
from autotm.model.errors import BadInputError
from autotm.model.files import hash_of, load, require_writable, save
from autotm.model.graph import Graph, InitialValue
from autotm.model.limit import Counts, Limit
from autotm.model.links import Links
from autotm.model.machine import CudaTier
from autotm.model.paths import Paths
from autotm.model.plan import Plan
from autotm.model.profile import read_profile, write_profile
from autotm.model.program import Program
from autotm.model.provenance import commit, provenance, versions
from autotm.stages.bundle_files import (
    NVIDIAS,
    RUNTIME_OF_TVM,
    distributions_of,
    downloaded_files,
    installed_files,
    modules_of,
    require_installed,
    this_python,
    write_bundle,
)
from autotm.stages.context import Context
from autotm.study.setup import Study

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepFiles:
    """The files of a step in a bundle, with the processor and limit that they are for.

    Attributes:
        target: of the kernels.
        optimizer, limit: of the program; `all-fast` and `0:1` where nothing was planned.
        counts: what the limit counts.
        files: by name in the bundle's folder `step`.
        compiled_for: the processor or the GPUs of the kernels, in words.
        cpu_flags: instructions that the kernels need, as Linux names them.
    """

    target: str
    optimizer: str
    limit: str
    counts: Counts
    files: Mapping[str, Path]
    compiled_for: str
    cpu_flags: tuple[str, ...] = ()


def _gpu_step(
    study: Study, context: Context, paths: Paths, optimizer: str, limit: Limit, gpu: str, folder: Path
) -> StepFiles:
    """Compile the step; take the plan and program of it that are there, or else everything in device memory.

    The graph goes to the study's results too, so that what a GPU measures of it can be solved there.

    Raises:
        BadInputError: no such GPU is known.
        AutotmError: an operator has no gradient or no kernel, or there is no nvcc.
    """
    from autotm import zoo
    from autotm.kernels.cuda.device import device_named
    from autotm.kernels.cuda.source import ARCHITECTURES, fatbin
    from autotm.kernels.library import FatbinLibrary
    from autotm.lower.cuda import cuda_step
    from autotm.profile.host_commands import CUDA
    from autotm.runtime.verify import all_fast_program

    device, source = device_named(gpu), study.network(paths.network)
    built = zoo.with_values_stored(zoo.build_from(source, context.seed), paths.values)
    implementations = study.config.profile.implementations
    step = cuda_step(built, paths.scale, device, implementations, context.machine.products)
    compiled = fatbin(step.kernels.values(), ARCHITECTURES, paths.objects)
    came_from = provenance(context.machine, context.seed, **source.provenance)
    save(paths.graph, "graph", step.graph, came_from)
    FatbinLibrary.save(folder / "kernels.fatbin.zip", compiled.image, ARCHITECTURES, step.launches)
    files = {"graph.json": paths.graph, "kernels.fatbin.zip": folder / "kernels.fatbin.zip"}
    words = f"GPUs of {', '.join(ARCHITECTURES)}"
    plan, program = paths.plan(optimizer, limit), paths.program(optimizer, limit)
    planned = load(plan, "plan", Plan) if plan.exists() and program.exists() else None
    if planned is not None and planned.graph_hash == hash_of(step.graph):
        write_profile(folder / "profile.json", read_profile(paths.profile))
        files |= {"profile.json": folder / "profile.json", "links.json": paths.links}
        files |= {"plan.json": plan, "program.json": program}
        return StepFiles(CUDA, optimizer, str(limit), planned.counts, files, words)
    log.warning(
        "%s: no program of this step yet: the bundle's has everything in device memory. Profile with it, import that, "
        "solve, compile, and make the bundle again",
        program,
    )
    save(folder / "program.json", "program", all_fast_program(step.graph.computed_by(())), came_from)
    files["program.json"] = folder / "program.json"
    return StepFiles(CUDA, "all-fast", "0:1", context.counts, files, words)


MOST_BYTES = 30_000_000
"""Size that a bundle should stay below; weights that came with a network can exceed it."""
_ENTRY = "autotm.profile.host_commands"
_PACKAGE = Path(autotm.__file__).parent
_PYTHON = re.compile(r"3\.\d+")


@dataclass(frozen=True)
class Bundled:
    """The facts of a bundle.

    Attributes:
        file: the archive.
        folder: name of the folder in it.
        size_bytes: of the archive.
        python: version of CPython that the bundle is for.
        machine: architecture that the bundle is for.
        libraries: versions of the distributions in it.
    """

    file: Path
    folder: str
    size_bytes: int
    python: str
    machine: str
    libraries: Mapping[str, str]


def bundle_stage(
    study: Study,
    context: Context,
    paths: Paths,
    optimizer: str,
    limit: Limit,
    *,
    gpu: str,
    python: str | None,
    file: Path,
) -> Bundled:
    """Write the bundle of a program.

    Args:
        study: configures how the host verifies and times the program, and times kernels.
        context: machine that the program is for, and seed; a machine of kind cuda gets kernels for GPUs.
        paths: those of the network.
        optimizer: that of the plan.
        limit: that of the plan.
        gpu: the GPU whose facts decide how kernels are tiled.
        python: version of CPython on the host, such as 3.12; None for this one's.
        file: path of the archive.

    Raises:
        BadInputError: there is no such program, no such Python or no libraries for it, or a tensor's value lies where a
            host cannot have it.
        AutotmError: there is no C compiler, or autotm is not installed whole.
    """
    python = python or this_python()
    if not _PYTHON.fullmatch(python):
        raise BadInputError(f"--python {python}: give the version of CPython on the host, such as 3.12")
    is_cuda = isinstance(context.machine.slow_tier, CudaTier)
    if not is_cuda:
        _require_files(paths, optimizer, limit)
    require_writable(file)
    modules = modules_of(_PACKAGE, _ENTRY)
    libraries = [*distributions_of(_PACKAGE, modules), RUNTIME_OF_TVM, *(NVIDIAS if is_cuda else ())]
    require_installed(libraries)
    with tempfile.TemporaryDirectory(prefix="autotm-") as temporary:
        folder = Path(temporary)
        if is_cuda:
            step = _gpu_step(study, context, paths, optimizer, limit, gpu, folder)
        else:
            step = _cpu_step(context, paths, optimizer, limit, folder)
        files = _step_files(study, context, paths, step, folder)
        is_here = python == this_python()
        brought = installed_files(libraries) if is_here else downloaded_files(libraries, python, folder / "wheels")
        files |= {f"site/{name}": content for name, content in brought}
    files |= _own_files(modules)
    name = f"{paths.network}-{step.optimizer}-{Limit.parse(step.limit).slug if 'plan.json' in step.files else 'plain'}"
    library_versions = {library: metadata.version(library) for library in libraries}
    facts = {
        "target": step.target,
        "python": python,
        "machine": platform.machine(),
        "machine_file": context.machine.name,
        "compiled_for": step.compiled_for,
        "cpu_flags": list(step.cpu_flags),
        "autotm": metadata.version("autotm"),
        "autotm_commit": commit(),
        "made_with": versions(),
        "libraries": library_versions,
    }
    write_bundle(file, name, files, facts)
    size = file.stat().st_size
    if size > MOST_BYTES:
        log.warning("%s is %.1f MB: more than the %.0f MB that bundles stay below", file, size / 1e6, MOST_BYTES / 1e6)
    return Bundled(file, name, size, python, platform.machine(), library_versions)


def _require_files(paths: Paths, optimizer: str, limit: Limit) -> None:
    files_by_command = {
        "calibrate": [paths.links],
        f"profile {paths.network}": [paths.graph, paths.library, paths.profile],
        f"solve {paths.network} {optimizer} {limit}": [paths.plan(optimizer, limit)],
        f"compile {paths.network} {optimizer} {limit}": [paths.program(optimizer, limit)],
    }
    for command, files in files_by_command.items():
        for path in files:
            if not path.exists():
                raise BadInputError(f"{path}: no such file; make it first: autotm {command}")


def _cpu_step(context: Context, paths: Paths, optimizer: str, limit: Limit, folder: Path) -> StepFiles:
    """Return the files of a step for processors: the study's own, and kernels for calibration, made in `folder`."""
    from autotm.kernels.calibration_kernels import make_co_runners, make_rate_kernels
    from autotm.kernels.target import cpu_flags, machine_target
    from autotm.profile.host_commands import CPU

    # Read every file here: damage is found before anything is compiled, not on the computer that runs the bundle.
    plan = load(paths.plan(optimizer, limit), "plan", Plan)
    load(paths.program(optimizer, limit), "program", Program)
    load(paths.graph, "graph", Graph)
    load(paths.links, "links", Links)
    profile = read_profile(paths.profile)
    target, threads = machine_target(context.machine), context.machine.threads
    known = make_rate_kernels(target, threads, folder / "rates.so", paths.objects)
    save(folder / "rates.json", "rates", known, {})
    co_runners = make_co_runners(target, threads, folder / "co_runners.so", objects=paths.objects)
    save(folder / "co_runners.json", "co_runners", co_runners, {})
    write_profile(folder / "profile.json", profile)
    own_files = ("rates.so", "rates.json", "co_runners.so", "co_runners.json", "profile.json")
    files = {
        **{name: folder / name for name in own_files},
        "graph.json": paths.graph,
        "links.json": paths.links,
        "plan.json": paths.plan(optimizer, limit),
        "program.json": paths.program(optimizer, limit),
        "kernels.so": paths.library,
    }
    compiled_for = str(target.attrs.get("mcpu", "")) or "any processor"
    return StepFiles(CPU, optimizer, str(limit), plan.counts, files, compiled_for, tuple(cpu_flags(target)))


def _step_files(study: Study, context: Context, paths: Paths, step: StepFiles, folder: Path) -> dict[str, bytes]:
    """Return the contents of the step's files by path in the bundle; files made for the bundle go to `folder`."""
    from autotm.memory.copies import COPY_SOURCE, compile_library
    from autotm.profile.host_commands import Settings

    machine, timing = context.machine, study.scale.of_profile(study.config.profile)
    graph = load(step.files["graph.json"], "graph", Graph)
    settings = Settings(
        step.target,
        paths.network,
        paths.scale,
        step.optimizer,
        step.limit,
        machine.name,
        machine.threads,
        step.counts,
        context.seed,
        study.scale.of_run(study.config.run).model_dump(),
        timing.timing,
        timing.step_tolerance,
        timing.patience_s,
    )
    save(folder / "bundle.json", "bundle", settings, {})
    compile_library(COPY_SOURCE, folder / "copy.so")
    sources = {
        **{f"step/{name}": source for name, source in step.files.items()},
        "step/bundle.json": folder / "bundle.json",
        f"step/{machine.name}.yaml": study.config_dir / "machines" / f"{machine.name}.yaml",
        **{f"step/devices/{device.name}": device for device in sorted(context.devices_dir.glob("*.yaml"))},
        **{f"step/{value}": Path(value) for value in _values(graph)},
        f"site/{COPY_SOURCE.relative_to(_PACKAGE.parent).with_suffix('.so').as_posix()}": folder / "copy.so",
    }
    return {name: source.read_bytes() for name, source in sources.items()}


def _values(graph: Graph) -> list[str]:
    """List files of values that came with the network, relative to the working directory."""
    files = sorted({tensor.initial.file for tensor in graph.tensors if isinstance(tensor.initial, InitialValue)})
    if outside := [file for file in files if Path(file).is_absolute() or ".." in Path(file).parts]:
        raise BadInputError(
            f"{outside[0]}: values of tensors must lie below the folder that autotm runs in, to be found on the host: "
            "profile again there, with --results below it"
        )
    return files


def _own_files(modules: list[Path]) -> dict[str, bytes]:
    """Return the modules, metadata and licence of autotm, by path in the bundle."""
    below = {f"site/{path.relative_to(_PACKAGE.parent).as_posix()}": path.read_bytes() for path in modules}
    named = f"site/autotm-{metadata.version('autotm')}.dist-info"
    about = {f"{named}/METADATA": (metadata.distribution("autotm").read_text("METADATA") or "").encode()}
    # Installed with it, or at the root of its checkout.
    installed_with = [file for file in metadata.files("autotm") or [] if file.name == "LICENSE"]
    places = [*(Path(str(file.locate())) for file in installed_with), _PACKAGE.parents[1] / "LICENSE"]
    licence = next((place for place in places if place.exists()), None)
    if licence is None:
        raise BadInputError(f"{places[-1]}: autotm's licence is not there; install autotm anew")
    return below | about | {f"{named}/licenses/LICENSE": licence.read_bytes()}
