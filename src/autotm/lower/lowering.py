"""Network, or one convolution alone, -> graph.json and kernels.so; distinct kernels, and lean alternatives."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import tvm
import tvm_ffi
from tvm import relax, tirx

from autotm.kernels.compiler import KernelCompiler, KernelFacts, KernelScheduler, Make, Request, objects_in, workload
from autotm.kernels.schedules.dispatch import ScheduledKernel, outline
from autotm.lower.calls import extract_calls, fused_kernels
from autotm.lower.graph import build_graph, workspaces
from autotm.lower.results import place_results
from autotm.lower.step import first_use, whole_step
from autotm.model.errors import AutotmError
from autotm.model.files import save
from autotm.model.graph import SCHEDULES_KEY, Graph, Implementation, Initial, Kernel
from autotm.model.kernel_studies import TunedSchedule
from autotm.zoo import Network

# Other ways to compute the kernels of a step: only where they need much less memory, as each takes time to compile.

LEAST_SHARE = 1 / 200
"""Part of the step's peak that an alternative must save: memory that the tightest limits of a study are made of."""


@dataclass(frozen=True)
class Alternative:
    """Another way to compute a kernel, by the name it has among the kernel's implementations."""

    implementation: str
    made: KernelFacts

    def of(self, kernel: Kernel) -> Implementation:
        """Return the alternative of one call."""
        owned = workspaces(f"{kernel.name}.{self.implementation}", self.made)
        return Implementation(self.implementation, self.made.symbol, self.made.identity, owned)


def find_alternatives(
    graph: Graph, functions: Mapping[str, tirx.PrimFunc], kernels: Iterable[KernelFacts], make: Make
) -> dict[str, tuple[Alternative, ...]]:
    """Return, by symbol of a kernel, its alternatives that save at least `LEAST_SHARE` of the step's peak.

    A kernel that came from a search has none. `functions` are unscheduled, by symbol of a kernel.
    """
    least = graph.peak_live_bytes * LEAST_SHARE
    own = {item.symbol: item for item in kernels if item.workspace_bytes >= least}
    asked = {
        (symbol, name): Request(functions[symbol], name, most_workspace_bytes=int(item.workspace_bytes - least))
        for symbol, item in own.items()
        for name in item.others
    }
    found: dict[str, tuple[Alternative, ...]] = dict.fromkeys(own, ())
    for ((symbol, name), request), made in zip(asked.items(), make(list(asked.values())), strict=True):
        if request.wants_code(made):
            found[symbol] = (*found[symbol], Alternative(name, made))
    return found


def with_alternatives(graph: Graph, found: Mapping[str, tuple[Alternative, ...]]) -> Graph:
    """Add alternatives to the kernels of a graph."""
    kernels = (
        replace(kernel, alternatives=tuple(other.of(kernel) for other in found.get(kernel.function, ())))
        for kernel in graph.kernels
    )
    return replace(graph, kernels=tuple(kernels))


# Network -> graph.json and kernels.so.

Implementations = Literal["default", "all"]
NO_TUNING: Mapping[str, TunedSchedule] = MappingProxyType({})


def lower_network(
    network: Network,
    scale: str,
    target: tvm.target.Target,
    threads: int,
    graph_path: Path,
    library_path: Path,
    provenance: Mapping[str, Any],
    objects: Path | None = None,
    tuned: Mapping[str, TunedSchedule] = NO_TUNING,
    implementations: Implementations = "default",
) -> Graph:
    """Write the library, then the graph, of one step; both whole or not at all.

    `objects` is a folder that keeps machine code for the next call. `tuned` gives, by workload, schedules that measured
    faster than our own. `implementations` says whether a plan may choose among `all` ways to compute a kernel.

    Raises:
        AutotmError: an operator has no gradient or no kernel, or the library cannot be built (no C compiler, say).
    """
    with objects_in(objects) as folder:
        compiler = KernelCompiler(folder, target, threads)
        made = make_step(network, scale, target, compiler.make, tuned, implementations)
        compiler.link(made.kernels, library_path)
    kinds = {item.symbol: item.kind for item in sorted(made.kernels, key=lambda item: item.symbol)}
    save(graph_path, "graph", made.graph, {**provenance, SCHEDULES_KEY: kinds})
    return made.graph


@dataclass(frozen=True)
class ScheduledStep:
    """A step whose kernels are scheduled but not compiled.

    Attributes:
        graph: the step as data.
        functions: the unscheduled function of each kernel symbol, without alternatives.
        kernels: what became of every function, by symbol.
    """

    graph: Graph
    functions: Mapping[str, tirx.PrimFunc]
    kernels: Mapping[str, ScheduledKernel]


def scheduled_step(
    network: Network,
    scale: str,
    target: tvm.target.Target,
    threads: int,
    tuned: Mapping[str, TunedSchedule] = NO_TUNING,
    implementations: Implementations = "default",
) -> ScheduledStep:
    """Schedule a step, and compile nothing."""
    scheduler = KernelScheduler(target, threads)
    made = make_step(network, scale, target, scheduler.make, tuned, implementations)
    return ScheduledStep(made.graph, made.functions, scheduler.kernels)


def outlined_step(network: Network, scale: str) -> Graph:
    """Return a step as data, with nothing scheduled or compiled: no kernel has workspaces or a second implementation.

    It is the same on every computer.

    Raises:
        AutotmError: as `lower_network`.
    """
    target = tvm.target.Target({"kind": "llvm", "num-cores": 1})

    def make(requests: Sequence[Request]) -> list[KernelFacts]:
        return [KernelFacts.of(outline(request.func), target) for request in requests]

    return make_step(network, scale, target, make, NO_TUNING, "default").graph


