"""Memory that processes take for steps of PyTorch on a CPU, with and without an arena, and the time of steps.

    .venv-torch/bin/python benchmarks/resident.py [--networks gpt2,unet] [--budget 0.8x] [--rounds 7]

Each line is a process of its own: a plain step; one of `autotm.offload(move=False)` whose tensors have their places in
an arena; and the same where PyTorch's allocator chooses addresses. `counted` is the most that PyTorch's allocator has
given out during a step, or the arena; `taken` is by how much the process grew in three steps, at most, as Linux counts
it (VmHWM), after all that was freed had been returned. Times are medians of steps in turn, of the step with an arena
over the two others. A GPU is to be hidden: `CUDA_VISIBLE_DEVICES=`.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import multiprocessing
import re
from collections.abc import Callable
from pathlib import Path

import torch

import autotm
from autotm.api.offload.judging import medians_in_turn
from autotm.memory import torch_device
from memory_planner import NETWORKS, batch_of, cross_entropy

WAYS = ("plain", "arena", "allocator")
STEPS = 3


def main() -> None:
    """Print a line for each network and way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="resnet152,densenet201,unet,convnext,gpt2,llama,t5,mixtral,swin")
    parser.add_argument("--budget", default="0.8x", help="of the steps of autotm.offload (%(default)s)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    print("network      way         counted, MB  taken, MB  taken/counted  time/allocator  time/plain", flush=True)
    processes = multiprocessing.get_context("spawn")
    for network in asked.networks.split(","):
        for way in WAYS:
            process = processes.Process(target=measure, args=(network, way, asked.budget, asked.threads, asked.rounds))
            process.start()
            process.join()


def measure(network: str, way: str, budget: str, threads: int, rounds: int) -> None:
    """Print the line of a network and a way."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    module, (inputs, targets) = NETWORKS[network]().train(), batch_of(network)
    device = torch_device.device_of(torch.device("cpu"))
    has_arenas = torch_device.has_arenas

    def planned(*, is_arena: bool) -> Callable[[], None]:
        torch_device.has_arenas = has_arenas if is_arena else lambda: False
        own = autotm.offload(module, inputs, cross_entropy, budget, targets=(targets,), move=False)

        def step() -> None:
            own(inputs, targets)
            module.zero_grad()

        return step

    def plain() -> None:
        cross_entropy(module(inputs), targets).backward()
        module.zero_grad()

    try:
        step = plain if way == "plain" else planned(is_arena=way == "arena")
        taken_bytes, counted_bytes = grown(step), device.peak(step)[1]
        text = f"{counted_bytes / 1e6:12.1f} {taken_bytes / 1e6:10.1f} {taken_bytes / counted_bytes:14.2f}"
        if way == "arena":
            times = medians_in_turn(device, {"own": step, "other": planned(is_arena=False), "plain": plain}, rounds)
            text += f" {times['own'] / times['other']:15.3f} {times['own'] / times['plain']:11.3f}"
    except autotm.AutotmError as error:
        text = str(error)
    print(f"{network:12} {way:10} {text}", flush=True)


def grown(step: Callable[[], None]) -> int:
    """Return by how many bytes the process grows in some steps, at most."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew: `man proc_pid_clear_refs`.
    before = status_bytes("VmRSS")
    for _ in range(STEPS):
        step()
    return status_bytes("VmHWM") - before


def status_bytes(name: str) -> int:
    """Return a size that Linux states of this process."""
    found = re.search(rf"{name}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


if __name__ == "__main__":
    main()
