"""A step of PyTorch as the placement problem takes it, and the plan for it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, compress

from autotm.api.offload.measuring import Measured
from autotm.check.plan import check_plan
from autotm.joint_graph import Step, Storage
from autotm.layout.packing import layout_of
from autotm.model.config import SolveConfig
from autotm.model.errors import InfeasibleLimitError
from autotm.model.files import hash_of
from autotm.model.graph import (
    DEFAULT_IMPLEMENTATION,
    Graph,
    Kernel,
    OpClass,
    Operand,
    Role,
    Tensor,
    Tier,
    all_fast,
    workspace,
)
from autotm.model.limit import Limit
from autotm.model.links import Links
from autotm.model.plan import Plan
from autotm.model.profile import Profile, Timing
from autotm.model.program import Layout
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve
from autotm.solve.recomputation import AGAIN, Recomputation, recomputed, repeated

_KEPT = ".state"
"""What the names of tensors end with that an optimizer keeps; those of storages do not."""
_UPDATED = "updated"
"""What kernels are called that compute nothing: before each of them, state that moves was updated."""
RESULTS = "results"
"""The last kernel, which computes nothing: gradients, updates and the loss are in device memory at the end."""

_CLASSES = (
    (OpClass.CONV_DATA_GRADIENT, ("convolution_backward",)),
    (OpClass.CONV_FORWARD, ("convolution",)),
    (OpClass.MATMUL, ("mm", "bmm", "matmul", "linear", "attention", "einsum", "mv", "dot")),
    (OpClass.WINDOW_GRADIENT, ("pool2d_with_indices_backward", "pool2d_backward", "pool3d_backward")),
    (OpClass.WINDOW, ("pool",)),
    (OpClass.NORMALIZATION_GRADIENT, ("norm_backward",)),
    (OpClass.NORMALIZATION, ("norm",)),
    (OpClass.REDUCTION, ("sum", "mean", "softmax", "amax", "var", "loss", "embedding_dense_backward")),
    (OpClass.DATA_MOVEMENT, ("clone", "copy", "cat", "stack", "embedding", "index", "gather", "_backward_slice")),
)
"""Class of an operator by parts of its name, the first that fits; all other operators are elementwise."""


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
class Run:
    """One run of an operator.

    Attributes:
        operator: its index.
        wanted: where it ran before, the storages that are taken from this run.
    """

    operator: int
    wanted: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Planned:
    """A plan with places in the host's pool.

    Attributes:
        graph: the step, with operators that run again; the last kernel is `RESULTS`.
        profile: its times.
        links: times of copies.
        runs: operators by kernel, but for the last; None where none runs.
        plan: its stays and moves.
        layout: offsets of slow stays; PyTorch allocates fast stays.
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
    plan: Plan
    layout: Layout
    plain_us: float
    recomputed_us: float
    bound_us: float
    plain_peak_bytes: int
    least_bytes: int

    @property
    def state_tensors(self) -> dict[str, int]:
        """The operator of each tensor that is state of an optimizer, before its update or afterwards."""
        return {tensor.name: _place(tensor.name) for tensor in self.graph.tensors if tensor.slow_at is not None}

    @property
    def states(self) -> dict[int, tuple[int, int]]:
        """The offset on the host, and the bytes, of state that waits there between updates, by operator."""
        by_name = self.graph.by_name
        return {
            _place(stay.tensor): (offset, by_name[stay.tensor].size_bytes)
            for stay, offset in zip(self.layout.stays, self.layout.offsets, strict=True)
            if stay.tier is Tier.SLOW and by_name[stay.tensor].role is Role.FETCHED
        }

    @property
    def places(self) -> dict[str, int]:
        """The storage of each tensor that a plan moves or frees."""
        found = {}
        for kernel, run in zip(self.graph.kernels, self.runs, strict=False):
            for operand in kernel.outputs if run is not None else ():
                place = _place(operand.tensor)
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


