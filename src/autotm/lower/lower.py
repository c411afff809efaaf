"""Network -> graph.json and kernels.so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import tvm
import tvm_ffi
from tvm import tirx

from autotm.kernels.making import KernelCompiler, KernelFacts, KernelScheduler, Make, Request, objects_in, workload
from autotm.kernels.schedules import ScheduledKernel, outline
from autotm.lower.alternatives import find_alternatives, with_alternatives
from autotm.lower.calls import extract_calls, fused_kernels
from autotm.lower.graph import build_graph
from autotm.lower.results import place_results
from autotm.lower.step import first_use, whole_step
from autotm.model.files import AutotmError, save
from autotm.model.measurement import TunedSchedule
from autotm.model.step import SCHEDULES_KEY, Graph
from autotm.zoo import Network

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
    """The step up to, but without, machine code."""
    scheduler = KernelScheduler(target, threads)
    made = make_step(network, scale, target, scheduler.make, tuned, implementations)
    return ScheduledStep(made.graph, made.functions, scheduler.kernels)


def outlined_step(network: Network, scale: str) -> Graph:
    """The step as data, with nothing scheduled or compiled: no kernel has workspaces or a second implementation.

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
    """The step of a network, with kernels that `make` makes."""
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
    """Each distinct function made once; functions that are equal but for their name share one symbol."""
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
