"""Stages that run a program: verified and timed, or traced call by call.

Records that other processes disturbed are measured again.
"""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from autotm.check.program import check_program
from autotm.model.config import RunConfig
from autotm.model.errors import AutotmError
from autotm.model.files import hash_of, load, require_writable, save
from autotm.model.limit import Limit
from autotm.model.links import Links
from autotm.model.machine import require_runnable
from autotm.model.paths import FRAMEWORK_FILE, Paths
from autotm.model.plan import Plan
from autotm.model.profile import read_profile
from autotm.model.program import Program
from autotm.model.provenance import provenance
from autotm.model.record import FrameworkRecord, Record
from autotm.model.timeline import StepTrace
from autotm.stages.context import Context, PlacementInputs
from autotm.stages.gpu import has_gpu, run_on_the_gpu, save_on_cpu_stage
from autotm.study.inputs import measured_steps
from autotm.study.setup import Study

if TYPE_CHECKING:
    from autotm.runtime.run import Runs


log = logging.getLogger(__name__)


class RunsStage:
    """Verifies and times one program of a network after another, and writes their records; to be closed.

    They share all that does not depend on the program (`runtime.Runs`), which is made for the first of them.

    Attributes:
        IN_TURN: programs to time beside one all-fast step. It runs between the two: with more, slow-downs scatter twice
            as much as of those timed one by one, since the speed of the machine changes from step to step.
    """

    IN_TURN: ClassVar[int] = 2

    def __init__(self, context: Context, config: RunConfig, paths: Paths) -> None:
        self._context, self._config = context.to_measure(on_gpu=True), config
        self._paths, self._inputs = paths, PlacementInputs(paths)
        self._measured: dict[tuple[str, Limit], tuple[Program, Plan, Record]] = {}

    def measure_in_turn(self, placements: Sequence[tuple[str, Limit]]) -> None:
        """Verify and time the programs of several optimizers and limits beside one all-fast step (`Runs.run_in_turn`).

        `run` then writes their records; what could not be measured with others it measures alone.

        Raises:
            AutotmError: as `run`, where it concerns all of them.
        """
        if has_gpu(self._context.machine):
            return
        programs = []
        for placement in placements:
            with contextlib.suppress(AutotmError):  # `run` meets it again
                programs.append((placement, *_checked(self._context, self._inputs, *placement)))
        if len(programs) < 2:  # noqa: PLR2004 - one is measured alone
            return
        outcomes = self._runs.run_in_turn([(compiled, placed) for _, compiled, placed in programs])
        for (placement, compiled, placed), one in zip(programs, outcomes, strict=True):
            if isinstance(one, Record):
                self._measured[placement] = compiled, placed, one
            else:
                log.info("%s: %s (tried once more alone)", self._paths.program(*placement), one)

    def run(self, optimizer: str, limit: Limit, record: Path | None = None) -> Path:
        """Check, verify and time a program, unless that was done with others, and write its record.

        Args:
            optimizer: of its plan.
            limit: of its plan.
            record: where to write it; None for its place among the results.

        Returns:
            Where the record is.

        Raises:
            DamagedFileError: a file cannot be read.
            AutotmError: as `runtime.Runs.run`.
        """
        config, machine, seed = self._config, self._context.machine, self._context.seed
        came_from = provenance(machine, seed, options=config.model_dump())
        record = record or self._paths.record(optimizer, limit)
        known = self._measured.pop((optimizer, limit), None)
        compiled, placed = known[:2] if known else _checked(self._context, self._inputs, optimizer, limit)
        came_from |= {"plan_hash": hash_of(placed), "program_hash": hash_of(compiled)}
        if has_gpu(machine):
            run_on_the_gpu(machine, config, seed, came_from, self._inputs, compiled, placed, record)
            return record
        require_writable(record)
        measured = known[2] if known else self._runs.run(compiled, placed)
        came_from["tier_reality"] = measured.tier_reality
        save(record, "record", measured, came_from)
        return record

    def run_all(self, plans: Sequence[Plan]) -> list[Record]:
        """Verify and time the programs of plans, some at a time (`IN_TURN`).

        Raises:
            as `run`.
        """
        placements, records = [(plan.optimizer, plan.limit) for plan in plans], []
        for first in range(0, len(plans), self.IN_TURN):
            some = placements[first : first + self.IN_TURN]
            self.measure_in_turn(some)
            records += [load(self.run(*one), "record", Record) for one in some]
        return records

    def close(self) -> None:
        """Free the memory that runs share."""
        if "_runs" in self.__dict__:
            self._runs.close()

    @cached_property
    def _runs(self) -> Runs:
        from autotm.kernels.library import KernelLibrary
        from autotm.runtime.run import Runs
        from autotm.runtime.step_times import RunOptions

        # A collection of garbage before each timing would look through all that was imported: 40 ms.
        gc.freeze()
        return Runs(
            self._inputs.lowered,
            KernelLibrary.load(self._paths.library),
            self._context.machine,
            self._inputs.copies,
            self._inputs.times,
            RunOptions(**self._config.model_dump(), seed=self._context.seed),
            self._context.devices_dir,
            self._paths.reference,
        )


