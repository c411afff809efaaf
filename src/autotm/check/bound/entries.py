"""What a kernel takes: by implementation and configuration where a plan tabled it, else by the additive reading."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

from autotm.check.bound.cases import Assumed
from autotm.check.bound.holding import Floats, HoldingCosts
from autotm.check.calls import called_kernels, check_calls
from autotm.check.fault import Fault, require
from autotm.model.measurement import Profile
from autotm.model.plan import Plan
from autotm.model.step import Graph, Tier


def computed(graph: Graph, plan: Plan) -> Graph:
    """The step with the plan's implementations, as it is called.

    Raises:
        FaultError: it names an implementation that a kernel has not, or not one for each kernel; or its calls are not
            those of a step.
    """
    names = plan.implementations
    for index, (kernel, name) in enumerate(zip(graph.kernels, names, strict=False)):
        known = name in kernel.implementations
        require(known, Fault.IMPLEMENTATION, f"kernel {index} '{kernel.name}' has none called '{name}'")
    count = len(graph.kernels)
    require(len(names) in {0, count}, Fault.IMPLEMENTATION, f"{len(names)} implementations for {count} kernels")
    check_calls(graph, plan)
    return plan.step_of(graph)


def check_tabled(graph: Graph, plan: Plan) -> None:
    """The kernels that the plan says are tabled exist, once each and ascending."""
    ascending = list(plan.tabled) == sorted(set(plan.tabled))
    inside = not plan.tabled or 0 <= min(plan.tabled) <= max(plan.tabled) < len(graph.kernels)
    require(ascending and inside, Fault.ORDER, "tabled kernels are not distinct, ascending indices of kernels")


def kernel_us(graph: Graph, chosen: Graph, profile: Profile, plan: Plan, index: int, slow: frozenset[str]) -> float:
    """Predicted time of a call as the plan computes it, with exactly the operands in `slow` in slow memory."""
    kernel, number = chosen.kernels[index], called_kernels(graph, plan)[index]
    at = bisect_left(plan.tabled, number)
    if plan.tabled[at : at + 1] == (number,):
        return profile.time_us(chosen, kernel, slow)
    own = slow & {operand.tensor for operand in kernel.workspaces}
    extra_us = sum(profile.extra_us(chosen, kernel, name) for name in own)
    return profile.base_us(kernel) + extra_us + sum(shared_us(graph, profile, number, name) for name in slow - own)


def shared_us(graph: Graph, profile: Profile, index: int, tensor: str) -> float:
    """What a slow input or output adds to a kernel that is not tabled: the same for all its implementations."""
    return profile.extra_us(graph, graph.kernels[index], tensor)


def own_workspaces(graph: Graph, index: int) -> tuple[str, ...]:
    """Workspaces that come with the default implementation and are no operands, since another may be chosen."""
    kernel = graph.kernels[index]
    return tuple(operand.tensor for operand in kernel.workspaces) if kernel.alternatives else ()


class Menus:
    """The cheapest implementation and configuration of every kernel, given prices of bytes and of slow operands."""

    def __init__(
        self, graph: Graph, profile: Profile, plan: Plan, fixed: Mapping[str, Tier], fast_operands_only: bool
    ) -> None:
        self._profile = profile
        self._plan = plan
        self._fixed = fixed
        self._fast_only = fast_operands_only
        self._graph = graph
        count = max((len(kernel.implementations) for kernel in graph.kernels), default=1)
        names = [kernel.implementations for kernel in graph.kernels]
        self._variants = [graph.computed_by([(name * count)[rank] for name in names]) for rank in range(count)]
        self._read: dict[object, tuple[npt.NDArray[np.float64], ...]] = {}

    def operands(self, index: int) -> list[str]:
        """Movable tensors whose tiers a tabled kernel's entries tell apart."""
        graph = self._graph
        own = own_workspaces(graph, index)
        return [name for name in graph.slots_of(graph.kernels[index]) if name not in own]

    def cheapest_us(self, index: int, holding: HoldingCosts, slow_us: Floats, assumed: Assumed) -> Floats | float:
        """(cases,) Least of time + holding cost of the workspaces' fast bytes - prices of the slow operands.

        `slow_us` is of shape (operands, cases).
        """
        kernel = self._graph.kernels[index]
        if not kernel.alternatives and index not in self._plan.tabled:
            return self._profile.base_us(kernel)
        times_us, slow, fast_bytes = self._menu(index)
        cost_us = times_us[:, None] + holding.at_us(index, fast_bytes) - slow @ slow_us
        more, most = assumed.workspaces(index)
        cost_us[(fast_bytes[:, None] > most) | (fast_bytes[:, None] <= more)] = np.inf
        for name, is_slow in zip(self.operands(index), slow.T, strict=False):
            fast, not_fast = assumed.tier(self._graph.by_name[name], index)
            cost_us[(is_slow[:, None] > 0) & fast | (is_slow[:, None] == 0) & not_fast] = np.inf
        least: Floats = cost_us.min(axis=0)
        return least

    def _menu(self, index: int) -> tuple[npt.NDArray[np.float64], ...]:
        """The entries of all implementations, without those that another of the same operands' tiers beats.

        Some best plan has none that is no leaner and no faster than another: it would do as well with that one.
        """
        found = []
        for variant in self._variants[: len(self._graph.kernels[index].implementations)]:
            chosen = variant.kernels[index]
            own = [operand.tensor for operand in chosen.workspaces] if self._graph.kernels[index].alternatives else []
            found.append(self._entries(variant, index, own))
        if len(found) == 1 and not self._graph.kernels[index].alternatives:
            return found[0]
        times_us, slow, fast_bytes = (np.concatenate(column) for column in zip(*found, strict=True))
        placement = slow @ (2.0 ** np.arange(slow.shape[1]))
        kept, here, fastest_us = [], -1.0, np.inf
        for entry in np.lexsort((times_us, fast_bytes, placement)).tolist():
            if placement[entry] != here or times_us[entry] < fastest_us:
                kept.append(entry)
                here, fastest_us = float(placement[entry]), float(times_us[entry])
        return times_us[kept], slow[kept], fast_bytes[kept]

    def _entries(self, variant: Graph, index: int, own: list[str]) -> tuple[npt.NDArray[np.float64], ...]:
        """Times, slow operands (entries x operands) and fast bytes of the entries of one implementation."""
        tabled = index in self._plan.tabled
        operands = self.operands(index) if tabled else []
        kernel = variant.kernels[index]
        tiers = tuple(self._tiers(name) for name in own)
        key = (tabled, kernel.identity, kernel.implementation, tiers, tuple(variant.slots_of(kernel).values()))
        if key not in self._read:
            rows = list(self._rows(variant, index, operands, own, tiers))
            columns = [np.array(column, np.float64) for column in zip(*rows, strict=True)]
            columns[1] = columns[1].reshape(len(rows), len(operands))
            self._read[key] = tuple(columns)
        return self._read[key]

    def _rows(
        self, variant: Graph, index: int, operands: list[str], own: list[str], tiers: Sequence[Sequence[bool]]
    ) -> Iterator[tuple[float, tuple[bool, ...], int]]:
        sizes = {name: variant.by_name[name].allocated_bytes for name in own}
        for at in product((False, True), repeat=len(operands)):
            for spilled in product(*tiers):
                slow = {name for name, is_slow in zip(operands + own, at + spilled, strict=True) if is_slow}
                fast_bytes = sum(size for name, size in sizes.items() if name not in slow)
                time_us = kernel_us(self._graph, variant, self._profile, self._plan, index, frozenset(slow))
                yield time_us, at, fast_bytes

    def _tiers(self, name: str) -> tuple[bool, ...]:
        """Whether a workspace may be slow."""
        if name in self._fixed:
            return (self._fixed[name] is Tier.PMEM,)
        return (False,) if self._fast_only else (False, True)
