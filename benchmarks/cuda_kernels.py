"""Every kernel of networks compiled for GPUs: registers, spills, shared memory, as ptxas states them. Needs no GPU.

    python benchmarks/cuda_kernels.py [NETWORKS ...] [--scale tiny] [--device h100] [--arch sm_80 sm_90]
                                      [--products tf32] [--cache FOLDER] [--csv FILE] [--default-only]

A row for each network and op class: device functions by the code they are (one that several kernels share counts once),
the most that one of them takes, and seconds of generating and of nvcc. With --products, contractions may round their
factors; how many of the step's calls do is told. With --csv, a row for each function. Ends with 1
where a function spills more than 32 bytes or takes more shared memory than a block has without asking.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from autotm import zoo
from autotm.kernels.cuda.device import DEVICES, device_named
from autotm.kernels.cuda.source import ARCHITECTURES, CudaKernel, Usage, fatbin
from autotm.lower.cuda import cuda_step
from autotm.model.config import load_scale
from autotm.model.graph import ScheduleKind
from autotm.model.machine import Products

SCALES = Path(__file__).parents[1] / "config" / "scales"
MOST_SHARED_BYTES = 48 << 10
MOST_SPILLED_BYTES = 32
"""Bytes that a thread may spill: ptxas spills a few rather than have one resident block fewer."""


def main() -> int:
    """Print the table; 1 where a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--scale", default="tiny")
    parser.add_argument("--device", default="h100", choices=sorted(DEVICES))
    parser.add_argument("--arch", nargs="+", default=list(ARCHITECTURES))
    parser.add_argument("--products", default="float32", choices=get_args(Products))
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--default-only", action="store_true", help="one implementation of each kernel")
    options = parser.parse_args()
    sizes = load_scale(SCALES / f"{options.scale}.yaml").networks
    rows, broken, total = [], 0, 0
    print(f"{'network':14} {'op class':24} functions registers spill_B stack_B shared_B")
    for name in options.networks or sorted(sizes):
        begun = time.perf_counter()
        implementations = "default" if options.default_only else "all"
        built, device = zoo.build(name, sizes[name]), device_named(options.device)
        step = cuda_step(built, options.scale, device, implementations, options.products)
        generated = time.perf_counter()
        binary = fatbin(step.kernels.values(), options.arch, options.cache)
        compiled = time.perf_counter()
        classes = of_classes(step.kernels.values(), binary.usage)
        for op_class, usage in sorted(classes.items()):
            worst = [max(getattr(item, key) for item in usage) for key in _COLUMNS]
            print(f"{name:14} {op_class:24} {len(usage):9} {worst[0]:9} {worst[1]:7} {worst[2]:7} {worst[3]:8}")
            rows += [{"network": name, "op_class": op_class, **asdict(item)} for item in usage]
        broken += sum(
            item.spill_bytes > MOST_SPILLED_BYTES or item.shared_bytes > MOST_SHARED_BYTES for item in binary.usage
        )
        total += len(binary.usage)
        alone = sum(kernel.kind == ScheduleKind.AS_WRITTEN for kernel in step.kernels.values())
        rounding = sum(step.kernels[call.function].products != "float32" for call in step.graph.kernels)
        print(
            f"{name:14} {len(step.graph.kernels)} calls ({rounding} round factors), {len(step.kernels)} kernels "
            f"({alone} without a schedule), "
            f"generated in {generated - begun:.1f} s, nvcc {compiled - generated:.1f} s, {len(binary.image)} bytes",
            flush=True,
        )
    print(f"{total} functions, {broken} beyond the limits")
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return int(broken > 0)


_COLUMNS = ("registers", "spill_bytes", "stack_bytes", "shared_bytes")


def of_classes(kernels: Iterable[CudaKernel], usage: tuple[Usage, ...]) -> dict[str, list[Usage]]:
    """Resource usage of device functions, by the op class of their kernel."""
    classes = {launch.function: kernel.op_class.value for kernel in kernels for launch in kernel.launches}
    by_class: dict[str, list[Usage]] = defaultdict(list)
    for item in usage:
        by_class[classes[item.function]].append(item)
    return by_class


if __name__ == "__main__":
    sys.exit(main())
