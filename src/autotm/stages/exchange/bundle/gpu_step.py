"""A step for GPUs, compiled here without one: graph, launches, fatbin, and the program that there is for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotm.model.files import BadInputError, hash_of, load, save
from autotm.model.machine import provenance
from autotm.model.measurement import read_profile, write_profile
from autotm.model.plan import Plan
from autotm.model.step import Counts, Graph, Limit, NetworkSource
from autotm.model.study import Paths, ProfileConfig
from autotm.stages.context import Context

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepFiles:
    """What a bundle has of a step.

    Attributes:
        target: of the kernels.
        optimizer, limit: of the program; `all-fast` and `none` where nothing was planned.
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

    @property
    def is_planned(self) -> bool:
        """Whether its program follows a plan."""
        return "plan.json" in self.files


def gpu_step(
    context: Context,
    network: NetworkSource,
    timing: ProfileConfig,
    paths: Paths,
    optimizer: str,
    limit: Limit,
    gpu: str,
    folder: Path,
) -> StepFiles:
    """Compile the step; take the plan and program of it that are there, or else everything in device memory.

    Its kernels are autotm's own: libraries of NVIDIA's tell their algorithms on a GPU only, and none is in a bundle.
    The graph goes to the study's results too, so that what a GPU measures of it can be solved there.

    Raises:
        BadInputError: no such GPU is known, or the study's graph has kernels of NVIDIA's libraries.
        AutotmError: an operator has no gradient or no kernel, or there is no nvcc.
    """
    from autotm import zoo
    from autotm.kernels.cuda import ARCHITECTURES, device_named, fatbin
    from autotm.kernels.library import FatbinLibrary
    from autotm.lower import cuda_step
    from autotm.profile.host import CUDA
    from autotm.runtime import all_fast_program

    device = device_named(gpu)
    _require_own_kernels(paths.graph)
    built = zoo.with_values_stored(zoo.build_from(network, context.seed), paths.values)
    step = cuda_step(built, paths.scale, device, timing.implementations, context.machine.products)
    made = fatbin(step.kernels.values(), ARCHITECTURES, paths.objects)
    came_from = provenance(context.machine, context.seed, **network.provenance)
    save(paths.graph, "graph", step.graph, came_from)
    FatbinLibrary.save(folder / "kernels.fatbin.zip", made.image, ARCHITECTURES, step.launches)
    files = {"graph.json": paths.graph, "kernels.fatbin.zip": folder / "kernels.fatbin.zip"}
    words = f"GPUs of {', '.join(ARCHITECTURES)}"
    if (planned := _planned(paths, step.graph, optimizer, limit)) is not None:
        write_profile(folder / "profile.json", read_profile(paths.profile))
        files |= {"profile.json": folder / "profile.json", "links.json": paths.links}
        files |= {"plan.json": paths.plan(optimizer, limit), "program.json": paths.program(optimizer, limit)}
        return StepFiles(CUDA, optimizer, str(limit), planned.counts, files, words)
    log.warning(
        "%s: no program of this step yet: the bundle's has everything in device memory. Profile with it, import that, "
        "solve, compile, and make the bundle again",
        paths.program(optimizer, limit),
    )
    save(folder / "program.json", "program", all_fast_program(step.graph.computed_by(())), came_from)
    files["program.json"] = folder / "program.json"
    return StepFiles(CUDA, "all-fast", "none", context.counts, files, words)


def _planned(paths: Paths, graph: Graph, optimizer: str, limit: Limit) -> Plan | None:
    """The plan of this very step, if it has a program."""
    if not all(path.exists() for path in (paths.plan(optimizer, limit), paths.program(optimizer, limit))):
        return None
    plan = load(paths.plan(optimizer, limit), "plan", Plan)
    return plan if plan.graph_hash == hash_of(graph) else None


def _require_own_kernels(path: Path) -> None:
    """Refuse to write over a graph that libraries offered algorithms for: its profile and plans would be lost."""
    from autotm.kernels.vendor import VENDORS

    if not path.exists():
        return
    names = {other.name for kernel in load(path, "graph", Graph).kernels for other in kernel.alternatives}
    if found := sorted(name for name in names if name.partition(" ")[0] in VENDORS):
        raise BadInputError(
            f"{path}: was lowered on a GPU and offers '{found[0]}', which no bundle has: make the bundle for a machine "
            "file of another name, or profile with implementations: default first"
        )
