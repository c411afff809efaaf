"""Which kernels of a training step run again where tensors may be moved, too: one program that prices both ways.

It is a relaxation of both. What runs again is that of `recomputation.RepeatsProgram`. A tensor is moved as a whole,
once, between its last use in the forward pass and its first in the backward pass; which bytes an engine copies when is
a flow, for which short kernels are one period. Other moves, and which windows copies have, are found by the solver of
moves, once it is known what runs again.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyomo.core as pyo

from autotm.model.graph import Graph, Tier
from autotm.model.links import Links, OverlapCosts
from autotm.model.profile import Profile
from autotm.solve.highs import Outcome, Session
from autotm.solve.recomputation import Recomputation, RepeatsProgram, StepArrays

log = logging.getLogger(__name__)

_RUNS = 0.5
"""From this value of its variable on a kernel runs again: few variables of the relaxation are fractional."""

_PERIODS = 1000
"""A period of several kernels takes at most such a part of the step.

DenseNet-201's program, of 3360 kernels, is solved in 0.9 s, and in 4.9 s with a period for each kernel; both decide
the same (an AMD EPYC, modelled times of an H200, 0.4 of the step's memory).
"""

Sum = list[tuple[float, Any]]
"""Terms of factor and variable."""


@dataclass(frozen=True)
class Moving:
    """What may be moved, and how fast.

    Attributes:
        profile, links: of the step.
        share: of its time that an engine may copy; what is left is for what the flow does not know: that it waits for
            tensors, and for memory.
        host_bytes: of slow memory for what is moved.
        states: bytes by kernel of an optimizer's state that is fetched before the kernel and stored after it; it is a
            workspace of the kernel.
    """

    profile: Profile
    links: Links
    share: float
    host_bytes: int
    states: Mapping[int, int]


def repeats_beside_moves(
    graph: Graph,
    moving: Moving,
    turn: int,
    may: Collection[int],
    limit_bytes: int,
    *,
    seed: int = 0,
    time_limit_s: float = 10.0,
) -> Recomputation | None:
    """Return what to compute again so that a step can keep a limit by moves beside it; None where time is up.

    Its memory may exceed the limit by what moves are to save. No bound comes with it.

    Args:
        graph: the step, with held tensors if the limit counts them.
        moving: what moves cost.
        turn: index of the first kernel of the backward pass.
        may: kernels that may run again.
        limit_bytes: of fast memory.
        seed: of the solver.
        time_limit_s: of the solver.
    """
    costs_us = [moving.profile.base_us(kernel) for kernel in graph.kernels]
    step = StepArrays(graph, costs_us, turn, may)
    program = RepeatsProgram(step, limit_bytes)
    _add_moves(program, moving)
    solved = Session(program.model, seed).relax(time_limit_s)
    if solved.outcome is not Outcome.CONVERGED:
        log.info("what runs again beside moves was not found in %.3g s: %s", time_limit_s, solved.outcome)
        return None
    again = program.model.again
    dropped = frozenset(own for kernel in step.may if again[kernel].value >= _RUNS for own in step.outputs[kernel])
    trace = step.trace(dropped, limit_bytes)
    return Recomputation(step.repeats_of(trace), trace.extra_us, trace.peak_bytes, 0.0)


def _add_moves(program: RepeatsProgram, moving: Moving) -> None:
    """Let tensors be moved: what that frees, what it asks of the engines, and what it costs."""
    step, model, scale_bytes = program.step, program.model, program.scale_bytes
    overlap, periods = OverlapCosts(step.graph, moving.profile, moving.links), _periods(step)
    period_of = [number for number, kernels in enumerate(periods) for _ in kernels]
    passes = {Tier.SLOW: (0, step.turn), Tier.FAST: (step.turn, step.kernels)}
    movable = [own for own in range(step.early) if step.first_late[own] > step.last_early[own] + 1]
    model.moved = pyo.Var(movable, bounds=(0, 1))
    model.needed = pyo.VarList(domain=pyo.NonNegativeReals)
    # Bytes that may be copied out from a period on, and those that have to be back when it begins.
    ready, due = defaultdict[int, Sum](list), defaultdict[int, Sum](list)
    for own in movable:
        moved, size = model.moved[own], step.sizes[own] / scale_bytes
        if step.producer[own] in step.may:
            model.limits.add(moved + model.again[step.producer[own]] <= 1)
        ready[period_of[step.last_early[own] + 1]].append((size, moved))
        for slot, share in _due(program, own):
            due[period_of[slot]].append((size, share))
    for kernel, size_bytes in moving.states.items():
        ready[period_of[kernel + 1]].append((size_bytes / scale_bytes, 1.0))
        due[period_of[kernel]].append((size_bytes / scale_bytes, 1.0))
    # When period p begins, out[p] bytes have left and back[p] are there again; the step waits stall[p] in it.
    numbers = range(len(periods))
    model.stall = pyo.Var(numbers, domain=pyo.NonNegativeReals)
    model.out, model.back = (pyo.Var(range(len(periods) + 1), domain=pyo.NonNegativeReals) for _ in Tier)
    model.ready, model.due = pyo.Var(numbers), pyo.Var(numbers)
    model.ready_rows = pyo.Constraint(numbers, rule=lambda model, period: _grown(model.ready, period, ready))
    model.due_rows = pyo.Constraint(numbers, rule=lambda model, period: _grown(model.due, period, due))
    model.left = pyo.Constraint(numbers, rule=lambda model, period: model.out[period + 1] <= model.ready[period])
    model.there = pyo.Constraint(numbers, rule=lambda model, period: model.back[period] >= model.due[period])
    model.out[0].fix(0.0)
    model.back[0].fix(0.0)
    sizes = [step.sizes[own] for own in movable]
    if sum(sizes) > moving.host_bytes:  # All that is moved is there when the backward pass begins.
        on_host = _sum([(size / scale_bytes, model.moved[own]) for own, size in zip(movable, sizes, strict=True)])
        model.limits.add(on_host <= moving.host_bytes / scale_bytes)
    lasting_us = [math.fsum(step.costs_us[kernel] for kernel in kernels) for kernels in periods]
    for tier, copied in ((Tier.SLOW, model.out), (Tier.FAST, model.back)):
        busy_us = sum(overlap.work_ns(tier, size, *passes[tier]) for size in sizes) / 1e3
        rate = moving.share * sum(sizes) / max(busy_us, 1.0) / scale_bytes  # per microsecond
        rows = pyo.Constraint(numbers, rule=_engine(copied, rate, lasting_us, program.scale_us))
        model.add_component(f"engine_{tier}", rows)
    for slot, period in enumerate(period_of):
        limit = model.more[slot].ub + moving.states.get(slot, 0) / scale_bytes
        model.more[slot].setub(None)
        # What comes back has memory from when its copy begins. Of several kernels it is not known during which: then
        # all leaves at the beginning, and comes at the end.
        left, there = (period, period + 1) if len(periods[period]) == 1 else (period + 1, period)
        model.limits.add(model.more[slot] - model.out[left] + model.back[there] <= limit)
    added_us = {
        own: sum(overlap.added_us(tier, step.sizes[own], *span) for tier, span in passes.items()) for own in movable
    }
    repeats = [(step.costs_us[kernel] / program.scale_us, model.again[kernel]) for kernel in step.may]
    moves = [(added_us[own] / program.scale_us, model.moved[own]) for own in movable]
    model.time.set_value(_sum([*repeats, *moves, *((1.0, model.stall[number]) for number in numbers)]))


def _periods(step: StepArrays) -> list[range]:
    """Divide the kernels of a step into periods; none has kernels of both passes."""
    most_us, ends, lasting_us = math.fsum(step.costs_us) / _PERIODS, list[int](), 0.0
    for kernel, cost_us in enumerate(step.costs_us):
        if kernel and (lasting_us + cost_us > most_us or kernel == step.turn):
            ends.append(kernel)
            lasting_us = 0.0
        lasting_us += cost_us
    return list(map(range, [0, *ends], [*ends, step.kernels]))


def _due(program: RepeatsProgram, own: int) -> Iterable[tuple[int, Any]]:
    """Yield what share of a moved tensor has to be back when: before what reads it runs again, or is used in backward.

    The shares are of all that is due until then.
    """
    step, model = program.step, program.model
    moved, end = model.moved[own], step.first_late[own]
    readers = [kernel for kernel in step.early_readers[own] if kernel in step.may]
    ends = sorted({step.latest[kernel] for kernel in readers if step.last_early[own] + 1 < step.latest[kernel] < end})
    before: Any = 0.0
    for slot in ends:
        needed = model.needed.add()
        model.limits.add(needed >= before)  # What is due stays so.
        for kernel in readers:
            if step.latest[kernel] <= slot:
                model.limits.add(needed >= moved + model.again[kernel] - 1)
        yield slot, needed - before
        before = needed
    yield end, moved - before


def _grown(total: Any, period: int, added: Mapping[int, Sum]) -> Any:
    return total[period] == (total[period - 1] if period else 0.0) + _sum(added.get(period, []))


def _sum(terms: Sum) -> Any:
    return sum(factor * variable for factor, variable in terms)


def _engine(copied: Any, rate: float, lasting_us: Sequence[float], scale_us: float) -> Any:
    """Return the rule of rows: an engine copies no faster than it can in a period, and while the step waits."""

    def rule(model: Any, period: int) -> Any:
        new = copied[period + 1] - copied[period]
        return new <= rate * (lasting_us[period] + scale_us * model.stall[period])

    return rule
