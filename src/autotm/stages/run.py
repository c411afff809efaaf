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
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self

from autotm.check.program import check_program
from autotm.model.config import RunConfig
from autotm.model.errors import AutotmError
from autotm.model.files import hash_of, load, require_writable, save
from autotm.model.graph import Graph
from autotm.model.limit import Limit, counting
from autotm.model.links import Links
from autotm.model.machine import require_runnable
from autotm.model.paths import FRAMEWORK_FILE
from autotm.model.plan import Plan
from autotm.model.profile import read_profile
from autotm.model.program import Program
from autotm.model.provenance import provenance
from autotm.model.record import FrameworkRecord, Record
from autotm.model.timeline import StepTrace
from autotm.stages.context import Context
from autotm.stages.gpu import has_gpu, run_on_the_gpu, save_on_cpu_stage
from autotm.study.inputs import measured_steps
from autotm.study.setup import Study

if TYPE_CHECKING:
    from autotm.runtime.run import Runs


log = logging.getLogger(__name__)


def run_stage(
    context: Context,
    config: RunConfig,
    *,
    graph: Path,
    library: Path,
    program: Path,
    plan: Path,
    profile: Path,
    links: Path,
    reference: Path,
    record: Path,
) -> None:
    """Check the program once more, verify its results against the plain step, time it, and write the record."""
    shared = {"graph": graph, "library": library, "profile": profile, "links": links, "reference": reference}
    with RunsStage(context, config, **shared) as runs:
        runs.run(program=program, plan=plan, record=record)


class RunsStage:
    """What `run_stage` does, for one program of a network after another; a context manager.

    They share all that does not depend on the program (`runtime.Runs`), which is made for the first of them.

    Attributes:
        IN_TURN: programs to time beside one all-fast step. It runs between the two: with more, slow-downs scatter twice
            as much as of those timed one by one, since the speed of the machine changes from step to step.
    """

    IN_TURN: ClassVar[int] = 2

    def __init__(
        self,
        context: Context,
        config: RunConfig,
        *,
        graph: Path,
        library: Path,
        profile: Path,
        links: Path,
        reference: Path,
    ) -> None:
        self._given, self._config, self._graph = context, config, graph
        self._library, self._profile, self._links, self._reference = library, profile, links, reference
        self._opened: Runs | None = None
        self._measured: dict[Path, tuple[Program, Plan, Record]] = {}

    def measure_in_turn(self, programs: Sequence[tuple[Path, Path]]) -> None:
        """Verify and time several programs, given with their plans, beside one all-fast step (`Runs.run_in_turn`).

        `run` then writes their records; what could not be measured with others it measures alone.

        Raises:
            AutotmError: as `run`, where it concerns all of them.
        """
        if has_gpu(self._context.machine):
            return
        given = []
        for program, plan in programs:
            with contextlib.suppress(AutotmError):  # `run` meets it again
                given.append((program, *self._checked(program, plan)))
        if len(given) < 2:  # noqa: PLR2004 - one is measured alone
            return
        found = self._runs().run_in_turn([(compiled, placed) for _, compiled, placed in given])
        for (program, compiled, placed), one in zip(given, found, strict=True):
            if isinstance(one, Record):
                self._measured[program] = compiled, placed, one
            else:
                log.info("%s: %s (tried once more alone)", program, one)

    def run(self, *, program: Path, plan: Path, record: Path) -> None:
        """Check, verify and time a program, unless that was done with others, and write its record.

        Raises:
            DamagedFileError: a file cannot be read.
            AutotmError: as `runtime.Runs.run`.
        """
        config, machine, seed = self._config, self._context.machine, self._given.seed
        came_from = provenance(machine, seed, options=config.model_dump())
        known = self._measured.pop(program, None)
        compiled, placed = known[:2] if known else self._checked(program, plan)
        came_from |= {"plan_hash": hash_of(placed), "program_hash": hash_of(compiled)}
        if has_gpu(machine):
            run_on_the_gpu(
                machine,
                config,
                seed,
                came_from,
                graph=self._step,
                library=self._library,
                program=compiled,
                plan=placed,
                profile=self._profile,
                links=self._links,
                record=record,
            )
            return
        require_writable(record)
        measured = known[2] if known else self._runs().run(compiled, placed)
        came_from["tier_reality"] = measured.tier_reality
        save(record, "record", measured, came_from)

    def _checked(self, program: Path, plan: Path) -> tuple[Program, Plan]:
        placed, compiled = load(plan, "plan", Plan), load(program, "program", Program)
        require_runnable(self._context.machine, compiled.optimizer)
        check_program(counting(self._step, placed.counts), placed, compiled)
        return compiled, placed

    def close(self) -> None:
        """Free the memory that runs share."""
        if self._opened is not None:
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @cached_property
    def _context(self) -> Context:
        given = self._given
        return replace(given, machine=given.machine.to_measure_on()) if has_gpu(given.machine) else given.to_measure()

    @cached_property
    def _step(self) -> Graph:
        return load(self._graph, "graph", Graph)

    def _runs(self) -> Runs:
        from autotm.kernels.library import KernelLibrary
        from autotm.runtime.run import Runs
        from autotm.runtime.step_times import RunOptions

        if self._opened is None:
            # A collection of garbage before each timing would look through all that was imported: 40 ms.
            gc.freeze()
            self._opened = Runs(
                self._step,
                KernelLibrary.load(self._library),
                self._context.machine,
                load(self._links, "links", Links),
                read_profile(self._profile),
                RunOptions(**self._config.model_dump(), seed=self._given.seed),
                self._context.devices_dir,
                self._reference,
            )
        return self._opened


