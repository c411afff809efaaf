"""One placement problem: the step, its costs, the limit, and each kernel's times as a table."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from autotm.model.graph import ChosenGraph, CountedGraph, Kernel, Role, Tensor, configuration
from autotm.model.limit import Limit, fixed_bytes
from autotm.model.links import Links, OverlapCosts
from autotm.model.profile import Profile
from autotm.solve.options import SolveOptions

if TYPE_CHECKING:
    from autotm.layout.addresses import StepPacking

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class KernelVariant:
    """An implementation with its workspaces in fast or slow memory."""

    implementation: str
    fast_workspaces: tuple[str, ...] = ()
    slow_workspaces: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Table:
    """A kernel's times: one entry for each variant of it and each placement of its operands.

    Entries are sorted by operand placement, then ascending in bytes and descending in time: none is both larger and
    slower than another of the same placement.

    Attributes:
        kernel: its index.
        operands: the tensors whose tiers the entries tell apart.
        variants: implementations with their workspaces' tiers.
        slow: (entries,) bit o is set where operand o is in slow memory.
        time_us: (entries,)
        fast_bytes: (entries,) bytes of fast memory that the workspaces take during the kernel.
        variant: (entries,) index into `variants`.
        least_us, most_us: per operand, the least and the most that slow memory adds, all else being equal.
    """

    kernel: int
    operands: tuple[str, ...]
    variants: tuple[KernelVariant, ...]
    slow: Ints
    time_us: Floats
    fast_bytes: Ints
    variant: Ints
    least_us: tuple[float, ...]
    most_us: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.slow)

    @cached_property
    def groups(self) -> Mapping[int, tuple[int, int]]:
        """Entries [first, last + 1) of each placement."""
        placements, firsts = np.unique(self.slow, return_index=True)
        ends = [*firsts[1:].tolist(), len(self.slow)]
        return dict(zip(placements.tolist(), zip(firsts.tolist(), ends, strict=True), strict=True))

    @cached_property
    def _sizes(self) -> list[int]:
        """`fast_bytes` as Python's integers, in which a search takes a tenth of the time."""
        return self.fast_bytes.tolist()  # type: ignore[no-any-return]

    @cached_property
    def least_bytes(self) -> int:
        """Fast bytes that the workspaces of the leanest variant take; they are the same for every placement."""
        return int(self.fast_bytes.min())

    @cached_property
    def most_bytes(self) -> int:
        """Fast bytes that the workspaces of the largest variant take."""
        return int(self.fast_bytes.max())

    def best(self, slow: int, free_bytes: int) -> int:
        """Return the fastest entry for a placement whose workspaces fit `free_bytes`; the leanest where none does."""
        first, end = self.groups[slow]
        return max(first, bisect_right(self._sizes, free_bytes, first, end) - 1)

    def best_us(self, slow: int, free_bytes: int) -> float:
        """Return the time of `best`."""
        return float(self.time_us[self.best(slow, free_bytes)])

    def restricted(self, known: Mapping[int, bool]) -> Table:
        """Return the entries in which operand o is slow exactly where `known[o]` says so."""
        chosen = np.ones(len(self), bool)
        for operand, is_slow in known.items():
            chosen &= (self.slow >> operand & 1).astype(bool) == is_slow
        return self._of(self.operands, self.slow, chosen)

    def projected(self, columns: Sequence[int], *, free_bytes: bool) -> Table:
        """Return the least times over all operands but those in `columns`; with `free_bytes` memory does not matter."""
        slow = np.zeros(len(self), np.int64)
        for bit, operand in enumerate(columns):
            slow |= (self.slow >> operand & 1) << bit
        sizes = np.zeros_like(self.fast_bytes) if free_bytes else self.fast_bytes
        order = np.lexsort((self.time_us, sizes, slow))
        chosen = undominated(slow[order], self.time_us[order])
        operands = tuple(self.operands[operand] for operand in columns)
        return self._of(operands, slow, order[chosen])

    def _of(self, operands: tuple[str, ...], slow: Ints, chosen: npt.NDArray[np.int64 | np.bool_]) -> Table:
        by_name = dict(zip(self.operands, zip(self.least_us, self.most_us, strict=True), strict=True))
        return Table(
            self.kernel,
            operands,
            self.variants,
            slow[chosen],
            self.time_us[chosen],
            self.fast_bytes[chosen],
            self.variant[chosen],
            tuple(by_name[name][0] for name in operands),
            tuple(by_name[name][1] for name in operands),
        )


def undominated(slow: Ints, time_us: Floats) -> Ints:
    """Return, of entries sorted by placement, bytes and time, those faster than every leaner one of their placement."""
    entries, placement, fastest = [], -1, np.inf
    for entry, (here, entry_us) in enumerate(zip(slow.tolist(), time_us.tolist(), strict=True)):
        if here != placement or entry_us < fastest:
            entries.append(entry)
            placement, fastest = here, entry_us
    return np.array(entries, np.int64)


