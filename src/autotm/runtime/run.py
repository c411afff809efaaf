"""`rule run`: verify one program, time it, and record both."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotm.kernels.library import KernelLibrary, check_cores, pinned
from autotm.memory.opening import open_for, open_tiers
from autotm.memory.pool import require_available
from autotm.memory.tiers import Tiers
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.files import hash_of
from autotm.model.graph import ChosenGraph, CountedGraph, Graph, Tier
from autotm.model.limit import Counts, counting
from autotm.model.links import Links
from autotm.model.machine import EmulatedTier, Machine, NumaTier
from autotm.model.plan import Plan
from autotm.model.profile import Profile
from autotm.model.program import Program
from autotm.model.record import PLAIN_STEP, Record
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import Executor, StepExecutor, heaviest_call, poisoned, prepare
from autotm.runtime.linux_pages import PageState, count_pages, fill_arguments
from autotm.runtime.record import Measured, build_record
from autotm.runtime.step_times import Contender, RunOptions, StepTimes, time_in_turn, time_parts
from autotm.runtime.verify import Digests, all_fast_program, compare, reference, verify

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


@dataclass
class Runs(AbstractContextManager["Runs"]):
    """Programs of one step, verified and timed; a context manager.

    All share what does not depend on a program: the all-fast step that each is timed in turn with, its memory, and the
    arguments that a plan does not place. The pools of a program are there only while it runs. `reference_file` keeps
    the plain step's results for other programs of the graph.
    """

    graph: Graph
    library: KernelLibrary
    machine: Machine
    links: Links
    profile: Profile
    options: RunOptions
    devices_dir: Path
    reference_file: Path | None = None
    _all_fast: dict[Counts, Executor] = field(default_factory=dict, init=False)
    _references: dict[tuple[str, ...], Digests] = field(default_factory=dict, init=False)

    def run(self, program: Program, plan: Plan) -> Record:
        """Verify and time `program`.

        What the program is verified against has the same implementations of kernels; the all-fast step that is timed in
        turn with it has the default ones.

        Raises:
            BadInputError: program, plan, profile and graph do not belong together, or the library lacks a kernel.
            AutotmError: kernels run on fewer threads than the machine asks for, or memory is not where it was opened.
            VerificationError: the program computes something else than the plain step.
        """
        (record,) = self.run_in_turn([(program, plan)])
        if isinstance(record, AutotmError):
            raise record
        return record

    def run_in_turn(self, programs: Sequence[tuple[Program, Plan]]) -> list[Record | AutotmError]:
        """Verify and time programs in turn with one all-fast step; their pools are there at the same time.

        One after another where they cannot share that step, or may not have slow memory together.

        Returns:
            For each program its record, or the error that kept it from being measured: as `run` raises it, or that its
            pools do not fit next to the others'.

        Raises:
            AutotmError: as `run`, where it keeps all of them.
        """
        if len(programs) > 1 and not self._may_be_together(programs):
            return [record for one in programs for record in self.run_in_turn([one])]
        machine, options = self.machine, self.options
        with pinned(machine), ExitStack() as stack:
            all_fast = self._shared_all_fast(*programs[0])
            is_warm = all_fast is not None or not options.side_by_side
            outcomes: list[_HostStep | AutotmError] = []
            for program, plan in programs:
                try:
                    if outcomes:  # As much again stays free.
                        require_available(2 * (program.fast_bytes + program.slow_bytes))
                    outcomes.append(self._open(program, plan, all_fast, stack))
                except AutotmError as error:
                    outcomes.append(error)
            planned = [one for one in outcomes if isinstance(one, _HostStep)]
            if planned:  # All run their kernels on the same threads.
                busy = self.library.busy_threads(machine.threads)
                check_cores(machine, heaviest_call(planned[0].placed, planned[0].executor), busy=busy)
            if planned and not is_warm:
                (alone,) = planned
                all_fast = self._open_all_fast(alone.plan.counts, alone.executor.arguments)
                stack.callback(all_fast.tiers.close)
            for one in planned:
                one.others = [] if all_fast is None else [all_fast.tiers]
            contenders = [one.contender() for one in planned]
            fast_step = None if all_fast is None else all_fast.step
            series = iter(time_in_turn(contenders, fast_step, machine.cpus, options, is_warm=is_warm))
            if all_fast is not None:
                all_fast.tiers.check()
            return [self._recorded(one, next(series)) if isinstance(one, _HostStep) else one for one in outcomes]

    def close(self) -> None:
        """Free the memory of the all-fast step."""
        for executor in self._all_fast.values():
            executor.tiers.close()
        self._all_fast.clear()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, program: Program, plan: Plan, all_fast: Executor | None, stack: ExitStack) -> _HostStep:
        """Check where a program is from, and give it memory, until `stack` ends."""
        machine, options, implementations = self.machine, self.options, program.implementations
        counted, placed, chosen = steps_of(self.graph, program, plan, self.profile)
        if options.verify_steps and implementations not in self._references:
            self._references[implementations] = reference(
                chosen,
                self.library,
                machine,
                options.seed,
                options.verify_steps,
                self.devices_dir,
                self.reference_file,
            )
        expected = self._references.get(implementations)
        tiers = stack.enter_context(open_for(program, machine, self.links, self.devices_dir))
        if all_fast is not None and plan.counts is Counts.INTERMEDIATES:
            arguments = replace(all_fast.arguments, graph=chosen)
        else:
            arguments = Arguments.in_pools(chosen, placed, program, tiers)
        executor = prepare(placed, self.library, program, arguments, tiers)
        against = PLAIN_STEP if expected else ""
        return _HostStep(plan, counted, placed, chosen, executor, options, machine.cpus, expected, against)

    def _recorded(self, one: _HostStep, times: StepTimes | AutotmError) -> Record | AutotmError:
        if isinstance(times, AutotmError):
            return times
        try:
            return one.record(times, self.machine, self.links, self.profile)
        except AutotmError as error:
            return error

    def _may_be_together(self, programs: Sequence[tuple[Program, Plan]]) -> bool:
        """Return whether several programs share an all-fast step, and their pools slow memory.

        A device of slow memory holds one pool, and what a machine file allows is meant for one run.
        """
        tier = self.machine.slow_tier
        allows_several = isinstance(tier, EmulatedTier) or (isinstance(tier, NumaTier) and tier.capacity is None)
        by_linux = any(self._is_placed_by_linux(program) for program, _ in programs)
        is_one_step = len({plan.counts for _, plan in programs}) == 1
        return allows_several and self.options.side_by_side and not by_linux and is_one_step

    def _is_placed_by_linux(self, program: Program) -> bool:
        return bool(program.paged_traffic) and isinstance(self.machine.slow_tier, NumaTier)

    def _shared_all_fast(self, program: Program, plan: Plan) -> Executor | None:
        """Return the all-fast step that programs with equal counts share; None where they share none.

        Where Linux places a program's pages, that program gets memory before all others, and nothing is shared.
        """
        if not self.options.side_by_side or self._is_placed_by_linux(program):
            self.close()
            return None
        if plan.counts not in self._all_fast:
            self.close()
            self._all_fast[plan.counts] = self._open_all_fast(plan.counts)
        return self._all_fast[plan.counts]

    def _open_all_fast(self, counts: Counts, arguments: Arguments | None = None) -> Executor:
        """Open the all-fast step on `arguments` of planned steps, or on its own where None or where plans place these.

        Without `arguments`, the step is run once, so that its memory is warm.
        """
        is_alone = arguments is None
        machine, graph = self.machine, self.graph.computed_by(())
        program = all_fast_program(graph)
        tiers = open_tiers(machine, None, program.fast_bytes, 0, self.devices_dir, stretch=1.0)
        with ExitStack() as stack:
            stack.callback(tiers.close)
            if arguments is None or counts is Counts.ALL:
                arguments = Arguments.allocate(graph, tiers=tiers)
            executor = prepare(graph, self.library, program, arguments, tiers)
            if is_alone or counts is Counts.ALL:
                arguments.fill(self.options.seed, machine.cpus)
            if is_alone:
                executor = replace(executor, arguments=replace(arguments, initial=arguments.copied()))
                executor.step()
            stack.pop_all()
        return executor


# What the host and a device have in common.


@dataclass
class PlannedStep(ABC):
    """A program in its memory: verified, timed and recorded in the same way wherever it runs.

    Attributes:
        plan: that it was compiled from.
        counted: the step with all implementations, and what the limit counts.
        placed: the same with the implementations that the program chose.
        chosen: the step as lowered, with these.
        executor: of the program.
        options: of its run.
        cpus: that it runs on.
        expected: results of the plain step; None if it is not verified.
        against: what computed them.
    """

    plan: Plan
    counted: CountedGraph
    placed: ChosenGraph
    chosen: ChosenGraph
    executor: StepExecutor
    options: RunOptions
    cpus: Sequence[int]
    expected: Digests | None
    against: str

    def contender(self) -> Contender:
        """Return the step to time; steps are verified before, but the last of several to verify is timed first."""
        last = self.options.verify_steps
        if self.expected is None or self.options.poison or last == 1:
            return Contender(self.executor.step, self._warm_up)
        return Contender(self.executor.step, self._warm_up, lambda: self._compare(last))

    def record(self, times: StepTimes, machine: Machine, links: Links, profile: Profile) -> Record:
        """Time the kernels of the program, whose steps were timed, and return its record.

        Raises:
            AutotmError: memory is not where it was opened, or a step failed.
        """
        program, measured = self.executor.program, self._measured(times)
        record = build_record(self.counted, program, self.plan, machine, links, profile, measured)
        predicted_s, measured_s = record.predicted_runtime_s, record.actual_runtime_median_s
        log.info("%s at %s: %.4f s predicted, %.4f s measured", record.optimizer, record.limit, predicted_s, measured_s)
        if record.drift_s is not None:
            log.info(
                "the all-fast step, timed in turn, took %+.4f s more than profiled; "
                "at that speed of the machine %.4f s were to be expected",
                record.drift_s,
                predicted_s + record.drift_s,
            )
        return record

    @abstractmethod
    def _measured(self, times: StepTimes) -> Measured:
        """Return the measurements of the whole step, with the times of its parts."""

    def _fill(self) -> None:
        """Fill all arguments with their values before the first step."""
        self.executor.arguments.fill(self.options.seed, self.cpus)

    def _warm_up(self) -> None:
        """Fill the arguments and run steps; each is compared with the plain step's, if that is known."""
        self._fill()
        if self.expected is None:
            self.executor.step()
            return
        for number in range(1, max(self.options.verify_steps, 2)):
            self._verified_step()
            self._compare(number)

    def _verified_step(self) -> None:
        self.executor.step()

    def _compare(self, number: int) -> None:
        assert self.expected is not None
        compare(self.chosen, self.executor, self.expected, number, self.cpus)


