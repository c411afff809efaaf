"""Network, or one convolution alone, -> graph.json and kernels.so; alternatives that need less memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tvm
import tvm_ffi
from tvm import relax, tirx

from autotm.kernels.compiler import KernelCompiler, KernelFacts, Make, Request, objects_in
from autotm.kernels.schedules.dispatch import outline
from autotm.lower.calls import extract_calls, fused_kernels
from autotm.lower.graph import build_graph, workspaces
from autotm.lower.results import place_results
from autotm.lower.step import Step, first_use, whole_step
from autotm.model.errors import AutotmError
from autotm.model.files import save
from autotm.model.graph import SCHEDULES_KEY, Graph, Implementation, Initial, Kernel
from autotm.zoo import Network

# Other ways to compute the kernels of a step: only where they need much less memory, as each takes time to compile.

LEAST_SHARE = 1 / 200
"""Part of the step's peak memory that an alternative must save; so much matters at the tightest limits of a study."""


@dataclass(frozen=True)
class Alternative:
    """Another way to compute a kernel, by the name it has among the kernel's implementations."""

    implementation: str
    facts: KernelFacts

    def of(self, kernel: Kernel) -> Implementation:
        """Return the alternative of one call."""
        owned = workspaces(f"{kernel.name}.{self.implementation}", self.facts)
        return Implementation(self.implementation, self.facts.symbol, self.facts.identity, owned)


def find_alternatives(
    graph: Graph, functions: Mapping[str, tirx.PrimFunc], kernels: Iterable[KernelFacts], make: Make
) -> dict[str, tuple[Alternative, ...]]:
    """Return, by symbol of a kernel, its alternatives that save at least `LEAST_SHARE` of the step's peak.

    `functions` are unscheduled, by symbol of a kernel.
    """
    least = graph.peak_live_bytes * LEAST_SHARE
    own = {item.symbol: item for item in kernels if item.workspace_bytes >= least}
    asked = {
        (symbol, name): Request(functions[symbol], name, most_workspace_bytes=int(item.workspace_bytes - least))
        for symbol, item in own.items()
        for name in item.others
    }
    alternatives: dict[str, tuple[Alternative, ...]] = dict.fromkeys(own, ())
    for ((symbol, name), request), facts in zip(asked.items(), make(list(asked.values())), strict=True):
        if request.wants_code(facts):
            alternatives[symbol] = (*alternatives[symbol], Alternative(name, facts))
    return alternatives


def with_alternatives(graph: Graph, alternatives: Mapping[str, tuple[Alternative, ...]]) -> Graph:
    """Add alternatives to the kernels of a graph."""
    kernels = (
        replace(kernel, alternatives=tuple(other.of(kernel) for other in alternatives.get(kernel.function, ())))
        for kernel in graph.kernels
    )
    return replace(graph, kernels=tuple(kernels))


# Network -> graph.json and kernels.so.

Implementations = Literal["default", "all"]


def lower_network(
    network: Network,
    scale: str,
    target: tvm.target.Target,
    threads: int,
    graph_path: Path,
    library_path: Path,
    provenance: Mapping[str, Any],
    objects: Path | None = None,
    implementations: Implementations = "default",
) -> Graph:
    """Write the library, then the graph, of one step; both whole or not at all.

    `objects` is a folder that keeps machine code for the next call. `implementations` says whether a plan may choose
    among `all` ways to compute a kernel.

    Raises:
        AutotmError: an operator has no gradient or no kernel, or the library cannot be built (no C compiler, say).
    """
    with objects_in(objects) as folder:
        compiler = KernelCompiler(folder, target, threads)
        step = make_step(network, scale, target, compiler.make, implementations)
        compiler.link(step.kernels, library_path)
    kinds = {item.symbol: item.kind for item in sorted(step.kernels, key=lambda item: item.symbol)}
    save(graph_path, "graph", step.graph, {**provenance, SCHEDULES_KEY: kinds})
    return step.graph


def scheduled_step(network: Network, scale: str, target: tvm.target.Target, threads: int) -> Graph:
    """Return the step as data, its kernels scheduled but not compiled.

    Raises:
        AutotmError: as `lower_network`.
    """

    def make(requests: Sequence[Request]) -> list[KernelFacts]:
        return [request.scheduled(target, threads)[1] for request in requests]

    return make_step(network, scale, target, make, "default").graph


def outlined_step(network: Network, scale: str) -> Graph:
    """Return a step as data, with nothing scheduled or compiled: no kernel has workspaces or a second implementation.

    It is the same on every computer.

    Raises:
        AutotmError: as `lower_network`.
    """
    target = tvm.target.Target({"kind": "llvm", "num-cores": 1})

    def make(requests: Sequence[Request]) -> list[KernelFacts]:
        return [KernelFacts.of(outline(request.func), target) for request in requests]

    return make_step(network, scale, target, make, "default").graph


@dataclass(frozen=True)
class MadeStep:
    """A step: its graph, its unscheduled functions by symbol, and the facts of its kernels."""

    graph: Graph
    functions: Mapping[str, tirx.PrimFunc]
    kernels: Iterable[KernelFacts]


def make_step(
    network: Network, scale: str, target: tvm.target.Target, make: Make, implementations: Implementations
) -> MadeStep:
    """Return the step of a network, fused as TVM does, with kernels that `make` makes."""
    step = whole_step(network)
    return made_of(network, scale, step, lambda: fused_kernels(step.module, target), make, implementations)


def made_of(
    network: Network,
    scale: str,
    step: Step,
    fuse: Callable[[], tvm.IRModule],
    make: Make,
    implementations: Implementations,
) -> MadeStep:
    """Return the step of a network as `fuse` returns it, with kernels that `make` makes."""
    try:
        module = fuse()
        calls, returned = extract_calls(module)
    except NotImplementedError as error:
        raise AutotmError(f"network {network.name}: {error}{first_use(network, str(error))}") from None
    fused = {call.function: module[call.function].without_attr("global_symbol") for call in calls}
    placed = place_results(calls, returned, step.results, fused)
    functions = placed.functions
    # Each distinct function once; functions that are equal but for their name share one symbol.
    shapes = {name: tvm_ffi.structural_hash(func, map_free_vars=True) for name, func in sorted(functions.items())}
    first = {shape: name for name, shape in reversed(shapes.items())}
    requests = {shape: Request(functions[name], family=re.sub(r"\d+", "", name)) for shape, name in first.items()}
    by_shape = dict(zip(requests, make(list(requests.values())), strict=True))
    facts = {name: by_shape[shape] for name, shape in shapes.items()}
    graph = build_graph(network, scale, step, placed, facts)
    by_symbol = {facts[name].symbol: func for name, func in sorted(functions.items())}
    own = {item.symbol: item for item in facts.values()}
    if implementations == "default":
        return MadeStep(graph, by_symbol, own.values())
    alternatives = find_alternatives(graph, by_symbol, own.values(), make)
    others = [other.facts for several in alternatives.values() for other in several]
    return MadeStep(with_alternatives(graph, alternatives), by_symbol, [*own.values(), *others])


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