_MOST_OPERANDS = 10
"""A kernel with more movable tensors is read additively: its table would have thousands of entries."""


@dataclass(frozen=True)
class Tabulation:
    """The tables of a step.

    Attributes:
        tabled: kernels whose times are read from their table: those measured in full and not additive within the
            tolerance, and those whose implementations slow memory costs differently.
        tables: theirs, and those of the other kernels with several implementations, which have no operands.
    """

    tabled: frozenset[int]
    tables: tuple[Table, ...]


def tabulate(graph: CountedGraph, profile: Profile, options: SolveOptions) -> Tabulation:
    """Read every kernel of the step; equal ones once."""
    variants = _variants(graph)
    known: dict[Hashable, _Unnamed | None] = {}
    tabled, tables = [], []
    for index, kernel in enumerate(graph.kernels):
        calls = [_Call(variant, variant.kernels[index]) for variant in variants[: len(kernel.implementations)]]
        key = tuple((call.kernel.identity, call.kernel.implementation, call.slots) for call in calls)
        if key not in known:
            known[key] = _unnamed(profile, options, calls)
        unnamed = known[key]
        if unnamed is not None:
            tabled += [index] if unnamed.is_tabled else []
            tables.append(_named(index, unnamed, calls))
    return Tabulation(frozenset(tabled), tuple(tables))


def _variants(graph: CountedGraph) -> tuple[ChosenGraph, ...]:
    """Return the step with the j-th implementation of every kernel, for each j; the last one where there are fewer."""
    names = [kernel.implementations for kernel in graph.kernels]
    count = max(map(len, names), default=1)
    return tuple(graph.computed_by([name[min(rank, len(name) - 1)] for name in names]) for rank in range(count))


class _Call:
    """One implementation of one kernel with its movable tensors."""

    def __init__(self, graph: ChosenGraph, kernel: Kernel) -> None:
        slots = graph.slots_of(kernel)
        self.graph = graph
        self.kernel = kernel
        self.names = tuple(slots)
        self.slots = tuple(slots.values())
        self.workspaces = tuple(operand.tensor for operand in kernel.workspaces)
        self.workspace_bytes = tuple(graph.by_name[name].allocated_bytes for name in self.workspaces)

    def extra_us(self, profile: Profile) -> Floats:
        """Return, for each tensor, the microseconds that it adds when it alone is in slow memory."""
        return np.array([profile.extra_us(self.graph, self.kernel, name) for name in self.names])

    def additive_us(self, profile: Profile) -> Floats:
        """Return the times by the additive reading (2^tensors,); bit t of the index is set where tensor t is slow."""
        return profile.base_us(self.kernel) + bits(len(self.names)) @ self.extra_us(profile)

    def measured_us(self, profile: Profile) -> Floats:
        """Return the measured times, NaN where there is none (2^tensors,)."""
        placements = [frozenset(compress(self.names, row)) for row in bits(len(self.names)).tolist()]
        return np.array([self._measured_us(profile, slow) for slow in placements])

    def is_measured_in_full(self, profile: Profile) -> bool:
        """Return whether the profile has a time for every configuration, more than the additive reading needs."""
        count = len(self.names)
        if not 1 < count <= _MOST_OPERANDS or math.isnan(self._measured_us(profile, frozenset(self.names))):
            return False
        return not bool(np.isnan(self.measured_us(profile)).any())

    def _measured_us(self, profile: Profile, slow: frozenset[str]) -> float:
        if profile.timing(self.kernel, configuration(self.graph, self.kernel, slow)) is None:
            return math.nan
        return profile.time_us(self.graph, self.kernel, slow)


class _Unnamed(NamedTuple):
    """A table without names; variants are (implementation, bits of the slow workspaces)."""

    is_tabled: bool
    variants: tuple[tuple[int, int], ...]
    table: Table


def _unnamed(profile: Profile, options: SolveOptions, calls: Sequence[_Call]) -> _Unnamed | None:
    is_tabled = not options.fast_operands_only and _is_tabled(profile, options.additive_tolerance, calls)
    if not is_tabled and len(calls) == 1:
        return None
    chosen = [len(call.workspaces) if len(calls) > 1 else 0 for call in calls]
    operands = len(calls[0].names) - chosen[0] if is_tabled else 0
    # On a GPU no workspace is slow, and none was timed so: only the first row of bits below has times.
    timed = [0] * len(calls) if options.fast_operands_only else chosen
    all_times = [_times_us(profile, call, is_tabled, operands, count) for call, count in zip(calls, timed, strict=True)]
    variants: list[tuple[int, int]] = []
    slow, time_us, fast_bytes, variant = [], [], [], []
    for rank, (times, count) in enumerate(zip(all_times, chosen, strict=True)):
        sizes = np.array(calls[rank].workspace_bytes[:count], np.int64)
        for spilled, (spilled_us, is_slow) in enumerate(zip(times, bits(count), strict=False)):
            slow.append(np.arange(2**operands))
            time_us.append(spilled_us)
            fast_bytes.append(np.full(2**operands, sizes[is_slow == 0].sum(), np.int64))
            variant.append(np.full(2**operands, len(variants), np.int64))
            variants.append((rank, spilled))
    placement, time_of, bytes_of, variant_of = (np.concatenate(parts) for parts in (slow, time_us, fast_bytes, variant))
    order = np.lexsort((time_of, bytes_of, placement))
    best = order[undominated(placement[order], time_of[order])]
    rises = [_rises_us(all_times, operand) for operand in range(operands)]
    least_us, most_us = tuple(least for least, _ in rises), tuple(most for _, most in rises)
    table = Table(-1, (), (), placement[best], time_of[best], bytes_of[best], variant_of[best], least_us, most_us)
    return _Unnamed(is_tabled, tuple(variants), table)