def model_of(
    step: Step, measured: Measured, device: str, grain: int, generator_bytes: int = 0
) -> tuple[Graph, Profile]:
    """Return the kernels, tensors and times of a step.

    Args:
        step: captured.
        measured: of its operators.
        device: name of what they ran on.
        grain: bytes to multiples of which its allocator rounds sizes up.
        generator_bytes: that it takes to let a random operator draw the same numbers again.
    """
    names = [f"{place}:{storage.name}" for place, storage in enumerate(step.storages)]
    sizes = [math.ceil(max(size, 1) / grain) * grain for size in measured.sizes]
    slots = [Operand(name, (size,), "uint8") for name, size in zip(names, sizes, strict=True)]
    kernels, workspaces, states = [], [], []
    for index, operator in enumerate(step.operators):
        name = f"{index}:{operator.node.name}"
        drawn = generator_bytes if operator.is_random else 0
        taken = math.ceil((measured.workspaces[index] + drawn) / grain) * grain
        own = (Operand(f"{name}.workspace", (taken,), "uint8"),) if taken else ()
        workspaces += [workspace(operand, index) for operand in own]
        inputs, outputs = ([slots[place] for place in places] for places in (operator.inputs, operator.outputs))
        if measured.states[index]:
            inputs.append(Operand(f"{name}{_KEPT}", (measured.states[index],), "uint8"))
            states.append((inputs[-1], index))
        op, identity = operator.name, measured.identities[index]
        kernels.append(Kernel(name, op, identity, op, _class_of(op), 0, tuple(inputs), tuple(outputs), own))
    last, results = len(kernels), [slots[place] for place in step.results]
    kernels.append(Kernel(RESULTS, RESULTS, RESULTS, RESULTS, OpClass.DATA_MOVEMENT, 0, tuple(results), ()))
    tensors = [
        _tensor(storage, slots[place], (*storage.readers, *((last,) if place in step.results else ())), last + 1)
        for place, storage in enumerate(step.storages)
    ]
    tensors += [
        Tensor(slot.tensor, Role.STATE, slot.shape, slot.dtype, slot.size_bytes, None, (index,), held=(0, last + 1))
        for slot, index in states
    ]
    graph = Graph("torch", "own", 1, tuple(kernels), (*tensors, *workspaces))
    nothing = Timing(1, 1, 1, 1, 0)
    timings = {
        (kernel.identity, DEFAULT_IMPLEMENTATION, all_fast(kernel)): timing
        for kernel, timing in zip(kernels, (*measured.timings, nothing), strict=True)
    }
    timings[_UPDATED, DEFAULT_IMPLEMENTATION, Tier.FAST.letter] = nothing
    return graph, Profile(hash_of(graph), timings, {"device": device})


@dataclass(frozen=True)
class _Problem:
    """What plans are made of.

    Attributes:
        graph, profile: the step with nothing moved and nothing computed again.
        turn: index of the first operator of the backward pass.
        states: operators whose optimizer's state waits on the host; it is a workspace of theirs here.
        links: of the device.
    """

    graph: Graph
    profile: Profile
    turn: int
    states: frozenset[int]
    links: Links

    @cached_property
    def plain_us(self) -> float:
        """Time of the step with nothing moved and nothing computed again."""
        return math.fsum(map(self.profile.base_us, self.graph.kernels))

    @cached_property
    def least(self) -> tuple[int, str]:
        """The bytes that the largest kernel and what never moves need, and that kernel."""
        held = {tensor.name: tensor.allocated_bytes for tensor in self.graph.tensors if tensor.held}
        always = sum(held.values())
        most, where = always, RESULTS
        for kernel in self.graph.kernels:
            names = {operand.tensor for operand in kernel.operands} - held.keys()
            needed = always + sum(self.graph.by_name[name].allocated_bytes for name in names)
            if needed > most:
                most, where = needed, f"'{kernel.name}' ({kernel.op})"
        return most, where


@dataclass(frozen=True)
class _Try:
    """A plan for a problem.

    Attributes:
        share: of what must be saved, saved by copies.
        repeated: what runs again.
        graph, profile: of the step with that.
    """

    problem: _Problem
    share: float
    repeated: Recomputation
    graph: Graph
    profile: Profile
    plan: Plan
    layout: Layout

    @property
    def host_bytes(self) -> int:
        """Host memory that copies, and the optimizer's state, take."""
        return self.layout.slow_bytes


