"""What a schedule asks of a block: its axes, what it reads and writes, and at which indices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

_SPATIAL, _REDUCTION = 0, 2
_FLOAT_CALLS = {"tirx.exp", "tirx.log", "tirx.tanh", "tirx.sqrt", "tirx.rsqrt", "tirx.pow", "tirx.sigmoid", "tirx.erf"}


@dataclass(frozen=True)
class Access:
    """One load or store: the buffer and the index along each of its axes."""

    buffer: tirx.Buffer
    indices: tuple[tirx.Expr, ...]


@dataclass(frozen=True)
class Nest:
    """The loop nest of one block whose axes are loops one to one."""

    name: str
    variables: tuple[tirx.Var, ...]
    extents: tuple[int, ...]
    kinds: tuple[int, ...]
    loads: tuple[Access, ...]
    stores: tuple[Access, ...]
    free_uses: frozenset[tirx.Var]
    """Variables that are used outside of the indices of loads and stores (conditions, computed values)."""
    combines: str
    """The outermost operation of the stored value: `Add`, `Max`, ...; for a reduction, how terms are combined."""
    arithmetic: int
    """Arithmetic operations on floating-point numbers per iteration."""
    has_call: bool
    """Whether an iteration computes a transcendental function."""

    @property
    def spatial(self) -> tuple[int, ...]:
        """Positions of the data-parallel axes."""
        return tuple(axis for axis, kind in enumerate(self.kinds) if kind == _SPATIAL)

    @property
    def reduction(self) -> tuple[int, ...]:
        """Positions of the reduction axes."""
        return tuple(axis for axis, kind in enumerate(self.kinds) if kind == _REDUCTION)

    @property
    def iterations(self) -> int:
        """Times the body runs."""
        return math.prod(self.extents)

    @property
    def touched(self) -> dict[tirx.Buffer, int]:
        """Bytes of each buffer that the block reads and writes, as far as one pass over it can reach."""
        buffers = {access.buffer: size_bytes(access.buffer) for access in (*self.loads, *self.stores)}
        return {buffer: min(size, 4 * self.iterations) for buffer, size in buffers.items()}

    @property
    def touched_bytes(self) -> int:
        """Bytes of all of these."""
        return sum(self.touched.values())

    def extent(self, axes: tuple[int, ...]) -> int:
        """Product of the extents of some axes."""
        return math.prod(self.extents[axis] for axis in axes)


def size_bytes(buffer: tirx.Buffer) -> int:
    """Bytes of a dense buffer of constant shape."""
    return math.prod(int(extent) for extent in buffer.shape) * int(buffer.dtype.itemsize)


def top_blocks(schedule: Schedule) -> list[SBlockRV]:
    """The blocks below the root in order; none if the function is one opaque block."""
    root = schedule.mod["main"].body.block.name_hint
    return list(schedule.get_child_blocks(schedule.get_sblock(root)))


def read_nest(schedule: Schedule, block: SBlockRV) -> Nest | None:
    """The block's nest, or None if it is not a plain one: opaque, already scheduled, or of a symbolic shape."""
    statement = schedule.get(block)
    loops = [schedule.get(loop) for loop in schedule.get_loops(block)]
    kinds = tuple(int(axis.iter_type) for axis in statement.iter_vars)
    if len(loops) != len(kinds) or not kinds or set(kinds) - {_SPATIAL, _REDUCTION}:
        return None
    extents = []
    for loop, axis in zip(loops, statement.iter_vars, strict=True):
        if not (_is_number(loop.extent) and _is_number(axis.dom.extent) and _is_number(loop.min)):
            return None
        if int(loop.extent) != int(axis.dom.extent) or int(loop.min) != 0 or loop.kind != tirx.ForKind.SERIAL:
            return None
        extents.append(int(loop.extent))
    if not isinstance(statement.body, tirx.BufferStore):
        return None
    uses = _Uses(statement.body)
    return Nest(
        name=statement.name_hint,
        variables=tuple(axis.var for axis in statement.iter_vars),
        extents=tuple(extents),
        kinds=kinds,
        loads=tuple(uses.loads),
        stores=(Access(statement.body.buffer, tuple(statement.body.indices)),),
        free_uses=frozenset(uses.free),
        combines=type(statement.body.value).__name__,
        arithmetic=uses.arithmetic,
        has_call=uses.has_call,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | tirx.IntImm)


class _Uses:
    """Loads, variables outside of indices, and operations of one store."""

    def __init__(self, store: tirx.BufferStore) -> None:
        self.loads: list[Access] = []
        self.free: set[tirx.Var] = set()
        self.arithmetic = 0
        self.has_call = False
        self._visit(store.value)

    def _visit(self, expression: Any) -> None:
        if isinstance(expression, ir.TensorLoad):
            self.loads.append(Access(expression.source, tuple(expression.indices)))
            return
        if isinstance(expression, tirx.Var):
            self.free.add(expression)
            return
        if isinstance(expression, ir.Call):
            name = getattr(expression.op, "name", "")
            self.has_call |= name in _FLOAT_CALLS
            self.arithmetic += name in _FLOAT_CALLS
            for argument in expression.args:
                self._visit(argument)
            return
        if isinstance(expression, tirx.Add | tirx.Sub | tirx.Mul | tirx.Div | tirx.Min | tirx.Max):
            self.arithmetic += str(expression.ty).startswith("float")
        for child in ("a", "b", "value", "condition", "true_value", "false_value"):
            if hasattr(expression, child):
                self._visit(getattr(expression, child))


def variables_of(expression: Any) -> set[tirx.Var]:
    """Every variable in an expression."""
    found: set[tirx.Var] = set()
    tvm_ffi.structural_walk(expression, (tirx.Var, found.add))
    return found
