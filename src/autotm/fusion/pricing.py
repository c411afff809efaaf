"""The time of a kernel that computes a group of operators, alone: what a sum of kernels says of a step."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tvm import tirx

from autotm.fusion.dataflow import Live
from autotm.fusion.variants import Workbench
from autotm.kernels.compiler import KernelFacts, Request
from autotm.kernels.library import KernelLibrary
from autotm.kernels.tir import extents
from autotm.lower.graph import workspaces
from autotm.model.graph import Graph, Kernel, Operand, Role, Tensor
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.profiler import all_fast_times
from autotm.profile.store import KernelStore


@dataclass(frozen=True)
class KernelTime:
    """The time of a kernel, all operands in fast memory.

    Attributes:
        identity: hash of its code.
        seconds: median.
    """

    identity: str
    seconds: float


def kernel_times(
    bench: Workbench, groups: Iterable[Live], store: KernelStore, options: ProfileOptions
) -> dict[Live, KernelTime]:
    """Return the time of a kernel for each group: that of the store, or one that is measured now and kept there.

    Raises:
        AutotmError: as `all_fast_times`.
    """
    own = [*dict.fromkeys(groups)]
    functions = [bench.dataflow.primitive(group) for group in own]
    facts = bench.compiler.make([Request(function) for function in functions])
    made = list(zip(own, functions, facts, strict=True))
    distinct = {each.identity: (function, each, _results(bench, group)) for group, function, each in made}
    with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
        path = Path(folder) / "kernels.so"
        bench.compiler.link([each for _, each, _ in distinct.values()], path)
        library = KernelLibrary.load(path)
    graph = _side_by_side([_kernel(number, *item) for number, item in enumerate(distinct.values())])
    timings = all_fast_times(graph, library, bench.machine, store, options, bench.devices_dir)
    return {group: KernelTime(each.identity, timings[each.identity].median_ns / 1e9) for group, _, each in made}


def _results(bench: Workbench, group: Live) -> int:
    return sum(len(bench.dataflow.nodes[place].values) for place in group.results)


def _kernel(number: int, function: tirx.PrimFunc, facts: KernelFacts, results: int) -> Kernel:
    """Return a call of a function on operands that no other call has."""
    name = f"{number:04d}_{facts.op}"
    operands = tuple(
        Operand(f"{name}.{slot}", extents(buffer), str(buffer.dtype)) for slot, buffer in enumerate(function.params)
    )
    inputs = len(operands) - results
    return Kernel(
        name=name,
        function=facts.symbol,
        identity=facts.identity,
        op=facts.op,
        op_class=facts.op_class,
        flops=facts.flops,
        inputs=operands[:inputs],
        outputs=operands[inputs:],
        workspaces=workspaces(name, facts),
    )


def _side_by_side(kernels: list[Kernel]) -> Graph:
    """Return a step of kernels that have nothing to do with one another."""
    roles = (("inputs", Role.INPUT), ("outputs", Role.RESULT), ("workspaces", Role.WORKSPACE))
    tensors = [
        Tensor(
            name=operand.tensor,
            role=role,
            shape=operand.shape,
            dtype=operand.dtype,
            size_bytes=operand.size_bytes,
            producer=None if role is Role.INPUT else index,
            readers=(index,) if role is Role.INPUT else (),
        )
        for index, kernel in enumerate(kernels)
        for slots, role in roles
        for operand in getattr(kernel, slots)
    ]
    return Graph("kernels", "", 1, tuple(kernels), tuple(tensors))
