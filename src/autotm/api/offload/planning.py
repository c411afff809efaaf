"""The plan for a step of PyTorch: which mix of keeping, computing again and moving takes the least time."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from autotm.api.offload.addresses import on_host, with_arena
from autotm.api.offload.step_graph import (
    IN_PLACE,
    RESULTS,
    Run,
    place_of,
    runs_of,
    with_states_in_place,
    with_states_on_host,
    with_states_that_move,
)
from autotm.check.plan import check_plan
from autotm.joint_graph import Step
from autotm.layout.compile import compile_program
from autotm.model.config import SolveConfig
from autotm.model.errors import InfeasibleLimitError
from autotm.model.files import hash_of
from autotm.model.graph import Graph, Role, Tier
from autotm.model.limit import Limit
from autotm.model.links import Links
from autotm.model.plan import Plan, Status
from autotm.model.profile import Profile
from autotm.model.program import Layout
from autotm.solve.absence import least_added_us
from autotm.solve.mixing import Moving, repeats_beside_moves
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve
from autotm.solve.recomputation import Recomputation, recomputed, repeated

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ways:
    """What a plan may do with a tensor, besides keeping it in device memory.

    Attributes:
        moves: whether it may be copied to the host and back.
        recomputes: whether an operator may run again.
        host_bytes: that copies may take.
    """

    moves: bool
    recomputes: bool
    host_bytes: int


@dataclass(frozen=True)
class Planned:
    """A plan with places in the host's pool.

    Attributes:
        graph: the step, with operators that run again; the last kernel is `RESULTS`.
        profile: its times.
        links: times of copies.
        runs: operators by kernel, but for the last; None where none runs.
        budget_bytes: for fast stays; the plan may be one for less, so that they have addresses within it.
        plan: its stays and moves.
        layout: offsets; those of fast stays are 0 where PyTorch's allocator chooses their addresses.
        plain_us: predicted microseconds of a step in which nothing is moved and nothing runs again.
        recomputed_us: predicted microseconds of what runs again.
        bound_us: no plan is predicted to take less.
        plain_peak_bytes: the most device memory if nothing is moved and nothing runs again.
        least_bytes: the least budget that a plan can keep.
    """

    graph: Graph
    profile: Profile
    links: Links
    runs: tuple[Run | None, ...]
    budget_bytes: int
    plan: Plan
    layout: Layout
    plain_us: float
    recomputed_us: float
    bound_us: float
    plain_peak_bytes: int
    least_bytes: int

    @property
    def arena_bytes(self) -> int:
        """Memory in which what the step allocates has places; 0 where PyTorch's allocator chooses them."""
        held_bytes = sum(tensor.allocated_bytes for tensor in self.graph.tensors if tensor.held)
        return max(0, self.layout.fast_bytes - held_bytes)

    @property
    def state_tensors(self) -> dict[str, int]:
        """The operator of each tensor that is state of an optimizer, before its update or afterwards."""
        return {tensor.name: place_of(tensor.name) for tensor in self.graph.tensors if tensor.slow_at is not None}

    @cached_property
    def states_in_place(self) -> dict[int, tuple[int, int]]:
        """The offset on the host, and the bytes, of state that is used there, by operator."""
        found, end = {}, self.layout.slow_bytes
        for kernel in self.graph.kernels:
            if kernel.identity.endswith(IN_PLACE):
                size_bytes = self.graph.by_name[kernel.workspaces[-1].tensor].size_bytes
                found[place_of(kernel.name)] = end, size_bytes
                end += size_bytes
        return found

    @property
    def host_bytes(self) -> int:
        """Host memory that the plan takes."""
        return self.layout.slow_bytes + sum(size_bytes for _, size_bytes in self.states_in_place.values())

    @cached_property
    def states(self) -> dict[int, tuple[int, int]]:
        """The offset on the host, and the bytes, of state that waits there between updates, by operator."""
        by_name = self.graph.by_name
        return {
            place_of(stay.tensor): (offset, by_name[stay.tensor].size_bytes)
            for stay, offset in zip(self.layout.stays, self.layout.offsets, strict=True)
            if stay.tier is Tier.SLOW and by_name[stay.tensor].role is Role.FETCHED
        }

    @property
    def places(self) -> dict[str, int]:
        """The storage of each tensor that a plan moves or frees."""
        found = {}
        for kernel, run in zip(self.graph.kernels, self.runs, strict=False):
            for operand in kernel.outputs if run is not None else ():
                place = place_of(operand.tensor)
                if run.wanted is None or place in run.wanted:
                    found[operand.tensor] = place
        return found

    @property
    def peak_bytes(self) -> int:
        """The most bytes of fast stays at once."""
        change = [0] * (len(self.graph.kernels) + 1)
        for stay in self.plan.stays:
            if stay.tier is Tier.FAST:
                change[stay.start] += self.graph.by_name[stay.tensor].allocated_bytes
                change[stay.end] -= self.graph.by_name[stay.tensor].allocated_bytes
        return max(accumulate(change))

    def write_page(self, path: Path, module: str, rows: int, source: Mapping[str, Any]) -> None:
        """Write the page that shows where each tensor is when; addresses are packed where PyTorch chooses its own.

        Args:
            path: an .html file.
            module: its name.
            rows: of a batch.
            source: provenance of the times.
        """
        from autotm.study.placed import Placed  # noqa: PLC0415 - imports pandas
        from autotm.study.view.page import write_page  # noqa: PLC0415 - imports seaborn

        layout = self.layout if self.arena_bytes else with_arena(self.graph, self.layout, self.budget_bytes)
        status = self.plan.status if self.bound_us >= self.plan.bound_us else Status.ABOVE_GAP
        plan = replace(self.plan, offsets=layout.offsets, bound_us=self.bound_us, status=status)
        graph = replace(self.graph, network=module, batch=rows)
        program = compile_program(graph, plan, layout)
        placed = Placed(graph, self.profile, self.links, plan, program, source, again_us=self.recomputed_us)
        write_page(placed, path)


