"""Concatenation along one axis. Slices need no kernel here: Relax's own fuse with the elementwise work around them.

Images are NHWC, so a concatenation along the channels puts the parts side by side in every pixel: no part is contiguous
in the result, and none can be written there by a kernel that writes contiguous tensors. (In NCHW a part of one image is
contiguous, of a batch it is not either.) DenseNet concatenates so before each of its layers. A view into one buffer for
a whole dense block would spare the copies, but then the block's features would be one tensor, to be placed, moved and
freed as a whole, which is what a study of placement must not fix; and every reader would stride over channels that it
does not use. What a concatenation copies it therefore copies once, unfused, at the memory's speed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from tvm import relax, te, tirx

from autotm.kernels.code import PARALLEL_BYTES, tir

_MANY_ROWS = 64


def concat(inputs: Sequence[te.Tensor], axis: int) -> te.Tensor:
    """The inputs one after the other along `axis`; one plain copy loop per input, already scheduled.

    A te.compute would have to choose the input at every element; an extern's loops choose nothing.
    """
    shape = [int(extent) for extent in inputs[0].shape]
    axis %= len(shape)
    extents = [int(tensor.shape[axis]) for tensor in inputs]
    shape[axis] = sum(extents)
    dtype = inputs[0].dtype
    return te.extern(
        [shape],
        list(inputs),
        lambda ins, outs: _copies(ins, outs[0], axis),
        dtype=[dtype],
        in_buffers=[_buffer(tensor.shape, dtype, f"input{index}") for index, tensor in enumerate(inputs)],
        out_buffers=[_buffer(shape, dtype, "concat")],
        name="concat",
    )


def call_concat(builder: relax.BlockBuilder, inputs: Sequence[relax.Expr], axis: int) -> relax.Expr:
    """A call of `concat` in a Relax function; not to be fused, so that each input is copied and nothing else."""
    return builder.call_te(lambda *tensors: concat(tensors, axis), *inputs, primfunc_name_hint="concat")


def _buffer(shape: Sequence[int], dtype: str, name: str) -> tirx.Buffer:
    return tirx.decl_buffer(shape, dtype, name, layout=None)


def _copies(inputs: Sequence[tirx.Buffer], output: tirx.Buffer, axis: int) -> tirx.Stmt:
    shape = tir.extents(output)
    is_parallel = 2 * math.prod(shape) * int(output.dtype.itemsize) >= PARALLEL_BYTES
    kind = tirx.ForKind.PARALLEL if is_parallel else tirx.ForKind.SERIAL
    begins = list(itertools.accumulate((tir.extents(source)[axis] for source in inputs), initial=0))
    if math.prod(shape[:axis]) >= _MANY_ROWS:
        return _copy_rows(inputs, begins, output, axis, kind)
    return tir.sequence(
        [_copy_one(source, begin, output, axis, kind) for source, begin in zip(inputs, begins, strict=False)]
    )


def _copy_rows(
    inputs: Sequence[tirx.Buffer], begins: list[int], output: tirx.Buffer, axis: int, kind: tirx.ForKind
) -> tirx.Stmt:
    """For each index before `axis`, copy every input: the output is written front to back."""
    rows = tir.extents(output)[:axis]

    def copy_row(row: tir.Index) -> tirx.Stmt:
        outer = tir.unravel(row, rows)
        return tir.sequence(
            [_copy(source, begin, output, outer, axis) for source, begin in zip(inputs, begins, strict=False)]
        )

    return tir.loop(math.prod(rows), copy_row, "row", kind)


def _copy_one(source: tirx.Buffer, begin: int, output: tirx.Buffer, axis: int, kind: tirx.ForKind) -> tirx.Stmt:
    """Few indices before `axis`: share the copy of each input among the threads along `axis`."""
    rows = tir.extents(source)[: axis + 1]
    return tir.loop(
        math.prod(rows), lambda row: _copy(source, begin, output, tir.unravel(row, rows), axis), "row", kind
    )


def _copy(source: tirx.Buffer, begin: int, output: tirx.Buffer, outer: list[tir.Index], axis: int) -> tirx.Stmt:
    """Copy all that lies behind the first indices `outer` of the source."""
    inner = tir.extents(source)[len(outer) :]

    def copy_element(position: tir.Index) -> tirx.Stmt:
        index = [*outer, *tir.unravel(position, inner)]
        target = [number + begin if dimension == axis else number for dimension, number in enumerate(index)]
        value = tirx.BufferLoad(source, [tir.number(number) for number in index])
        return tirx.BufferStore(output, value, [tir.number(number) for number in target])

    return tir.loop(math.prod(inner), copy_element, "element")
