"""A step at a batch that no machine at hand could run, modelled from the same step profiled at small batches.

At every batch a network has the same kernels and tensors; only extents differ, and they are straight lines in the
batch. So bytes and flops of the large step are exact. Times are *modelled*: a kernel whose operands do not depend on
the batch takes what it took; any other grows along the line through its two largest profiled batches, with a part that
does not grow of at least zero. How wrong that is, is measured where it can be: the smaller batches predict the largest.

Workspaces follow the schedule that the batch leads to, which is not known for the large one. Those that grew in
proportion to the batch go on growing; the others keep what they had at the largest profiled batch.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median

from autotm.model.errors import BadInputError
from autotm.model.files import content_hash, hash_of
from autotm.model.graph import Graph, Kernel, Operand, Role, all_fast, configuration, workspace
from autotm.model.profile import Profile, Timing

LEAST_BATCHES = 3
"""Two make a line, the third says how wrong it is."""


@dataclass(frozen=True)
class Extrapolation:
    """A modelled step.

    Attributes:
        graph, profile: of the step at the batch asked for; the profile's `repeats` are 0, since nothing was repeated.
        batches: those that were profiled, ascending.
        step_error: (predicted - measured) / measured all-fast time of the step at the largest of them, predicted from
            the others.
        kernel_error: median over kernels, weighted by time, of the absolute value of the same.
    """

    graph: Graph
    profile: Profile
    batches: tuple[int, ...]
    step_error: float
    kernel_error: float


def extrapolate(profiled: Sequence[tuple[Graph, Profile]], batch: int, scale: str) -> Extrapolation:
    """Return the step at `batch` samples, named `scale`, from at least three profiled batches of the same network.

    Raises:
        BadInputError: too few batches, steps of different networks, or extents that are no straight line in the batch.
    """
    steps = sorted(((graph.computed_by(()), profile) for graph, profile in profiled), key=lambda step: step[0].batch)
    batches = tuple(graph.batch for graph, _ in steps)
    if len(set(batches)) < LEAST_BATCHES:
        raise BadInputError(f"extrapolation: profiled batches {list(batches)}; at least {LEAST_BATCHES} are needed")
    first, *others = (graph for graph, _ in steps)
    for other in others:
        if _shape_free(first) != _shape_free(other):
            raise BadInputError(
                f"extrapolation: {first.network} has other kernels or tensors at batch {other.batch} than at batch "
                f"{first.batch}; leave one of the two batches out"
            )
    predicted = _base_ns(steps[:-1], batches[-1])
    measured = [1e3 * steps[-1][1].base_us(kernel) for kernel in steps[-1][0].kernels]
    graph = _graph_at([graph for graph, _ in steps], batch, scale)
    return Extrapolation(
        graph,
        _profile_at(steps, graph),
        batches,
        sum(predicted) / sum(measured) - 1,
        _weighted_median([abs(p / m - 1) for p, m in zip(predicted, measured, strict=True)], measured),
    )


def _shape_free(graph: Graph) -> tuple[object, ...]:
    """Return the parts of a graph that must be the same at every batch."""
    kernels = tuple((kernel.name, kernel.op, len(kernel.inputs), len(kernel.outputs)) for kernel in graph.kernels)
    tensors = {
        (tensor.name, tensor.role, tensor.dtype, tensor.producer, tensor.readers, tensor.alias_of, len(tensor.shape))
        for tensor in graph.tensors
        if tensor.role is not Role.WORKSPACE
    }
    return graph.network, kernels, tensors


def _graph_at(graphs: Sequence[Graph], batch: int, scale: str) -> Graph:
    largest = graphs[-1]
    batches = [graph.batch for graph in graphs]

    def line(values: Sequence[int], label: str) -> int:
        """Return the value at `batch` of the line through all of `values`."""
        slope = (values[-1] - values[0]) / (batches[-1] - batches[0])
        if any(values[0] + slope * (at - batches[0]) != value for at, value in zip(batches, values, strict=True)):
            raise BadInputError(f"extrapolation: {label} has {list(values)} at batches {batches}, which is no line")
        return round(values[0] + slope * (batch - batches[0]))

    def shape(shapes: Sequence[tuple[int, ...]], label: str) -> tuple[int, ...]:
        return tuple(line(extents, label) for extents in zip(*shapes, strict=True))

    kernels = []
    for index, kernel in enumerate(largest.kernels):
        same = [graph.kernels[index] for graph in graphs]

        def operands(slots: Sequence[tuple[Operand, ...]], name: str = kernel.name) -> tuple[Operand, ...]:
            return tuple(
                replace(slot[-1], shape=shape([operand.shape for operand in slot], f"kernel '{name}'"))
                for slot in zip(*slots, strict=True)
            )

        kernels.append(
            replace(
                kernel,
                # Kernels with one function at the largest batch are assumed to share it at every batch.
                identity=content_hash([kernel.identity, batch]),
                flops=line([other.flops for other in same], f"kernel '{kernel.name}'"),
                inputs=operands([other.inputs for other in same]),
                outputs=operands([other.outputs for other in same]),
                workspaces=tuple(_workspace_at(operand, same, batches, batch) for operand in kernel.workspaces),
            )
        )
    tensors = []
    for tensor in largest.tensors:
        if tensor.role is not Role.WORKSPACE:
            extents = shape([graph.by_name[tensor.name].shape for graph in graphs], f"tensor '{tensor.name}'")
            elements = max(math.prod(tensor.shape), 1)
            size = tensor.size_bytes // elements * max(math.prod(extents), 1)
            tensors.append(replace(tensor, shape=extents, size_bytes=size))
    tensors += [workspace(operand, index) for index, kernel in enumerate(kernels) for operand in kernel.workspaces]
    return Graph(largest.network, scale, batch, tuple(kernels), tuple(tensors))


def _workspace_at(operand: Operand, same: Sequence[Kernel], batches: Sequence[int], batch: int) -> Operand:
    sizes = [sum(w.size_bytes for w in kernel.workspaces if w.tensor == operand.tensor) for kernel in same]
    elements = math.prod(operand.shape)
    if all(size * batches[-1] == sizes[-1] * at for size, at in zip(sizes, batches, strict=True)):
        elements = elements * batch // batches[-1]
    return replace(operand, shape=(elements,))


def _base_ns(steps: Sequence[tuple[Graph, Profile]], batch: int) -> list[float]:
    """Return the all-fast time of every kernel at `batch`, from the two largest batches of `steps`."""
    (small, few), (large, many) = steps[-2:]
    times_ns = []
    for a, b in zip(small.kernels, large.kernels, strict=True):
        shapes = [[operand.shape for operand in kernel.inputs + kernel.outputs] for kernel in (a, b)]
        few_ns, many_ns, grows = 1e3 * few.base_us(a), 1e3 * many.base_us(b), shapes[0] != shapes[1]
        times_ns.append(_time_at(small.batch, few_ns, large.batch, many_ns, batch, grows=grows))
    return times_ns


def _time_at(few: int, few_ns: float, many: int, many_ns: float, batch: int, *, grows: bool) -> float:
    if not grows:
        return median((few_ns, many_ns))
    slope = min(max((many_ns - few_ns) / (many - few), 0.0), many_ns / many)
    return many_ns + slope * (batch - many)


def _profile_at(steps: Sequence[tuple[Graph, Profile]], graph: Graph) -> Profile:
    base = _base_ns(steps, graph.batch)
    (small, few), (large, many) = steps[-2:]
    timings: dict[tuple[str, str, str], Timing] = {}
    for index, kernel in enumerate(graph.kernels):
        key = (kernel.identity, kernel.implementation)
        if (*key, all_fast(kernel)) in timings:
            continue
        a, b = small.kernels[index], large.kernels[index]
        timings[*key, all_fast(kernel)] = _modelled(base[index])
        known = small.slots_of(a)
        for tensor in graph.slots_of(kernel):
            more = 1e3 * many.extra_us(large, b, tensor)
            if tensor in known:
                less = 1e3 * few.extra_us(small, a, tensor)
                grows = _bytes(small, tensor) != _bytes(large, tensor)
                extra = _time_at(small.batch, less, large.batch, more, graph.batch, grows=grows)
            else:
                extra = more * _bytes(graph, tensor) / _bytes(large, tensor)
            slow = replace(_modelled(base[index] + extra), beyond_ns=round(extra))
            timings[*key, configuration(graph, kernel, {tensor})] = slow
    return Profile(hash_of(graph), timings, {"profiles": [dict(profile.provenance) for _, profile in steps]})


def _modelled(ns: float) -> Timing:
    return Timing(round(ns), round(ns), round(ns), round(ns), repeats=0)


def _bytes(graph: Graph, tensor: str) -> int:
    return graph.by_name[tensor].size_bytes


def _weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    ascending = sorted(zip(values, weights, strict=True))
    passed = list(accumulate(weight for _, weight in ascending))
    return ascending[bisect_left(passed, passed[-1] / 2)][0]