def run_of_study(study: Study, context: Context, network: str, optimizer: str, limit: Limit) -> Path:
    """Verify and time a program of the study, as long as its scale says; returns where the record is.

    Raises:
        as `run_stage`.
    """
    with runs_of_study(study, context, network) as runs:
        return run_with(runs, study, network, optimizer, limit)


def runs_of_study(study: Study, context: Context, network: str) -> RunsStage:
    """For programs of a network of the study, which take as long as its scale says."""
    paths = study.paths(network)
    return RunsStage(
        context,
        study.scale.of_run(study.config.run),
        graph=paths.graph,
        library=paths.library,
        links=paths.links,
        profile=paths.profile,
        reference=paths.reference,
    )


def measure_with(runs: RunsStage, study: Study, network: str, plans: Sequence[Plan]) -> list[Path]:
    """Verify and time the programs of plans by the runs of their network, in turn; returns where the records are.

    Raises:
        as `RunsStage.run`.
    """
    paths, records = study.paths(network), []
    placements = [(plan.optimizer, plan.limit) for plan in plans]
    for first in range(0, len(plans), runs.IN_TURN):
        some = placements[first : first + runs.IN_TURN]
        runs.measure_in_turn([(paths.program(*one), paths.plan(*one)) for one in some])
        records += [run_with(runs, study, network, *one) for one in some]
    return records


def run_with(runs: RunsStage, study: Study, network: str, optimizer: str, limit: Limit) -> Path:
    """Verify and time a program by the runs of its network; returns where the record is.

    Raises:
        as `RunsStage.run`.
    """
    paths = study.paths(network)
    record = paths.record(optimizer, limit)
    runs.run(program=paths.program(optimizer, limit), plan=paths.plan(optimizer, limit), record=record)
    return record


def trace_stage(
    context: Context,
    rounds: int,
    patience_s: float,
    *,
    graph: Path,
    library: Path,
    program: Path,
    plan: Path,
    links: Path,
    trace: Path,
) -> StepTrace:
    """Check the program once more, run steps of it with the clock read between all calls, and write one as a trace.

    Raises:
        DamagedFileError: a file cannot be read.
        AutotmError: kernels run on fewer threads than the machine asks for, or the system does not give the memory.
    """
    from autotm.kernels.library import KernelLibrary
    from autotm.runtime.session import Session
    from autotm.study.view.trace import write_trace

    context = context.to_measure()
    step, placed = load(graph, "graph", Graph), load(plan, "plan", Plan)
    compiled = load(program, "program", Program)
    require_runnable(context.machine, compiled.optimizer)
    counted = counting(step, placed.counts)
    check_program(counted, placed, compiled)
    require_writable(trace)
    machine = context.machine
    came_from = provenance(machine, context.seed, plan_hash=hash_of(placed), program_hash=hash_of(compiled))
    came_from["tier_reality"] = machine.reality_of(cached=placed.cached is not None)
    session = Session(
        step,
        KernelLibrary.load(library),
        compiled,
        placed.counts,
        machine,
        load(links, "links", Links),
        context.devices_dir,
        context.seed,
    )
    with closing(session):
        found = session.trace(rounds, patience_s)
    if found.disturbed:
        log.warning("%s: others held the cores in every round: its times are too long; the file says so", trace)
    write_trace(trace, compiled.step_of(counted), compiled, found, came_from)
    return found


# What was measured while others held the cores: found, and measured once more.


@dataclass(frozen=True)
class DisturbedRecord:
    """A record kept although other processes disturbed its steps.

    Attributes:
        study: on the machine that measured it.
        path: of its file.
        record: of a program of ours, or of a framework's own step.
    """

    study: Study
    path: Path
    record: Record | FrameworkRecord


def disturbed_records(study: Study) -> list[DisturbedRecord]:
    """The records of the study that are there and are marked.

    Raises:
        DamagedFileError: a record cannot be read.
    """
    there = [(of, path) for of, path in measured_steps(study) if path.exists()]
    found = [DisturbedRecord(of, path, _load(path)) for of, path in there]
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


def remeasure(context: Context, marked: Sequence[DisturbedRecord]) -> int:
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
                    run_with(runs, one.study, network, record.optimizer, record.limit)
                left += _load(one.path).disturbed_steps_count
    return left


def _runs_together(marked: DisturbedRecord) -> tuple[str, str, str]:
    return marked.study.machine.slug, marked.study.config.scale, marked.record.network


def _save_on_cpu(context: Context, marked: DisturbedRecord) -> None:
    study, record = marked.study, marked.record
    paths = study.paths(record.network)
    save_on_cpu_stage(
        context,
        study.network(record.network),
        record.limit,
        study.scale.of_run(study.config.run),
        graph=paths.graph,
        library=paths.library,
        record=marked.path,
    )


def _load(path: Path) -> Record | FrameworkRecord:
    if path.name == FRAMEWORK_FILE:
        return load(path, "framework_record", FrameworkRecord)
    return load(path, "record", Record)
