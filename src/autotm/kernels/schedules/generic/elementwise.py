"""The schedule of a block without reduction: contiguous axes fused, vectorised, the rest shared among threads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from autotm.kernels.code import Access, Machine, Nest, variables_of

_CHUNK_ELEMENTS = 4096
"""A thread's unit of work on a contiguous axis: long enough for streaming, short enough to share evenly."""
_UNROLLED_VECTORS = 4
_LEAST_TURNED = 8


def schedule_elementwise(schedule: Schedule, block: SBlockRV, nests: Sequence[Nest], machine: Machine) -> None:
    """Schedule an elementwise, broadcast or injective block in place; `nests` are of all blocks in its loops."""
    nest = nests[0]
    if len(nests) == 1 and (turned := _turned_axis(nest)) is not None:
        _schedule_turned(schedule, block, nest, turned, machine)
        return
    start = max(map(contiguous_from, nests))
    loops = schedule.get_loops(block)
    inner_extent = math.prod(nest.extents[start:])
    inner = _fuse(schedule, list(loops[start:]))
    outer = list(loops[:start])
    touched = {buffer: size for each in nests for buffer, size in each.touched.items()}
    is_parallel = machine.is_parallel(sum(touched.values()))
    if is_parallel and math.prod(nest.extents[:start]) < 8 * machine.threads:
        chunks = _chunks(inner_extent, machine)
        if chunks > 1:
            chunk, inner = schedule.split(inner, [chunks, None])
            outer.append(chunk)
            inner_extent //= chunks
    if outer and is_parallel:
        schedule.parallel(_fuse(schedule, outer))
    _vectorise(schedule, inner, inner_extent, machine)


def _turned_axis(nest: Nest) -> int | None:
    """The axis along which something as large as the result is contiguous that is not the result's last; if any."""
    last = len(nest.extents) - 1
    for access in nest.loads:
        if not access.indices or math.prod(int(extent) for extent in access.buffer.shape) < nest.iterations:
            continue
        found = [axis for axis in range(last) if access.indices[-1].same_as(nest.variables[axis])]
        if found and min(nest.extents[found[0]], nest.extents[last]) >= _LEAST_TURNED:
            return found[0]
    return None


def _schedule_turned(schedule: Schedule, block: SBlockRV, nest: Nest, turned: int, machine: Machine) -> None:
    """Square tiles of the last axis and of the one contiguous elsewhere: every cache line that is met is used up."""
    loops = list(schedule.get_loops(block))
    side = machine.lanes
    tiles, inner = [], []
    for axis in (turned, len(loops) - 1):
        extent = nest.extents[axis]
        size = next((size for size in (side, side // 2) if extent % size == 0), side)
        outer, within = schedule.split(loops[axis], [None, size])
        tiles.append(outer)
        inner.append(within)
    others = [loop for axis, loop in enumerate(loops[:-1]) if axis != turned]
    schedule.reorder(*others, *tiles, *inner)
    if machine.is_parallel(nest.touched_bytes):
        schedule.parallel(_fuse(schedule, [*others, *tiles]))
    schedule.vectorize(inner[1])


def contiguous_from(nest: Nest) -> int:
    """The first axis of the longest run of last axes that every access walks as one contiguous axis, or not at all."""
    start = len(nest.extents) - 1
    while start > 0 and _is_contiguous(nest, start - 1):
        start -= 1
    return start


def _is_contiguous(nest: Nest, start: int) -> bool:
    run = nest.variables[start:]
    if nest.free_uses & set(run):
        return False
    return all(_walks(access, run, nest.extents[start:]) for access in (*nest.loads, *nest.stores))


def _walks(access: Access, run: tuple[tirx.Var, ...], extents: tuple[int, ...]) -> bool:
    used = [variables_of(index) & set(run) for index in access.indices]
    if not any(used):
        return True
    if len(access.indices) < len(run) or any(used[: -len(run)]):
        return False
    last = access.indices[-len(run) :]
    shape = [int(extent) for extent in access.buffer.shape][-len(run) :]
    exact = all(
        index.same_as(variable) and size == extent
        for index, variable, size, extent in zip(last[1:], run[1:], shape[1:], extents[1:], strict=True)
    )
    return exact and used[-len(run)] == {run[0]} and _is_shifted(last[0], run[0])


def _is_shifted(index: tirx.Expr, variable: tirx.Var) -> bool:
    """Whether an index is the variable plus something that does not depend on it."""
    if index.same_as(variable):
        return True
    if isinstance(index, tirx.Add):
        left, right = variable in variables_of(index.a), variable in variables_of(index.b)
        return left != right and _is_shifted(index.a if left else index.b, variable)
    if isinstance(index, tirx.Sub):
        return variable not in variables_of(index.b) and _is_shifted(index.a, variable)
    return False


def _fuse(schedule: Schedule, loops: list[LoopRV]) -> LoopRV:
    return schedule.fuse(*loops) if len(loops) > 1 else loops[0]


def _chunks(extent: int, machine: Machine) -> int:
    """Equal parts to cut a contiguous axis into: a divisor that leaves whole vectors if there is one."""
    wanted = max(machine.threads, extent // _CHUNK_ELEMENTS)
    for count in range(wanted, 0, -1):
        if extent % (count * machine.lanes) == 0 and count >= machine.threads:
            return count
    return next((count for count in range(wanted, 0, -1) if extent % count == 0), 1)


def _vectorise(schedule: Schedule, loop: LoopRV, extent: int, machine: Machine) -> None:
    lanes = machine.lanes
    if extent < lanes:
        schedule.vectorize(loop)
        return
    whole, rest = divmod(extent, lanes)
    group = 1 if rest else next(count for count in range(min(_UNROLLED_VECTORS, whole), 0, -1) if whole % count == 0)
    outer, unrolled, vector = schedule.split(loop, [None, group, lanes])
    schedule.unroll(unrolled)
    schedule.vectorize(vector)
    if rest:
        # The loop is cut in two, so that only the last vector asks whether it is still inside.
        schedule.annotate(outer, "pragma_loop_partition_hint", True)
