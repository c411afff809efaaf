"""From the profile to tables: which kernels need one, and what is in it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from autotm.model.measurement import Profile
from autotm.model.step import Graph, Kernel, Tier, configuration
from autotm.solve.problem.options import SolveOptions
from autotm.solve.problem.table import Floats, Ints, Table, Way, undominated

_MOST_OPERANDS = 10
"""A kernel with more movable tensors is read additively: its table would have thousands of entries."""


@dataclass(frozen=True)
class Tabulation:
    """The tables of a step.

    Attributes:
        tabled: kernels whose times are read from their table, ascending: those measured in full and not additive within
            the tolerance, and those whose implementations slow memory costs differently.
        tables: theirs, and those of the other kernels with several implementations, which have no operands.
    """

    tabled: tuple[int, ...]
    tables: tuple[Table, ...]


def tabulate(graph: Graph, profile: Profile, options: SolveOptions) -> Tabulation:
    """Read every kernel of the step; equal ones once."""
    variants = _variants(graph)
    known: dict[Hashable, _Numbers | None] = {}
    tabled, tables = [], []
    for index, kernel in enumerate(graph.kernels):
        calls = [_Call(variant, variant.kernels[index]) for variant in variants[: len(kernel.implementations)]]
        forced = tuple(tuple(_forced(options, name) for name in call.workspaces) for call in calls)
        key = (tuple((call.kernel.identity, call.kernel.implementation, call.slots) for call in calls), forced)
        if key not in known:
            known[key] = _numbers(profile, options, calls, forced)
        numbers = known[key]
        if numbers is not None:
            tabled += [index] if numbers.is_tabled else []
            tables.append(_table(index, numbers, calls))
    return Tabulation(tuple(tabled), tuple(tables))


def _variants(graph: Graph) -> tuple[Graph, ...]:
    """The step with the j-th implementation of every kernel, for each j; the last one where there are fewer."""
    names = [kernel.implementations for kernel in graph.kernels]
    count = max(map(len, names), default=1)
    return tuple(graph.computed_by([name[min(rank, len(name) - 1)] for name in names]) for rank in range(count))


class _Call:
    """One implementation of one kernel with its movable tensors."""

    def __init__(self, graph: Graph, kernel: Kernel) -> None:
        found = graph.slots_of(kernel)
        self.graph = graph
        self.kernel = kernel
        self.names = tuple(found)
        self.slots = tuple(found.values())
        self.workspaces = tuple(operand.tensor for operand in kernel.workspaces)
        self.workspace_bytes = tuple(graph.by_name[name].allocated_bytes for name in self.workspaces)

    def extra_us(self, profile: Profile) -> Floats:
        """What each tensor alone adds in slow memory."""
        return np.array([profile.extra_us(self.graph, self.kernel, name) for name in self.names])

    def additive_us(self, profile: Profile) -> Floats:
        """(2^tensors,) the additive reading; bit t of the index is set where tensor t is slow."""
        return profile.base_us(self.kernel) + bits(len(self.names)) @ self.extra_us(profile)

    def measured_us(self, profile: Profile) -> Floats:
        """(2^tensors,) the measured times, NaN where there is none."""
        placements = [frozenset(compress(self.names, row)) for row in bits(len(self.names)).tolist()]
        return np.array([self._measured_us(profile, slow) for slow in placements])

    def times_us(self, profile: Profile) -> Floats:
        """(2^tensors,) measured where measured, else additive."""
        measured = self.measured_us(profile)
        return np.where(np.isnan(measured), self.additive_us(profile), measured)

    def is_measured_in_full(self, profile: Profile) -> bool:
        """Whether the profile has a time for every configuration, beyond what the additive reading needs anyway."""
        count = len(self.names)
        if not 1 < count <= _MOST_OPERANDS or math.isnan(self._measured_us(profile, frozenset(self.names))):
            return False
        return not bool(np.isnan(self.measured_us(profile)).any())

    def _measured_us(self, profile: Profile, slow: frozenset[str]) -> float:
        if profile.timing(self.kernel, configuration(self.graph, self.kernel, slow)) is None:
            return math.nan
        return profile.time_us(self.graph, self.kernel, slow)


@dataclass(frozen=True)
class _Numbers:
    """A table without names; ways are (implementation, bits of the slow workspaces)."""

    is_tabled: bool
    ways: tuple[tuple[int, int], ...]
    slow: Ints
    time_us: Floats
    fast_bytes: Ints
    way: Ints
    least_us: tuple[float, ...]
    most_us: tuple[float, ...]


def _numbers(
    profile: Profile, options: SolveOptions, calls: Sequence[_Call], forced: Sequence[tuple[Tier | None, ...]]
) -> _Numbers | None:
    is_tabled = not options.fast_operands_only and _is_tabled(profile, options.additive_tolerance, calls)
    if not is_tabled and len(calls) == 1:
        return None
    chosen = [len(call.workspaces) if len(calls) > 1 else 0 for call in calls]
    operands = len(calls[0].names) - chosen[0] if is_tabled else 0
    # On a GPU no workspace is slow, and none was timed so.
    timed = [0] * len(calls) if options.fast_operands_only else chosen
    found = [_times_us(profile, call, is_tabled, operands, count) for call, count in zip(calls, timed, strict=True)]
    ways: list[tuple[int, int]] = []
    slow, time_us, fast_bytes, way = [], [], [], []
    for rank, (times, count) in enumerate(zip(found, chosen, strict=True)):
        sizes = np.array(calls[rank].workspace_bytes[:count], np.int64)
        for spilled, is_slow in enumerate(bits(count)):
            if not _may(forced[rank], is_slow.tolist()):
                continue
            slow.append(np.arange(2**operands))
            time_us.append(times[spilled])
            fast_bytes.append(np.full(2**operands, sizes[is_slow == 0].sum(), np.int64))
            way.append(np.full(2**operands, len(ways), np.int64))
            ways.append((rank, spilled))
    placement, time_of, bytes_of, way_of = (np.concatenate(parts) for parts in (slow, time_us, fast_bytes, way))
    order = np.lexsort((time_of, bytes_of, placement))
    kept = order[undominated(placement[order], time_of[order])]
    rises = [_rises(times, operands) for times in found]
    return _Numbers(
        is_tabled,
        tuple(ways),
        placement[kept],
        time_of[kept],
        bytes_of[kept],
        way_of[kept],
        tuple(min(rise[o][0] for rise in rises) for o in range(operands)),
        tuple(max(rise[o][1] for rise in rises) for o in range(operands)),
    )


def _is_tabled(profile: Profile, tolerance: float, calls: Sequence[_Call]) -> bool:
    """Whether the additive reading of the first implementation's slow operands misses any measured time."""
    for call in calls:
        if call.is_measured_in_full(profile):
            missed_us = np.abs(call.measured_us(profile) - call.additive_us(profile)).max()
            if missed_us > tolerance * profile.base_us(call.kernel):
                return True
    shared = len(calls[0].names) - len(calls[0].workspaces)
    if len(calls) == 1 or shared > _MOST_OPERANDS:
        return False
    extras = np.stack([call.extra_us(profile)[:shared] for call in calls])
    return bool(np.ptp(extras, axis=0).max(initial=0.0) > tolerance * profile.base_us(calls[0].kernel))


