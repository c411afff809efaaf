"""The study of control flow: a model in all systems, the search for the best rewrites, and the figures."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from autotm.model.config import ControlFlowConfig, StyleConfig
from autotm.model.control_study import (
    ALL_BLOCKS,
    BRANCHING,
    GPU_SYSTEMS,
    RESOLVED,
    SYSTEMS,
    WITH_CONTROL_FLOW,
    ControlStudy,
    SystemTimes,
)
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.files import load, save
from autotm.model.graph import ScheduleKind
from autotm.model.provenance import provenance
from autotm.stages.context import Context
from autotm.systems.measure import Task, times_in_turn

_LOG = logging.getLogger(__name__)
KIND = "control_study"
_PACKAGES = ("torch", "onnxruntime", "jax", "apache-tvm")
SWEPT = ("torch", "onnxruntime", "jax", "tvm-py", "tvm-vm", "tvm-fused")
"""Systems that are shown against the hidden size, and on several threads."""
OF_RATIOS = ("jax", "tvm-fused")
"""Systems that are shown against the ratio of blocks that are computed."""


def control_flow_stage(
    context: Context,
    model: str,
    sizes: Mapping[str, int],
    case: str,
    config: ControlFlowConfig,
    search: Path,
    output: Path,
) -> None:
    """Time a model in all systems that are shown of a case, in turn, each checked before.

    Args:
        context: of the machine.
        model: its name.
        sizes: of the model, at the scale.
        case: `b64`, say (a batch; of one sample also resolved, on another number of threads, and on a GPU), `hidden` or
            `ratio` (several sizes).
        config: of the study.
        search: file of the model's search; `tvm-fused` gets its best rewrites.
        output: file of the times.

    Raises:
        BadInputError: sizes or the case are wrong, or PyTorch is not installed.
        AutotmError: a system's results are wrong.
    """
    _require_torch()
    rewrites = tuple(best(load(search, KIND, ControlStudy)).rewrites.items())
    every_variant = (WITH_CONTROL_FLOW, RESOLVED, *((ALL_BLOCKS,) if model in BRANCHING else ()))
    here, other = config.threads, config.other_threads

    def tasks_of(
        systems: Sequence[str],
        variants: Sequence[str] = (WITH_CONTROL_FLOW,),
        batch: int = 1,
        threads: int = here,
        **changed: int,
    ) -> list[Task]:
        own = tuple({**sizes, **changed}.items())
        return [
            Task(model, own, batch, context.seed, threads, system, variant, rewrites)
            for system, variant in product(systems, variants)
        ]

    match case:
        case "hidden":
            tasks = [task for hidden in config.hidden for task in tasks_of(SWEPT, hidden=hidden)]
        case "ratio":
            of_ratio = (WITH_CONTROL_FLOW, RESOLVED)
            tasks = [task for ratio in config.ratios for task in tasks_of(OF_RATIOS, of_ratio, ratio=ratio)]
            tasks += tasks_of(OF_RATIOS, (ALL_BLOCKS,), ratio=100)
        case "b1":
            elsewhere = tasks_of(SWEPT, threads=other) if other != here else []
            tasks = [*tasks_of(SYSTEMS, every_variant), *elsewhere, *tasks_of(GPU_SYSTEMS)]
        case _ if re.fullmatch(r"b[1-9]\d*", case):
            tasks = tasks_of(SYSTEMS, batch=int(case[1:]))
        case _:
            raise BadInputError(f"no case {case}: there are hidden, ratio, and b with a batch, such as b64")
    _measure(context, tasks, config, output)


def control_flow_search_stage(
    context: Context, model: str, sizes: Mapping[str, int], config: ControlFlowConfig, output: Path
) -> None:
    """Time the model as one function after each set of rewrites, in turn, beside the systems of the same kernels.

    Raises:
        BadInputError: sizes are wrong, or PyTorch is not installed.
        AutotmError: results are wrong.
    """
    _require_torch()
    common = (model, tuple(sizes.items()), 1, context.seed, config.threads)
    *others, fused = (Task(*common, system, WITH_CONTROL_FLOW) for system in ("tvm-py", "tvm-vm", "tvm-fused"))
    _measure(context, others, config, output, fused)
    found = load(output, KIND, ControlStudy)
    fastest = best(found)
    _LOG.info("best of %d: %s, %.3f ms", len(found.times), fastest.rewrites, fastest.median_ms)


@dataclass(frozen=True)
class NeededKernel:
    """A kernel that models with control flow need, as one function.

    Attributes:
        kernel: its symbol in the function; what has no kernel is named as the compiler names it.
        schedule: where its schedule comes from; empty if it has no kernel.
    """

    model: str
    kernel: str
    schedule: str

    @property
    def is_missing(self) -> bool:
        """Whether no rule knows the kernel."""
        return self.schedule in ("", ScheduleKind.AS_WRITTEN)


def needed_kernels(models: Mapping[str, Mapping[str, int]], seed: int, threads: int) -> list[NeededKernel]:
    """Return the kernels of models of some sizes at batch 1, after the usual rewrites; nothing is compiled or run.

    Raises:
        BadInputError: there is no such model, or its sizes are wrong.
    """
    from autotm.control.driver import lower
    from autotm.control.reader import read_program
    from autotm.control.regions import KernelSet
    from autotm.control.rewrites import Rewrites
    from autotm.kernels.target import host_target
    from autotm.zoo.control_flow import control_model

    needed = []
    for model, sizes in models.items():
        laid = {"channels_last": True} if model in BRANCHING else {}
        program = read_program(control_model(model, {**sizes, **laid}, 1, seed).module)
        try:
            lower(Rewrites().apply(program), kernels := KernelSet(host_target(threads), threads))
        except AutotmError as error:
            needed.append(NeededKernel(model, str(error), ""))
            continue
        needed += [NeededKernel(model, symbol, str(kind)) for symbol, kind in kernels.kinds.items()]
    return needed


def best(study: ControlStudy) -> SystemTimes:
    """Return the fastest of the functions that were searched.

    Raises:
        AutotmError: none has times.
    """
    timed = [times for times in study.times if times.system == "tvm-fused" and times.median_ms is not None]
    if not timed:
        reasons = "; ".join(times.failure for times in study.times if times.failure)
        raise AutotmError(f"no rewrites of {study.model} have times: {reasons}")
    return min(timed, key=lambda times: times.median_ms or 0.0)


def _require_torch() -> None:
    """Raise BadInputError where PyTorch, which results are compared with, is not installed."""
    if find_spec("torch") is None:
        raise BadInputError(
            "systems are compared with PyTorch, and torch is not installed here; `make figures/control_flow` runs "
            "where it is, .venv-torch/bin/python -m snakemake as well"
        )


def _measure(
    context: Context, tasks: Sequence[Task], config: ControlFlowConfig, output: Path, searched: Task | None = None
) -> None:
    context = context.to_measure()
    model = tasks[0].model
    more = f", and {searched.system} after each set of rewrites" if searched else ""
    _LOG.info("%s: %d systems, variants and sizes%s", model, len(tasks), more)
    times = times_in_turn(tasks, config.rounds, config.build_s, len(os.sched_getaffinity(0)), searched)
    for each in times:
        outcome = f"{each.median_ms:.3f} ms" if each.median_ms is not None else each.failure
        _LOG.info("%s, %s, %s: %s", each.system, each.variant, each.sizes, outcome)
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    came_from = provenance(context.machine, context.seed, options=config.model_dump())
    save(output, KIND, ControlStudy(model, versions, tuple(times)), came_from)


def control_figure_stage(style: StyleConfig, studies: Sequence[Path], csv: Path) -> None:
    """Make the figure that `csv` names: studies -> table -> picture, and print what it concludes.

    Raises:
        DamagedFileError: a file cannot be read.
    """
    from autotm.study.drawing import draw_to_files
    from autotm.study.figures.control_flow import CONTROL_FIGURES, summary, table_of_studies
    from autotm.study.tables import read_table, write_table

    write_table(table_of_studies(studies, csv.stem), csv)
    table = read_table(csv)
    draw_to_files(CONTROL_FIGURES[csv.stem], table, csv, style)
    for line in summary(table):
        _LOG.info("%s", line)
