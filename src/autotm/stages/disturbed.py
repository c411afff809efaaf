"""What was measured while others held the cores: found, and measured once more."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from autotm.model.files import load
from autotm.model.measurement import FrameworkRecord, Links, Record, read_profile
from autotm.model.step import Limit
from autotm.model.study import FRAMEWORK_FILE
from autotm.stages.context import Context
from autotm.stages.gpu import save_on_cpu_stage
from autotm.stages.run import run_with, runs_of_study
from autotm.study.setup import Study, measured_steps

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Marked:
    """A record kept although other processes disturbed its steps.

    Attributes:
        study: on the machine that measured it.
        path: of its file.
        record: of a program of ours, or of a framework's own step.
    """

    study: Study
    path: Path
    record: Record | FrameworkRecord


def disturbed_records(study: Study) -> list[Marked]:
    """The records of the study that are there and are marked.

    Raises:
        DamagedFileError: a record cannot be read.
    """
    there = [(of, path) for of, path in measured_steps(study) if path.exists()]
    found = [Marked(of, path, _load(path)) for of, path in there]
    return [marked for marked in found if marked.record.disturbed_steps_count]


def disturbed_before(study: Study) -> list[Path]:
    """The links and profiles of the study that are there and were measured while others held the cores.

    Raises:
        DamagedFileError: one cannot be read.
    """
    all_of_them = (study, *(of for of, _ in measured_steps(study)))
    studies = {(of.machine.slug, of.config.scale): of for of in all_of_them}.values()
    links = dict.fromkeys(of.machine_paths.links for of in studies)
    networks = [(of, name) for of in studies for name in sorted({*of.scale.networks, *of.config.own_networks})]
    profiles = [of.paths(name).profile for of, name in networks]
    return [
        *(path for path in links if path.exists() and load(path, "links", Links).disturbed),
        *(path for path in profiles if path.exists() and read_profile(path).is_disturbed),
    ]


def remeasure(context: Context, marked: Sequence[Marked]) -> int:
    """Measure these once more; each record is replaced when the new one is complete.

    Returns:
        How many stay marked.

    Raises:
        as `run_stage` and `save_on_cpu_stage`.
    """
    left = 0
    for (_, _, network), some in groupby(marked, key=_runs_together):
        with ExitStack() as stack:
            runs = None
            for one in some:
                record, on = one.record, replace(context, machine=one.study.machine)
                log.info("running %s %s at %s again", network, record.optimizer, record.limit)
                if not isinstance(record, Record):
                    _save_on_cpu(on, one)
                else:
                    runs = runs or stack.enter_context(runs_of_study(one.study, on, network))
                    run_with(runs, one.study, network, record.optimizer, Limit.parse(record.limit))
                left += _load(one.path).disturbed_steps_count
    return left


def _runs_together(marked: Marked) -> tuple[str, str, str]:
    return marked.study.machine.slug, marked.study.config.scale, marked.record.network


def _save_on_cpu(context: Context, marked: Marked) -> None:
    study, record = marked.study, marked.record
    paths = study.paths(record.network)
    save_on_cpu_stage(
        context,
        study.network(record.network),
        Limit.parse(record.limit),
        study.scale.of_run(study.config.run),
        graph=paths.graph,
        library=paths.library,
        record=marked.path,
    )


def _load(path: Path) -> Record | FrameworkRecord:
    if path.name == FRAMEWORK_FILE:
        return load(path, "framework_record", FrameworkRecord)
    return load(path, "record", Record)