class _Tries:
    """Plans for a budget."""

    def __init__(self, ways: Ways, size_bytes: int, options: SolveOptions) -> None:
        self._ways, self._size_bytes, self._options = ways, size_bytes, options
        self._plans: list[_Try] = []
        self._are_refuted = False  # Plans that only compute tensors again.

    def add(self, problem: _Problem, shares: Iterable[float], searched_s: float) -> None:
        """Make plans; what to compute again is searched for so long for each, once a plan is found."""
        for share in shares:
            try:
                again = _recomputation(problem, self._ways, self._size_bytes, share, self._options.seed, searched_s)
            except InfeasibleLimitError:
                self._are_refuted = True
                continue
            # What is computed takes its time whatever is moved.
            if again is not None and not (
                self.best and problem.plain_us + again.extra_us > self.best.plan.objective_us
            ):
                self._plans.append(_tried(problem, self._ways, self._size_bytes, share, again, self._options))

    @property
    def best(self) -> _Try | None:
        """The plan with the least predicted time of those that keep the host's budget."""
        fitting = (one for one in self._plans if one.host_bytes <= self._ways.host_bytes)
        return min(fitting, key=lambda one: one.plan.objective_us, default=None)

    def is_good(self, plain_us: float) -> bool:
        """Return whether the best plan takes hardly longer than the plain step."""
        best = self.best
        return best is not None and best.plan.objective_us <= _GOOD * plain_us

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
    step: Step, graph: Graph, profile: Profile, links: Links, ways: Ways, size_bytes: int, config: SolveConfig
) -> Planned:
    """Return the best plan for a budget, after the independent checker's look at it.

    Raises:
        InfeasibleLimitError: no plan keeps the budget, or that of the host; names the least.
    """
    problems = [_Problem(graph, profile, step.turn, frozenset(), links)]
    if ways.moves and any(tensor.name.endswith(_KEPT) for tensor in graph.tensors):
        problems.append(_with_states_on_host(problems[0], 1.0))
    least_bytes, where = min(problem.least for problem in problems)
    if size_bytes < least_bytes:
        raise InfeasibleLimitError(
            f"offload: a budget of {size_bytes} bytes is too small: operator {where} with its operands, and what is "
            f"never moved (parameters, buffers, the batch), needs {least_bytes} bytes; give at least that, or a "
            "smaller batch",
            least_bytes,
        )
    plain_us = problems[0].plain_us
    tries = _Tries(ways, size_bytes, SolveOptions(**config.model_dump(), fast_operands_only=True))
    searched_s = min(_TRIED_S if ways.moves and ways.recomputes else _SEARCHED_S, config.time_limit_s)
    for shares in (_SHARES, _FINER_SHARES if ways.recomputes else ()):
        for problem in problems if tries.best is None else ():
            if not tries.is_good(plain_us):
                tries.add(problem, [tries.best.share] if tries.best else shares, searched_s)
    _improve(tries, problems, searched_s)
    best = tries.best
    if best is None:
        raise tries.refusal()
    check_plan(best.graph, best.profile, links, best.plan, fast_operands_only=True)
    # Where several ways are open, only what is computed once is proven to be necessary.
    bound_us = plain_us if ways.recomputes or len(problems) > 1 else best.plan.bound_us
    if not ways.moves:
        bound_us = plain_us + best.repeated.bound_us
    return Planned(
        graph=best.graph,
        profile=best.profile,
        links=links,
        runs=_runs(best.graph),
        plan=best.plan,
        layout=best.layout,
        plain_us=plain_us,
        recomputed_us=best.repeated.extra_us,
        bound_us=bound_us,
        plain_peak_bytes=graph.peak_live_bytes,
        least_bytes=least_bytes,
    )


def _improve(tries: _Tries, problems: Sequence[_Problem], searched_s: float) -> None:
    """Try shares beside the best one, and parts of an optimizer's state, as long as they make the plan better."""
    plain_us, best = problems[0].plain_us, tries.best
    if best is None or tries.is_good(plain_us):
        return
    tries.add(best.problem, [share for share in _FINER_SHARES if abs(share - best.share) < _STEP], searched_s)
    parts = _PARTS if len(problems) > 1 else ()
    for part in parts[::-1] if best.problem.states else parts:
        before = tries.best
        assert before is not None
        tries.add(_with_states_on_host(problems[0], part), [before.share], searched_s)
        if tries.best is before or tries.is_good(plain_us):
            break