@dataclass(frozen=True)
class _Problem:
    """What plans are made of.

    Attributes:
        graph, profile: the step with nothing moved and nothing computed again.
        turn: index of the first operator of the backward pass.
        states: operators whose optimizer's state waits on the host; it is a workspace of theirs here.
        are_in_place: whether they use it there.
        links: of the device.
    """

    graph: Graph
    profile: Profile
    turn: int
    states: frozenset[int]
    are_in_place: bool
    links: Links

    @cached_property
    def costs_us(self) -> list[float]:
        """Time of each kernel."""
        return [self.profile.base_us(kernel) for kernel in self.graph.kernels]

    @cached_property
    def plain_us(self) -> float:
        """Time of the step with nothing moved and nothing computed again."""
        return math.fsum(self.costs_us)

    @cached_property
    def states_bytes(self) -> dict[int, int]:
        """State that waits on the host, by kernel."""
        return {index: self.graph.kernels[index].workspaces[-1].size_bytes for index in self.states}

    @cached_property
    def state_bytes(self) -> int:
        """All of it."""
        return sum(self.states_bytes.values())

    @property
    def moved_bytes(self) -> int:
        """What of it is copied to the device and back."""
        return 0 if self.are_in_place else self.state_bytes

    @cached_property
    def least(self) -> tuple[int, str]:
        """The bytes that the largest kernel and what never moves need, and that kernel."""
        always = sum(tensor.allocated_bytes for tensor in self.graph.tensors if tensor.held)
        others = {tensor.name: tensor.allocated_bytes for tensor in self.graph.tensors if not tensor.held}
        most, where = always, RESULTS
        for kernel in self.graph.kernels:
            needed = always + sum(others.get(name, 0) for name in {operand.tensor for operand in kernel.operands})
            if needed > most:
                most, where = needed, f"'{kernel.name}' ({kernel.op})"
        return most, where

    def copies_us(self, tier: Tier, size_bytes: int, beside_us: float) -> float:
        """Return the least time that copies of so many bytes add to a step if so much of it can overlap them."""
        if size_bytes <= 0:
            return 0.0
        overlapping_us = max(0.0, self.links.transfer_us(tier, size_bytes) - beside_us)
        return min(self.links.copy_us(tier, size_bytes), overlapping_us)


