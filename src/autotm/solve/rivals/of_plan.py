"""A plan as the three engines make it: moves in whole copies, one at a time in each direction."""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate

from autotm.model.plan import Engine, Move, Plan
from autotm.model.step import Graph, Tier
from autotm.solve.problem import Problem
from autotm.solve.rivals.engines import Engines
from autotm.solve.rivals.simulated import Simulated, copy_and_wait, simulated


def run_plan(problem: Problem, plan: Plan) -> Simulated:
    """The step of a plan whose kernels use fast memory only.

    The window model (`docs/formulation.md` §9) has engines that interrupt a copy for a more urgent one. Here, as on a
    GPU, a copy that has begun is finished first, so that a step may take a little longer than the plan's objective.
    """
    graph = plan.step_of(problem.graph)
    due, begun = defaultdict(list), defaultdict(list)
    for move in plan.moves:
        due[move.before].append(move)
        if move.is_asynchronous:
            begun[move.start].append(move)
    engines = Engines()
    asked: dict[tuple[str, Tier, int], tuple[Engine, int]] = {}
    for index, kernel in enumerate(graph.kernels):
        for move in due[index]:
            if move.is_asynchronous:
                engines.wait(asked.pop(_key(move)))
        for move in due[index]:
            if not move.is_asynchronous:
                size = graph.by_name[move.tensor].size_bytes
                copy_and_wait(engines, problem, _engine(move), move.tensor, size)
        for move in begun[index]:
            size = graph.by_name[move.tensor].size_bytes
            transfer_us = problem.links.transfer_us(move.destination, size)
            asked[_key(move)] = engines.ask(_engine(move), move.tensor, size, transfer_us, move.before)
        engines.compute(kernel.name, problem.profile.base_us(kernel))
    return simulated(problem, graph, engines, _most_bytes(graph, plan))


def _key(move: Move) -> tuple[str, Tier, int]:
    return move.tensor, move.destination, move.before


def _engine(move: Move) -> Engine:
    return Engine.IN if move.destination is Tier.DRAM else Engine.OUT


def _most_bytes(graph: Graph, plan: Plan) -> int:
    change = [0] * (len(graph.kernels) + 1)
    for stay in plan.stays:
        if stay.tier is Tier.DRAM:
            change[stay.start] += graph.by_name[stay.tensor].allocated_bytes
            change[stay.end] -= graph.by_name[stay.tensor].allocated_bytes
    return max(accumulate(change), default=0)
