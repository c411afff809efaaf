"""Which tensors of a training step to drop and compute again: a bound on all such plans, and a plan by local search.

A tensor that is dropped gives back its memory after its last use in the forward pass. Before its first use in the
backward pass its kernel runs again, after the kernels of inputs that were dropped, too. Each kernel runs at most twice;
otherwise the order stays. Chen et al. (arXiv:1604.06174) and Checkmate (Jain et al., MLSys 2020) choose among more or
less these plans.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyomo.core as pyo

from autotm.model.errors import InfeasibleLimitError
from autotm.model.graph import Graph, Kernel, Operand, Role, Tensor
from autotm.solve.highs import Outcome, Session

Ints = npt.NDArray[np.int64]
AGAIN = "'"
"""What the names of kernels that run again end with, and of what they compute."""
_SEGMENTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
"""Numbers of parts that a forward pass is cut into; only what crosses a cut is kept. Searches begin from these, too."""
_BATCH = 0.1
"""Share of the excess that tensors are dropped for before memory is looked at again."""
_FREED = 0.2
"""Share of its decisions that a round of the search changes."""
_WEIGHTS = (1.0, 0.5, 0.0)
"""How much time counts where tensors are chosen to be dropped: sums of little benefit may not keep a tight limit."""
_CHAIN = 8
"""Kernels that run again together where one of them alone would need what is gone: a batch norm and its rectifier."""
_CLOSE = 1e-4
"""A plan is good enough whose step takes at most this share longer than the bound."""
_PATIENCE = 40
"""Rounds without a better plan after which the search ends."""


@dataclass(frozen=True)
class Repeat:
    """A kernel that runs again.

    Attributes:
        kernel: its index.
        before: index of the kernel before which it runs; of several, those that come first run first.
        tensors: its outputs that were dropped, and are there again.
    """

    kernel: int
    before: int
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class Recomputation:
    """A plan to compute tensors again.

    Attributes:
        repeats: in the order in which they run.
        extra_us: time of the repeats.
        peak_bytes: of the step with them, all of its tensors in fast memory.
        bound_us: no plan of this kind that keeps the limit takes less for repeats.
    """

    repeats: tuple[Repeat, ...]
    extra_us: float
    peak_bytes: int
    bound_us: float


def recomputed(
    graph: Graph,
    costs_us: Sequence[float],
    turn: int,
    may: Collection[int],
    limit_bytes: int,
    *,
    seed: int = 0,
    time_limit_s: float = 10.0,
) -> Recomputation | None:
    """Return what to compute again so that a step keeps a limit; None if no such plan was found.

    Args:
        graph: the step, with held tensors if the limit counts them.
        costs_us: time of each kernel.
        turn: index of the first kernel of the backward pass.
        may: kernels that may run again.
        limit_bytes: of fast memory.
        seed: of the search.
        time_limit_s: of the search, once a plan is found; half of it is for the bound.

    Raises:
        InfeasibleLimitError: there is no such plan.
    """
    step = StepArrays(graph, costs_us, turn, may)
    best, bound_us = step.trace(frozenset(), limit_bytes), 0.0
    if best.excess_bytes:
        end_s = time.perf_counter() + time_limit_s
        bound_us, dropped = RepeatsProgram(step, limit_bytes).solved(seed, time_limit_s / 2)
        if math.isinf(bound_us):
            raise InfeasibleLimitError(f"no plan keeps {limit_bytes} bytes that only computes tensors again")
        search = _Search(step, limit_bytes, random.Random(seed), end_s)  # noqa: S311 - no secret
        best = search.best(dropped, bound_us + _CLOSE * math.fsum(costs_us))
    if best.excess_bytes:
        return None
    return Recomputation(step.repeats_of(best), best.extra_us, best.peak_bytes, min(best.extra_us, bound_us))


def repeated(graph: Graph, repeats: Sequence[Repeat]) -> Graph:
    """Return a step whose kernels run again; what they compute then has their names and `AGAIN`."""
    order: list[tuple[int, Repeat | None]] = []
    due = iter([*repeats, None])
    following = next(due)
    for index in range(len(graph.kernels)):
        while following is not None and following.before == index:
            order.append((following.kernel, following))
            following = next(due)
        order.append((index, None))
    current = {tensor.name: tensor.name for tensor in graph.tensors}
    kernels: list[Kernel] = []
    producers: dict[str, int] = {}
    readers: dict[str, list[int]] = {tensor.name: [] for tensor in graph.tensors}
    again: list[Tensor] = []
    for place, (index, repeat) in enumerate(order):
        kernel = graph.kernels[index]
        if repeat is not None:
            made = [operand.tensor for operand in (*kernel.outputs, *kernel.workspaces)]
            new = {name: f"{name}{AGAIN}" for name in made}
            again += [replace(graph.by_name[name], name=new[name]) for name in made]
            readers |= {name: [] for name in new.values()}
            outputs, workspaces = (_renamed(some, new) for some in (kernel.outputs, kernel.workspaces))
        else:
            outputs, workspaces = kernel.outputs, kernel.workspaces
        inputs = _renamed(kernel.inputs, current)
        for operand in inputs:
            readers[operand.tensor].append(place)
        producers |= {operand.tensor: place for operand in (*outputs, *workspaces)}
        if repeat is not None:
            current |= {name: new[name] for name in repeat.tensors}
        kernels.append(
            replace(
                kernel,
                name=f"{kernel.name}{AGAIN}" if repeat else kernel.name,
                inputs=inputs,
                outputs=outputs,
                workspaces=workspaces,
            )
        )
    return replace(
        graph,
        kernels=tuple(kernels),
        tensors=tuple(
            replace(
                tensor,
                producer=producers.get(tensor.name, tensor.producer),
                readers=tuple(dict.fromkeys(readers[tensor.name])),
                held=None if tensor.held is None else (0, len(kernels)),
            )
            for tensor in (*graph.tensors, *again)
        ),
    )


def _renamed(operands: Iterable[Operand], names: dict[str, str]) -> tuple[Operand, ...]:
    return tuple(replace(operand, tensor=names[operand.tensor]) for operand in operands)


@dataclass(frozen=True)
class _Trace:
    """A step with some tensors dropped. Slots are runs of kernels, repeats included, in order.

    Attributes:
        dropped: tensors.
        repeats: kernel and the kernel before which it runs, in order.
        used_bytes: (slots,)
        first_late: of tensors of the forward pass, the slot of the first use in the backward pass, of the one that was
            computed first; -1 where it has none.
        last: of these, the slot of the last use of the one that was computed first.
        extra_us: time of the repeats.
        limit_bytes: of memory.
    """

    dropped: frozenset[int]
    repeats: tuple[tuple[int, int], ...]
    used_bytes: Ints
    first_late: list[int]
    last: list[int]
    extra_us: float
    limit_bytes: int

    @cached_property
    def peak_bytes(self) -> int:
        """The most at once."""
        return int(self.used_bytes.max(initial=0))

    @cached_property
    def excess_bytes(self) -> int:
        """Bytes beyond the limit, summed over slots."""
        return int(np.maximum(self.used_bytes - self.limit_bytes, 0).sum())

    @cached_property
    def over(self) -> list[int]:
        """Slots beyond the limit before each, and before the end."""
        return [0, *np.cumsum(self.used_bytes > self.limit_bytes).tolist()]

    @property
    def value(self) -> tuple[int, float]:
        """What is made small."""
        return self.excess_bytes, self.extra_us


class StepArrays:
    """A step as numbers: tensors that kernels write and read, those of the forward pass first."""

    def __init__(self, graph: Graph, costs_us: Sequence[float], turn: int, may: Collection[int]) -> None:
        self.graph, self.costs_us, self.turn = graph, costs_us, turn
        self.kernels = len(graph.kernels)
        written = [
            (tensor, tensor.producer)
            for tensor in graph.movable
            if tensor.held is None and tensor.producer is not None and tensor.role is not Role.WORKSPACE
        ]
        written.sort(key=lambda pair: pair[1] >= turn)
        tensors, self.producer = [tensor for tensor, _ in written], [producer for _, producer in written]
        self.names = [tensor.name for tensor in tensors]
        place = {name: number for number, name in enumerate(self.names)}
        self.early = sum(producer < turn for producer in self.producer)
        self.sizes = [tensor.allocated_bytes for tensor in tensors]
        self.last_early = [max(user for user in tensor.users if user < turn) for tensor in tensors[: self.early]]
        late = [[user for user in tensor.users if user >= turn] for tensor in tensors[: self.early]]
        self.first_late = [min(users, default=-1) for users in late]
        self.early_readers = [[user for user in tensor.readers if user < turn] for tensor in tensors[: self.early]]
        self.inputs = [
            list(dict.fromkeys(place[operand.tensor] for operand in kernel.inputs if operand.tensor in place))
            for kernel in graph.kernels
        ]
        self.outputs = [[place[operand.tensor] for operand in kernel.outputs] for kernel in graph.kernels]
        self.taken = [
            sum(graph.by_name[operand.tensor].allocated_bytes for operand in kernel.workspaces)
            for kernel in graph.kernels
        ]
        self.always_bytes = sum(tensor.allocated_bytes for tensor in graph.tensors if tensor.held is not None)
        self.may = frozenset(may)
        self.droppable = [number for number in range(self.early) if self.producer[number] in self.may]
        self._sizes, self._taken = np.array(self.sizes, np.int64), np.array(self.taken, np.int64)
        self._producer = np.array(self.producer, np.int64)
        self._last_early, self._first_late = np.array(self.last_early, np.int64), np.array(self.first_late, np.int64)
        ends = [max(users, default=-1) for users in late] + [max(tensor.users) for tensor in tensors[self.early :]]
        self._last_late = np.array(ends, np.int64)

    def repeats_of(self, trace: _Trace) -> tuple[Repeat, ...]:
        """Return the repeats of a trace with the names of tensors."""
        return tuple(
            Repeat(kernel, before, tuple(self.names[own] for own in self.outputs[kernel] if own in trace.dropped))
            for kernel, before in trace.repeats
        )

    def trace(self, dropped: frozenset[int], limit_bytes: int) -> _Trace:
        """Return what becomes of a step if these tensors are dropped after the forward pass."""
        repeats: list[tuple[int, int]] = []
        second, last_second = dict[int, int](), dict[int, int]()  # slots of the tensors that are computed again
        extended: list[tuple[int, int]] = []
        brief: list[tuple[int, int]] = []
        # What was dropped is computed again before its first use in the backward pass, if not before.
        for kernel in sorted({self.first_late[own] for own in dropped} - {-1}):
            for again in self._again(kernel, dropped, second):
                slot = kernel + len(repeats)
                for own in self.inputs[again]:
                    if own in second:
                        last_second[own] = slot
                    else:
                        extended.append((own, slot))
                brief.append((slot, self.taken[again]))
                for own in self.outputs[again]:
                    if own in dropped:
                        second[own] = last_second[own] = slot
                    else:
                        brief.append((slot, self.sizes[own]))
                repeats.append((again, kernel))
        counts = np.bincount(np.array([kernel for _, kernel in repeats], np.int64), minlength=self.kernels + 1)
        slots = np.arange(self.kernels + 1) + np.cumsum(counts)  # of each kernel

        is_late = self._first_late >= 0
        is_late[[*dropped]] = False
        last = np.where(is_late, slots[self._last_late[: self.early]], self._last_early)
        first_late = np.where(is_late, slots[self._first_late], np.iinfo(np.int64).max)
        at, extended_slots = np.array(extended, np.int64).reshape(-1, 2).T
        np.maximum.at(last, at, extended_slots)
        np.minimum.at(first_late, at, extended_slots)
        first_late[first_late == np.iinfo(np.int64).max] = -1

        change = np.zeros(self.kernels + len(repeats) + 1, np.int64)
        early, late = slice(None, self.early), slice(self.early, None)
        np.add.at(change, self._producer[early], self._sizes[early])
        np.subtract.at(change, last + 1, self._sizes[early])
        places = np.array([*second], np.int64)
        ends = np.where(self._last_late[places] >= 0, slots[self._last_late[places]], -1)
        ends = np.maximum(ends, np.array([last_second[own] for own in second], np.int64))
        np.add.at(change, np.array([*second.values()], np.int64), self._sizes[places])
        np.subtract.at(change, ends + 1, self._sizes[places])
        np.add.at(change, slots[self._producer[late]], self._sizes[late])
        np.subtract.at(change, slots[self._last_late[late]] + 1, self._sizes[late])
        used = np.cumsum(change)[:-1] + self.always_bytes
        used[slots[:-1]] += self._taken
        at, brief_bytes = np.array(brief, np.int64).reshape(-1, 2).T
        np.add.at(used, at, brief_bytes)
        extra_us = math.fsum(self.costs_us[kernel] for kernel, _ in repeats)
        return _Trace(dropped, tuple(repeats), used, first_late.tolist(), last.tolist(), extra_us, limit_bytes)

    def _again(self, kernel: int, dropped: frozenset[int], second: dict[int, int]) -> Iterator[int]:
        """Yield the kernels that run again before a kernel; the caller notes in `second` what they compute."""

        def missing(reader: int) -> list[int]:
            return [self.producer[own] for own in self.inputs[reader] if own in dropped and own not in second]

        waiting = missing(kernel)[::-1]
        while waiting:
            if before := missing(waiting[-1]):
                waiting += before[::-1]
                continue
            following = waiting.pop()
            if any(own in dropped and own not in second for own in self.outputs[following]):
                yield following

    @cached_property
    def reach_us(self) -> list[float]:
        """Time of the forward pass before each of its kernels, and at its end."""
        sums = [0.0]
        for cost_us in self.costs_us[: self.turn]:
            sums.append(sums[-1] + cost_us)
        return sums

    @cached_property
    def latest(self) -> list[int]:
        """Of each kernel of the forward pass, the kernel before which it runs again at the latest, if it does."""
        latest = [0] * self.turn
        for kernel in reversed(range(self.turn)):
            for own in self.outputs[kernel]:
                late, readers = self.first_late[own], self.early_readers[own]
                latest[kernel] = max(
                    [latest[kernel], late] if late >= 0 else [latest[kernel], *map(latest.__getitem__, readers)]
                )
        return latest

    def crossing(self, segments: int) -> set[int]:
        """Return the tensors that cross a cut of the forward pass into segments of about the same time.

        Each cut is where the fewest bytes cross it, of the middle third around its share of the time.
        """
        change = np.zeros(self.turn + 1, np.int64)
        ends = np.minimum(np.array(self.last_early, np.int64), self.turn)
        np.add.at(change, self.producer[: self.early], self._sizes[: self.early])
        np.subtract.at(change, ends, self._sizes[: self.early])
        crossing_bytes = np.cumsum(change)[: self.turn]  # after each kernel
        kept: set[int] = set()
        for number in range(1, segments):
            window = [(number + shift) / segments * self.reach_us[-1] for shift in (-1 / 3, 1 / 3)]
            first, end = np.searchsorted(self.reach_us, window)
            if first >= min(int(end), self.turn):
                continue
            cut = int(first) + int(np.argmin(crossing_bytes[first : min(int(end), self.turn)]))
            kept |= {own for own in range(self.early) if self.producer[own] <= cut < self.last_early[own]}
        return kept


class _Search:
    """A search for tensors to drop: greedy from several beginnings, then parts of the best plan are decided anew."""

    def __init__(self, step: StepArrays, limit_bytes: int, draw: random.Random, end_s: float) -> None:
        self._step, self._limit_bytes, self._draw, self._end_s = step, limit_bytes, draw, end_s
        self._keeps = False  # Whether a plan that keeps the limit was found.

    def best(self, dropped: frozenset[int], enough_us: float) -> _Trace:
        """Return the best plan that was found; it exceeds the limit if none keeps it.

        Args:
            dropped: tensors of a plan to begin with, which need not keep the limit.
            enough_us: time of repeats that ends the search.
        """
        best = self._trace(())
        for found in self._beginnings(dropped):
            best = min(best, found, key=_value)
            self._keeps = not best.excess_bytes
            if self._is_over or best.value <= (0, enough_us):
                return best
        stale = 0
        while stale < _PATIENCE and time.perf_counter() <= self._end_s and best.value > (0, enough_us):
            found = self._improved(self._trace(self._disturbed(best.dropped)), self._draw.choice(_WEIGHTS))
            stale = 0 if found.value < best.value else stale + 1
            best = min(best, found, key=_value)
        return best

    @property
    def _is_over(self) -> bool:
        """Whether time is up. It is not before a plan keeps the limit, on a slow computer as on a fast one."""
        return self._keeps and time.perf_counter() > self._end_s

    def _beginnings(self, dropped: frozenset[int]) -> Iterator[_Trace]:
        """Yield plans that are made from one, from nothing, and from segments of the forward pass."""
        step = self._step
        yield self._improved(self._trace(dropped), 1.0)
        for weight in _WEIGHTS:
            yield self._improved(self._trace(()), weight)
        for segments in _SEGMENTS:
            kept = step.crossing(segments)
            yield self._improved(self._trace(own for own in step.droppable if own not in kept), 1.0)

    def _disturbed(self, dropped: frozenset[int]) -> Iterable[int]:
        """Return a plan without its decisions in some part of the forward pass, or here and there, or with more."""
        step, draw = self._step, self._draw
        kind = draw.randrange(3)
        if kind == 0:
            width = _FREED * step.turn
            first = draw.uniform(-width, step.turn)
            return [own for own in dropped if not first <= step.producer[own] < first + width]
        if kind == 1:
            return [own for own in dropped if draw.random() >= _FREED]
        return dropped.union(own for own in step.droppable if draw.random() < _FREED)

    def _trace(self, dropped: Iterable[int]) -> _Trace:
        return self._step.trace(frozenset(dropped), self._limit_bytes)

    def _improved(self, trace: _Trace, weight: float) -> _Trace:
        return self._pruned(self._filled(trace, weight))

    def _filled(self, trace: _Trace, weight: float) -> _Trace:
        """Drop tensors until the limit is kept, or none helps, or time is up: first what helps most for its time."""
        refused: set[int] = set()
        while trace.excess_bytes:
            candidates = sorted(self._candidates(trace, refused, weight), reverse=True)
            added: list[tuple[int, ...]] = []
            promised = 0
            for _, benefit, tensors in candidates:
                added.append(tensors)
                promised += benefit
                if promised >= _BATCH * trace.excess_bytes:
                    break
            while added:
                found = self._trace(trace.dropped.union(*added))
                if found.excess_bytes < trace.excess_bytes:
                    trace, refused = found, set()
                    break
                refused |= {added[0][0]} if len(added) == 1 else set()
                added = added[: len(added) // 2]
            if not candidates or self._is_over:
                break
        return trace

    def _candidates(
        self, trace: _Trace, refused: set[int], weight: float
    ) -> Iterator[tuple[float, int, tuple[int, ...]]]:
        """Yield, of what it may help to drop, a score, the benefit in bytes and slots, and the tensors.

        The score is the benefit by time to a power, `weight`: with 0 only memory counts.
        """
        step = self._step
        runs_again = {kernel for kernel, _ in trace.repeats}
        for own in step.droppable:
            if own in trace.dropped or own in refused or trace.first_late[own] < 0:
                continue
            for longest in (1, _CHAIN):
                tensors, benefit, cost_us = self._chain(trace, own, longest, runs_again)
                if benefit > 0:
                    yield benefit / max(cost_us, 1e-3) ** weight, benefit, tensors

    def _chain(self, trace: _Trace, own: int, longest: int, runs_again: set[int]) -> tuple[tuple[int, ...], int, float]:
        """Return what is dropped with a tensor, at most so many kernels' results; the benefit; and the time.

        What the kernel reads is computed again, too, where it is gone when the tensor is needed; or else kept longer.
        """
        step, over = self._step, trace.over
        needed = trace.first_late[own]
        benefit, cost_us = step.sizes[own] * (over[needed] - over[step.last_early[own] + 1]), 0.0
        if benefit <= 0:
            return (own,), benefit, cost_us
        tensors, kernels = [own], [step.producer[own]]
        for kernel in kernels:  # which grows
            cost_us += 0.0 if kernel in runs_again else step.costs_us[kernel]
            for read in step.inputs[kernel]:
                source = step.producer[read]
                if read in trace.dropped:
                    cost_us += 0.0 if source in runs_again else step.costs_us[source]
                elif trace.last[read] < needed and read not in tensors:
                    loss = step.sizes[read] * (over[needed] - over[trace.last[read] + 1])
                    if loss and source in step.may and (len(kernels) < longest or source in kernels):
                        tensors.append(read)
                        kernels += [] if source in kernels else [source]
                    else:
                        benefit -= loss
        return tuple(tensors), benefit, cost_us

    def _pruned(self, trace: _Trace) -> _Trace:
        """Keep what need not be dropped, that of the slowest kernels first, as long as there is time."""
        step = self._step
        kernels = {step.producer[own] for own in trace.dropped}
        for kernel in sorted(kernels, key=lambda kernel: -step.costs_us[kernel]):
            if not trace.excess_bytes and time.perf_counter() > self._end_s:
                break
            found = self._trace(trace.dropped.difference(step.outputs[kernel]))
            if found.value < trace.value:
                trace = found
        return trace


def _value(trace: _Trace) -> tuple[int, float]:
    return trace.value


class RepeatsProgram:
    """An integer program that every plan fulfils: which kernels run again, and what that frees, or takes, when.

    A kernel that runs again frees its outputs from their last use in the forward pass to their first use in the
    backward pass. What it reads runs again, too, or else is kept until the backward pass begins; and is there from when
    the kernel runs, at the latest, on.
    """

    def __init__(self, step: StepArrays, limit_bytes: int) -> None:
        self.step = step
        self.scale_bytes = max(limit_bytes, 1)
        self.scale_us = max([1e-9, *(step.costs_us[kernel] for kernel in step.may)])
        self._change: dict[int, list[tuple[Any, float]]] = {}
        self.model = model = pyo.ConcreteModel()
        model.again = pyo.Var(sorted(step.may), bounds=(0, 1), domain=pyo.Binary)
        model.share = pyo.VarList(domain=pyo.NonNegativeReals)
        model.limits = pyo.ConstraintList()
        for own in range(step.early):
            readers = [kernel for kernel in step.early_readers[own] if kernel in step.may]
            if step.first_late[own] < 0:
                self._keep(own, readers)
            elif step.producer[own] in step.may and step.first_late[own] > step.last_early[own] + 1:
                self._free(own, readers)
        used_bytes = step.trace(frozenset(), limit_bytes).used_bytes.tolist()
        left = [(limit_bytes - used) / self.scale_bytes for used in used_bytes]
        model.more = pyo.Var(range(len(left)), bounds=lambda _, slot: (None, left[slot]))
        model.flow = pyo.Constraint(range(len(left)), rule=self._flow)
        model.time = pyo.Objective(
            expr=sum(step.costs_us[kernel] / self.scale_us * model.again[kernel] for kernel in step.may)
        )

    def solved(self, seed: int, time_limit_s: float) -> tuple[float, frozenset[int]]:
        """Return a lower bound of the time of repeats, and what is dropped in a solution; infinite if there is none."""
        step, again = self.step, self.model.again
        solved = Session(self.model, seed).search(time_limit_s, _CLOSE, warm=False)
        if solved.outcome is Outcome.INFEASIBLE:
            return math.inf, frozenset()
        kernels = [kernel for kernel in step.may if solved.has_solution and round(again[kernel].value)]
        bound_us = max(0.0, solved.bound or 0.0) * self.scale_us
        return bound_us, frozenset(own for kernel in kernels for own in step.outputs[kernel])

    def _keep(self, own: int, readers: list[int]) -> None:
        """Keep a tensor without a use in the backward pass if a reader runs again, and its own kernel does not."""
        step, model = self.step, self.model
        first = step.last_early[own] + 1
        if not readers or first >= step.turn:
            return
        made = model.again[step.producer[own]] if step.producer[own] in step.may else 0
        kept = model.share.add()
        for kernel in readers:
            model.limits.add(kept >= model.again[kernel] - made)
        self._take(kept, first, step.turn, step.sizes[own])

    def _free(self, own: int, readers: list[int]) -> None:
        """Free a tensor whose kernel runs again, as long as no reader may have run again."""
        step, model = self.step, self.model
        first, end = step.last_early[own] + 1, step.first_late[own]
        ends = sorted({end, *(step.latest[kernel] for kernel in readers if first < step.latest[kernel] < end)})
        for begun, ended in zip([first, *ends], ends, strict=False):
            freed = model.again[step.producer[own]]
            if before := [kernel for kernel in readers if step.latest[kernel] <= begun]:
                freed = model.share.add()
                model.limits.add(freed <= model.again[step.producer[own]])
                for kernel in before:
                    model.limits.add(freed <= 1 - model.again[kernel])
            self._take(freed, begun, ended, -step.sizes[own])

    def _take(self, share: Any, first: int, end: int, size_bytes: int) -> None:
        """Let a share of so many bytes be taken in slots [first, end)."""
        self._change.setdefault(first, []).append((share, size_bytes / self.scale_bytes))
        self._change.setdefault(end, []).append((share, -size_bytes / self.scale_bytes))

    def _flow(self, model: Any, slot: int) -> Any:
        before = model.more[slot - 1] if slot else 0.0
        return model.more[slot] == before + sum(size * share for share, size in self._change.get(slot, ()))