@dataclass(frozen=True)
class _Mix:
    """A mix of ways to save memory.

    Attributes:
        problem: with a part of an optimizer's state on the host.
        share: of the time of engines that copies may take, if what they do not save, or not as cheaply, is saved by
            computing again; 1 where nothing is, 0 where nothing is copied.
        saved_bytes: what must be saved.
        guess_us: about what a step takes.
    """

    problem: _Problem
    share: float
    saved_bytes: int
    guess_us: float

    @property
    def host_bytes(self) -> int:
        """Host memory that it needs at the least."""
        return self.problem.state_bytes + (self.saved_bytes if self.share == 1 else 0)


def _mixes(problems: Iterable[_Problem], ways: Ways, size_bytes: int) -> list[_Mix]:
    """List the mixes that the ways allow, first those that keep the host's budget, and of these the fastest."""
    mixes = []
    for problem in problems:
        saved_bytes = problem.graph.peak_live_bytes - size_bytes
        if problem.least[0] > size_bytes:
            continue
        may_repeat = ways.recomputes and saved_bytes > 0
        shares = [_SHARES[0]] if may_repeat and ways.moves else []
        shares += [1.0] if ways.moves or saved_bytes <= 0 else []
        shares += [0.0] if may_repeat else []
        mixes += [_Mix(problem, share, saved_bytes, _guess_us(problem, share, saved_bytes)) for share in shares]
    plain_us = min((mix.problem.plain_us for mix in mixes), default=0.0)

    def key(mix: _Mix) -> tuple[bool, int, int]:
        # What is hardly slower moves less.
        return mix.host_bytes > ways.host_bytes, int(mix.guess_us / (_ALIKE * plain_us)), mix.problem.moved_bytes

    return sorted(mixes, key=key)


def _guess_us(problem: _Problem, share: float, saved_bytes: int) -> float:
    """Return about what a step takes if copies have a share of the time of engines, and state of the optimizer to move.

    Copies to the host overlap the forward pass, those back the backward pass, with its updates. Of what is computed
    again the quickest comes first.
    """
    forward_us = math.fsum(problem.costs_us[: problem.turn])
    backward_us = problem.plain_us - forward_us
    always_bytes = sum(tensor.allocated_bytes for tensor in problem.graph.tensors if tensor.held)
    movable_bytes = max(1, problem.graph.peak_live_bytes - always_bytes)
    waiting = _WAITING if share in {0, 1} else 1 / share
    states_bytes = int(waiting * problem.moved_bytes)

    def with_copies_us(part: float) -> float:
        copied_bytes, again = int(waiting * part * max(0, saved_bytes)), (1 - part) * saved_bytes / movable_bytes
        return (
            again**2 * forward_us
            + problem.copies_us(Tier.SLOW, copied_bytes, forward_us)
            + problem.copies_us(Tier.SLOW, states_bytes, backward_us)
            + problem.copies_us(Tier.FAST, copied_bytes + states_bytes, backward_us)
        )

    return problem.plain_us + min(map(with_copies_us, [share] if share in {0, 1} else _COPIED))


@dataclass(frozen=True)
class _Try:
    """A plan for a mix.

    Attributes:
        mix: of ways.
        repeated: what runs again.
        graph, profile: of the step with that.
    """

    mix: _Mix
    repeated: Recomputation
    graph: Graph
    profile: Profile
    plan: Plan
    layout: Layout

    @property
    def host_bytes(self) -> int:
        """Host memory that it takes."""
        problem = self.mix.problem
        return self.layout.slow_bytes + problem.state_bytes - problem.moved_bytes


