"""Steps on a GPU simulated on three engines: one for kernels, and one for copies in each direction."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate

from autotm.model.graph import ChosenGraph, Graph, Role, Tier
from autotm.model.plan import Move, Plan
from autotm.model.timeline import Engine, EngineEvent
from autotm.solve.problem import Problem

# A clock of three engines: kernels one after the other, and a copy at a time in each direction.


@dataclass(order=True)
class _Waiting:
    deadline: int
    number: int
    name: str = field(compare=False)
    copy_us: float = field(compare=False)
    asked_us: float = field(compare=False)


class _CopyEngine:
    """Copies in the order of their deadlines; one that has begun is not interrupted."""

    def __init__(self, engine: Engine, events: list[EngineEvent]) -> None:
        self._engine, self._events = engine, events
        self._waiting: list[_Waiting] = []
        self._free_us = 0.0
        self._ends_us: dict[int, float] = {}

    def ask(self, number: int, name: str, copy_us: float, deadline: int, now_us: float) -> None:
        self._begin_until(now_us)
        heappush(self._waiting, _Waiting(deadline, number, name, copy_us, now_us))

    def end_us(self, number: int) -> float:
        """When a copy that was asked for is complete, nothing more being asked before."""
        while number not in self._ends_us:
            self._begin()
        return self._ends_us[number]

    def _begin_until(self, now_us: float) -> None:
        """Begin what begins before `now_us`: what is asked for then may overtake the rest."""
        while self._waiting and max(self._free_us, self._waiting[0].asked_us) < now_us:
            self._begin()

    def _begin(self) -> None:
        copy = heappop(self._waiting)
        start_us = max(self._free_us, copy.asked_us)
        self._free_us = start_us + copy.copy_us
        self._ends_us[copy.number] = self._free_us
        self._events.append(EngineEvent(self._engine, copy.name, start_us, self._free_us))


class Engines:
    """What a program on a GPU does: it launches kernels in order, asks for copies, and lets kernels wait for them.

    Attributes:
        now_us: when the next kernel can begin.
        in_bytes, out_bytes: asked for so far.
    """

    def __init__(self) -> None:
        self.now_us = 0.0
        self.in_bytes = self.out_bytes = 0
        self._events: list[EngineEvent] = []
        self._copies = {engine: _CopyEngine(engine, self._events) for engine in (Engine.IN, Engine.OUT)}
        self._count = 0

    def compute(self, name: str, kernel_us: float) -> None:
        """Run a kernel."""
        end_us = self.now_us + kernel_us
        self._events.append(EngineEvent(Engine.COMPUTE, name, self.now_us, end_us))
        self.now_us = end_us

    def ask(self, engine: Engine, name: str, size_bytes: int, copy_us: float, deadline: int = 0) -> tuple[Engine, int]:
        """Ask for a copy from now on; of those that wait, that with the least `deadline` is next."""
        self._count += 1
        if engine is Engine.IN:
            self.in_bytes += size_bytes
        else:
            self.out_bytes += size_bytes
        self._copies[engine].ask(self._count, name, copy_us, deadline, self.now_us)
        return engine, self._count

    def wait(self, asked: tuple[Engine, int]) -> None:
        """Let the next kernel begin no sooner than a copy is complete."""
        engine, number = asked
        self.now_us = max(self.now_us, self._copies[engine].end_us(number))

    def events(self) -> tuple[EngineEvent, ...]:
        """All that was done, in order of its start."""
        return tuple(sorted(self._events, key=lambda event: (event.start_us, event.end_us)))


# What the simulation of a step gives, and what all simulations start from.


@dataclass(frozen=True)
class Simulated:
    """A step as three engines make it.

    Attributes:
        fits: whether what is placed keeps the limit.
        most_bytes: of what is placed, the most in device memory at once.
        step_us: from the first kernel to the end of the last.
        kernels_us: of all kernels, each once.
        repeated_us: of kernels that run again.
        in_bytes, out_bytes: copied to the device and to the host.
        events: what the engines did, by their start.
        implementations: number of kernels by the name of the implementation.
        remark: what else a reader must know.
    """

    fits: bool
    most_bytes: int
    step_us: float
    kernels_us: float
    repeated_us: float
    in_bytes: int
    out_bytes: int
    events: tuple[EngineEvent, ...]
    implementations: dict[str, int]
    remark: str = ""


def simulated(
    problem: Problem,
    graph: Graph,
    engines: Engines,
    most_bytes: int,
    *,
    repeated_us: float = 0.0,
    fits: bool = True,
    remark: str = "",
) -> Simulated:
    """What `engines` did for a step with one implementation for each kernel."""
    return Simulated(
        fits=fits and most_bytes <= problem.limit_bytes,
        most_bytes=most_bytes,
        step_us=engines.now_us,
        kernels_us=sum(map(problem.profile.base_us, graph.kernels)),
        repeated_us=repeated_us,
        in_bytes=engines.in_bytes,
        out_bytes=engines.out_bytes,
        events=engines.events(),
        implementations=dict(sorted(Counter(kernel.implementation for kernel in graph.kernels).items())),
        remark=remark,
    )


def fastest(problem: Problem) -> ChosenGraph:
    """The step as a framework would run it: each kernel in the fastest way whose operands fit the limit together.

    Where not even the leanest fits, that is taken.
    """
    graph, profile = problem.graph, problem.profile
    names = []
    for kernel in graph.kernels:
        shared = sum(
            graph.by_name[name].allocated_bytes
            for name in {operand.tensor for operand in kernel.inputs + kernel.outputs}
            if graph.by_name[name].is_movable
        )
        ways = [
            (profile.base_us(way), sum(operand.size_bytes for operand in way.workspaces), way.implementation)
            for way in map(kernel.computed_by, kernel.implementations)
        ]
        fitting = [way for way in ways if shared + way[1] <= problem.limit_bytes]
        names.append(min(fitting)[2] if fitting else min(ways, key=lambda way: way[1])[2])
    return graph.computed_by(names)


def copy(engines: Engines, problem: Problem, engine: Engine, name: str, size_bytes: int) -> tuple[Engine, int]:
    """Ask for a copy that takes as long as one beside kernels."""
    destination = Tier.FAST if engine is Engine.IN else Tier.SLOW
    return engines.ask(engine, name, size_bytes, problem.links.transfer_us(destination, size_bytes))


def copy_and_wait(engines: Engines, problem: Problem, engine: Engine, name: str, size_bytes: int) -> None:
    """A blocking copy."""
    destination = Tier.FAST if engine is Engine.IN else Tier.SLOW
    engines.wait(engines.ask(engine, name, size_bytes, problem.links.copy_us(destination, size_bytes), deadline=-1))


def last_forward_kernel(graph: Graph) -> int:
    """The kernel that gives the loss: gradients and updates come after it; the last one of a step without any.

    The loss is the result that replaces nothing.
    """
    last = len(graph.kernels) - 1
    losses = [
        tensor.producer
        for tensor in graph.tensors
        if tensor.role is Role.RESULT and tensor.alias_of is None and tensor.producer is not None
    ]
    return max(losses, default=last)


# A plan as the three engines make it: moves in whole copies, one at a time in each direction.


def run_plan(problem: Problem, plan: Plan) -> Simulated:
    """The step of a plan whose kernels use fast memory only.

    The window model (`docs/formulation.md` §9) has engines that interrupt a copy for a more urgent one. Here, as on a
    GPU, a copy that has begun is finished first, so that a step may take a little longer than the plan's objective.
    """
    graph = plan.step_of(problem.graph)
    due, begun = defaultdict(list), defaultdict(list)
    for move in plan.moves:
        due[move.before].append(move)
        if move.is_asynchronous:
            begun[move.start].append(move)
    engines = Engines()
    asked: dict[tuple[str, Tier, int], tuple[Engine, int]] = {}
    for index, kernel in enumerate(graph.kernels):
        for move in due[index]:
            if move.is_asynchronous:
                engines.wait(asked.pop(_key(move)))
        for move in due[index]:
            if not move.is_asynchronous:
                size = graph.by_name[move.tensor].size_bytes
                copy_and_wait(engines, problem, _engine_of(move), move.tensor, size)
        for move in begun[index]:
            size = graph.by_name[move.tensor].size_bytes
            transfer_us = problem.links.transfer_us(move.destination, size)
            asked[_key(move)] = engines.ask(_engine_of(move), move.tensor, size, transfer_us, move.before)
        engines.compute(kernel.name, problem.profile.base_us(kernel))
    return simulated(problem, graph, engines, _most_fast_bytes(graph, plan))


def _key(move: Move) -> tuple[str, Tier, int]:
    return move.tensor, move.destination, move.before


def _engine_of(move: Move) -> Engine:
    return Engine.IN if move.destination is Tier.FAST else Engine.OUT


def _most_fast_bytes(graph: Graph, plan: Plan) -> int:
    change = [0] * (len(graph.kernels) + 1)
    for stay in plan.stays:
        if stay.tier is Tier.FAST:
            change[stay.start] += graph.by_name[stay.tensor].allocated_bytes
            change[stay.end] -= graph.by_name[stay.tensor].allocated_bytes
    return max(accumulate(change), default=0)
