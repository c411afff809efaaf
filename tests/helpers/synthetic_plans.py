"""Plans to look at, from steps that no machine ran: solved small ones, and one of any size laid out by hand."""

from __future__ import annotations

import functools
import random
from dataclasses import replace

import random_graphs
from synthetic_figures import QUICK, SOURCE
from synthetic_records import record

from autotm.layout.compile import compile_program
from autotm.model.files import hash_of
from autotm.model.graph import DEFAULT_IMPLEMENTATION, Graph, Kernel, OpClass, Operand, Role, Tensor, Tier
from autotm.model.limit import Counts, Limit
from autotm.model.plan import Plan, Status, Stay
from autotm.model.profile import Profile
from autotm.model.program import Layout
from autotm.solve.placing import solve_and_pack
from autotm.study.placed import Placed

LANES = {Tier.FAST: 40, Tier.SLOW: 24}
BLOCK_BYTES = 64_000


@functools.cache
def solved(optimizer: str = "asynchronous", limit: str = "3:1", layers: int = 4, *, ran: bool = True) -> Placed:
    """A branching network's plan, made once a process; with `ran`, what its run measured, every kernel 1 us."""
    case = random_graphs.with_engines(random_graphs.training_step_case(layers), slower=3.0)
    plan, layout = solve_and_pack(case.graph, case.profile, case.links, optimizer, Limit.parse(limit), QUICK)
    program = compile_program(case.graph, plan, layout)
    profile = Profile(case.profile.graph_hash, case.profile.timings, SOURCE)
    times = dict.fromkeys((kernel.name for kernel in case.graph.kernels), 1.0)
    measured = replace(record(optimizer, limit), kernel_times_us=times) if ran else None
    return Placed(case.graph, profile, case.links, plan, program, SOURCE, measured)


def laid_out(count: int = 50_000, kernels: int = 20_000) -> Placed:
    """`count` tensors one after the other in lanes of addresses, fast and slow; a kernel makes or reads each."""
    draw, lanes = random.Random(0), [(tier, lane) for tier, number in LANES.items() for lane in range(number)]
    stays, offsets = [], []
    for number, (tier, lane) in enumerate(lanes):
        wanted = count * (number + 1) // len(lanes) - count * number // len(lanes)
        cuts = sorted(draw.sample(range(1, kernels), wanted - 1))
        for start, end in zip([0, *cuts], [*cuts, kernels], strict=True):
            stays.append(Stay(f"layer.{lane}.value{start}.{tier}", tier, start, end))
            offsets.append(lane * BLOCK_BYTES)
    order = sorted(range(count), key=lambda index: stays[index].order)
    stays, offsets = [stays[index] for index in order], [offsets[index] for index in order]
    graph = _graph_of(stays, kernels)
    slow = {stay.tensor for stay in stays if stay.tier is Tier.SLOW}
    configurations = tuple(
        "".join("P" if operand.tensor in slow else "D" for operand in kernel.operands) for kernel in graph.kernels
    )
    heights = {tier: number * BLOCK_BYTES for tier, number in LANES.items()}
    plan = Plan(
        hash_of(graph), "static", Limit(size_bytes=heights[Tier.FAST]), heights[Tier.FAST],
        Counts.INTERMEDIATES, tuple(stays), (),
        configurations, 1.0, 1.0, Status.NOT_OPTIMIZED, 0.0, 0.0, offsets=tuple(offsets),
    )  # fmt: skip
    program = compile_program(graph, plan, Layout(plan.stays, plan.offsets, *heights.values()))
    return Placed(graph, _profile_of(graph), random_graphs.make_links(29.0, 12.0), plan, program, SOURCE)


def _graph_of(stays: list[Stay], count: int) -> Graph:
    results: list[list[Operand]] = [[] for _ in range(count)]
    read: list[list[Operand]] = [[] for _ in range(count)]
    tensors = []
    for stay in stays:
        shape, last = (BLOCK_BYTES // 4,), stay.end - 1
        operand, readers = Operand(stay.tensor, shape, "float32"), (last,) if last > stay.start else ()
        results[stay.start].append(operand)
        for reader in readers:
            read[reader].append(operand)
        tensors.append(Tensor(stay.tensor, Role.INTERMEDIATE, shape, "float32", BLOCK_BYTES, stay.start, readers))
    kernels = []
    for index, (inputs, outputs) in enumerate(zip(read, results, strict=True)):
        names = f"kernel_{index}", "f", f"{len(inputs)}.{len(outputs)}", "test"
        kernels.append(Kernel(*names, OpClass.ELEMENTWISE, 0, tuple(inputs), tuple(outputs)))
    return Graph("laid_out", "tiny", 1, tuple(kernels), tuple(tensors))


def _profile_of(graph: Graph) -> Profile:
    """A microsecond a kernel, and one more for each slow operand."""
    timings = {}
    for kernel in {kernel.identity: kernel for kernel in graph.kernels}.values():
        slots = len(kernel.operands)
        for slow in range(-1, slots):
            letters = "".join("P" if slot == slow else "D" for slot in range(slots))
            timings[kernel.identity, DEFAULT_IMPLEMENTATION, letters] = random_graphs.timing(1000 if slow < 0 else 2000)
    return Profile(hash_of(graph), timings, SOURCE)
