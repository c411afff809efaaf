"""Time of a plain training step against PyTorch's: same network, batch, threads, cores and start values, alternating.

    python benchmarks/step_vs_pytorch.py [--scale laptop] [--networks vgg19 ...] [--rounds 9] [--slowest 5]
                                         [--compile [--compile-limit 900] [--compile-cache results/inductor]]

PyTorch runs eagerly in channels_last; a ratio above 1 means that autotm is faster. With --compile, `torch.compile` is
timed too, where it compiles the step within --compile-limit seconds; what it compiled stays in --compile-cache for the
next call. `peak` is the multiply-adds of autotm's whole step over what the cores can do in registers in that time, and
`copy` the bytes that its other kernels cannot avoid over what a copy moves in their time. --slowest lists the kernels
that lose most time against both. The last line is the geometric mean.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from autotm import zoo
from autotm.kernels.library import KernelLibrary, pinned
from autotm.kernels.target import machine_target
from autotm.lower.lowering import lower_network
from autotm.memory.opening import open_tiers
from autotm.model.config import load_scale
from autotm.model.machine import Machine, load_machine
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import prepare
from autotm.runtime.step_times import time_parts
from autotm.runtime.verify import all_fast_program
from autotm.zoo.torch_reference import TorchNetwork
from machine_rates import copy_bytes_per_s, peak_flop_per_s
from step_limits import Limits, Spent
from torch_compiled import CACHE_VARIABLE, NotCompiledError, compile_within, compiled_step, torch_step

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "config"
NETWORKS = ["vgg19", "resnet50", "resnet200", "inception_v4", "densenet264", "transformer", "dlrm"]
INSTRUMENTED_STEPS = 5
TURN_S = 0.3
_ALWAYS = ("autotm", "eager")
"""Contenders that are always timed."""


@dataclass(frozen=True)
class Times:
    """Median seconds of a step of each contender, measured in the same rounds, and where autotm's went.

    `note` says what compiling took, or why there is no compiled step.
    """

    autotm_s: float
    eager_s: float
    compiled_s: float | None
    spent: Spent
    note: str

    @property
    def ratios(self) -> tuple[float, float | None]:
        """Eager PyTorch and `torch.compile` over autotm."""
        compiled = None if self.compiled_s is None else self.compiled_s / self.autotm_s
        return self.eager_s / self.autotm_s, compiled


def main() -> None:
    """Print one row a network."""
    options = _arguments()
    machine = load_machine(CONFIG / "machines" / f"{options.machine}.yaml", options.threads)
    scale = load_scale(CONFIG / "scales" / f"{options.scale}.yaml")
    with pinned(machine):
        peak = peak_flop_per_s(machine.threads)
    limits = Limits(peak, copy_bytes_per_s(machine.threads))
    print(f"scale {options.scale}, {machine.threads} threads, {options.rounds} alternating rounds, medians")
    print(f"measured peak {limits.flop_per_s / 1e9:.0f} GF/s, copies {limits.bytes_per_s / 1e9:.0f} GB/s")
    titles = f"{'autotm ms':>10} {'eager ms':>10} {'eager/autotm':>13} {'compile ms':>11} {'compile/autotm':>15}"
    print(f"{'network':<14} {titles} {'peak':>6} {'copy':>6}")
    all_times = []
    for name in options.networks:
        with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
            times = measure(name, scale.networks[name], machine, Path(folder), options)
        all_times.append(times)
        eager, compiled = times.ratios
        columns = ("-", "-") if compiled is None else (f"{times.compiled_s * 1e3:.1f}", f"{compiled:.2f}")
        print(
            f"{name:<14} {times.autotm_s * 1e3:>10.1f} {times.eager_s * 1e3:>10.1f} {eager:>13.2f} "
            f"{columns[0]:>11} {columns[1]:>15} {times.spent.peak_share(limits, times.autotm_s):>6.0%} "
            f"{times.spent.copy_share(limits):>6.0%}",
            flush=True,
        )
        for line in filter(None, (times.note, *times.spent.slowest(limits, options.slowest))):
            print(f"    {line}")
    print("geomean", *geometric_means([times.ratios for times in all_times]))


def geometric_means(ratios: list[tuple[float, float | None]]) -> list[str]:
    """Mean of each kind of ratio over the networks that have it, as text that says over how many if not all."""
    texts = []
    for kind, column in zip(("eager", "compile"), zip(*ratios, strict=True), strict=True):
        known = [ratio for ratio in column if ratio is not None]
        if known:
            over = "" if len(known) == len(column) else f" (of {len(known)} networks)"
            texts.append(f"{kind}/autotm {statistics.geometric_mean(known):.2f}{over}")
    return texts


def measure(name: str, sizes: dict[str, int], machine: Machine, folder: Path, options: argparse.Namespace) -> Times:
    """Lower the network, then time steps of all contenders in turn."""
    network = zoo.build(name, sizes)
    files = (folder / "graph.json", folder / "kernels.so")
    target = machine_target(machine)
    graph = lower_network(network, options.scale, target, machine.threads, *files, {}, options.objects)
    program = all_fast_program(graph)
    arguments = Arguments.allocate(graph)
    arguments.fill(options.seed)
    arrays = {tensor: arguments.value(tensor).copy() for tensor in (*network.inputs, *network.parameters)}
    torch.set_num_threads(machine.threads)  # Compiled code is made for it.
    contenders: list[Callable[[], None]] = [torch_step(TorchNetwork(network, arrays, torch.float32), network)]
    note = ""
    if options.compile:
        try:
            note = _compile(name, machine.threads, options)
            contenders.append(compiled_step(network, arrays))
        except NotCompiledError as reason:
            note = f"torch.compile: {reason}"
    for contender in contenders:
        contender()  # PyTorch's threads must exist before this thread is pinned, or they would share its core.
    with pinned(machine), open_tiers(machine, None, program.fast_bytes, 0, CONFIG / "devices", stretch=1.0) as tiers:
        executor = prepare(graph, KernelLibrary.load(files[1]), program, arguments, tiers)
        samples = alternate([executor.step, *contenders], options.rounds)
        spent = Spent(graph, time_parts(graph, executor, INSTRUMENTED_STEPS).kernels_us)
    medians = [statistics.median(series) for series in samples]
    return Times(medians[0], medians[1], medians[2] if len(medians) > len(_ALWAYS) else None, spent, note)


def _compile(name: str, threads: int, options: argparse.Namespace) -> str:
    """Fill the cache, from which this process then takes the compiled step; returns what that took.

    Raises:
        NotCompiledError: not in time.
    """
    cache = options.compile_cache.absolute()
    os.environ[CACHE_VARIABLE] = str(cache)
    took = compile_within(name, options.scale, threads, cache, options.compile_limit)
    kind = "compiled" if took.missed else "taken from the cache"
    return f"torch.compile: {kind} in {took.wall_s:.0f} s ({took.cpu_s:.0f} s of processor time)"


def alternate(contenders: list[Callable[[], None]], rounds: int) -> list[list[float]]:
    """Seconds of each contender's steps, in turns of `TURN_S` each.

    The first step of a turn does not count: the caches and, for milliseconds, a core belong to the other's threads.
    """
    samples: list[list[float]] = [[] for _ in contenders]
    for round_ in range(-1, rounds):
        for contender, series in zip(contenders, samples, strict=True):
            contender()
            begin = start = time.perf_counter()
            while start - begin < TURN_S or start == begin:
                contender()
                end = time.perf_counter()
                if round_ >= 0:
                    series.append(end - start)
                start = end
    return samples


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", default="laptop")
    parser.add_argument("--machine", default="laptop")
    parser.add_argument("--threads", type=int, help="default: the machine file's")
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--compile", action="store_true", help="time torch.compile too")
    parser.add_argument("--compile-limit", type=float, default=900, help="seconds that torch.compile may take each")
    parser.add_argument("--compile-cache", type=Path, default=ROOT / "results" / "inductor", help="folder it fills")
    parser.add_argument("--slowest", type=int, default=0, help="list so many kernels of each network")
    parser.add_argument("--objects", type=Path, help="folder that keeps compiled kernels for the next call")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
