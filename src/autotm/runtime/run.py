"""`rule run`: verify one program, time it, and record both."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from autotm.kernels.library import KernelLibrary, check_cores, pinned
from autotm.memory import Tiers, open_for, open_tiers, quiet_interpreter
from autotm.model.files import BadInputError, hash_of
from autotm.model.machine import Machine, NumaTier
from autotm.model.measurement import PLAIN_STEP, Links, Profile, Record
from autotm.model.plan import Plan, Program
from autotm.model.step import Counts, Graph, Tier, counting
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import Executor, heaviest_call, prepare
from autotm.runtime.options import RunOptions
from autotm.runtime.plain import all_fast_program
from autotm.runtime.poison import poisoned
from autotm.runtime.record import Measured, build_record
from autotm.runtime.timing import count_pages, fill_and_settle, time_parts, time_steps
from autotm.runtime.verify import Reference, compare, reference, verify

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
    """Programs of one step, verified and timed one after another; a context manager.

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

    def run(self, program: Program, plan: Plan) -> Record:
        """Verify and time `program`.

        What the program is verified against has the same implementations of kernels; what it is timed beside has the
        default ones.

        Raises:
            BadInputError: program, plan, profile and graph do not belong together, or the library lacks a kernel.
            AutotmError: kernels run on fewer threads than the machine asks for, or memory is not where it was opened.
            VerificationError: the program computes something else than the plain step.
        """
        options, machine = self._options, self._machine
        counted = counting(self._graph, plan.counts)
        check_pedigree(counted, program, plan, self._profile)
        placed, chosen = program.step_of(counted), self._graph.computed_by(program.implementations)
        with pinned(machine), ExitStack() as stack:
            expected = self._reference(chosen)
            beside = self._all_fast(program, plan)
            is_warm = beside is not None or not options.side_by_side
            tiers = stack.enter_context(open_for(program, machine, self._links, self._devices_dir))
            if beside is not None and plan.counts is Counts.INTERMEDIATES:
                arguments = Arguments(chosen, beside.arguments.places)
            else:
                arguments = Arguments.in_pools(chosen, placed, program, tiers)
            if beside is None and options.side_by_side:
                beside = self._open_all_fast(plan.counts, arguments)
                stack.callback(beside.tiers.close)
            executor = prepare(placed, self._library, program, arguments, tiers)
            busy = self._library.busy_threads(machine.threads)
            check_cores(machine, heaviest_call(placed, executor), busy=busy)
            others = [] if beside is None else [beside.tiers]
            settled = fill_and_settle(executor, arguments, tiers, others, options.seed, machine.cpus)
            passes: list[list[int]] = []
            last = None
            if expected is not None and options.poison:
                checked = poisoned(placed, executor, tiers)
                arguments.fill(options.seed, machine.cpus)
                verify(chosen, checked, arguments, expected, options.verify_steps, machine.cpus)
            elif expected is not None:
                passes, last = self._verified(chosen, executor, arguments, expected, is_warm=is_warm)
            if not passes:
                executor.step()
            all_fast = None if beside is None else beside.executor
            times = time_steps(executor, all_fast, machine.cpus, options, is_warm=is_warm, after_first=last)
            for one in others:
                one.check()
            linux = count_pages(settled, tiers, placed, plan, len(times.samples_s) + times.disturbed)
            parts = time_parts(placed, executor, options.instrumented_steps, passes[-options.instrumented_steps :])
            tiers.check()
            pages = {str(tier): tiers.pool(tier).pages_by_node() for tier in Tier}
        against = PLAIN_STEP if options.verify_steps else ""
        measured = Measured(times, parts, options.verify_steps, options.seed, against, pages, linux)
        record = build_record(counted, program, plan, machine, self._links, self._profile, measured)
        _log(record)
        return record

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

    def _reference(self, chosen: Graph) -> Reference | None:
        options = self._options
        if not options.verify_steps:
            return None
        return reference(
            chosen,
            self._library,
            self._machine,
            options.seed,
            options.verify_steps,
            self._devices_dir,
            self._reference_file,
        )

    def _verified(
        self, chosen: Graph, executor: Executor, arguments: Arguments, expected: Reference, *, is_warm: bool
    ) -> tuple[list[list[int]], Callable[[], None] | None]:
        """Verify steps, each of them instrumented; returns what it took, and what is to be called after the next step.

        Where all memory is warm, the last step that is verified is the first that is timed.
        """
        steps, cpus = self._options.verify_steps, self._machine.cpus
        before = steps - 1 if is_warm and steps > 1 else steps
        passes = []
        for number in range(1, before + 1):
            with quiet_interpreter():
                passes.append(executor.instrumented_step())
            compare(chosen, executor.program, arguments, expected, number, cpus)
        if before == steps:
            return passes, None
        return passes, lambda: compare(chosen, executor.program, arguments, expected, steps, cpus)

    def _all_fast(self, program: Program, plan: Plan) -> _AllFast | None:
        """The step that all programs with such plans share; None where there is none.

        Where Linux places a program's pages, it gets memory before all others, and nothing is shared.
        """
        is_placed_by_linux = bool(program.paged_traffic) and isinstance(self._machine.slow_tier, NumaTier)
        if not self._options.side_by_side or is_placed_by_linux:
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
                executor.step()
            stack.pop_all()
        return _AllFast(executor, arguments, tiers)


@dataclass(frozen=True)
class _AllFast:
    """The all-fast step that planned ones are timed in turn with, and its memory."""

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
