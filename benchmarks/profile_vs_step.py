"""Does the profile predict the step? Kernels timed alone against the same kernels inside the plain step.

    python benchmarks/profile_vs_step.py results/laptop-2t/laptop/inception_v4 --rotations 1e6 128e6
    python benchmarks/profile_vs_step.py results/laptop-1t/laptop/inception_v4 --threads 1

Rounds alternate between steps and kernels timed alone, with as many samples of each, so that a disturbance hits both.
It says how many of its cores the process had: with less than nearly all of them the ratios mean nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from autotm.kernels.library import KernelLibrary, measure_cores, pinned
from autotm.memory.opening import open_tiers
from autotm.memory.tiers import Tiers
from autotm.model.cores import quiet_interpreter
from autotm.model.files import load
from autotm.model.graph import Graph, all_fast
from autotm.model.machine import Machine, load_machine
from autotm.profile.kernel_timing import Filler, OperandPlan, plan_operands
from autotm.profile.profiler import Case, cases
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import Executor, prepare
from autotm.runtime.verify import plain_program

DEVICES = Path("config/devices")

Times = dict[str, list[int]]


def main() -> None:
    """Compare, and print one block per rotation size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="holds graph.json and kernels.so")
    parser.add_argument("--machine", type=Path, default=Path("config/machines/laptop.yaml"))
    parser.add_argument("--threads", type=int, help="kernel threads, if not as the machine file says")
    parser.add_argument("--rotations", type=float, nargs="+", default=[1e6, 32e6, 128e6, 400e6], help="bytes")
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    graph, library = load(asked.folder / "graph.json", "graph", Graph), KernelLibrary.load(asked.folder / "kernels.so")
    machine = load_machine(asked.machine, asked.threads, "--threads")
    rotations = [round(size) for size in asked.rotations]
    with pinned(machine), quiet_interpreter():
        compare(graph, library, machine, rotations, asked.rounds)


def compare(graph: Graph, library: KernelLibrary, machine: Machine, rotations: list[int], rounds: int) -> None:
    """Measure in alternating rounds and print."""
    graph = graph.computed_by(())
    wanted = cases(graph, "additive")
    plans = {
        size: {case.kernel.identity: plan_operands(graph, case.kernel, size) for case in wanted} for size in rotations
    }
    pool_bytes = max(plan.pool_bytes for of_size in plans.values() for plan in of_size.values())
    plain, arguments = plain_program(graph), Arguments.allocate(graph)
    arguments.fill(0)
    draw = np.random.default_rng(0)
    inside: Times = defaultdict(list)
    alone: dict[int, Times] = {size: defaultdict(list) for size in rotations}
    steps: list[float] = []
    with (
        open_tiers(machine, None, plain.fast_bytes, 0, DEVICES, stretch=1.0) as tiers,
        open_tiers(machine, None, pool_bytes, 0, DEVICES, stretch=1.0) as bench,
    ):
        executor = prepare(graph, library, plain, arguments, tiers)
        Filler(0).fill(bench.fast.view(0, (pool_bytes // 4,), "float32"))
        cores = measure_cores(executor.step, 1.0)
        for _ in range(rounds):
            steps.append(time_inside(graph, executor, inside))
            for size in rotations:
                time_alone(library, bench, wanted, plans[size], draw, alone[size])
    print(f"cores {cores:.2f} of {machine.threads}")
    print(f"step median {statistics.median(steps):.4f} s, min {min(steps):.4f} s")
    for size in rotations:
        report(graph, size, inside, alone[size])


def time_inside(graph: Graph, executor: Executor, inside: Times) -> float:
    """Seconds of a whole step; the kernels' nanoseconds in another go to `inside`, by kernel name."""
    start = time.perf_counter()
    executor.step()
    whole_s = time.perf_counter() - start
    for kernel, time_ns in zip(graph.kernels, executor.instrumented_step(), strict=True):
        inside[kernel.name].append(time_ns)
    return whole_s


def time_alone(
    library: KernelLibrary,
    bench: Tiers,
    wanted: tuple[Case, ...],
    plans: dict[str, OperandPlan],
    draw: np.random.Generator,
    alone: Times,
) -> None:
    """One warm-up and one sample of every distinct kernel, each on a copy of its own.

    Copies are drawn, because those of all kernels lie in one pool: by turns, each kernel would find in the caches what
    the one before it left there.
    """
    for case in wanted:
        plan = plans[case.kernel.identity]
        calls = [
            library.bind(case.kernel.function, plan.views(bench, all_fast(case.kernel), copy))
            for copy in draw.choice(plan.copies, 2, replace=False).tolist()
        ]
        calls[0]()
        start = time.perf_counter_ns()
        calls[1]()
        alone[case.kernel.identity].append(time.perf_counter_ns() - start)


def report(graph: Graph, size: int, inside: Times, alone: Times) -> None:
    """Ratio of alone to inside, medians and minima, over all kernels and by op class."""
    print(f"rotation {size / 1e6:.0f} MB")
    for name, value in (("median", statistics.median), ("minimum", min)):
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for kernel in graph.kernels:
            for group in ("all", kernel.op_class.value):
                sums[group][0] += value(inside[kernel.name])
                sums[group][1] += value(alone[kernel.identity])
        print(f"  {name:8s}" + "  ".join(f"{group} {apart / within:.3f}" for group, (within, apart) in sums.items()))


if __name__ == "__main__":
    main()
