"""Rates of the three convolution passes over Inception v4's distinct shapes, against the core's peak and PyTorch.

    python benchmarks/contraction_rates.py --batch 8 --image 139 --threads 2

Prints, for each distinct convolution and pass: measured GF/s, share of the measured multiply-add peak, and, where
PyTorch is installed, its channels-last rate with the same threads, measured in turn with ours. The last lines add up
the times over the whole network (each shape weighted by how often it occurs).
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import time
from collections.abc import Callable

import numpy as np
import tvm
from tvm import s_tir, te

from autotm.kernels import contractions
from autotm.kernels.passes import GENERATED, machine_code
from autotm.kernels.schedules.contraction import schedule_contraction
from autotm.kernels.target import host_target, target_info
from autotm.kernels.tir import hoist_workspaces
from conv_layers import Layer, inception_v4, vgg19
from machine_rates import best_seconds, peak_flop_per_s

try:
    import torch
except ImportError:
    torch = None

_COLOURS = 3
"""Channels of an image: its gradient is not needed."""


def aligned(shape: tuple[int, ...], generator: np.random.Generator | None = None) -> np.ndarray:
    """Return a 64-byte aligned float32 array, random or zero."""
    count = int(np.prod(shape))
    raw = np.zeros(count + 16, np.float32)
    start = (-raw.ctypes.data // 4) % 16
    array = raw[start : start + count].reshape(shape)
    if generator is not None:
        array[...] = generator.standard_normal(shape, dtype=np.float32)
    return array


def compiled(
    tensors: list[object], block: str, threads: int
) -> tuple[Callable[..., None], list[tuple[int, ...]], float]:
    """Scheduled and compiled function of one contraction, the shapes of its workspaces, compile seconds."""
    target = host_target(threads)
    start = time.perf_counter()
    sch = s_tir.Schedule(te.create_prim_func(tensors))
    schedule_contraction(sch, sch.get_sblock(block), target_info(target), threads)
    function = sch.mod["main"]
    function, spaces = hoist_workspaces(
        function.with_attr("tirx.noalias", True).with_attr(GENERATED, True), relocate=False
    )
    module = machine_code({"main": function}, target)
    seconds = time.perf_counter() - start
    return module["main"], [shape for shape, _ in spaces], seconds


def our_passes(layer: Layer, threads: int) -> dict[str, Callable[[], None]]:
    """Return the three passes, each as a call without arguments."""
    generator = np.random.default_rng(1)
    x_shape = (layer.batch, layer.height, layer.width, layer.channels)
    w_shape = (*layer.window, layer.channels, layer.features)
    stride, padding = (layer.stride, layer.stride), (*layer.padding, *layer.padding)
    x, w, dy = (te.placeholder(s, name=n) for s, n in ((x_shape, "x"), (w_shape, "w"), (layer.output, "dy")))
    expressions = {
        "forward": ([x, w], contractions.conv2d(x, w, stride, padding)),
        "data": ([dy, w], contractions.conv2d_data_gradient(dy, w, x_shape, stride, padding)),
        "weight": ([x, dy], contractions.conv2d_weight_gradient(x, dy, w_shape, stride, padding)),
    }
    names = {"forward": "conv2d", "data": "conv2d_data_gradient", "weight": "conv2d_weight_gradient"}
    calls = {}
    for name, (inputs, output) in expressions.items():
        if name == "data" and layer.channels <= _COLOURS:
            continue
        function, spaces, _ = compiled([*inputs, output], names[name], threads)
        shapes = [tuple(int(e) for e in t.shape) for t in inputs]
        arrays = [aligned(s, generator) for s in shapes] + [aligned(tuple(int(e) for e in output.shape))]
        arguments = [tvm.runtime.from_dlpack(a) for a in [*arrays, *(aligned(s) for s in spaces)]]
        calls[name] = lambda function=function, arguments=arguments: function(*arguments)
    return calls


def torch_passes(layer: Layer, threads: int) -> dict[str, Callable[[], object]]:
    """PyTorch's passes in channels-last memory; empty if it is not installed."""
    if torch is None:
        return {}
    torch.set_num_threads(threads)
    last = torch.channels_last
    x = torch.randn(layer.batch, layer.channels, layer.height, layer.width).contiguous(memory_format=last)
    w = torch.randn(layer.features, layer.channels, *layer.window).contiguous(memory_format=last)
    batch, rows, columns, features = layer.output
    dy = torch.randn(batch, features, rows, columns).contiguous(memory_format=last)
    stride, padding = [layer.stride] * 2, list(layer.padding)

    def backward(mask: list[bool]) -> Callable[[], object]:
        return lambda: torch.ops.aten.convolution_backward(
            dy, x, w, None, stride, padding, [1, 1], False, [0, 0], 1, mask
        )

    return {
        "forward": lambda: torch.nn.functional.conv2d(x, w, None, stride, padding),
        "data": backward([True, False, False]),
        "weight": backward([False, True, False]),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=("inception_v4", "vgg19"), default="inception_v4")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--image", type=int, default=139)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.03, help="time for each shape and pass")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--only", default="", help="only layers whose line contains this text")
    arguments = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(arguments.threads)
    layers = {"inception_v4": inception_v4, "vgg19": vgg19}[arguments.network](arguments.batch, arguments.image)
    peak = peak_flop_per_s(arguments.threads)
    write = sys.stdout.write
    write(f"measured peak {peak / 1e9:.0f} GF/s with {arguments.threads} threads\n")
    totals: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0, 0.0])
    for layer, count in layers.items():
        if arguments.only not in str(layer):
            continue
        ours = our_passes(layer, arguments.threads)
        theirs = {} if arguments.no_torch else torch_passes(layer, arguments.threads)
        line = f"{layer!s:24s} x{count:2d}"
        for name, call in ours.items():
            times = best_seconds([call, *([theirs[name]] if theirs else [])], arguments.seconds)
            rates = [layer.flops / t / 1e9 for t in times]
            line += f" | {name} {rates[0]:4.0f} {100e9 * rates[0] / peak:3.0f}%" + "".join(
                f" vs {r:4.0f}" for r in rates[1:]
            )
            line += f" {1e3 * count * times[0]:6.2f}ms"
            for index, value in enumerate([*times, *([0.0] if len(times) == 1 else [])]):
                totals[name][index] += count * value
            totals[name][2] += count * layer.flops
        write(line + "\n")
        sys.stdout.flush()
    for name, (own, other, flops) in totals.items():
        ratio = f", PyTorch {1e3 * other:.1f} ms, ratio {own / other:.2f}" if other else ""
        share = 100 * flops / own / peak
        write(f"{name}: {1e3 * own:.1f} ms, {flops / own / 1e9:.0f} GF/s, {share:.0f}% of peak{ratio}\n")
    own, other = (sum(t[i] for t in totals.values()) for i in (0, 1))
    write(
        f"all: {1e3 * own:.1f} ms"
        + (f", PyTorch {1e3 * other:.1f} ms, ratio {own / other:.2f}" if other else "")
        + "\n"
    )


if __name__ == "__main__":
    main()
