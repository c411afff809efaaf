"""Which files figures of runs read, in the order of the study's config."""

from __future__ import annotations

from pathlib import Path

from autotm.model.files import BadInputError
from autotm.model.step import Limit
from autotm.model.study import ALL_FAST, ALL_SLOW, MODELLED
from autotm.study.setup.series import FIRST_TOUCH, MOVER
from autotm.study.setup.study import CONVENTIONAL, Study


def comparison_records(study: Study, folder: str) -> list[Path]:
    """The records that the comparisons of a workload read.

    `folder` is where its figures go: named after it, or, for the conventional one, empty.

    Raises:
        BadInputError: as `Study.workload_records`, or the workload lacks a limit that others are compared with.
    """
    name = folder.rstrip("/") or CONVENTIONAL
    records = study.workload_records(name)
    missing = [text for text in (ALL_SLOW, ALL_FAST) if text not in study.config.workloads[name].limits]
    if missing:
        raise BadInputError(f'workloads.{name}.limits: these figures compare with "{missing[0]}"; add it')
    return records


def predicted_records(study: Study, folder: str) -> list[Path]:
    """The records that figure 11 reads: those of the comparisons, and runs of further optimizers.

    Raises:
        BadInputError: as `comparison_records`.
    """
    return comparison_records(study, folder) + study.further_records(folder.rstrip("/") or CONVENTIONAL)


def large_files(study: Study) -> tuple[list[Path], list[Path], list[Path]]:
    """The records that figure 8 reads, or, at a modelled scale, where nothing runs, the plans and their graphs.

    Raises:
        BadInputError: as `Study.workload_records`.
    """
    name = study.config.figures.fig8.workload
    records = study.workload_records(name)
    if not study.config.scale.endswith(MODELLED):
        return records, [], []
    plans = [record.with_name("plan.json") for record in records]
    return [], plans, [study.paths(network).graph for network in study.config.workloads[name].networks]


def front_records(study: Study) -> list[Path]:
    """The records of the front figure: both ends, and both optimizers at the limit between them."""
    front = study.config.figures.front
    paths = study.paths(front.network)
    points = [(MOVER, ALL_SLOW), (MOVER, front.limit), (MOVER, ALL_FAST), (FIRST_TOUCH, front.limit)]
    return [paths.record(optimizer, Limit.parse(limit)) for optimizer, limit in points]


def heap_files(study: Study) -> dict[str, Path]:
    """The files that the heap plot reads: one plan with its program, and what they were made from."""
    heap = study.config.figures.heap
    paths, limit = study.paths(heap.network), Limit.parse(heap.limit)
    return {
        "graph": paths.graph,
        "profile": paths.profile,
        "plan": paths.plan(heap.optimizer, limit),
        "program": paths.program(heap.optimizer, limit),
    }
