"""`rule run`: verify one program, time it, and record both."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path

from autotm.kernels.library import KernelLibrary, check_cores, pinned
from autotm.memory import Tiers, open_for, open_tiers
from autotm.model.files import BadInputError, hash_of
from autotm.model.machine import Machine
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
from autotm.runtime.verify import reference, verify

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
    """Verify and time `program`; `reference_file` keeps the plain step's results for other programs of the graph.

    What the program is verified against has the same implementations of kernels; what it is timed beside has the
    default ones.

    Raises:
        BadInputError: program, plan, profile and graph do not belong together, or the library lacks a kernel.
        AutotmError: kernels run on fewer threads than the machine asks for, or memory is not where it was opened.
        VerificationError: the program computes something else than the plain step.
    """
    counted = counting(graph, plan.counts)
    check_pedigree(counted, program, plan, profile)
    placed, chosen = program.step_of(counted), graph.computed_by(program.implementations)
    with ExitStack() as stack:
        stack.enter_context(pinned(machine))
        tiers = stack.enter_context(open_for(program, machine, links, devices_dir))
        arguments = Arguments.in_pools(chosen, placed, program, tiers)
        executor = prepare(placed, library, program, arguments, tiers)
        check_cores(machine, heaviest_call(placed, executor), busy=library.busy_threads(machine.threads))
        steps = options.verify_steps
        expected = (
            reference(chosen, library, machine, options.seed, steps, devices_dir, reference_file) if steps else None
        )
        default = graph.computed_by(())
        beside = _all_fast(default, library, arguments, plan.counts, machine, options, devices_dir, stack)
        others = [] if beside is None else [beside[1]]
        settled = fill_and_settle(executor, arguments, tiers, others, options.seed, machine.cpus)
        if expected is not None:
            checked = executor
            if options.poison:
                checked = poisoned(placed, executor, tiers)
                arguments.fill(options.seed, machine.cpus)
            verify(chosen, checked, arguments, expected, options.verify_steps, machine.cpus)
        if options.poison or not options.verify_steps:
            executor.step()
        times = time_steps(executor, None if beside is None else beside[0], machine.cpus, options)
        for one in others:
            one.check()
        linux = count_pages(settled, tiers, placed, plan, len(times.samples_s) + times.disturbed)
        parts = time_parts(placed, executor, options.instrumented_steps)
        tiers.check()
        pages = {str(tier): tiers.pool(tier).pages_by_node() for tier in Tier}
    against = PLAIN_STEP if options.verify_steps else ""
    measured = Measured(times, parts, options.verify_steps, options.seed, against, pages, linux)
    record = build_record(counted, program, plan, machine, links, profile, measured)
    _log(record)
    return record


def _all_fast(
    graph: Graph,
    library: KernelLibrary,
    arguments: Arguments,
    counts: Counts,
    machine: Machine,
    options: RunOptions,
    devices_dir: Path,
    stack: ExitStack,
) -> tuple[Executor, Tiers] | None:
    """The all-fast step that is timed in turn with the planned one, if asked, and its memory, which `stack` closes.

    Both work on the same arguments, unless the plan places these: then the all-fast step has its own, in fast memory.
    """
    if not options.side_by_side:
        return None
    program = all_fast_program(graph)
    tiers = stack.enter_context(open_tiers(machine, None, program.fast_bytes, 0, devices_dir, stretch=1.0))
    if counts is Counts.ALL:
        arguments = Arguments.allocate(graph, tiers=tiers)
        arguments.fill(options.seed, machine.cpus)
    return prepare(graph, library, program, arguments, tiers), tiers


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