@dataclass(frozen=True)
class MadeStep:
    """A step: its graph, its unscheduled functions by symbol, and what is known of its kernels."""

    graph: Graph
    functions: Mapping[str, tirx.PrimFunc]
    kernels: Iterable[KernelFacts]


def make_step(
    network: Network,
    scale: str,
    target: tvm.target.Target,
    make: Make,
    tuned: Mapping[str, TunedSchedule],
    implementations: Implementations,
) -> MadeStep:
    """Return the step of a network, with kernels that `make` makes."""
    step = whole_step(network)
    try:
        module = fused_kernels(step.module, target)
        calls, returned = extract_calls(module)
    except NotImplementedError as error:
        raise AutotmError(f"network {network.name}: {error}{first_use(network, str(error))}") from None
    fused = {call.function: module[call.function].without_attr("global_symbol") for call in calls}
    placed = place_results(calls, returned, step.results, fused)
    functions = placed.functions
    made = _make_distinct(functions, make, tuned)
    graph = build_graph(network, scale, step, placed, made)
    by_symbol = {made[name].symbol: func for name, func in sorted(functions.items())}
    own = {item.symbol: item for item in made.values()}
    if implementations == "default":
        return MadeStep(graph, by_symbol, own.values())
    found = find_alternatives(graph, by_symbol, own.values(), make)
    others = [other.made for several in found.values() for other in several]
    return MadeStep(with_alternatives(graph, found), by_symbol, [*own.values(), *others])


def _make_distinct(
    functions: Mapping[str, tirx.PrimFunc], make: Make, tuned: Mapping[str, TunedSchedule]
) -> dict[str, KernelFacts]:
    """Make each distinct function once; functions that are equal but for their name share one symbol."""
    shapes = {name: tvm_ffi.structural_hash(func, map_free_vars=True) for name, func in sorted(functions.items())}
    first = {shape: name for name, shape in reversed(shapes.items())}
    requests = {
        shape: Request(
            functions[name],
            tuned=tuned.get(workload(functions[name])) if tuned else None,
            family=re.sub(r"\d+", "", name),
        )
        for shape, name in first.items()
    }
    made = dict(zip(requests, make(list(requests.values())), strict=True))
    return {name: made[shape] for name, shape in shapes.items()}


# The distinct kernels of a step: what tuning searches through and what the list of kernels shows.

_FLOP_PER_S, _ITEMS_PER_S = 1e11, 2e9
"""Rough rates of a core or a few, only for putting kernels in order."""


@dataclass(frozen=True)
class DistinctKernel:
    """One compiled function of a step.

    Attributes:
        workload: hash of the unscheduled function.
        function: it.
        scheduled: the kernel made of it.
        example: a call of it.
        calls: calls of it per step.
    """

    workload: str
    function: tirx.PrimFunc
    scheduled: ScheduledKernel
    example: Kernel
    calls: int

    @property
    def shapes(self) -> str:
        """Inputs, then outputs, e.g. `16x256,256x256->16x256`."""
        sides = (self.example.inputs, self.example.outputs)
        return "->".join(",".join("x".join(map(str, operand.shape)) or "1" for operand in side) for side in sides)

    @property
    def text(self) -> str:
        """Operation and shapes, for people."""
        return f"{self.scheduled.op} {self.shapes}"

    @property
    def flops(self) -> int:
        """Floating-point operations per step."""
        return self.calls * self.example.flops

    @property
    def weight(self) -> float:
        """About the seconds per step, from operations and operands alone."""
        items = sum(math.prod(operand.shape) for operand in self.example.operands)
        return self.calls * max(self.example.flops / _FLOP_PER_S, items / _ITEMS_PER_S)


def distinct_kernels(step: ScheduledStep) -> tuple[DistinctKernel, ...]:
    """Return every compiled function once, heaviest first."""
    calls: dict[str, list[Kernel]] = {}
    for kernel in step.graph.kernels:
        calls.setdefault(kernel.function, []).append(kernel)
    found = [
        DistinctKernel(
            workload(step.functions[symbol]), step.functions[symbol], step.kernels[symbol], same[0], len(same)
        )
        for symbol, same in calls.items()
    ]
    return tuple(sorted(found, key=lambda item: (-item.weight, item.workload)))


# One convolution alone, as a step of a single kernel: what the kernel plot times in every placement.


def lower_convolution(
    batch: int,
    image: int,
    channels: int,
    scale: str,
    target: tvm.target.Target,
    threads: int,
    graph_path: Path,
    library_path: Path,
    provenance: Mapping[str, Any],
    objects: Path | None = None,
) -> Graph:
    """Write library and graph of a 3 x 3 convolution, padding 1: `data` (batch, image, image, channels) with `weight`.

    `objects` is a folder that keeps machine code for the next call.

    Raises:
        AutotmError: the library cannot be built (no C compiler, say).
    """
    data = relax.Var("data", relax.TensorType((batch, image, image, channels), "float32"))
    weight = relax.Var("weight", relax.TensorType((3, 3, channels, channels), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [data, weight]):
        with builder.dataflow():
            product = relax.op.nn.conv2d(data, weight, padding=1, data_layout="NHWC", kernel_layout="HWIO")
            result = builder.emit_output(builder.emit(product))
        builder.emit_func_output(result)
    inputs, parameters = {"data": Initial("normal")}, {"weight": Initial("normal", 0.1)}
    network = Network("convolution", batch, builder.finalize(), inputs, parameters, None)
    return lower_network(network, scale, target, threads, graph_path, library_path, provenance, objects)
