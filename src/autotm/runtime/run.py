"""`rule run`: verify one program, time it, and record both."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from autotm.kernels.library import KernelLibrary, check_cores, pinned
from autotm.memory.pool import require_available
from autotm.memory.tiers import Tiers, open_for, open_tiers
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.files import hash_of
from autotm.model.graph import Graph, Tier
from autotm.model.limit import Counts, counting
from autotm.model.links import Links
from autotm.model.machine import EmulatedTier, Machine, NumaTier
from autotm.model.plan import Plan
from autotm.model.profile import Profile
from autotm.model.program import Program
from autotm.model.record import PLAIN_STEP, Record
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import Executor, heaviest_call, poisoned, prepare
from autotm.runtime.linux_pages import Settled, count_pages, fill_and_settle
from autotm.runtime.record import Measured, build_record
from autotm.runtime.step_times import Contender, RunOptions, StepTimes, time_in_turn, time_parts
from autotm.runtime.verify import Reference, all_fast_program, compare, reference, verify

log = logging.getLogger(__name__)


def run(
    graph: Graph,
    library: KernelLibrary,
    program: Program,
    plan: Plan,
    machine: Machine,
    links: Links,
    profile: Profile,
    options: RunOptions,
    devices_dir: Path,
    reference_file: Path | None = None,
) -> Record:
    """Verify and time one program, as `Runs` do.

    Raises:
        as `Runs.run`.
    """
    with Runs(graph, library, machine, links, profile, options, devices_dir, reference_file) as runs:
        return runs.run(program, plan)


class Runs:
    """Programs of one step, verified and timed; a context manager.

    All share what does not depend on a program: the all-fast step that each is timed in turn with, its memory, and the
    arguments that a plan does not place. The pools of a program are there only while it runs.
    """

    def __init__(
        self,
        graph: Graph,
        library: KernelLibrary,
        machine: Machine,
        links: Links,
        profile: Profile,
        options: RunOptions,
        devices_dir: Path,
        reference_file: Path | None = None,
    ) -> None:
        """`reference_file` keeps the plain step's results for other programs of the graph."""
        self._graph, self._library, self._machine = graph, library, machine
        self._links, self._profile, self._options = links, profile, options
        self._devices_dir, self._reference_file = devices_dir, reference_file
        self._beside: dict[Counts, _AllFast] = {}
        self._references: dict[tuple[str, ...], Reference] = {}

    def run(self, program: Program, plan: Plan) -> Record:
        """Verify and time `program`.

        What the program is verified against has the same implementations of kernels; what it is timed beside has the
        default ones.

        Raises:
            BadInputError: program, plan, profile and graph do not belong together, or the library lacks a kernel.
            AutotmError: kernels run on fewer threads than the machine asks for, or memory is not where it was opened.
            VerificationError: the program computes something else than the plain step.
        """
        (found,) = self.run_in_turn([(program, plan)])
        if isinstance(found, AutotmError):
            raise found
        return found

    def run_in_turn(self, programs: Sequence[tuple[Program, Plan]]) -> list[Record | AutotmError]:
        """Verify and time programs in turn with one all-fast step; their pools are there at the same time.

        One after another where they cannot share that step, or may not have slow memory together.

        Returns:
            For each program its record, or the error that kept it from being measured: as `run` raises it, or that its
            pools do not fit beside the others'.

        Raises:
            AutotmError: as `run`, where it keeps all of them.
        """
        if len(programs) > 1 and not self._may_be_together(programs):
            return [found for one in programs for found in self.run_in_turn([one])]
        machine, options = self._machine, self._options
        with pinned(machine), ExitStack() as stack:
            beside = self._all_fast(*programs[0])
            is_warm = beside is not None or not options.side_by_side
            outcomes: list[_Planned | AutotmError] = []
            for program, plan in programs:
                try:
                    if outcomes:  # As much again stays free.
                        require_available(2 * (program.fast_bytes + program.slow_bytes))
                    outcomes.append(self._open(program, plan, beside, stack))
                except AutotmError as error:
                    outcomes.append(error)
            planned = [one for one in outcomes if isinstance(one, _Planned)]
            if planned:  # All run their kernels on the same threads.
                busy = self._library.busy_threads(machine.threads)
                check_cores(machine, heaviest_call(planned[0].placed, planned[0].executor), busy=busy)
            if planned and not is_warm:
                (alone,) = planned
                beside = self._open_all_fast(alone.plan.counts, alone.arguments)
                stack.callback(beside.tiers.close)
            others = [] if beside is None else [beside.tiers]
            contenders = [one.contender(others) for one in planned]
            all_fast = None if beside is None else beside.executor
            series = iter(time_in_turn(contenders, all_fast, machine.cpus, options, is_warm=is_warm))
            for tiers in others:
                tiers.check()
            return [self._recorded(one, next(series)) if isinstance(one, _Planned) else one for one in outcomes]

    def close(self) -> None:
        """Free the memory of the all-fast step."""
        for one in self._beside.values():
            one.tiers.close()
        self._beside.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, program: Program, plan: Plan, beside: _AllFast | None, stack: ExitStack) -> _Planned:
        """Check where a program is from, and give it memory, until `stack` ends."""
        machine, options = self._machine, self._options
        counted = counting(self._graph, plan.counts)
        check_pedigree(counted, program, plan, self._profile)
        placed, chosen = program.step_of(counted), self._graph.computed_by(program.implementations)
        expected = self._reference(program.implementations)
        tiers = stack.enter_context(open_for(program, machine, self._links, self._devices_dir))
        if beside is not None and plan.counts is Counts.INTERMEDIATES:
            arguments = replace(beside.arguments, graph=chosen)
        else:
            arguments = Arguments.in_pools(chosen, placed, program, tiers)
        executor = prepare(placed, self._library, program, arguments, tiers)
        return _Planned(plan, counted, placed, chosen, tiers, arguments, executor, expected, options, machine.cpus)

    def _recorded(self, one: _Planned, times: StepTimes | AutotmError) -> Record | AutotmError:
        """The record of a program whose steps were timed, once its kernels are, too; or what it failed with."""
        if isinstance(times, AutotmError):
            return times
        options, tiers = self._options, one.tiers
        try:
            linux = count_pages(one.settled, tiers, one.placed, one.plan, len(times.samples_s) + times.disturbed)
            passes = one.passes[-options.instrumented_steps :]
            parts = time_parts(one.placed, one.executor, options.instrumented_steps, passes)
            tiers.check()
        except AutotmError as error:
            return error
        pages = {str(tier): tiers.pool(tier).pages_by_node() for tier in Tier}
        against = PLAIN_STEP if options.verify_steps else ""
        measured = Measured(times, parts, options.verify_steps, options.seed, against, pages, linux)
        program, machine = one.executor.program, self._machine
        record = build_record(one.counted, program, one.plan, machine, self._links, self._profile, measured)
        _log(record)
        return record

    def _reference(self, implementations: tuple[str, ...]) -> Reference | None:
        """What the plain step of those computes; None where nothing is verified."""
        options = self._options
        if not options.verify_steps:
            return None
        if implementations not in self._references:
            self._references[implementations] = reference(
                self._graph.computed_by(implementations),
                self._library,
                self._machine,
                options.seed,
                options.verify_steps,
                self._devices_dir,
                self._reference_file,
            )
        return self._references[implementations]

    def _may_be_together(self, programs: Sequence[tuple[Program, Plan]]) -> bool:
        """Whether several programs share an all-fast step, and their pools slow memory.

        A device of slow memory holds one pool, and what a machine file allows is meant for one run.
        """
        tier = self._machine.slow_tier
        has_room = isinstance(tier, EmulatedTier) or (isinstance(tier, NumaTier) and tier.capacity is None)
        by_linux = any(self._is_placed_by_linux(program) for program, _ in programs)
        is_one_step = len({plan.counts for _, plan in programs}) == 1
        return has_room and self._options.side_by_side and not by_linux and is_one_step

    def _is_placed_by_linux(self, program: Program) -> bool:
        return bool(program.paged_traffic) and isinstance(self._machine.slow_tier, NumaTier)

    def _all_fast(self, program: Program, plan: Plan) -> _AllFast | None:
        """The step that all programs with such plans share; None where there is none.

        Where Linux places a program's pages, it gets memory before all others, and nothing is shared.
        """
        if not self._options.side_by_side or self._is_placed_by_linux(program):
            self.close()
            return None
        if plan.counts not in self._beside:
            self.close()
            self._beside[plan.counts] = self._open_all_fast(plan.counts)
        return self._beside[plan.counts]

    def _open_all_fast(self, counts: Counts, arguments: Arguments | None = None) -> _AllFast:
        """On the arguments of planned steps, if given, unless a plan places these: then, or without, on its own.

        Without, it is run once, so that its memory is warm.
        """
        is_alone = arguments is None
        machine, graph = self._machine, self._graph.computed_by(())
        program = all_fast_program(graph)
        tiers = open_tiers(machine, None, program.fast_bytes, 0, self._devices_dir, stretch=1.0)
        with ExitStack() as stack:
            stack.callback(tiers.close)
            if arguments is None or counts is Counts.ALL:
                arguments = Arguments.allocate(graph, tiers=tiers)
            executor = prepare(graph, self._library, program, arguments, tiers)
            if is_alone or counts is Counts.ALL:
                arguments.fill(self._options.seed, machine.cpus)
            if is_alone:
                arguments = replace(arguments, initial=arguments.copied())
                executor.step()
            stack.pop_all()
        return _AllFast(executor, arguments, tiers)


