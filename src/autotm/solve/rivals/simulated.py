"""What the simulation of a step gives, and what all simulations start from."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from autotm.model.plan import Engine, EngineEvent
from autotm.model.step import Graph, Role, Tier
from autotm.solve.problem import Problem
from autotm.solve.rivals.engines import Engines


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


def fastest(problem: Problem) -> Graph:
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
    destination = Tier.DRAM if engine is Engine.IN else Tier.PMEM
    return engines.ask(engine, name, size_bytes, problem.links.transfer_us(destination, size_bytes))


def copy_and_wait(engines: Engines, problem: Problem, engine: Engine, name: str, size_bytes: int) -> None:
    """A blocking copy."""
    destination = Tier.DRAM if engine is Engine.IN else Tier.PMEM
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