def _is_tabled(profile: Profile, tolerance: float, calls: Sequence[_Call]) -> bool:
    """Return whether the additive reading of the first implementation's slow operands misses any measured time."""
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
    """Return the times (2^workspaces, 2^operands); the operands of a kernel that is not tabled are fast here."""
    if is_tabled:
        measured = call.measured_us(profile)
        return np.where(np.isnan(measured), call.additive_us(profile), measured).reshape(-1, 2**operands)
    if not workspaces:
        return np.array([[profile.base_us(call.kernel)]])
    extras = call.extra_us(profile)[len(call.names) - workspaces :]
    return (profile.base_us(call.kernel) + bits(workspaces) @ extras).reshape(-1, 1)


def _rises_us(all_times_us: Sequence[Floats], operand: int) -> tuple[float, float]:
    """Return the least and the most time that slow memory adds for an operand."""
    pairs = [times_us.reshape(len(times_us), -1, 2, 2**operand) for times_us in all_times_us]
    rises = np.concatenate([(each[:, :, 1] - each[:, :, 0]).ravel() for each in pairs])
    return float(rises.min()), float(rises.max())


def bits(count: int) -> Floats:
    """Return the binary digits of 0, 1, 2, ..., lowest first (2^count, count)."""
    return (np.arange(2**count)[:, None] >> np.arange(count) & 1).astype(np.float64)


def _named(index: int, unnamed: _Unnamed, calls: Sequence[_Call]) -> Table:
    operands = calls[0].names[: len(unnamed.table.least_us)]
    variants = []
    for rank, spilled in unnamed.variants:
        names = calls[rank].workspaces if len(calls) > 1 else ()
        is_slow = [bool(spilled >> bit & 1) for bit in range(len(names))]
        fast = tuple(compress(names, [not bit for bit in is_slow]))
        variants.append(KernelVariant(calls[rank].kernel.implementation, fast, tuple(compress(names, is_slow))))
    return replace(unnamed.table, kernel=index, operands=operands, variants=tuple(variants))


@dataclass(frozen=True)
class Problem:
    """The placement problem of an optimizer.

    `packing` says which stays cannot have addresses together, for as long as a search that avoids them is worth its
    time; the last plan may still have such stays. Without it, addresses do not matter.
    """

    graph: CountedGraph
    profile: Profile
    links: Links
    limit: Limit
    options: SolveOptions
    packing: StepPacking | None = None

    def at(self, limit: Limit, options: SolveOptions | None = None) -> Problem:
        """Return the problem with another limit; what does not depend on the limit is computed once for both.

        `options` may differ in gap and times.
        """
        other = replace(self, limit=limit, options=options or self.options)
        shared = ("overlap", "tabulation", "placed", "base_us")
        other.__dict__.update({name: getattr(self, name) for name in shared})
        return other

    @cached_property
    def limit_bytes(self) -> int:
        """The budget in bytes.

        Raises:
            InfeasibleLimitError: the tensors that no plan places take more than the whole budget.
        """
        return self.limit.fast_bytes(self.graph.peak_live_bytes, fixed_bytes(self.graph))

    @cached_property
    def overlap(self) -> OverlapCosts:
        """The time that asynchronous moves and kernels cost each other."""
        return OverlapCosts(self.graph, self.profile, self.links)

    @cached_property
    def tabulation(self) -> Tabulation:
        """The tables of kernels that the additive reading does not describe, or that have several implementations."""
        return tabulate(self.graph, self.profile, self.options)

    @cached_property
    def placed(self) -> tuple[Tensor, ...]:
        """Tensors that are placed by themselves: all but the workspaces that come with an implementation."""
        kernels = self.graph.kernels
        return tuple(
            tensor
            for tensor in self.graph.movable
            if tensor.role is not Role.WORKSPACE or not kernels[tensor.users[0]].alternatives
        )

    @cached_property
    def base_us(self) -> float:
        """Time of the kernels without a table when everything is fast."""
        with_table = {table.kernel for table in self.tabulation.tables}
        kernels = enumerate(self.graph.kernels)
        return sum(self.profile.base_us(kernel) for index, kernel in kernels if index not in with_table)