@dataclass
class _Planned:
    """A program in its memory.

    Attributes:
        plan: that it was compiled from.
        counted: the step with all implementations, and what the limit counts.
        placed: the same with the implementations that the program chose.
        chosen: the step as lowered, with these.
        tiers: its pools.
        arguments: of the step, which programs may share.
        executor: of the program.
        expected: results of the plain step; None if it is not verified.
        options: of its run.
        cpus: that it runs on.
        settled: where Linux had its pages when timing began, where it places them.
        passes: what its instrumented steps took.
    """

    plan: Plan
    counted: Graph
    placed: Graph
    chosen: Graph
    tiers: Tiers
    arguments: Arguments
    executor: Executor
    expected: Reference | None
    options: RunOptions
    cpus: Sequence[int]
    settled: Settled | None = None
    passes: list[list[int]] = field(default_factory=list)

    def contender(self, others: Sequence[Tiers]) -> Contender:
        """For timing: it is verified first, but for the last of several steps, which is the first that is timed.

        `others` are memories that are open beside its own.
        """
        options = self.options
        if self.expected is None or options.poison or options.verify_steps == 1:
            return Contender(self.executor.step, lambda: self._warm_up(others))
        return Contender(self.executor.step, lambda: self._warm_up(others), lambda: self._compare(options.verify_steps))

    def _warm_up(self, others: Sequence[Tiers]) -> None:
        """Fill the arguments and run steps; they are compared with the plain step's, or with poison, all of them."""
        options, expected, executor = self.options, self.expected, self.executor
        self.settled = fill_and_settle(executor, self.arguments, self.tiers, others, options.seed, self.cpus)
        if expected is not None and not options.poison:
            for number in range(1, max(options.verify_steps, 2)):
                self.passes.append(executor.instrumented_step())
                self._compare(number)
            return
        if expected is not None:
            checked = poisoned(self.placed, executor, self.tiers)
            self.arguments.fill(options.seed, self.cpus)
            verify(self.chosen, checked, self.arguments, expected, options.verify_steps, self.cpus)
        executor.step()

    def _compare(self, number: int) -> None:
        assert self.expected is not None
        compare(self.chosen, self.executor.program, self.arguments, self.expected, number, self.cpus)


