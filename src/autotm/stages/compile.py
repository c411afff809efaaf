"""The stages that give a plan its addresses, and that check both."""

from __future__ import annotations

import logging
from pathlib import Path

from autotm.check import check_plan, check_program
from autotm.model.files import load, save
from autotm.model.machine import provenance
from autotm.model.plan import Plan, Program
from autotm.model.step import Graph
from autotm.stages.context import Context, Given

log = logging.getLogger(__name__)


def compile_stage(context: Context, given: Given, *, plan: Path, program: Path) -> None:
    """Give every stay an address and write the steps; plan and program are checked, whoever made the plan."""
    came_from = provenance(context.machine, context.seed, plan_file=str(plan))
    placed = load(plan, "plan", Plan)
    step = given.step(placed.counts)
    check_plan(step, given.times, given.copies, placed, fast_operands_only=context.machine.fast_operands_only)
    made = program_of(step, placed)
    save(program, "program", made, came_from)
    log.info(
        "%d stays in pools of %.6g MB fast (limit %s) and %.6g MB slow memory; %d steps",
        *(len(placed.stays), made.fast_bytes / 1e6, placed.limit, made.slow_bytes / 1e6, len(made.steps)),
    )


def program_of(step: Graph, plan: Plan) -> Program:
    """A checked plan with the steps that run it, which are checked too.

    Raises:
        IllegalPlanError: as `check_program`; a fault of ours.
    """
    from autotm.layout import compile_program, pack

    compiled = compile_program(step, plan, pack(step, plan))
    check_program(step, plan, compiled)
    return compiled


def check_stage(context: Context, given: Given, *, plan: Path, program: Path) -> None:
    """Raise unless plan and program are legal on the machine.

    Raises:
        IllegalPlanError: names the rule that is broken, and where.
    """
    placed = load(plan, "plan", Plan)
    step = given.step(placed.counts)
    check_plan(step, given.times, given.copies, placed, fast_operands_only=context.machine.fast_operands_only)
    check_program(step, placed, load(program, "program", Program))