def _times_us(profile: Profile, call: _Call, is_tabled: bool, operands: int, workspaces: int) -> Floats:
    """(2^workspaces, 2^operands) times; the operands of a kernel that is not tabled are fast here."""
    if is_tabled:
        return call.times_us(profile).reshape(-1, 2**operands)
    if not workspaces:
        return np.array([[profile.base_us(call.kernel)]])
    extras = call.extra_us(profile)[len(call.names) - workspaces :]
    return (profile.base_us(call.kernel) + bits(workspaces) @ extras).reshape(-1, 1)


def _may(forced: Sequence[Tier | None], is_slow: Sequence[float]) -> bool:
    return all(
        tier is None or (tier is Tier.PMEM) == bool(bit)
        for tier, bit in zip(forced[: len(is_slow)], is_slow, strict=True)
    )


def _forced(options: SolveOptions, name: str) -> Tier | None:
    return options.fixed.get(name, Tier.DRAM if options.fast_operands_only else None)


def _rises(times_us: Floats, operands: int) -> list[tuple[float, float]]:
    """Per operand the least and the most that slow memory adds."""
    found = []
    for operand in range(operands):
        pairs = times_us.reshape(len(times_us), -1, 2, 2**operand)
        rise = pairs[:, :, 1] - pairs[:, :, 0]
        found.append((float(rise.min()), float(rise.max())))
    return found


def bits(count: int) -> Floats:
    """(2^count, count) the binary digits of 0, 1, 2, ..., lowest first."""
    return (np.arange(2**count)[:, None] >> np.arange(count) & 1).astype(np.float64)


def _table(index: int, numbers: _Numbers, calls: Sequence[_Call]) -> Table:
    operands = calls[0].names[: len(numbers.least_us)]
    ways = []
    for rank, spilled in numbers.ways:
        names = calls[rank].workspaces if len(calls) > 1 else ()
        is_slow = [bool(spilled >> bit & 1) for bit in range(len(names))]
        fast = tuple(compress(names, [not bit for bit in is_slow]))
        ways.append(Way(calls[rank].kernel.implementation, fast, tuple(compress(names, is_slow))))
    return Table(
        index, operands, tuple(ways), numbers.slow, numbers.time_us, numbers.fast_bytes, numbers.way,
        numbers.least_us, numbers.most_us,
    )  # fmt: skip
