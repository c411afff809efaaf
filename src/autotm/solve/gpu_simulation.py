"""Steps on a GPU simulated on three engines: one for kernels, and one for copies in each direction."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate

from autotm.model.graph import ChosenGraph, Graph, Kernel, Role, Tier
from autotm.model.plan import Move, Plan
from autotm.model.timeline import Engine, EngineEvent
from autotm.solve.problem import Problem


@dataclass(frozen=True)
class Simulated:
    """A step as the three engines executed it.

    Attributes:
        fits: whether what is placed keeps the limit.
        most_bytes: the most bytes of placed tensors in device memory at once.
        step_us: time from the start of the first kernel to the end of the last.
        kernels_us: time of all kernels, each run once.
        repeated_us: time of the kernels that run again.
        in_bytes, out_bytes: bytes copied to the device and to the host.
        events: kernels and copies, in the order of their start.
        implementations: number of kernels by the name of the implementation.
        remark: further facts that a reader must know.
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


class Engines:
    """A simulated program on a GPU, which launches kernels in order, asks for copies and lets kernels wait for them.

    An engine copies in the order of deadlines; a copy that has begun is not interrupted.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._now_us = 0.0  # When the next kernel can begin.
        self._events: list[EngineEvent] = []
        self._bytes = {Engine.IN: 0, Engine.OUT: 0}
        self._free_us = {Engine.IN: 0.0, Engine.OUT: 0.0}
        # By engine a heap of (deadline, number, name, duration, when it was asked for).
        self._waiting: dict[Engine, list[tuple[int, int, str, float, float]]] = {Engine.IN: [], Engine.OUT: []}
        self._ends_us: dict[int, float] = {}
        self._count = 0

    def compute(self, kernel: Kernel) -> None:
        """Run a kernel."""
        end_us = self._now_us + self._problem.profile.base_us(kernel)
        self._events.append(EngineEvent(Engine.COMPUTE, kernel.name, self._now_us, end_us))
        self._now_us = end_us

    def ask(self, engine: Engine, name: str, size_bytes: int, copy_us: float, deadline: int = 0) -> tuple[Engine, int]:
        """Ask for a copy from now on; of those that wait, that with the least `deadline` is next."""
        self._count += 1
        self._bytes[engine] += size_bytes
        waiting = self._waiting[engine]
        # What begins before now is not overtaken by what is asked for now.
        while waiting and max(self._free_us[engine], waiting[0][-1]) < self._now_us:
            self._begin(engine)
        heappush(waiting, (deadline, self._count, name, copy_us, self._now_us))
        return engine, self._count

    def copy(self, engine: Engine, name: str, size_bytes: int, deadline: int = 0) -> tuple[Engine, int]:
        """Ask for a copy that takes as long as an asynchronous one."""
        return self.ask(engine, name, size_bytes, self._problem.links.transfer_us(_TO[engine], size_bytes), deadline)

    def copy_and_wait(self, engine: Engine, name: str, size_bytes: int) -> None:
        """Make a blocking copy."""
        copy_us = self._problem.links.copy_us(_TO[engine], size_bytes)
        self.wait(self.ask(engine, name, size_bytes, copy_us, deadline=-1))

    def wait(self, asked: tuple[Engine, int]) -> None:
        """Let the next kernel begin no sooner than a copy is complete."""
        engine, number = asked
        while number not in self._ends_us:
            self._begin(engine)
        self._now_us = max(self._now_us, self._ends_us[number])

    def _begin(self, engine: Engine) -> None:
        _, number, name, copy_us, asked_us = heappop(self._waiting[engine])
        start_us = max(self._free_us[engine], asked_us)
        self._free_us[engine] = self._ends_us[number] = start_us + copy_us
        self._events.append(EngineEvent(engine, name, start_us, self._free_us[engine]))

    def simulated(self, graph: Graph, most_bytes: int, *, repeated_us: float = 0.0, remark: str = "") -> Simulated:
        """Return the simulated step; `graph` has one implementation for each kernel."""
        return Simulated(
            fits=most_bytes <= self._problem.limit_bytes,
            most_bytes=most_bytes,
            step_us=self._now_us,
            kernels_us=sum(map(self._problem.profile.base_us, graph.kernels)),
            repeated_us=repeated_us,
            in_bytes=self._bytes[Engine.IN],
            out_bytes=self._bytes[Engine.OUT],
            events=tuple(sorted(self._events, key=lambda event: (event.start_us, event.end_us))),
            implementations=dict(sorted(Counter(kernel.implementation for kernel in graph.kernels).items())),
            remark=remark,
        )


_TO = {Engine.IN: Tier.FAST, Engine.OUT: Tier.SLOW}


def peak_bytes(held: Iterable[tuple[int, int, int]]) -> int:
    """Return the most bytes at once of (first kernel, kernel after the last, bytes) of all that is held."""
    change: Counter[int] = Counter()
    for start, stop, size_bytes in held:
        change[start] += size_bytes
        change[stop] -= size_bytes
    return max(accumulate(change[kernel] for kernel in sorted(change)), default=0)


def fastest(problem: Problem) -> ChosenGraph:
    """Return the step as a framework would run it: for each kernel its fastest implementation that fits the limit.

    An implementation fits if the kernel's operands do together; where none fits, the leanest is taken.
    """
    graph, profile = problem.graph, problem.profile
    names = []
    for kernel in graph.kernels:
        shared = sum(
            graph.by_name[name].allocated_bytes
            for name in {operand.tensor for operand in kernel.inputs + kernel.outputs}
            if graph.by_name[name].is_movable
        )
        variants = [
            (profile.base_us(chosen), sum(operand.size_bytes for operand in chosen.workspaces), chosen.implementation)
            for chosen in map(kernel.computed_by, kernel.implementations)
        ]
        fitting = [variant for variant in variants if shared + variant[1] <= problem.limit_bytes]
        names.append((min(fitting) if fitting else min(variants, key=lambda variant: variant[1]))[2])
    return graph.computed_by(names)


def last_forward_kernel(graph: Graph) -> int:
    """Return the kernel that gives the loss: gradients and updates come after it; the last one of a step without any.

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
    """Return the step of a plan whose kernels use fast memory only.

    The window model (`docs/formulation.md` §9) has engines that interrupt a copy for a more urgent one. Here, as on a
    GPU, a copy that has begun is finished first, so that a step may take a little longer than the plan's objective.
    """
    graph = plan.step_of(problem.graph)
    due, begun = defaultdict(list), defaultdict(list)
    for move in plan.moves:
        due[move.before].append(move)
        if move.is_asynchronous:
            begun[move.start].append(move)
    engines = Engines(problem)
    asked: dict[Move, tuple[Engine, int]] = {}
    for index, kernel in enumerate(graph.kernels):
        for move in due[index]:
            if move.is_asynchronous:
                engines.wait(asked.pop(move))
        for move in due[index]:
            if not move.is_asynchronous:
                engines.copy_and_wait(_engine_of(move), move.tensor, graph.by_name[move.tensor].size_bytes)
        for move in begun[index]:
            size_bytes = graph.by_name[move.tensor].size_bytes
            asked[move] = engines.copy(_engine_of(move), move.tensor, size_bytes, move.before)
        engines.compute(kernel)
    stays = (stay for stay in plan.stays if stay.tier is Tier.FAST)
    held = ((stay.start, stay.end, graph.by_name[stay.tensor].allocated_bytes) for stay in stays)
    return engines.simulated(graph, peak_bytes(held))


def _engine_of(move: Move) -> Engine:
    return Engine.IN if move.destination is Tier.FAST else Engine.OUT
