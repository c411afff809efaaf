"""Networks written in Relax, lowered, compiled and run by the plain step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import small_step
from tvm import relax

from autotm.kernels.library import KernelLibrary
from autotm.kernels.target import host_target, machine_target
from autotm.lower.lowering import lower_network
from autotm.memory.opening import open_tiers
from autotm.model.graph import Graph, Initial
from autotm.model.limit import Counts
from autotm.model.paths import MachinePaths
from autotm.model.training import Training
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import prepare
from autotm.runtime.verify import plain_program
from autotm.stages.compare import compare_with_source
from autotm.stages.context import Context
from autotm.zoo import Network, with_values_stored

Arrays = dict[str, np.ndarray]
Body = Callable[..., Sequence[relax.Expr] | relax.Expr]
NORMAL = Initial("normal")


def distance(arrays: Arrays, exact: Arrays) -> float:
    """The root of the sum of squares by which arrays are off."""
    return float(np.sqrt(sum(np.sum((arrays[name] - value) ** 2) for name, value in exact.items())))


@dataclass(frozen=True)
class Steps:
    """What some plain steps did.

    Attributes:
        graph: of the step.
        start: every argument before the first.
        after: every argument and result after each.
    """

    graph: Graph
    start: Arrays
    after: list[Arrays]


def network(
    body: Body,
    inputs: Mapping[str, tuple[int, ...]],
    parameters: Mapping[str, tuple[int, ...]],
    states: Mapping[str, tuple[int, ...]] | None = None,
    training: Training | None = None,
    dtypes: Mapping[str, str] | None = None,
) -> Network:
    """A network whose `main` is `body(builder, *arguments)`; everything starts normal, integers at zero."""
    shapes = {**inputs, **parameters, **(states or {})}
    types = {name: (dtypes or {}).get(name, "float32") for name in shapes}
    variables = [relax.Var(name, relax.TensorType(shape, types[name])) for name, shape in shapes.items()]
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            outputs = body(builder, *variables)
            result = builder.emit_output(outputs if isinstance(outputs, relax.Expr) else relax.Tuple(list(outputs)))
        builder.emit_func_output(result)

    def fills(some: Mapping[str, tuple[int, ...]]) -> dict[str, Initial]:
        return {name: NORMAL if types[name] == "float32" else Initial("zeros") for name in some}

    return Network("test", 1, builder.finalize(), fills(inputs), fills(parameters), training, fills(states or {}))


@dataclass(frozen=True)
class Compiled:
    """A network's step, ready to run."""

    graph: Graph
    library: KernelLibrary

    def run(self, steps: int, seed: int = 1, change: Callable[[Arrays], None] | None = None) -> Steps:
        """Some plain steps; `change` may give the arguments other values before the first."""
        arguments = Arguments.allocate(self.graph)
        arguments.fill(seed)
        names = [tensor.name for tensor in self.graph.tensors if not tensor.is_movable]
        if change is not None:
            change({name: arguments.value(name) for name in names})

        def values() -> Arrays:
            return {name: arguments.value(name).copy() for name in names}

        start, after = values(), []
        program = plain_program(self.graph)
        with open_tiers(small_step.machine(), None, program.fast_bytes, 0, small_step.DEVICES, stretch=1.0) as tiers:
            executor = prepare(self.graph, self.library, program, arguments, tiers)
            for _ in range(steps):
                executor.step()
                after.append(values())
        return Steps(self.graph, start, after)


def compiled(net: Network, folder: Path, objects: Path | None = None) -> Compiled:
    """The step of a network, its files in `folder`; machine code that `objects` holds is taken from there."""
    files, net = (folder / "graph.json", folder / "kernels.so"), with_values_stored(net, folder / "values")
    graph = lower_network(net, "test", host_target(2), 2, *files, {}, objects)
    return Compiled(graph, KernelLibrary.load(files[1]))


def compared(net: Network, folder: Path) -> str:
    """What the comparison of a network's step with its source says."""
    machine = small_step.machine()
    context = Context(machine, small_step.DEVICES, 1, Counts.ALL)
    return compare_with_source(context, net, machine_target(machine), MachinePaths(folder, machine))
