"""Network -> graph.json and kernels.so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import tvm
import tvm_ffi
from tvm import tirx

from autotm.kernels.build import build_library
from autotm.kernels.dispatch import schedule
from autotm.kernels.tuned import choose, workload
from autotm.lower.alternatives import Alternative, find_alternatives, with_alternatives
from autotm.lower.extract import Compiled, build_graph, extract_calls
from autotm.lower.fuse import fused_kernels
from autotm.lower.step import training_step
from autotm.model.files import save
from autotm.model.graph import Graph
from autotm.model.tuning import TunedSchedule
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
    """Write the library, then the graph, of one training step; both whole or not at all.

    `objects` is a folder that keeps machine code for the next call. `tuned` gives, by workload, schedules that measured
    faster than our own. `implementations` says whether a plan may choose among `all` ways to compute a kernel.

    Raises:
        AutotmError: the library cannot be built (no C compiler, say).
    """
    step = scheduled_step(network, scale, target, threads, tuned, implementations)
    others = (other.compiled for found in step.alternatives.values() for other in found)
    library = {item.symbol: item.kernel.func for item in (*step.compiled.values(), *others)}
    build_library(library, target, library_path, objects)
    taken = sorted(item.symbol for item in step.compiled.values() if item.is_tuned)
    save(graph_path, "graph", step.graph, {**provenance, "tuned_kernels": list(dict.fromkeys(taken))})
    return step.graph


@dataclass(frozen=True)
class ScheduledStep:
    """A training step whose kernels are scheduled but not compiled.

    Attributes:
        graph: the step as data.
        functions: the unscheduled function of each kernel symbol.
        compiled: what became of each function of the fused module.
        alternatives: other ways to compute a kernel, by its symbol.
    """

    graph: Graph
    functions: Mapping[str, tirx.PrimFunc]
    compiled: Mapping[str, Compiled]
    alternatives: Mapping[str, tuple[Alternative, ...]]


def scheduled_step(
    network: Network,
    scale: str,
    target: tvm.target.Target,
    threads: int,
    tuned: Mapping[str, TunedSchedule] = NO_TUNING,
    implementations: Implementations = "default",
) -> ScheduledStep:
    """The step up to, but without, machine code."""
    module = fused_kernels(training_step(network), target)
    calls, returned = extract_calls(module)
    compiled = compile_functions(module, {call.function for call in calls}, target, threads, tuned)
    graph = build_graph(network, scale, calls, returned, compiled)
    functions = {item.symbol: module[name].without_attr("global_symbol") for name, item in compiled.items()}
    if implementations == "default":
        return ScheduledStep(graph, functions, compiled, {})
    found = find_alternatives(graph, functions, compiled, target, threads)
    return ScheduledStep(with_alternatives(graph, found), functions, compiled, found)


def compile_functions(
    module: tvm.IRModule,
    names: set[str],
    target: tvm.target.Target,
    threads: int,
    tuned: Mapping[str, TunedSchedule] = NO_TUNING,
) -> dict[str, Compiled]:
    """Schedule each distinct function once; functions that are equal but for their name share one symbol."""
    scheduled: dict[int, Compiled] = {}
    compiled: dict[str, Compiled] = {}
    for name in sorted(names):
        function = module[name].without_attr("global_symbol")
        shape = tvm_ffi.structural_hash(function, map_free_vars=True)
        if shape not in scheduled:
            own = schedule(function, target, threads)
            kernel = choose(function, own, tuned.get(workload(function)), target) if tuned else own
            scheduled[shape] = Compiled.of(kernel, target, is_tuned=kernel is not own)
        compiled[name] = scheduled[shape]
    return compiled