class _Tries:
    """Plans for a budget."""

    def __init__(self, ways: Ways, size_bytes: int, options: SolveOptions) -> None:
        self._ways, self._size_bytes, self._options = ways, size_bytes, options
        self._plans: list[_Try] = []
        self._are_refuted = False  # Plans that only compute tensors again.

    def add(self, mix: _Mix, searched_s: float) -> _Try | None:
        """Make a plan unless none can be the best; what to compute again is searched for so long, once it is found."""
        problem, most_us = mix.problem, self.best_us
        again = self._again(mix, searched_s)
        if again is None:
            return None
        for one in self._plans:
            if one.mix.problem is problem and one.repeated.repeats == again.repeats:
                return one
        graph = repeated(problem.graph, again.repeats)
        if self._least_us(problem, graph) >= most_us:
            return None
        # Above what the best plan takes, the solver need not look for plans.
        tried = self._tried(mix, graph, again, replace(self._options, most_us=most_us))
        self._plans.append(tried)
        return tried

    def _again(self, mix: _Mix, searched_s: float) -> Recomputation | None:
        """Return what to compute again for a mix; None where no such plan is found."""
        problem = mix.problem
        if mix.share == 1:
            return _NOTHING
        turn_and_limit = problem.turn, range(problem.turn), self._size_bytes
        if mix.share:
            host_bytes = self._ways.host_bytes - problem.state_bytes
            states_bytes = {} if problem.are_in_place else problem.states_bytes
            moving = Moving(problem.profile, problem.links, mix.share, host_bytes, states_bytes)
            limit_s = self._options.time_limit_s
            return repeats_beside_moves(
                problem.graph, moving, *turn_and_limit, seed=self._options.seed, time_limit_s=limit_s
            )
        try:
            return recomputed(
                problem.graph, problem.costs_us, *turn_and_limit, seed=self._options.seed, time_limit_s=searched_s
            )
        except InfeasibleLimitError:
            self._are_refuted = True
            return None

    def _least_us(self, problem: _Problem, graph: Graph) -> float:
        """Return a bound: what the budget cannot hold at a kernel is copied out before it and comes back after it."""
        until_us = [0.0, *accumulate(map(problem.profile.base_us, graph.kernels))]
        over = ((index, live - self._size_bytes) for index, live in enumerate(graph.live_bytes))
        added_us = (
            problem.copies_us(Tier.SLOW, over_bytes, until_us[index])
            + problem.copies_us(Tier.FAST, over_bytes, until_us[-1] - until_us[index + 1])
            for index, over_bytes in over
            if over_bytes > 0
        )
        return until_us[-1] + max(added_us, default=0.0)

    def _tried(self, mix: _Mix, graph: Graph, again: Recomputation, options: SolveOptions) -> _Try:
        """Return a plan for the step with its repeats, in which copies save the rest of what must be saved."""
        problem = mix.problem
        if problem.moved_bytes:
            graph = with_states_that_move(graph, problem.states)
        profile = replace(problem.profile, graph_hash=hash_of(graph))
        has_to_move = problem.moved_bytes or graph.peak_live_bytes > self._size_bytes
        optimizer = "asynchronous" if self._ways.moves and has_to_move else "static"  # Where all fits, it is soon done.
        plan = solve(graph, profile, problem.links, optimizer, Limit(size_bytes=self._size_bytes), options)
        return _Try(mix, again, graph, profile, plan, on_host(graph, plan))

    @property
    def best(self) -> _Try | None:
        """The plan with the least predicted time of those that keep the host's budget."""
        fitting = (one for one in self._plans if one.host_bytes <= self._ways.host_bytes)
        return min(fitting, key=lambda one: one.plan.objective_us, default=None)

    @property
    def best_us(self) -> float:
        """Its time; infinite where there is none."""
        return self.best.plan.objective_us if self.best else math.inf

    def refusal(self) -> InfeasibleLimitError:
        """Return why there is no best plan."""
        least_host_bytes = min((one.host_bytes for one in self._plans), default=None)
        found = "keeps it" if self._are_refuted else "was found"
        reason = (
            f"no plan {found} that only computes tensors again; allow moves, or give more"
            if least_host_bytes is None
            else f"plans were found that need {least_host_bytes} bytes of host memory and more, "
            f"{self._ways.host_bytes} may be taken; give a larger budget, or raise the host's"
        )
        return InfeasibleLimitError(f"offload: a budget of {self._size_bytes} bytes: {reason}")