@dataclass(frozen=True)
class _AllFast:
    """The all-fast step that planned ones are timed in turn with, the arguments that they may share, its pools."""

    executor: Executor
    arguments: Arguments
    tiers: Tiers


def _log(record: Record) -> None:
    predicted_s, measured_s = record.predicted_runtime_s, record.actual_runtime_median_s
    log.info("%s at %s: %.4f s predicted, %.4f s measured", record.optimizer, record.limit, predicted_s, measured_s)
    if record.drift_s is not None:
        log.info(
            "the all-fast step, timed in turn, took %+.4f s more than profiled; "
            "at that speed of the machine %.4f s were to be expected",
            record.drift_s,
            predicted_s + record.drift_s,
        )


def check_pedigree(graph: Graph, program: Program, plan: Plan, profile: Profile) -> None:
    """Refuse what was not made from one another.

    Raises:
        BadInputError: program, plan or profile belong to another graph, or the program to another plan.
    """
    for what, found, wanted in (
        ("program's graph", program.graph_hash, hash_of(graph)),
        ("plan's graph", plan.graph_hash, hash_of(graph)),
        ("program's plan", program.plan_hash, hash_of(plan)),
        ("profile's graph", profile.graph_hash, hash_of(graph)),
    ):
        if found != wanted:
            raise BadInputError(
                f"run: the {what} has hash {found}, the one given has {wanted}; rerun kernel_profile and what follows"
            )
