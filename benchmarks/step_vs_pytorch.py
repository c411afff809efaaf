"""Time of a plain training step against PyTorch's: same network, batch, threads, cores and start values, alternating.

    python benchmarks/step_vs_pytorch.py [--scale laptop] [--networks inception_v4 vgg19 mlp] [--rounds 9] [--compile]

PyTorch runs eagerly in channels_last; a ratio above 1 means that autotm is faster. With --compile, `torch.compile` is
timed too. The last line is the geometric mean.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from autotm import zoo
from autotm.kernels.library import KernelLibrary
from autotm.kernels.target import machine_target
from autotm.kernels.threads import pinned
from autotm.lower import lower_network
from autotm.memory.tiers import open_tiers
from autotm.model.machine import Machine, load_machine
from autotm.model.study_config import load_scale
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import prepare
from autotm.runtime.plain import plain_program
from torch_network import TorchNetwork

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "config"


@dataclass(frozen=True)
class Times:
    """Median seconds of a step of each contender, measured in the same rounds."""

    autotm_s: float
    eager_s: float
    compiled_s: float | None


def main() -> None:
    """Print one row a network."""
    options = _arguments()
    machine = load_machine(CONFIG / "machines" / f"{options.machine}.yaml", options.threads)
    scale = load_scale(CONFIG / "scales" / f"{options.scale}.yaml")
    print(f"scale {options.scale}, {machine.threads} threads, {options.rounds} alternating rounds, medians")
    titles = f"{'autotm ms':>10} {'eager ms':>10} {'eager/autotm':>13} {'compile ms':>11} {'compile/autotm':>15}"
    print(f"{'network':<14} {titles}")
    ratios = []
    for name in options.networks:
        with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
            times = measure(name, scale.networks[name], machine, Path(folder), options)
        ratios.append(times.eager_s / times.autotm_s)
        compiled = ("-", "-")
        if times.compiled_s is not None:
            compiled = (f"{times.compiled_s * 1e3:.1f}", f"{times.compiled_s / times.autotm_s:.2f}")
        print(
            f"{name:<14} {times.autotm_s * 1e3:>10.1f} {times.eager_s * 1e3:>10.1f} {ratios[-1]:>13.2f} "
            f"{compiled[0]:>11} {compiled[1]:>15}",
            flush=True,
        )
    print(f"geomean eager/autotm {statistics.geometric_mean(ratios):.2f}")


def measure(name: str, sizes: dict[str, int], machine: Machine, folder: Path, options: argparse.Namespace) -> Times:
    """Lower the network, then time steps of all contenders in turn."""
    network = zoo.build(name, sizes)
    files = (folder / "graph.json", folder / "kernels.so")
    graph = lower_network(network, options.scale, machine_target(machine), machine.threads, *files, {})
    program = plain_program(graph)
    arguments = Arguments.allocate(graph)
    arguments.fill(options.seed)
    arrays = {tensor: arguments.value(tensor).copy() for tensor in (*network.inputs, *network.parameters)}
    contenders: list[Callable[[], None]] = [_torch_step(TorchNetwork(network, arrays, torch.float32), network)]
    if options.compile:
        compiled = torch.compile(TorchNetwork(network, arrays, torch.float32))
        contenders.append(_torch_step(compiled, network))
    torch.set_num_threads(machine.threads)
    for contender in contenders:
        contender()  # PyTorch's threads must exist before this thread is pinned, or they would share its core.
    with pinned(machine), open_tiers(machine, None, program.fast_bytes, 0, CONFIG / "devices", stretch=1.0) as tiers:
        step = prepare(graph, KernelLibrary.load(files[1]), program, arguments, tiers).step
        samples = alternate([step, *contenders], options.rounds)
    medians = [statistics.median(series) for series in samples]
    return Times(medians[0], medians[1], medians[2] if options.compile else None)


def alternate(contenders: list[Callable[[], None]], rounds: int) -> list[list[float]]:
    """Seconds of each contender in each round, after two warm-up rounds."""
    samples: list[list[float]] = [[] for _ in contenders]
    for round_ in range(-2, rounds):
        for contender, series in zip(contenders, samples, strict=True):
            start = time.perf_counter()
            contender()
            if round_ >= 0:
                series.append(time.perf_counter() - start)
    return samples


def _torch_step(model: torch.nn.Module, network: zoo.Network) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=network.learning_rate)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model().backward()
        optimizer.step()

    return step


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", default="laptop")
    parser.add_argument("--machine", default="laptop")
    parser.add_argument("--threads", type=int, help="default: the machine file's")
    parser.add_argument("--networks", nargs="+", default=["inception_v4", "vgg19", "mlp"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--compile", action="store_true", help="time torch.compile too")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