def place(
    step: Step,
    graph: Graph,
    profile: Profile,
    links: Links,
    ways: Ways,
    size_bytes: int,
    config: SolveConfig,
    *,
    has_arena: bool = False,
    uses_slow_memory: bool = False,
) -> Planned:
    """Return the best plan for a budget, after the independent checker's look at it.

    With an arena all that the step allocates has an address in one piece of memory within the budget. Where operators
    can use the slower memory, an optimizer's state may stay there.

    Raises:
        InfeasibleLimitError: no plan keeps the budget, or that of the host; names the least.
    """
    problems = []
    for part in _PARTS if ways.moves else _PARTS[:1]:
        placed, states = with_states_on_host(graph, part)
        if problems and states == problems[-1].states:
            continue
        problems.append(_Problem(placed, profile, step.turn, states, False, links))
        if states and uses_slow_memory:
            placed = with_states_in_place(placed, states)
            problems.append(_Problem(placed, profile, step.turn, states, True, links))
    least_bytes, where = min(problem.least for problem in problems)
    if size_bytes < least_bytes:
        raise InfeasibleLimitError(
            f"offload: a budget of {size_bytes} bytes is too small: operator {where} with its operands, and what is "
            f"never moved (parameters, buffers, the batch), needs {least_bytes} bytes; give at least that, or a "
            "smaller batch",
            least_bytes,
        )
    options = SolveOptions(**config.model_dump(), fast_operands_only=True)
    least_us = _least_us(problems, ways, size_bytes)
    first = best = _best(problems, ways, size_bytes, least_us, options)
    if has_arena:
        best = _addressed(first, ways, size_bytes, options)
    check_plan(best.graph, best.profile, links, best.plan, fast_operands_only=True)
    return Planned(
        graph=best.graph,
        profile=best.profile,
        links=links,
        runs=runs_of(best.graph),
        budget_bytes=size_bytes,
        plan=best.plan,
        layout=best.layout,
        plain_us=problems[0].plain_us,
        recomputed_us=best.repeated.extra_us,
        bound_us=min(max(least_us, _solved_us(problems, ways, first)), best.plan.objective_us),
        plain_peak_bytes=graph.peak_live_bytes,
        least_bytes=least_bytes,
    )


def _best(problems: Sequence[_Problem], ways: Ways, size_bytes: int, least_us: float, options: SolveOptions) -> _Try:
    """Return the best plan of the mixes that were tried.

    Raises:
        InfeasibleLimitError: there is none.
    """
    mixes = _mixes(problems, ways, size_bytes)
    end_s, enough_us = time.perf_counter() + _TRYING * options.time_limit_s, _CLOSE * least_us
    searched_s = min(_TRIED_S if len(mixes) > 1 else _SEARCHED_S, options.time_limit_s)
    tries, longest_s = _Tries(ways, size_bytes, _shortly(options) if len(mixes) > 1 else options), 0.0
    for mix in mixes:
        if mix.guess_us >= tries.best_us:
            continue
        for share in _SHARES if mix.share in _SHARES else (mix.share,):
            begun_s = time.perf_counter()
            if tries.best_us <= enough_us or (tries.best and begun_s + longest_s > end_s):
                break
            tried = tries.add(replace(mix, share=share), searched_s)
            longest_s = max(longest_s, time.perf_counter() - begun_s)
            if tried is None or tried.plan.gap <= options.gap:
                break  # With less time for copies a plan is better only where they hardly had enough.
    best = tries.best
    repeating = [mix for mix in mixes if not mix.share and ways.moves]
    if repeating and (best is None or (best.plan.gap > options.gap and repeating[0].guess_us < tries.best_us)):
        # Copies have windows so tight that the solver was not done with them; what only computes again is soon planned,
        # and may take less.
        tries.add(repeating[0], searched_s)
        best = tries.best
    if best is None:
        raise tries.refusal()
    left_s = min(_SEARCHED_S, end_s - time.perf_counter())
    if not best.mix.share and tries.best_us > enough_us and left_s > searched_s:
        tries.add(best.mix, left_s)
    return tries.best or best