@dataclass
class _HostStep(PlannedStep):
    """A program in two tiers of the host.

    Attributes:
        others: other memories open at the same time.
        initial_pages: places of its pages when timing began; None where Linux does not place them.
        passes: what its instrumented steps took.
    """

    executor: Executor
    others: Sequence[Tiers] = ()
    initial_pages: PageState | None = None
    passes: list[list[int]] = field(default_factory=list)

    def _fill(self) -> None:
        self.initial_pages = fill_arguments(self.executor, self.others, self.options.seed, self.cpus)

    def _warm_up(self) -> None:
        if self.expected is None or not self.options.poison:
            super()._warm_up()
            return
        self._fill()
        checked = poisoned(self.placed, self.executor)
        checked.arguments.fill(self.options.seed, self.cpus)
        verify(self.chosen, checked, self.expected, self.options.verify_steps, self.cpus)
        self.executor.step()

    def _verified_step(self) -> None:
        self.passes.append(self.executor.instrumented_step())

    def _measured(self, times: StepTimes) -> Measured:
        options, tiers = self.options, self.executor.tiers
        linux = count_pages(self.initial_pages, tiers, self.placed, self.plan, len(times.samples_s) + times.disturbed)
        passes = self.passes[-options.instrumented_steps :]
        parts = time_parts(self.placed, self.executor, options.instrumented_steps, passes)
        tiers.check()
        pages = {str(tier): tiers.pool(tier).pages_by_node() for tier in Tier}
        return Measured(times, parts, options.verify_steps, options.seed, self.against, pages, linux)


def steps_of(
    graph: Graph, program: Program, plan: Plan, profile: Profile
) -> tuple[CountedGraph, ChosenGraph, ChosenGraph]:
    """Return a program's step as counted, placed and chosen (`PlannedStep`); refuse what does not belong together.

    Raises:
        BadInputError: program, plan or profile belong to another graph, or the program to another plan.
    """
    counted = counting(graph, plan.counts)
    for label, stated, wanted in (
        ("program's graph", program.graph_hash, hash_of(counted)),
        ("plan's graph", plan.graph_hash, hash_of(counted)),
        ("program's plan", program.plan_hash, hash_of(plan)),
        ("profile's graph", profile.graph_hash, hash_of(counted)),
    ):
        if stated != wanted:
            raise BadInputError(
                f"run: the {label} has hash {stated}, the one given has {wanted}; rerun kernel_profile and what follows"
            )
    return counted, program.step_of(counted), graph.computed_by(program.implementations)
