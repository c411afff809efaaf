"""Kernel times of a GPU that is not here, by the roofline (Williams, Waterman and Patterson, 2009).

A kernel takes

    launch + max(flops / peak, bytes / bandwidth)

where bytes are those of its distinct inputs and outputs, once each (of a table that is looked up, the rows looked up),
and twice those of its workspaces, which it writes
and reads. No kernel reaches its roofline, so these are lower bounds of what kernels take, and the share of copies in a
step is an upper bound. All operands are in device memory: kernels of a GPU use no other.
"""

from __future__ import annotations

from dataclasses import replace

from autotm.model.files import hash_of
from autotm.model.measurement import Profile, Timing, TimingKey
from autotm.model.step import Graph, Kernel, all_fast, slow_traffic
from autotm.model.study import GpuFile
from autotm.profile.gpu.winograd import WINOGRAD, multiplications_saved, winograd


def roofline_profile(graph: Graph, gpu: GpuFile) -> Profile:
    """The time of every implementation of every kernel, all operands fast; nothing is repeated, since nothing runs."""
    timings: dict[TimingKey, Timing] = {}
    for kernel in graph.kernels:
        for name in kernel.implementations:
            chosen = kernel.computed_by(name)
            key = chosen.identity, name, all_fast(chosen)
            if key not in timings:
                timings[key] = _timing(kernel_us(graph, chosen, gpu))
    return Profile(hash_of(graph), timings, {"modelled_by": __doc__, "gpu": gpu.description})


def with_winograd(graph: Graph, gpu: GpuFile) -> Graph:
    """The step whose convolutions a plan may also compute by Winograd's algorithm, where the model has that faster."""
    return replace(graph, kernels=tuple(_with_winograd(graph, kernel, gpu) for kernel in graph.kernels))


def _with_winograd(graph: Graph, kernel: Kernel, gpu: GpuFile) -> Kernel:
    other = winograd(kernel)
    if other is None:
        return kernel
    both = replace(kernel, alternatives=(*kernel.alternatives, other))
    is_faster = kernel_us(graph, both.computed_by(WINOGRAD), gpu) < kernel_us(graph, kernel, gpu)
    return both if is_faster else kernel


def kernel_us(graph: Graph, kernel: Kernel, gpu: GpuFile) -> float:
    """Modelled microseconds of one implementation of a kernel."""
    flops = kernel.flops / (multiplications_saved() if kernel.implementation == WINOGRAD else 1.0)
    computing_s, moving_s = flops / gpu.compute.flop_per_s, _bytes(graph, kernel) / gpu.bandwidth.bytes_per_s
    return gpu.launch.kernel_us + 1e6 * max(computing_s, moving_s)


def _bytes(graph: Graph, kernel: Kernel) -> int:
    """Of a table that is looked up, only the rows that are."""
    arguments = replace(kernel, workspaces=())
    read, written = slow_traffic(graph, arguments, "P" * len(arguments.operands))
    return sum(read) + sum(written) + 2 * sum(operand.size_bytes for operand in kernel.workspaces)


def _timing(us: float) -> Timing:
    ns = round(1e3 * us)
    return Timing(ns, ns, ns, ns, repeats=0)
