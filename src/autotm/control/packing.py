"""Weights packed: matrices laid out in the order in which kernels read them, and convolutions as products with them."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from tvm import relax

from autotm.control.program import (
    Array,
    Block,
    Loop,
    Operator,
    Program,
    Recursion,
    Statement,
    Statements,
    Value,
    all_defined,
    all_reads,
    multiplies_rows,
    operator,
    rewritten,
    without_dead,
)

_PANEL = 16
"""Columns of a panel that several rows are multiplied with: its rows are one cache line each."""
_PANEL_OF_ONE_ROW = {8: 32}
"""Columns of a panel that a single row is multiplied with, by the float32 lanes of a vector: four vectors are summed at
once. On AVX2 that takes 0.83 to 0.93 of the time (measured); with other lanes such a matrix is read in place."""
LEAST_STEPS = 4
"""A loop of fewer steps reads weights too few times for copies to be worth it."""
_MOST_ROWS = 64
"""Rows that known weights are packed for where they are read once: more rows take so long that reading does not."""
_LEAST_BYTES = 1 << 18
"""Of weights that are packed where they are read once: smaller ones are in a cache by chance."""


def pack_weights(program: Program, lanes: int) -> Program:
    """Let products read weights that are known, or do not change in a loop or recursion, from panels of columns.

        loop x = x0: x = x w        -->   p = panels(w); loop x = x0: x = x p
        y = convolution(x, known)   -->   y = windows(x) panels(known)

    A panel holds some columns of all rows, one row after the other. In place, rows lie so far apart that they evict
    each other from the caches, and that memory is not read ahead. For a single row only known weights are packed, as it
    reads them once a step. What is to be made before a loop is left in it, for `hoist_invariants`.

    Args:
        program: to be rewritten.
        lanes: float32 lanes of a vector.
    """
    packing = _Packing(dict(program.constants), lanes)
    body = without_dead(rewritten(program.body, packing.pack))
    needed = {*all_reads(body)}
    constants = {value: array for value, array in packing.constants.items() if value in needed}
    return replace(program, body=body, constants=constants)


class _Packing:
    """What is packed in a program.

    Attributes:
        constants: values that are known, and panels of them.
    """

    def __init__(self, constants: dict[Value, Array], lanes: int) -> None:
        self.constants, self.lanes = constants, lanes
        self._panels: dict[tuple[Value, int], Value] = {}

    def pack(self, statement: Statement) -> list[Statement]:
        """Return what a statement becomes, those in it done already."""
        if _is_convolution(statement) and self._is_worth_it(statement):
            return self._convolution(statement)
        if multiplies_rows(statement, ()) and self._is_worth_it(statement):
            return self._product(statement)
        is_counted = isinstance(statement, Loop) and statement.condition is None
        if not isinstance(statement, Loop | Recursion) or (is_counted and (statement.steps or 0) < LEAST_STEPS):
            return [statement]
        changing = {*all_defined(Block((statement,), ()))}
        return [replace(statement, body=rewritten(statement.body, lambda item: self._in_loop(item, changing)))]

    def _in_loop(self, statement: Statement, changing: set[Value]) -> list[Statement]:
        return self._product(statement) if multiplies_rows(statement, changing) else [statement]

    def _is_worth_it(self, item: Operator) -> bool:
        weights, result = item.operands[1], item.results[0]
        rows = result.elements // result.shape[-1]
        return weights in self.constants and rows <= _MOST_ROWS and weights.size_bytes >= _LEAST_BYTES

    def _product(self, item: Operator) -> list[Statement]:
        code, (x, weights) = Statements(), item.operands
        packed = self._packed(weights, x.shape[0], code)
        return [item] if packed is None else self._multiplied(x, packed, item.results[0], code)

    def _convolution(self, item: Operator) -> list[Statement]:
        code, (x, weights), result = Statements(), item.operands, item.results[0]
        packed = self._packed(weights, result.elements // result.shape[-1], code)
        return [item] if packed is None else self._multiplied(self._windows(item, x, code), packed, result, code)

    def _packed(self, weights: Value, rows: int, code: Statements) -> Value | None:
        """Return panels of a matrix for so many rows; None if it is read in place.

        Of known weights of more than two axes all but the last are rows of the matrix.
        """
        columns = weights.shape[-1]
        is_known = weights in self.constants
        panel = _PANEL if rows > 1 else _PANEL_OF_ONE_ROW.get(self.lanes) if is_known else None
        if panel is None or columns % panel:
            return None
        shape = weights.elements // columns, columns // panel, panel
        if not is_known:
            split = code.emit(lambda w: relax.op.reshape(w, shape), weights)
            return code.emit(lambda w: relax.op.permute_dims(w, [1, 0, 2]), split)
        if (weights, panel) not in self._panels:
            array = np.ascontiguousarray(self.constants[weights].reshape(shape).transpose(1, 0, 2))
            self._panels[weights, panel] = packed = Value(f"{weights.name}_panels", array.shape, weights.dtype)
            self.constants[packed] = array
        return self._panels[weights, panel]

    def _multiplied(self, x: Value, panels: Value, result: Value, code: Statements) -> list[Statement]:
        """Append the product of a matrix with panels, and return all statements."""
        product = code.emit(lambda *values: relax.op.einsum(values, "ik,jkn->ijn"), x, panels)
        whole = operator(lambda y: relax.op.reshape(y, result.shape), product)
        return [*code.found, replace(whole, results=(result,))]

    def _windows(self, item: Operator, x: Value, code: Statements) -> Value:
        """Append what puts the numbers that each result of a convolution is made of into a row."""
        attrs, (height, width, channels, _) = item.call.attrs, item.operands[1].shape
        batch, *extents, _ = item.results[0].shape
        positions = batch * extents[0] * extents[1]
        top, left, bottom, right = map(int, attrs.padding)
        if any((top, left, bottom, right)):
            widths = [0, 0, top, bottom, left, right, 0, 0]
            x = code.emit(lambda x: relax.op.nn.pad(x, widths), x)
        if (height, width) == (1, 1) and x.elements == positions * channels:
            return code.emit(lambda x: relax.op.reshape(x, (positions, channels)), x)
        numbers = np.arange(x.elements // channels).reshape(x.shape[:3])
        views = sliding_window_view(numbers, (height, width), axis=(1, 2))
        step_down, step_right = map(int, attrs.strides)
        places = Value("places", (positions * height * width,), "int64")
        self.constants[places] = np.ascontiguousarray(views[:, ::step_down, ::step_right]).ravel()
        rows = code.row(code.emit(lambda x: relax.op.reshape(x, (-1, channels)), x), places)
        return code.emit(lambda x: relax.op.reshape(x, (positions, height * width * channels)), rows)


def _is_convolution(item: Statement) -> TypeGuard[Operator]:
    """Whether a statement is a plain convolution of images whose channels are last, in float32."""
    if not isinstance(item, Operator) or item.name != "relax.nn.conv2d":
        return False
    attrs = item.call.attrs
    layouts = attrs.data_layout, attrs.kernel_layout, attrs.out_layout or attrs.data_layout
    is_plain = int(attrs.groups) == 1 and {int(each) for each in attrs.dilation} == {1}
    return (
        is_plain
        and layouts == ("NHWC", "HWIO", "NHWC")
        and {item.operands[0].dtype, item.operands[1].dtype} == {"float32"}
    )
