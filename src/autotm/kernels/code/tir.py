"""Small words to write TIR with: loops, flat vector accesses, rewriting of expressions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tvm import te, tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad

from autotm.kernels.code.contraction_tiles import Cut

Index = int | tirx.Expr

_BINARY = (
    tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max,
    tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or,
    tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor, tirx.LShift, tirx.RShift,
)  # fmt: skip


def number(value: Index) -> tirx.Expr:
    """An int64 constant, or the expression itself."""
    return tirx.IntImm("int64", value) if isinstance(value, int) else value


def extents(shaped: tirx.Buffer | te.Tensor) -> tuple[int, ...]:
    """The static shape of a buffer or tensor."""
    return tuple(int(extent) for extent in shaped.shape)


def unravel(position: Index, shape: Sequence[int]) -> list[Index]:
    """The index in `shape` of a row-major position."""
    index, stride = [], math.prod(shape)
    for axis, extent in enumerate(shape):
        stride //= extent
        index.append(position // stride % extent if axis else position // stride)
    return index


def loop(
    extent: Index,
    body: Callable[[Index], tirx.Stmt],
    name: str = "i",
    kind: tirx.ForKind = tirx.ForKind.SERIAL,
    start: Index = 0,
) -> tirx.Stmt:
    """A loop over [start, start + extent); none is written around a single pass of known length."""
    if isinstance(extent, int) and extent == 1 and kind != tirx.ForKind.PARALLEL:
        return body(start)
    variable = tirx.Var(name, "int64")
    # Counted from zero: TVM loses the start of a loop that another loop's start is computed from.
    value = variable if isinstance(start, int) and start == 0 else start + variable
    return tirx.For(variable, number(0), number(extent), kind, body(value))


def sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """The statements one after the other."""
    if not statements:
        return tirx.Evaluate(tirx.IntImm("int32", 0))
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def choose(condition: tirx.Expr | bool, then: tirx.Stmt, otherwise: tirx.Stmt | None) -> tirx.Stmt:
    """A branch; none is written for a condition known now."""
    if isinstance(condition, bool):
        return then if condition else otherwise if otherwise is not None else sequence([])
    return tirx.IfThenElse(condition, then, otherwise)


def bind(value: Index, body: Callable[[Index], tirx.Stmt], name: str) -> tirx.Stmt:
    """Name a value; constants stay constants."""
    if isinstance(value, int | tirx.Var):
        return body(value)
    variable = tirx.Var(name, "int64")
    return sequence([tirx.Bind(variable, value), body(variable)])


def bind_all(values: Sequence[Index], names: str, body: Callable[..., tirx.Stmt]) -> tirx.Stmt:
    """Name several values, which keeps the expressions built of them small; `names` are separated by spaces."""
    bindings, arguments = [], []
    for value, name in zip(values, names.split(), strict=True):
        if isinstance(value, int | tirx.Var):
            arguments.append(value)
            continue
        variable = tirx.Var(name, "int64")
        bindings.append(tirx.Bind(variable, value))
        arguments.append(variable)
    return sequence([*bindings, body(*arguments)])


def flat(buffer: tirx.Buffer, offset: Index, lanes: int = 1) -> list[tirx.Expr]:
    """Indices of the element at a linear offset, or of the vector that starts there."""
    last = number(offset)
    if lanes > 1:
        last = tirx.Ramp(last, tirx.IntImm("int64", 1), lanes)
    return [number(0)] * (len(buffer.shape) - 1) + [last]


def load(buffer: tirx.Buffer, offset: Index, lanes: int = 1) -> tirx.Expr:
    """The element or vector at a linear offset."""
    return tirx.BufferLoad(buffer, flat(buffer, offset, lanes))


def store(buffer: tirx.Buffer, offset: Index, value: tirx.Expr, lanes: int = 1) -> tirx.Stmt:
    """Write the element or vector at a linear offset."""
    return tirx.BufferStore(buffer, value, flat(buffer, offset, lanes))


def splat(value: tirx.Expr, lanes: int) -> tirx.Expr:
    """The value in every lane."""
    return tirx.Broadcast(value, lanes) if lanes > 1 else value


def zeros(lanes: int) -> tirx.Expr:
    """A float32 vector of zeros."""
    return splat(tirx.FloatImm("float32", 0.0), lanes)


def segments(width: int, lanes: int) -> tuple[tuple[int, int], ...]:
    """(offset, lanes) of the vectors that cover `width` elements: full ones, then powers of two."""
    pieces, offset = [], 0
    while offset < width:
        while lanes > width - offset:
            lanes //= 2
        pieces.append((offset, lanes))
        offset += lanes
    return tuple(pieces)


def lanewise(extent: int, lanes: int, body: Callable[[Index], tirx.Stmt]) -> tirx.Stmt:
    """A statement for each element of a row: whole vectors first, then what remains."""
    whole = extent // lanes

    def vector(start: Index, width: int) -> tirx.Stmt:
        return loop(width, lambda lane: body(start + lane), "lane", tirx.ForKind.VECTORIZED)

    statements = [loop(whole, lambda i: vector(i * lanes, lanes), "vector")] if whole else []
    statements += [vector(whole * lanes + offset, width) for offset, width in segments(extent % lanes, lanes)]
    return sequence(statements)


def spans(count: int, lanes: int, write: Callable[[Index, int], tirx.Stmt]) -> tirx.Stmt:
    """`write(offset, width)` for vectors that cover `count` elements: a loop of whole ones, then what remains."""
    whole = count // lanes
    statements = [loop(whole, lambda i: write(i * lanes, lanes), "vector")] if whole else []
    statements += [write(whole * lanes + offset, width) for offset, width in segments(count % lanes, lanes)]
    return sequence(statements)


def pick(cut: Cut, tile: Index, body: Callable[[Index, int], tirx.Stmt]) -> tirx.Stmt:
    """The body for piece `tile`, given its start and its length, which is a constant in each branch."""
    if len(cut.sizes()) == 1:
        return body(tile * cut.size, cut.size)
    short = tile * (cut.size - 1) + cut.longer
    return choose(tile < cut.longer, body(tile * cut.size, cut.size), body(short, cut.size - 1))


def pick_overlapping(cut: Cut, tile: Index, body: Callable[[Index, int], tirx.Stmt]) -> tirx.Stmt:
    """As `pick`, but every piece has the full length: the last ones share what is missing with those before them."""
    if len(cut.sizes()) == 1:
        return body(tile * cut.size, cut.size)
    return body(tirx.min(tile * cut.size, number(cut.extent - cut.size)), cut.size)


def share(index: Index, parts: int, total: int) -> tuple[Index, Index]:
    """[first, last) of part `index` of `parts` nearly equal ones."""
    if parts == 1:
        return 0, total
    return index * total // parts, (index + 1) * total // parts


def workspace(size: int, name: str) -> tirx.Buffer:
    """A flat float32 buffer of the root block."""
    return tirx.decl_buffer((tirx.IntImm("int64", max(size, 1)),), "float32", name=name)


class Registers:
    """Sums of a register tile, `rows` of `width` floats; unrolled accesses put them into vector registers.

    One buffer a row: TVM would fetch a buffer of a kilobyte from its allocator instead of the stack.
    """

    def __init__(self, rows: int, width: int) -> None:
        extent = tirx.IntImm("int64", width)
        self.rows = [tirx.decl_buffer((extent,), "float32", name="sums") for _ in range(rows)]

    def declare(self) -> tirx.Stmt:
        """Reserve them."""
        return sequence([tirx.AllocBuffer(row) for row in self.rows])

    def get(self, row: int, offset: Index, lanes: int = 1) -> tirx.Expr:
        """One sum, or a vector of them."""
        return load(self.rows[row], offset, lanes)

    def set(self, row: int, offset: Index, value: tirx.Expr, lanes: int = 1) -> tirx.Stmt:
        """Overwrite a vector of sums."""
        return store(self.rows[row], offset, value, lanes)


def rewrite(
    expr: tirx.Expr,
    variables: Mapping[tirx.Var, tirx.Expr],
    loads: Mapping[tirx.Buffer, Callable[[], tirx.Expr]],
) -> tirx.Expr:
    """`expr` with variables and whole loads from the given buffers replaced."""

    def visit(node: tirx.Expr) -> tirx.Expr:  # noqa: PLR0911  (one return for each kind of node)
        if isinstance(node, TensorLoad):
            if node.source in loads:
                return loads[node.source]()
            return tirx.BufferLoad(node.source, [visit(index) for index in node.indices])
        if isinstance(node, tirx.Var):
            return variables.get(node, node)
        if isinstance(node, _BINARY):
            return type(node)(visit(node.a), visit(node.b))
        if isinstance(node, tirx.Select):
            return tirx.Select(visit(node.condition), visit(node.true_value), visit(node.false_value))
        if isinstance(node, tirx.Cast):
            return tirx.Cast(node.ty, visit(node.value))
        if isinstance(node, tirx.Not | tirx.BitwiseNot):
            return type(node)(visit(node.a))
        if isinstance(node, Call):
            arguments = [visit(argument) for argument in node.args]
            return Call(node.op, arguments, node.attrs, node.ty_args, node.span, node.ty)
        return node

    return visit(expr)


def loads_of(expr: tirx.Expr) -> list[TensorLoad]:
    """Every load in an expression."""
    return [node for node in _nodes(expr) if isinstance(node, TensorLoad)]


def _nodes(expr: tirx.Expr) -> list[tirx.Expr]:
    found, waiting = [], [expr]
    while waiting:
        node = waiting.pop()
        found.append(node)
        if isinstance(node, TensorLoad):
            waiting.extend(node.indices)
        elif isinstance(node, Call):
            waiting.extend(node.args)
        elif isinstance(node, tirx.Select):
            waiting += [node.condition, node.true_value, node.false_value]
        elif isinstance(node, _BINARY):
            waiting += [node.a, node.b]
        elif isinstance(node, tirx.Not | tirx.BitwiseNot):
            waiting.append(node.a)
        elif isinstance(node, tirx.Cast):
            waiting.append(node.value)
    return found