_GOOD = 1.001
"""A plan is good enough that takes no longer than so many times the plain step."""
_SEARCHED_S = 10.0
"""Seconds of a search of what to compute again, once a plan is found."""
_TRIED_S = 1.0
"""The same where several mixes of ways are tried: for the best mix ten times as long made none of 12
plans, of six steps at two budgets each, 0.1 % better.
"""
_NOTHING = Recomputation((), 0.0, 0, 0.0)
_SHARES = (1.0, 0.0, 0.5)
"""What is saved by copies, of what must be saved: the rest is saved by computing again."""
_PARTS = (0.25, 0.5, 0.75)
"""Parts of an optimizer's state that wait on the host, tried beside none and all."""
_FINER_SHARES = (0.75, 0.25)
"""Shares that are tried beside the best of the others; or all, where these need too much of the host's memory."""
_STEP = 0.3
"""Shares that are less apart are beside each other."""


def _tried(
    problem: _Problem, ways: Ways, size_bytes: int, share: float, again: Recomputation, options: SolveOptions
) -> _Try:
    """Return a plan in which some kernels run again, and copies save the rest of what must be saved."""
    graph = repeated(problem.graph, again.repeats)
    if problem.states:
        graph = _with_states_that_move(graph, problem.states)
    profile = replace(problem.profile, graph_hash=hash_of(graph))
    optimizer = "asynchronous" if ways.moves else "static"
    plan = solve(graph, profile, problem.links, optimizer, Limit(size_bytes=size_bytes), options)
    return _Try(problem, share, again, graph, profile, plan, _layout(graph, plan))


def _recomputation(
    problem: _Problem, ways: Ways, size_bytes: int, share: float, seed: int, searched_s: float
) -> Recomputation | None:
    """Return what runs again where copies save a share of what must be saved; None if the ways do not allow that."""
    graph, turn = problem.graph, problem.turn
    if problem.least[0] > size_bytes:
        return None
    need_bytes = graph.peak_live_bytes
    is_enough = need_bytes <= size_bytes
    if is_enough or share >= 1:
        return _NOTHING if share >= 1 and (ways.moves or is_enough) else None
    if not ways.recomputes or (share > 0 and not ways.moves):
        return None
    limit_bytes = size_bytes + int(share * (need_bytes - size_bytes))
    costs_us = [problem.profile.base_us(kernel) for kernel in graph.kernels]
    return recomputed(graph, costs_us, turn, range(turn), limit_bytes, seed=seed, time_limit_s=searched_s)


def _with_states_on_host(problem: _Problem, part: float) -> _Problem:
    """Return a step in which a part of what the optimizer keeps is on the device during its updates alone."""
    graph = problem.graph
    kept = {tensor.readers[0]: tensor for tensor in graph.tensors if tensor.name.endswith(_KEPT)}
    wanted_bytes, taken_bytes = part * sum(tensor.size_bytes for tensor in kept.values()), 0
    kernels, moving = [*graph.kernels], {}
    for index, tensor in kept.items():
        if taken_bytes >= wanted_bytes:
            break
        taken_bytes += tensor.size_bytes
        (operand,) = (one for one in kernels[index].inputs if one.tensor == tensor.name)
        inputs = tuple(one for one in kernels[index].inputs if one is not operand)
        kernels[index] = replace(kernels[index], inputs=inputs, workspaces=(*kernels[index].workspaces, operand))
        moving[tensor.name] = workspace(operand, index)
    tensors = tuple(moving.get(tensor.name, tensor) for tensor in graph.tensors)
    placed = replace(graph, kernels=tuple(kernels), tensors=tensors)
    profile = replace(problem.profile, graph_hash=hash_of(placed))
    states = frozenset(_place(name) for name in moving)
    return replace(problem, graph=placed, profile=profile, states=states)


