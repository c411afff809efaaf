"""Time of a library's step against the number of threads it runs on, and against the number it was built for.

    python benchmarks/thread_scaling.py [--network resnet50] [--scale laptop] [--threads 1 2 ...] [--built-for 2 8 24]
                                        [--rounds 7]

Without `--built-for` there is one library, for the most threads. Each pair runs in a process of its own (TVM's thread
pool keeps its size), all pairs in turn, round after round. `ratio` is the median over rounds of the step's time to that
of the first library on as many threads.
`copy` is the share of the copy rate, measured with as many threads, that the kernels which are no contractions reach.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from autotm import zoo
from autotm.kernels.library import KernelLibrary, pinned
from autotm.kernels.target import host_target
from autotm.lower.lowering import lower_network
from autotm.memory.opening import open_tiers
from autotm.model.config import load_scale
from autotm.model.files import load
from autotm.model.graph import Graph
from autotm.model.machine import load_machine
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import prepare
from autotm.runtime.step_times import RunOptions, time_parts, time_steps
from autotm.runtime.verify import all_fast_program
from machine_rates import copy_bytes_per_s
from step_limits import Limits, Spent

CONFIG = Path(__file__).parent.parent / "config"
_STEPS = 3


def main() -> None:
    """Print a row for each number of threads; with --one, time one and print it as JSON."""
    options = _arguments()
    if options.one:
        print(json.dumps(measure(options.one, options)))
        return
    built_for = options.built_for or [max(options.threads)]
    pairs = list(itertools.product(built_for, options.threads))
    with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
        sizes = load_scale(CONFIG / "scales" / f"{options.scale}.yaml").networks[options.network]
        network = zoo.build(options.network, sizes)
        for most in built_for:
            files = (_folder(folder, most) / "graph.json", _folder(folder, most) / "kernels.so")
            lower_network(network, options.scale, host_target(most), most, *files, {})
        timings: dict[tuple[int, int], list[tuple[float, float]]] = {pair: [] for pair in pairs}
        for _ in range(options.rounds):
            for (most, threads), series in timings.items():
                command = [sys.executable, __file__, "--one", str(threads), "--folder", str(_folder(folder, most))]
                series.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
    print(f"{options.network}, scale {options.scale}, medians of {options.rounds} rounds")
    print(f"{'built for':>9} {'threads':>7} {'step ms':>9} {'speed-up':>9} {'efficiency':>11} {'copy':>6} {'ratio':>7}")
    for most, threads in pairs:
        step_s, share = (statistics.median(column) for column in zip(*timings[most, threads], strict=True))
        fewest = min(options.threads)
        speed_up = statistics.median(step_s for step_s, _ in timings[most, fewest]) / step_s
        first = timings[built_for[0], threads]
        ratio = statistics.median(
            own / reference for (own, _), (reference, _) in zip(timings[most, threads], first, strict=True)
        )
        print(
            f"{most:>9} {threads:>7} {step_s * 1e3:>9.1f} {speed_up:>9.2f} {speed_up * fewest / threads:>11.0%} "
            f"{share:>6.0%} {ratio:>7.3f}"
        )


def _folder(parent: str, most: int) -> Path:
    return Path(parent) / str(most)


def measure(threads: int, options: argparse.Namespace) -> tuple[float, float]:
    """Median seconds of a step, and the share of the copy rate, with `threads` threads."""
    machine = load_machine(CONFIG / "machines" / "laptop.yaml", threads)
    graph = load(options.folder / "graph.json", "graph", Graph)
    program, arguments = all_fast_program(graph), Arguments.allocate(graph)
    arguments.fill(0)
    limits = Limits(1.0, copy_bytes_per_s(threads))
    with pinned(machine), open_tiers(machine, None, program.fast_bytes, 0, CONFIG / "devices", stretch=1.0) as tiers:
        library = KernelLibrary.load(options.folder / "kernels.so")
        executor = prepare(graph, library, program, arguments, tiers)
        executor.step()
        times = time_steps(executor.step, None, machine.cpus, RunOptions(min_steps=_STEPS, min_seconds=0.0))
        spent = Spent(graph, time_parts(graph, executor, _STEPS).kernels_us)
    return statistics.median(times.samples_s), spent.copy_share(limits)


def _arguments() -> argparse.Namespace:
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--scale", default="laptop")
    parser.add_argument("--threads", type=int, nargs="+", default=list(range(1, cores + 1)))
    parser.add_argument("--built-for", type=int, nargs="+", help="the most threads that each library is made for")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
