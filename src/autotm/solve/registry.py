"""Optimizers by name; every module in `solve/optimizers/` that defines one is found by itself."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache

from autotm.model.files import unknown_name
from autotm.model.measurement import Links, Profile
from autotm.model.plan import Plan
from autotm.model.step import Graph, Limit
from autotm.solve import optimizers as package
from autotm.solve.bases import Optimizer
from autotm.solve.problem import Packing, Problem, SolveOptions


@cache
def _registry() -> dict[str, Optimizer]:
    found: dict[str, Optimizer] = {}
    for module_info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(module_info.name)
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Optimizer) and value.__module__ == module.__name__:
                found[value.name] = value()
    return found


def optimizers() -> tuple[str, ...]:
    """Names of all optimizers, sorted."""
    return tuple(sorted(_registry()))


def solve(
    graph: Graph,
    profile: Profile,
    links: Links,
    optimizer: str,
    limit: Limit,
    options: SolveOptions | None = None,
    packing: Packing | None = None,
) -> Plan:
    """Place the step's tensors within the limit.

    Args:
        graph: the step.
        profile: all-fast and one-slow times of its kernels.
        links: copy times between the tiers.
        optimizer: one of `optimizers()`.
        limit: the fast-memory budget.
        options: gap, time limit, threads, seed, and restrictions of the machine.
        packing: tells which stays cannot have addresses together, for as long as the search that avoids them is worth
            its time; the last plan may still have such stays.

    Returns:
        A plan that keeps the limit, with its proven bound and gap.

    Raises:
        BadInputError: unknown optimizer, or contradicting restrictions.
        InfeasibleLimitError: the restrictions need more fast memory than the limit.
        AutotmError: the profile lacks a time, or HiGHS failed.
    """
    problem = Problem(graph, profile, links, limit, options or SolveOptions(), packing)
    return optimizer_named(optimizer).solve(problem)


def sweep(
    graph: Graph,
    profile: Profile,
    links: Links,
    optimizer: str,
    limits: Sequence[Limit],
    options: SolveOptions | None = None,
    packing: Packing | None = None,
) -> tuple[Plan, ...]:
    """As `solve` for each of several limits, which share one model; `options` hold for each limit.

    Each plan is as good as `solve` makes it, though not always the same one, and none is slower than one for less fast
    memory.

    Raises:
        as `solve`, before anything is solved where one limit is infeasible.
    """
    if not limits:
        return ()
    problem = Problem(graph, profile, links, limits[0], options or SolveOptions(), packing)
    return optimizer_named(optimizer).sweep(problem, limits)


def optimizer_named(name: str) -> Optimizer:
    """The optimizer that users ask for by that name.

    Raises:
        BadInputError: there is none.
    """
    found = _registry().get(name)
    if found is None:
        raise unknown_name("optimizer", name, _registry())
    return found
