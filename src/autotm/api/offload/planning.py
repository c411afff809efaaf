"""A step of PyTorch as the placement problem takes it, and the plan for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

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
        runs: operators by kernel, but for the last.
        plan: its stays and moves.
        layout: offsets of slow stays; PyTorch allocates fast stays.
        plain_us: predicted microseconds of a step in which nothing is moved and nothing runs again.
        recomputed_us: predicted microseconds of what runs again.
        bound_us: no plan is predicted to take less.
        plain_peak_bytes: the most device memory if nothing is moved and nothing runs again.
        least_bytes: the least budget that a plan can keep.
        states: bytes of an optimizer's state that wait on the host between updates, by operator.
    """

    graph: Graph
    runs: tuple[Run, ...]
    plan: Plan
    layout: Layout
    plain_us: float
    recomputed_us: float
    bound_us: float
    plain_peak_bytes: int
    least_bytes: int
    states: dict[int, int]

    @property
    def state_bytes(self) -> int:
        """Host memory that the optimizer's state takes."""
        return sum(self.states.values())

    @property
    def host_bytes(self) -> int:
        """Host memory that copies, and the optimizer's state, take."""
        return self.layout.slow_bytes + self.state_bytes

    @property
    def places(self) -> dict[str, int]:
        """The storage of each tensor that a plan moves or frees."""
        found = {}
        for kernel, run in zip(self.graph.kernels, self.runs, strict=False):
            for operand in kernel.outputs:
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
    return graph, Profile(hash_of(graph), timings, {"device": device})


@dataclass(frozen=True)
class _Problem:
    """What plans are made of.

    Attributes:
        graph, profile: the step with nothing moved and nothing computed again.
        turn: index of the first operator of the backward pass.
        states: bytes of an optimizer's state that wait on the host, by operator.
        links: of the device.
    """

    graph: Graph
    profile: Profile
    turn: int
    states: dict[int, int]
    links: Links

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


