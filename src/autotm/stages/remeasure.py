"""`autotm remeasure`: what others disturbed is run once more, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from autotm.model.files import load
from autotm.model.measurement import Links, Record, read_profile
from autotm.model.step import Limit
from autotm.stages.context import Context
from autotm.stages.run import run_of_study
from autotm.study.setup import Study

log = logging.getLogger(__name__)

Marked = tuple[Path, Record]


def disturbed_records(study: Study) -> list[Marked]:
    """The records of the study that are there and whose disturbed steps count, for want of others.

    Raises:
        DamagedFileError: a record cannot be read.
    """
    there = [path for path in study.configured_records() if path.exists()]
    records = [(path, load(path, "record", Record)) for path in there]
    return [(path, record) for path, record in records if record.disturbed_steps_count]


def disturbed_before(study: Study) -> list[Path]:
    """The links and profiles of the study that are there and were measured while others held the cores.

    Raises:
        DamagedFileError: one cannot be read.
    """
    links = study.machine_paths.links
    networks = sorted({*study.scale.networks, *study.config.own_networks})
    profiles = [study.paths(name).profile for name in networks]
    return [
        *([links] if links.exists() and load(links, "links", Links).disturbed else []),
        *(path for path in profiles if path.exists() and read_profile(path).is_disturbed),
    ]


def remeasure(study: Study, context: Context, marked: Sequence[Marked]) -> int:
    """Run the programs of these records; each is replaced when the new one is complete. Returns how many stay marked.

    Raises:
        as `run_of_study`.
    """
    left = 0
    for path, record in marked:
        log.info("running %s %s at %s again", record.network, record.optimizer, record.limit)
        run_of_study(study, context, record.network, record.optimizer, Limit.parse(record.limit))
        left += load(path, "record", Record).disturbed_steps_count
    return left