def _checked(context: Context, inputs: PlacementInputs, optimizer: str, limit: Limit) -> tuple[Program, Plan]:
    """Read a program and its plan; check that the machine can run the program and that the program is correct."""
    placed = load(inputs.paths.plan(optimizer, limit), "plan", Plan)
    compiled = load(inputs.paths.program(optimizer, limit), "program", Program)
    require_runnable(context.machine, compiled.optimizer)
    check_program(inputs.step(placed.counts), placed, compiled)
    return compiled, placed


def runs_of_study(study: Study, context: Context, network: str) -> RunsStage:
    """Return the stage that runs programs of a network of the study, with the number of steps of its scale."""
    return RunsStage(context, study.scale.of_run(study.config.run), study.paths(network))


def trace_stage(
    context: Context, rounds: int, patience_s: float, paths: Paths, optimizer: str, limit: Limit, trace: Path
) -> StepTrace:
    """Check the program, run its steps with the clock read between all calls, and write one step as a trace.

    Raises:
        DamagedFileError: a file cannot be read.
        AutotmError: kernels run on fewer threads than the machine asks for, or the system does not give the memory.
    """
    from autotm.kernels.library import KernelLibrary
    from autotm.runtime.session import Session
    from autotm.study.view.trace import write_trace

    context = context.to_measure()
    inputs, machine = PlacementInputs(paths), context.machine
    compiled, placed = _checked(context, inputs, optimizer, limit)
    require_writable(trace)
    came_from = provenance(machine, context.seed, plan_hash=hash_of(placed), program_hash=hash_of(compiled))
    came_from["tier_reality"] = machine.reality_of(cached=placed.cached is not None)
    session = Session(
        inputs.lowered,
        KernelLibrary.load(paths.library),
        compiled,
        placed.counts,
        machine,
        inputs.copies,
        context.devices_dir,
        context.seed,
    )
    with closing(session):
        traced = session.trace(rounds, patience_s)
    if traced.disturbed:
        log.warning("%s: others held the cores in every round: its times are too long; the file says so", trace)
    write_trace(trace, compiled.step_of(inputs.step(placed.counts)), compiled, traced, came_from)
    return traced


# Measurements that other processes disturbed are repeated.


@dataclass(frozen=True)
class DisturbedRecord:
    """A record kept although other processes disturbed its steps.

    Attributes:
        study: the study on the machine that measured it.
        path: path of its file.
        record: that of a program of autotm, or of a framework's own step.
    """

    study: Study
    path: Path
    record: Record | FrameworkRecord


def disturbed_records(study: Study) -> list[DisturbedRecord]:
    """Return the study's existing records whose steps other processes disturbed.

    Raises:
        DamagedFileError: a record cannot be read.
    """
    records = (DisturbedRecord(of, path, _load(path)) for of, path in measured_steps(study) if path.exists())
    return [marked for marked in records if marked.record.disturbed_steps_count]


def disturbed_before(study: Study) -> list[Path]:
    """Return the paths of the study's links and profiles that were measured while other processes held the cores.

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


def remeasure(context: Context, marked: Sequence[DisturbedRecord]) -> int:
    """Measure disturbed records once more; replace each record when the new one is complete.

    Returns:
        How many records were disturbed again.

    Raises:
        as `RunsStage.run` and `save_on_cpu_stage`.
    """
    left = 0
    for (_, _, network), some in groupby(
        marked, key=lambda one: (one.study.machine.slug, one.study.config.scale, one.record.network)
    ):
        with ExitStack() as stack:
            runs = None
            for one in some:
                study, record, on = one.study, one.record, replace(context, machine=one.study.machine)
                log.info("running %s %s at %s again", network, record.optimizer, record.limit)
                if isinstance(record, Record):
                    runs = runs or stack.enter_context(closing(runs_of_study(study, on, network)))
                    runs.run(record.optimizer, record.limit)
                else:
                    source, config = study.network(network), study.scale.of_run(study.config.run)
                    save_on_cpu_stage(on, source, record.limit, config, study.paths(network))
                left += _load(one.path).disturbed_steps_count
    return left


def _load(path: Path) -> Record | FrameworkRecord:
    if path.name == FRAMEWORK_FILE:
        return load(path, "framework_record", FrameworkRecord)
    return load(path, "record", Record)
