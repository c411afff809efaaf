"""Which tensors of a training step to drop and compute again: a plan by local search, and a bound on all such plans.

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

import numpy as np
import numpy.typing as npt
import pyomo.core as pyo

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
        time_limit_s: of the search.
    """
    step = _Step(graph, costs_us, turn, may)
    end_s = time.perf_counter() + time_limit_s
    search = _Search(step, limit_bytes, random.Random(seed), end_s)  # noqa: S311 - no secret
    best = search.best()
    if best.excess_bytes:
        return None
    bound_us = 0.0
    if best.repeats:
        bound_us = min(best.extra_us, _bound_us(step, limit_bytes, seed, max(1.0, end_s - time.perf_counter())))
    return Recomputation(step.repeats_of(best), best.extra_us, best.peak_bytes, bound_us)


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
            computed first.
        last: of these, the slot of the last use of the one that was computed first.
        extra_us: time of the repeats.
        limit_bytes: of memory.
    """

    dropped: frozenset[int]
    repeats: tuple[tuple[int, int], ...]
    used_bytes: Ints
    first_late: dict[int, int]
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
    def over(self) -> Ints:
        """Slots beyond the limit before each (slots + 1,)."""
        return np.concatenate(([0], np.cumsum(self.used_bytes > self.limit_bytes)))

    @property
    def value(self) -> tuple[int, float]:
        """What is made small."""
        return self.excess_bytes, self.extra_us


class _Step:
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
        self.droppable = [number for number in range(self.early) if self.producer[number] in may]
        self._sizes = np.array(self.sizes, np.int64)
        self._late_last = np.array([max(tensor.users) for tensor in tensors[self.early :]], np.int64)
        self._late_producer = np.array(self.producer[self.early :], np.int64)

    def repeats_of(self, trace: _Trace) -> tuple[Repeat, ...]:
        """Return the repeats of a trace with the names of tensors."""
        return tuple(
            Repeat(kernel, before, tuple(self.names[own] for own in self.outputs[kernel] if own in trace.dropped))
            for kernel, before in trace.repeats
        )

    def trace(self, dropped: frozenset[int], limit_bytes: int) -> _Trace:
        """Return what becomes of a step if these tensors are dropped after the forward pass."""
        last, first_late = self.last_early.copy(), dict[int, int]()
        second, last_second = dict[int, int](), dict[int, int]()
        repeats: list[tuple[int, int]] = []
        late_slot = np.zeros(self.kernels + 1, np.int64)
        brief: list[tuple[int, int]] = []
        slot = self.turn

        def use(kernel: int) -> None:
            for own in self.inputs[kernel]:
                if own in second:
                    last_second[own] = slot
                elif own < self.early:
                    last[own] = slot
                    first_late.setdefault(own, slot)

        for kernel in range(self.turn, self.kernels):
            for again in self._again(kernel, dropped, second):
                use(again)
                brief.append((slot, self.taken[again]))
                for own in self.outputs[again]:
                    if own in dropped:
                        second[own] = last_second[own] = slot
                    else:
                        brief.append((slot, self.sizes[own]))
                repeats.append((again, kernel))
                slot += 1
            use(kernel)
            late_slot[kernel] = slot
            slot += 1
        change = np.zeros(slot + 1, np.int64)
        np.add.at(change, self.producer[: self.early], self._sizes[: self.early])
        np.subtract.at(change, np.array(last, np.int64) + 1, self._sizes[: self.early])
        again_places = np.array([*second], np.int64)
        np.add.at(change, np.array([*second.values()], np.int64), self._sizes[again_places])
        np.subtract.at(change, np.array([last_second[own] for own in second], np.int64) + 1, self._sizes[again_places])
        np.add.at(change, late_slot[self._late_producer], self._sizes[self.early :])
        np.subtract.at(change, late_slot[self._late_last] + 1, self._sizes[self.early :])
        used = np.cumsum(change)[:-1] + self.always_bytes
        used[: self.turn] += self.taken[: self.turn]
        np.add.at(used, late_slot[self.turn : -1], self.taken[self.turn :])
        for at, size_bytes in brief:
            used[at] += size_bytes
        extra_us = math.fsum(self.costs_us[kernel] for kernel, _ in repeats)
        return _Trace(dropped, tuple(repeats), used, first_late, last, extra_us, limit_bytes)

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

    def __init__(self, step: _Step, limit_bytes: int, draw: random.Random, end_s: float) -> None:
        self._step, self._limit_bytes, self._draw, self._end_s = step, limit_bytes, draw, end_s

    def best(self) -> _Trace:
        """Return the best plan that was found; it exceeds the limit if none keeps it."""
        best = self._trace(())
        if not best.excess_bytes:
            return best
        for found in self._beginnings():
            best = min(best, found, key=_value)
            if self._is_over and not best.excess_bytes:
                return best
        stale = 0
        while stale < _PATIENCE and not self._is_over:
            found = self._improved(self._trace(self._disturbed(best.dropped)), self._draw.choice(_WEIGHTS))
            stale = 0 if found.value < best.value else stale + 1
            best = min(best, found, key=_value)
        return best

    @property
    def _is_over(self) -> bool:
        return time.perf_counter() > self._end_s

    def _beginnings(self) -> Iterator[_Trace]:
        """Yield plans that are made from nothing, and from segments of the forward pass."""
        step = self._step
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
        """Drop tensors until the limit is kept, or none helps: those that help most for their time come first."""
        refused: set[int] = set()
        while trace.excess_bytes:
            scores = self._scores(trace, refused, weight)
            if not scores:
                return trace
            added: list[int] = []
            promised = 0
            for _, benefit, own in sorted(scores, reverse=True):
                added.append(own)
                promised += benefit
                if promised >= _BATCH * trace.excess_bytes:
                    break
            while added:
                found = self._trace(trace.dropped.union(added))
                if found.excess_bytes < trace.excess_bytes:
                    trace, refused = found, set()
                    break
                refused |= {*added[-1:]} if len(added) == 1 else set()
                added = added[: len(added) // 2]
        return trace

    def _scores(self, trace: _Trace, refused: set[int], weight: float) -> list[tuple[float, int, int]]:
        """Return, of tensors that it may help to drop, a score, the benefit in bytes and slots, and the tensor.

        The score is the benefit by time to a power, `weight`: with 0 only memory counts.
        """
        step, over = self._step, trace.over.tolist()
        runs_again = {kernel for kernel, _ in trace.repeats}
        scores = []
        for own in step.droppable:
            if own in trace.dropped or own in refused or own not in trace.first_late:
                continue
            needed = trace.first_late[own]
            benefit = step.sizes[own] * (over[needed] - over[step.last_early[own] + 1])
            if benefit <= 0:
                continue
            kernel = step.producer[own]
            cost_us = 0.0 if kernel in runs_again else step.costs_us[kernel]
            for read in step.inputs[kernel]:
                if read in trace.dropped:
                    source = step.producer[read]
                    cost_us += 0.0 if source in runs_again else step.costs_us[source]
                elif trace.last[read] < needed:
                    benefit -= step.sizes[read] * (over[needed] - over[trace.last[read] + 1])
            if benefit > 0:
                scores.append((benefit / max(cost_us, 1e-3) ** weight, benefit, own))
        return scores

    def _pruned(self, trace: _Trace) -> _Trace:
        """Keep what need not be dropped, that of the slowest kernels first, as long as there is time."""
        step = self._step
        kernels = {step.producer[own] for own in trace.dropped}
        for kernel in sorted(kernels, key=lambda kernel: -step.costs_us[kernel]):
            if self._is_over:
                break
            found = self._trace(trace.dropped.difference(step.outputs[kernel]))
            if found.value < trace.value:
                trace = found
        return trace


def _value(trace: _Trace) -> tuple[int, float]:
    return trace.value


def _bound_us(step: _Step, limit_bytes: int, seed: int, time_limit_s: float) -> float:
    """Return a lower bound of the time of repeats.

    A relaxation: a kernel that runs again frees each of its outputs from its last use in the forward pass to its first
    use in the backward pass, whatever its inputs need.
    """
    plain = step.trace(frozenset(), limit_bytes)
    gains: dict[int, list[tuple[int, int, int]]] = {}
    for own in step.droppable:
        if own in plain.first_late and plain.first_late[own] > step.last_early[own] + 1:
            span = step.last_early[own] + 1, plain.first_late[own], step.sizes[own]
            gains.setdefault(step.producer[own], []).append(span)
    kernels = sorted(gains)
    scale_us, scale_bytes = max([1e-9, *(step.costs_us[kernel] for kernel in kernels)]), max(limit_bytes, 1)
    model = pyo.ConcreteModel()
    model.again = pyo.Var(kernels, bounds=(0, 1), domain=pyo.Binary)
    slots = range(len(plain.used_bytes))
    freed = {slot: max(0.0, (int(plain.used_bytes[slot]) - limit_bytes) / scale_bytes) for slot in slots}
    model.freed = pyo.Var(slots, bounds=lambda _, slot: (freed[slot], None))
    change: dict[int, list[tuple[int, float]]] = {}
    for kernel, spans in gains.items():
        for first, end, size_bytes in spans:
            change.setdefault(first, []).append((kernel, size_bytes / scale_bytes))
            change.setdefault(end, []).append((kernel, -size_bytes / scale_bytes))
    model.flow = pyo.Constraint(
        slots,
        rule=lambda model, slot: (
            model.freed[slot]
            == (model.freed[slot - 1] if slot else 0.0)
            + sum(share * model.again[kernel] for kernel, share in change.get(slot, ()))
        ),
    )
    model.time = pyo.Objective(expr=sum(step.costs_us[kernel] / scale_us * model.again[kernel] for kernel in kernels))
    session = Session(model, seed)
    solved = session.search(time_limit_s, 1e-3, warm=False)
    if solved.outcome is Outcome.INFEASIBLE:
        return math.inf
    return max(0.0, solved.bound or 0.0) * scale_us
