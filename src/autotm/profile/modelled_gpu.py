"""Kernel and copy times of a GPU that is not here, by the roofline of its published facts: modelled."""

from __future__ import annotations

from dataclasses import replace

from autotm.model.files import content_hash, hash_of
from autotm.model.graph import Graph, Implementation, Kernel, OpClass, Operand, Tier, all_fast, slow_traffic
from autotm.model.links import AsynchronousLinks, Contention, Link, Links, MachineRates
from autotm.model.machine import GpuFile
from autotm.model.profile import Profile, Timing, TimingKey

# Copies between a modelled GPU's memory and its host's: a latency, then a constant rate.

_SIZES = (4096, 10**6, 10**9, 10**11)
"""Bytes; between them a straight line, which the model is, and beyond them the last bandwidth."""


def modelled_links(gpu: GpuFile) -> Links:
    """Compute the links of a GPU: a copy of B bytes takes latency + B / rate, blocking or during kernels.

    Each direction has an engine of its own at the full rate (`docs/formulation.md` §9), and copies and kernels take
    nothing from each other: a copy uses a fiftieth of the bandwidth of device memory.
    """
    latency_us = gpu.link.latency_us
    to_fast = _link(Tier.FAST, gpu.link.to_device_bytes_per_s, latency_us)
    to_slow = _link(Tier.SLOW, gpu.link.to_host_bytes_per_s, latency_us)
    none = dict.fromkeys(OpClass, Contention(0.0, 0.0))
    return Links(
        to_fast,
        to_slow,
        contraction_flop_per_s=gpu.compute.flop_per_s,
        emulation_stretch=1.0,
        asynchronous=AsynchronousLinks(to_fast, to_slow, none, none, call_us=0.0),
        rates=MachineRates(gpu.compute.flop_per_s, gpu.bandwidth.bytes_per_s),
    )


def _link(destination: Tier, bytes_per_s: float, latency_us: float) -> Link:
    return Link(destination, tuple((size, round(1e3 * latency_us + 1e9 * size / bytes_per_s)) for size in _SIZES))


# A second implementation of 3 x 3 convolutions on a modelled GPU: fewer multiplications for a workspace.
#
# Winograd's algorithm F(2 x 2, 3 x 3) (Lavin and Gray, 2016), as libraries compute it, in several passes: a batch of N
# images of H x W results, with C channels read and K written, has T = N ceil(H / 2) ceil(W / 2) squares of 4 x 4.
# Transformed weights, data and products take 16 (C K + T C + T K) values of workspace; 16 multiplications do the work
# of 36. Only convolutions of stride 1 and their data gradients have it.

WINOGRAD = "winograd"
_CLASSES = {OpClass.CONV_FORWARD, OpClass.CONV_DATA_GRADIENT}
_FILTER, _SQUARE, _RESULTS = 3, 4, 2
_MULTIPLICATIONS_SAVED = (_FILTER * _RESULTS) ** 2 / _SQUARE**2
"""How many times fewer multiplications there are: 36 / 16."""
_IMAGE_AXES = 4  # batch, height, width, channels


def workspace_values(kernel: Kernel) -> int:
    """Count the workspace's values; 0 unless the kernel is a 3 x 3 convolution of stride 1 with channels last."""
    result = kernel.outputs[0].shape if kernel.outputs else ()
    if kernel.op_class not in _CLASSES or len(result) != _IMAGE_AXES:
        return 0
    batch, height, width, written = result
    images = [operand.shape for operand in kernel.inputs if len(operand.shape) == _IMAGE_AXES]
    for weight in images:
        read = kernel.flops // (2 * _FILTER**2 * batch * height * width * written)
        if sorted(weight) != sorted((_FILTER, _FILTER, read, written)):
            continue
        # Fused operands may have as many channels; only a convolution reads images that are larger than its results.
        extents = [image[1:3] for image in images if image[0] == batch and image[3] == read and image != weight]
        least = _FILTER - 1
        if extents and all(abs(a - b) <= least for a, b in zip(max(extents), (height, width), strict=True)):
            squares = batch * -(-height // _RESULTS) * -(-width // _RESULTS)
            return _SQUARE**2 * (read * written + squares * (read + written))
    return 0


# Kernel times of a GPU that is not here, by the roofline (Williams, Waterman and Patterson, 2009).
#
# A kernel takes
#
#     time = launch + max(flops : peak, bytes : bandwidth)
#
# where bytes are those of its distinct inputs and outputs, once each (of a table that is looked up, the rows looked
# up), and twice those of its workspaces, which it writes and reads. No kernel reaches its roofline, so these are
# lower bounds of what kernels take, and the share of copies in a step is an upper bound. All operands are in device
# memory: kernels of a GPU use no other.


def roofline_profile(graph: Graph, gpu: GpuFile) -> Profile:
    """Compute the time of every implementation of every kernel, all operands fast; no repeats, since nothing runs."""
    timings: dict[TimingKey, Timing] = {}
    for kernel in graph.kernels:
        for name in kernel.implementations:
            chosen = kernel.computed_by(name)
            key = chosen.identity, name, all_fast(chosen)
            if key not in timings:
                ns = round(1e3 * kernel_us(graph, chosen, gpu))
                timings[key] = Timing(ns, ns, ns, ns, repeats=0)
    return Profile(hash_of(graph), timings, {"modelled_by": __doc__, "gpu": gpu.description})


def with_winograd(graph: Graph, gpu: GpuFile) -> Graph:
    """Return the step, with Winograd's algorithm as an alternative of each convolution that the model has faster."""

    def with_alternative(kernel: Kernel) -> Kernel:
        if not (values := workspace_values(kernel)):
            return kernel
        workspace = Operand(f"{kernel.name}.{WINOGRAD}.workspace0", (values,), kernel.outputs[0].dtype)
        identity = content_hash([kernel.identity, WINOGRAD])
        other = Implementation(WINOGRAD, f"{kernel.function}_{WINOGRAD}", identity, (workspace,))
        both = replace(kernel, alternatives=(*kernel.alternatives, other))
        is_faster = kernel_us(graph, both.computed_by(WINOGRAD), gpu) < kernel_us(graph, kernel, gpu)
        return both if is_faster else kernel

    return replace(graph, kernels=tuple(map(with_alternative, graph.kernels)))


def kernel_us(graph: Graph, kernel: Kernel, gpu: GpuFile) -> float:
    """Compute the microseconds of one implementation of a kernel."""
    flops = kernel.flops / (_MULTIPLICATIONS_SAVED if kernel.implementation == WINOGRAD else 1.0)
    arguments = replace(kernel, workspaces=())
    read, written = slow_traffic(graph, arguments, "P" * len(arguments.operands))
    moved = sum(read) + sum(written) + 2 * sum(operand.size_bytes for operand in kernel.workspaces)
    return gpu.launch.kernel_us + 1e6 * max(flops / gpu.compute.flop_per_s, moved / gpu.bandwidth.bytes_per_s)