def _with_states_that_move(graph: Graph, states: Collection[int]) -> Graph:
    """Return a step in which state of an optimizer is fetched some time before its update, and stored afterwards.

    Args:
        graph: with that state as workspaces of the updates.
        states: operators that update it.
    """
    kernels: list[Kernel] = []
    moved: list[int] = []  # Where each kernel is now.
    last = len(graph.kernels) + len(states) - 1
    tensors = []
    for kernel in graph.kernels:
        moved.append(len(kernels))
        kernels.append(kernel)
        if kernel.name == RESULTS or _place(kernel.name) not in states:
            continue
        *workspaces, fetched = kernel.workspaces
        stored = replace(fetched, tensor=f"{fetched.tensor}.{_UPDATED}")
        kernels[-1] = replace(kernel, inputs=(*kernel.inputs, fetched), workspaces=tuple(workspaces))
        kernels.append(Kernel(f"{kernel.name}.{_UPDATED}", *[_UPDATED] * 3, OpClass.DATA_MOVEMENT, 0, (), (stored,)))
        for operand, role, producer, readers in (
            (fetched, Role.FETCHED, None, (0, moved[-1])), (stored, Role.STORED, moved[-1] + 1, (last,)),
        ):  # fmt: skip
            shape = operand.shape, operand.dtype, operand.size_bytes
            tensors.append(Tensor(operand.tensor, role, *shape, producer, readers))
    names = {tensor.name for tensor in tensors}
    others = (
        replace(
            tensor,
            producer=None if tensor.producer is None else moved[tensor.producer],
            readers=tuple(moved[reader] for reader in tensor.readers),
            held=None if tensor.held is None else (0, len(kernels)),
        )
        for tensor in graph.tensors
        if tensor.name not in names
    )
    return replace(graph, kernels=tuple(kernels), tensors=(*others, *tensors))


def _layout(graph: Graph, plan: Plan) -> Layout:
    """Return the layout of a plan in which state of an optimizer keeps its place on the host, beside all else."""
    is_kept = [stay.tier is Tier.SLOW and graph.by_name[stay.tensor].slow_at is not None for stay in plan.stays]
    others = tuple(stay for stay, kept in zip(plan.stays, is_kept, strict=True) if not kept)
    layout = layout_of(graph, replace(plan, stays=others))
    offsets, slow_bytes, places = iter(layout.offsets), layout.slow_bytes, dict[int, int]()
    for stay in compress(plan.stays, is_kept):
        if _place(stay.tensor) not in places:
            places[_place(stay.tensor)] = slow_bytes
            slow_bytes += graph.by_name[stay.tensor].allocated_bytes
    placed = (
        places[_place(stay.tensor)] if kept else next(offsets) for stay, kept in zip(plan.stays, is_kept, strict=True)
    )
    return replace(layout, stays=plan.stays, offsets=tuple(placed), slow_bytes=slow_bytes)


def _runs(graph: Graph) -> tuple[Run | None, ...]:
    """Return the operators of a step's kernels, but for the last; None for one that computes nothing."""
    read = {operand.tensor for kernel in graph.kernels for operand in kernel.inputs}
    runs: list[Run | None] = []
    for kernel in graph.kernels[:-1]:
        wanted = tuple(_place(operand.tensor) for operand in kernel.outputs if operand.tensor in read)
        run = Run(_place(kernel.name), wanted if kernel.name.endswith(AGAIN) else None)
        runs.append(None if kernel.identity == _UPDATED else run)
    return tuple(runs)


def _place(name: str) -> int:
    """Return the storage of a tensor, or the operator of a kernel, which its name begins with."""
    return int(name.partition(":")[0])


def _tensor(storage: Storage, slot: Operand, readers: tuple[int, ...], kernels: int) -> Tensor:
    role = storage.argument or Role.INTERMEDIATE
    held = None if storage.argument is None else (0, kernels)
    readers = tuple(sorted(set(readers)))
    return Tensor(slot.tensor, role, slot.shape, slot.dtype, slot.size_bytes, storage.producer, readers, held=held)


def _class_of(operator: str) -> OpClass:
    classes = (op_class for op_class, parts in _CLASSES if any(part in operator for part in parts))
    return next(classes, OpClass.ELEMENTWISE)