class _Tries:
    """Plans for a budget, each with the share of what must be saved that is saved by copies."""

    def __init__(self, ways: Ways, size_bytes: int, options: SolveOptions) -> None:
        self._ways, self._size_bytes, self._options = ways, size_bytes, options
        self._plans: list[tuple[Planned, float]] = []

    def add(self, problem: _Problem, shares: Sequence[float]) -> None:
        """Make plans."""
        for share in shares:
            planned = _planned(problem, self._ways, self._size_bytes, share, self._options)
            if planned is not None:
                self._plans.append((planned, share))

    @property
    def best(self) -> tuple[Planned, float] | None:
        """The plan with the least predicted time of those that keep the host's budget."""
        fitting = (pair for pair in self._plans if pair[0].host_bytes <= self._ways.host_bytes)
        return min(fitting, key=lambda pair: pair[0].plan.objective_us, default=None)

    def is_good(self, plain_us: float) -> bool:
        """Return whether the best plan takes hardly longer than the plain step."""
        best = self.best
        return best is not None and best[0].plan.objective_us <= _GOOD * plain_us

    def refusal(self) -> InfeasibleLimitError:
        """Return why there is no best plan."""
        least_host_bytes = min((planned.host_bytes for planned, _ in self._plans), default=None)
        reason = (
            "no plan was found that only computes tensors again; allow moves, or give more"
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
    problems = [_Problem(graph, profile, step.turn, {}, links)]
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
    plain_us = math.fsum(map(profile.base_us, graph.kernels))
    tries = _Tries(ways, size_bytes, SolveOptions(**config.model_dump(), fast_operands_only=True))
    for shares in (_SHARES, _HOST_SHARES if ways.recomputes else ()):
        for problem in problems if tries.best is None else ():
            if not tries.is_good(plain_us):
                tries.add(problem, shares)
    if tries.best is None:
        raise tries.refusal()
    _, share = tries.best
    for part in _PARTS if len(problems) > 1 and not tries.is_good(plain_us) else ():
        tries.add(_with_states_on_host(problems[0], part), [share])
    best, _ = tries.best
    # Where several ways are open, only what is computed once is proven to be necessary.
    bound_us = plain_us if ways.moves and (ways.recomputes or len(problems) > 1) else best.bound_us
    return replace(
        best, plain_us=plain_us, plain_peak_bytes=graph.peak_live_bytes, least_bytes=least_bytes, bound_us=bound_us
    )


_GOOD = 1.001
"""A plan is good enough that takes no longer than so many times the plain step."""
_SEARCHED_S = 10.0
"""Most seconds for a search of what to compute again."""
_NOTHING = Recomputation((), 0.0, 0, 0.0)
_SHARES = (1.0, 0.0, 0.5)
"""What is saved by copies, of what must be saved: the rest is saved by computing again."""
_PARTS = (0.25, 0.5, 0.75)
"""Parts of an optimizer's state that wait on the host, tried beside none and all."""
_HOST_SHARES = (0.75, 0.25)
"""The same, tried where all of these plans need too much of the host's memory."""


def _planned(problem: _Problem, ways: Ways, size_bytes: int, share: float, options: SolveOptions) -> Planned | None:
    """Return a plan in which copies save a share of what must be saved; None if the ways do not allow one."""
    graph, links = problem.graph, problem.links
    costs_us = [problem.profile.base_us(kernel) for kernel in graph.kernels]
    found = None
    if problem.least[0] <= size_bytes:
        found = _recomputation(problem, costs_us, ways, size_bytes, share, options)
    if found is None:
        return None
    again = repeated(graph, found.repeats)
    profile = replace(problem.profile, graph_hash=hash_of(again))
    optimizer = "asynchronous" if ways.moves else "static"
    plan = solve(again, profile, links, optimizer, Limit(size_bytes=size_bytes), options)
    check_plan(again, profile, links, plan, fast_operands_only=True)
    plain_us = math.fsum(costs_us)
    return Planned(
        graph=again,
        runs=_runs(again),
        plan=plan,
        layout=layout_of(again, plan),
        plain_us=plain_us,
        recomputed_us=found.extra_us,
        bound_us=plan.bound_us if not ways.recomputes else plain_us + found.bound_us,
        plain_peak_bytes=graph.peak_live_bytes,
        least_bytes=problem.least[0],
        states=problem.states,
    )


def _recomputation(
    problem: _Problem, costs_us: Sequence[float], ways: Ways, size_bytes: int, share: float, options: SolveOptions
) -> Recomputation | None:
    """Return what runs again where copies save a share of what must be saved; None if the ways do not allow that."""
    graph, turn = problem.graph, problem.turn
    need_bytes = graph.peak_live_bytes
    is_enough = need_bytes <= size_bytes
    if is_enough or share >= 1:
        return _NOTHING if share >= 1 and (ways.moves or is_enough) else None
    if not ways.recomputes or (share > 0 and not ways.moves):
        return None
    limit_bytes = size_bytes + int(share * (need_bytes - size_bytes))
    time_limit_s = min(_SEARCHED_S, options.time_limit_s)
    return recomputed(graph, costs_us, turn, range(turn), limit_bytes, seed=options.seed, time_limit_s=time_limit_s)


def _with_states_on_host(problem: _Problem, part: float) -> _Problem:
    """Return a step in which a part of what the optimizer keeps waits on the host.

    Its updates fetch it, and bring it back. These copies hold them up.
    """
    graph, profile, links = problem.graph, problem.profile, problem.links
    kept = {tensor.readers[0]: tensor for tensor in graph.tensors if tensor.name.endswith(_KEPT)}
    wanted_bytes, states = part * sum(tensor.size_bytes for tensor in kept.values()), dict[int, int]()
    kernels, workspaces, timings = [*graph.kernels], [], dict(profile.timings)
    for index, tensor in kept.items():
        if sum(states.values()) >= wanted_bytes:
            break
        states[index] = tensor.size_bytes
        kernel = kernels[index]
        (operand,) = (one for one in kernel.inputs if one.tensor == tensor.name)
        kernels[index] = replace(
            kernel,
            identity=f"{kernel.identity} on the host",
            inputs=tuple(one for one in kernel.inputs if one is not operand),
            workspaces=(*kernel.workspaces, operand),
        )
        workspaces.append(workspace(operand, index))
        copies_ns = round(1e3 * sum(links.copy_us(tier, tensor.size_bytes) for tier in Tier))
        timing = profile.timings[kernel.identity, DEFAULT_IMPLEMENTATION, all_fast(kernel)]
        spent_ns = timing.min_ns, timing.median_ns, timing.lower_quartile_ns, timing.upper_quartile_ns
        longer = Timing(*(each + copies_ns for each in spent_ns), timing.repeats)
        timings[kernels[index].identity, DEFAULT_IMPLEMENTATION, all_fast(kernels[index])] = longer
    names = {kept[index].name for index in states}
    tensors = (tensor for tensor in graph.tensors if tensor.name not in names)
    placed = replace(graph, kernels=tuple(kernels), tensors=(*tensors, *workspaces))
    profile = replace(profile, graph_hash=hash_of(placed), timings=timings)
    return replace(problem, graph=placed, profile=profile, states=states)


def _runs(graph: Graph) -> tuple[Run, ...]:
    """Return the operators of a step's kernels, but for the last."""
    read = {operand.tensor for kernel in graph.kernels for operand in kernel.inputs}
    runs = []
    for kernel in graph.kernels[:-1]:
        wanted = tuple(_place(operand.tensor) for operand in kernel.outputs if operand.tensor in read)
        runs.append(Run(_place(kernel.name), wanted if kernel.name.endswith(AGAIN) else None))
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
