"""Tiny networks of the zoo with plans in which kernels use fast memory only, at the least memory that there is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import random_graphs
from played_cudart import PlayedRuntime
from stream_cases import Values, plain

from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.kernels.library import KernelLibrary
from autotm.kernels.target import host_target
from autotm.layout.compile import compile_program
from autotm.lower.lowering import lower_network
from autotm.model.errors import InfeasibleLimitError
from autotm.model.graph import Graph, Kernel, Launch
from autotm.model.limit import Limit
from autotm.model.program import Program
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve_and_pack
from autotm.zoo import build

SIZES = {"mlp": {"batch": 16, "width": 256}, "mnist": {"batch": 4, "image": 28}}
ONLY_FAST = SolveOptions(fast_operands_only=True, gap=0.05, time_limit_s=10)
STEPS = 3


@dataclass(frozen=True)
class Planned:
    """A network's step, its kernels, a program for each optimizer, and what `STEPS` plain steps leave behind."""

    graph: Graph
    library: KernelLibrary
    programs: dict[str, Program]
    expected: Values


def planned_step(name: str, folder: Path, objects: Path) -> Planned:
    """A network of `SIZES`, its kernels compiled into a folder, from machine code that `objects` holds."""
    library = folder / "kernels.so"
    network, graph_path = build(name, SIZES[name]), folder / "graph.json"
    graph = lower_network(network, "tiny", host_target(1), 1, graph_path, library, {}, objects)
    case = random_graphs.Case(
        graph, random_graphs.roofline_profile(graph, 0), random_graphs.make_links(29.0, 12.0, tiny=True)
    )
    engines = random_graphs.with_engines(case, slower=1.5)
    loaded = KernelLibrary.load(library)
    programs = {name: program_at_least_memory(engines, name) for name in ("synchronous", "asynchronous")}
    return Planned(engines.graph, loaded, programs, plain(engines.graph, loaded, STEPS))


def program_at_least_memory(case: random_graphs.Case, optimizer: str) -> Program:
    """The optimizer's program at the least fast memory that there is a plan for."""
    graph, profile, links = case.graph, case.profile, case.links
    with pytest.raises(InfeasibleLimitError) as found:
        solve_and_pack(graph, profile, links, optimizer, Limit.parse("64B"), ONLY_FAST)
    least = Limit.parse(f"{found.value.smallest_bytes}B")
    plan, layout = solve_and_pack(graph, profile, links, optimizer, least, ONLY_FAST)
    check_plan(graph, profile, links, plan, fast_operands_only=True)
    program = compile_program(graph, plan, layout)
    check_program(graph, plan, program)
    assert program.slow_bytes
    return program


def launches_of(planned: Planned) -> dict[str, tuple[Launch, ...]]:
    """Each function of the step as one launch of all operands."""
    return {
        kernel.function: (Launch(kernel.function, tuple(range(len(kernel.operands))), (1, 1, 1), (32, 1, 1)),)
        for kernel in planned.graph.kernels
    }


def functions_of(planned: Planned, played: PlayedRuntime) -> dict[str, Callable[..., None]]:
    """The processor's kernels, called with addresses."""

    def call(kernel: Kernel, extents: list[int], addresses: tuple[int, ...]) -> None:
        assert extents == [1, 1, 1, 32, 1, 1]
        arrays = [
            played.bytes_at(address, operand.size_bytes).view(operand.dtype).reshape(operand.shape)
            for address, operand in zip(addresses, kernel.operands, strict=True)
        ]
        planned.library.bind(kernel.function, arrays)()

    return {kernel.function: functools.partial(call, kernel) for kernel in planned.graph.kernels}
