"""Network -> graph.json and kernels.so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from autotm.kernels.build import build_library, identity
from autotm.kernels.dispatch import schedule
from autotm.lower.extract import Compiled, build_graph, extract_calls
from autotm.lower.fuse import fused_kernels
from autotm.lower.step import training_step
from autotm.model.files import save
from autotm.model.graph import Graph
from autotm.zoo import Network


def lower_network(
    network: Network,
    scale: str,
    target: tvm.target.Target,
    threads: int,
    graph_path: Path,
    library_path: Path,
    provenance: Mapping[str, Any],
    objects: Path | None = None,
) -> Graph:
    """Write the library, then the graph, of one training step; both whole or not at all.

    `objects` is a folder that keeps machine code for the next call.

    Raises:
        AutotmError: the library cannot be built (no C compiler, say).
    """
    module = fused_kernels(training_step(network), target)
    calls, returned = extract_calls(module)
    compiled = compile_functions(module, {call.function for call in calls}, target, threads)
    library = {item.symbol: item.kernel.func for item in compiled.values()}
    build_library(library, target, library_path, objects)
    graph = build_graph(network, scale, calls, returned, compiled)
    save(graph_path, "graph", graph, provenance)
    return graph


def compile_functions(
    module: tvm.IRModule, names: set[str], target: tvm.target.Target, threads: int
) -> dict[str, Compiled]:
    """Schedule each distinct function once; functions that are equal but for their name share one symbol."""
    scheduled: dict[int, Compiled] = {}
    compiled: dict[str, Compiled] = {}
    for name in sorted(names):
        function = module[name].without_attr("global_symbol")
        shape = tvm_ffi.structural_hash(function, map_free_vars=True)
        if shape not in scheduled:
            kernel = schedule(function, target, threads)
            digest = identity(kernel.func, target)
            scheduled[shape] = Compiled(kernel, f"{kernel.op}_{digest[:12]}", digest)
        compiled[name] = scheduled[shape]
    return compiled
