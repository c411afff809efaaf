"""Bounds on what recomputation or another order of kernels could save.

Neither is built: these numbers say whether it would pay. A bound close to the plan proves that it would not; one far
below leaves it open, because it leaves costs out (`docs/formulation.md` §8).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from autotm.model.errors import BadInputError
from autotm.model.graph import Role
from autotm.model.plan import Plan
from autotm.solve.choices import Choices, TensorChoices, flows_by_use, priced
from autotm.solve.prices import HoldingCosts, Prices, cheapest_entry_us, prices_without_engines
from autotm.solve.problem import Floats, Problem
from autotm.solve.residencies import PricedResidencies

_STEPS = 300  # at most; the bound holds after any of them
_FIRST_STRIDE = 1.0  # share of Polyak's step length
_PATIENCE = 20
"""Steps without a better bound after which the stride is halved."""


@dataclass(frozen=True)
class Potential:
    """Lower bounds on the step time in microseconds; no plan of its kind is faster.

    Attributes:
        objective_us, bound_us: of the plan, and of all plans that place and move tensors.
        recomputation_us: where tensors may also be dropped and computed again.
        any_order_us: where kernels may also run in any order that the limit allows.
    """

    objective_us: float
    bound_us: float
    recomputation_us: float
    any_order_us: float

    def gain(self, bound_us: float) -> float:
        """Return the largest share of the plan's time that the freedom with this bound could save."""
        return max(0.0, 1.0 - bound_us / self.objective_us)


def potential(problem: Problem, plan: Plan) -> Potential:
    """Return the bounds for a `synchronous` plan of `problem`.

    Raises:
        BadInputError: the plan is by another optimizer.
    """
    if plan.certificate is None or plan.optimizer != "synchronous":
        raise BadInputError(
            f"plan by '{plan.optimizer}': bounds beyond it start from the prices of a 'synchronous' plan"
        )
    choices = Choices(flows_by_use(problem), problem.tabulation.tables)
    kernels = len(problem.graph.kernels)
    sizes_bytes = {tensor.name: tensor.allocated_bytes for tensor in problem.graph.movable}
    prices = prices_without_engines(plan.certificate, choices.tables, sizes_bytes, problem.limit_bytes, kernels)
    flows = [
        replace(flow, slow_us=priced(flow, ties, prices.slow_us))
        for flow, ties in zip(choices.flows, choices.ties, strict=True)
    ]
    again_us = np.array([_again_us(problem, flow) for flow in flows])
    priced_residencies = PricedResidencies(flows, problem.limit_bytes, kernels, again_us)

    def tables_us(byte_us: Floats) -> float:
        rents = HoldingCosts(replace(prices, byte_us=byte_us), problem.limit_bytes)
        return sum(
            cheapest_entry_us(table, shares, rents.during_us(table.kernel, table.fast_bytes), problem.limit_bytes)
            for table, shares in zip(choices.tables, prices.slow_us, strict=True)
        )

    recomputation_us = problem.base_us + _highest(
        priced_residencies, prices, plan.objective_us - problem.base_us, tables_us
    )
    return Potential(plan.objective_us, plan.bound_us, min(recomputation_us, plan.bound_us), _any_order_us(problem))


def _highest(
    priced_residencies: PricedResidencies, start: Prices, target_us: float, tables_us: Callable[[Floats], float]
) -> float:
    """Return the best Lagrangian bound found from some prices on, those of weights kept.

    It takes subgradient steps of Polyak's length towards `target_us`.
    """
    prices, weighed_us = start.byte_us, start.weighed_us
    weights_us = replace(start, byte_us=np.zeros_like(prices)).holding_us(priced_residencies.limit_bytes)
    best, best_prices, stride, stale = -np.inf, prices, _FIRST_STRIDE, 0
    for _ in range(_STEPS):
        cheapest = priced_residencies.cheapest(prices, weighed_us)
        holding_us = float(prices.sum()) * priced_residencies.limit_bytes + weights_us
        value = float(cheapest.cost_us.sum()) + tables_us(prices) - holding_us
        if value > best:
            best, best_prices, stale = value, prices, 0
        else:
            stale += 1
        slope = (cheapest.used_bytes - priced_residencies.limit_bytes).astype(np.float64)
        steepness = float(slope @ slope)
        if steepness == 0 or value >= target_us:
            break
        if stale == _PATIENCE:
            prices, stride, stale = best_prices, stride / 2, 0
        prices = np.maximum(0.0, prices + stride * max(target_us - value, 0.0) / steepness * slope)
    return best


def _again_us(problem: Problem, flow: TensorChoices) -> float:
    """Return the least cost of computing a tensor again: a share of its kernel's time, all fast, with its inputs free.

    One more run of a kernel may bring back all its outputs, so each output bears an equal share. The cost is infinite
    for a tensor that no kernel produces and for one that is no intermediate.
    """
    tensor = problem.graph.by_name[flow.tensor]
    if tensor.producer is None or tensor.role is not Role.INTERMEDIATE:
        return math.inf
    kernel = problem.graph.kernels[tensor.producer]
    return problem.profile.least_us(kernel) / len({operand.tensor for operand in kernel.outputs})


def _any_order_us(problem: Problem) -> float:
    """Sum each kernel's least time with the whole limit: operands that do not fit are slow, cheapest bytes first."""
    total = 0.0
    tabled = {table.kernel: table for table in problem.tabulation.tables}
    for index, kernel in enumerate(problem.graph.kernels):
        if index in tabled:
            total += float(tabled[index].time_us.min())
            if not tabled[index].operands:  # priced by operand all the same, and slow operands may save time
                names = problem.graph.slots_of(kernel)
                total += sum(min(0.0, problem.profile.extra_us(problem.graph, kernel, name)) for name in names)
            continue
        total += problem.profile.base_us(kernel)
        tensors = [problem.graph.by_name[name] for name in problem.graph.slots_of(kernel)]
        over = sum(tensor.allocated_bytes for tensor in tensors) - problem.limit_bytes
        costs = [(problem.profile.extra_us(problem.graph, kernel, one.name), one.allocated_bytes) for one in tensors]
        for extra_us, size_bytes in sorted(costs, key=lambda pair: pair[0] / pair[1]):
            if over <= 0 and extra_us >= 0:
                break
            total += extra_us * (min(1.0, over / size_bytes) if extra_us >= 0 else 1.0)
            over -= size_bytes
    return total