def _shortly(options: SolveOptions) -> SolveOptions:
    """Return options for one of several plans."""
    limit_s = options.time_limit_s
    return replace(options, time_limit_s=_SOLVING * limit_s, beyond_s=_BEYOND * limit_s)


def _least_us(problems: Sequence[_Problem], ways: Ways, size_bytes: int) -> float:
    """Return what no plan for a budget is predicted to take less than: what it cannot hold has to come back."""
    # With the most state on the host the device holds the least at each kernel; no update takes less time there.
    most = max((one for one in problems if not one.are_in_place), key=lambda problem: problem.state_bytes)
    links, may = most.links if ways.moves else None, range(most.turn if ways.recomputes else 0)
    return most.plain_us + least_added_us(most.graph, most.costs_us, may, size_bytes, links, ways.host_bytes)


def _solved_us(problems: Sequence[_Problem], ways: Ways, first: _Try) -> float:
    """Return a bound that was proven on the way to a plan.

    With repeats and moves, or other state of an optimizer that waits, plans may be faster than any of those that the
    solver bounds.
    """
    if not ways.moves:
        return problems[0].plain_us + first.repeated.bound_us
    return 0.0 if ways.recomputes or len(problems) > 1 else first.plan.bound_us


def _addressed(first: _Try, ways: Ways, size_bytes: int, options: SolveOptions) -> _Try:
    """Return a plan for a mix with addresses within the budget: the first one, or else one for less.

    Raises:
        InfeasibleLimitError: there is none.
    """
    planned, margin = replace(first, layout=with_arena(first.graph, first.layout, size_bytes)), _FIRST_MARGIN
    needed_bytes, searched_s = planned.layout.fast_bytes, min(_SEARCHED_S, options.time_limit_s)
    while planned.layout.fast_bytes > size_bytes:
        tries = _Tries(ways, max(0, int((1 - margin) * size_bytes)), _shortly(options))
        log.info("addresses need %d bytes more than the budget; planning again", planned.layout.fast_bytes - size_bytes)
        with suppress(InfeasibleLimitError):  # Told below.
            tries.add(first.mix, searched_s)
        if tries.best is None:
            raise InfeasibleLimitError(
                f"offload: a budget of {size_bytes} bytes: tensors fit it, but for their addresses no plan was found; "
                f"give {needed_bytes} bytes"
            )
        planned = replace(tries.best, layout=with_arena(tries.best.graph, tries.best.layout, size_bytes))
        margin *= _FURTHER
    return planned


_FIRST_MARGIN, _FURTHER = 0.002, 3
"""Part of the budget that is taken off first where addresses exceed it, and how many times as much each time after."""
_CLOSE = 1.001
"""A plan is good enough that takes no longer than so many times what all plans take at least."""
_COPIED = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Parts of what must be saved that copies may save, where time is guessed."""
_WAITING = 1.25
"""How much longer copies take than at their engine's rate, because it waits for tensors and for memory."""
_ALIKE = 0.01
"""Part of the plain step by which guesses do not differ."""
_TRYING = 0.4
"""Part of the time limit by which another mix has to be planned, in as long as the slowest before, to be tried."""
_SOLVING, _BEYOND = 1 / 2, 1 / 12
"""Parts of the time limit for the solver, and for its search beyond the relaxation, where several mixes of ways are
tried: a plan that is made without the relaxation's prices is of little use.
"""
_SEARCHED_S = 10.0
"""Seconds of a search of what to compute again, once a plan is found."""
_TRIED_S = 1.0
"""The same where several mixes of ways are tried: ten times as long made none of 12 plans, of six steps at two budgets
each, 0.1 % better, but those of DenseNet-201 4 %. If a plan that only computes again is the best in the end, it is
searched for once more, as long as there is time.
"""
_NOTHING = Recomputation((), 0.0, 0, 0.0)
_SHARES = (0.7, 0.5, 0.3)
"""Of the time of engines that copies may take where operators may run again; the next where plans with one are not
close to their bound, because windows of copies are too tight.
"""
_PARTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Parts of an optimizer's state that wait on the host."""
