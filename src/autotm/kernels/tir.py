"""TIR read and written: axes and accesses of a block, workspaces, and functions that build loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, te, tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm_ffi import StructuralMutator

from autotm.kernels.target import Cut

# TVM checks the types of the arguments of each step of a schedule in Python, which takes a tenth of the time of
# compiling; what it calls checks them again.
for _name, _method in [*vars(Schedule).items()]:
    if hasattr(_method, "__wrapped__"):
        setattr(Schedule, _name, _method.__wrapped__)

# A block's axes, what it reads and writes, and at which indices.

_SPATIAL, _REDUCTION = 0, 2  # Kinds of a block's axes, as TVM numbers them.
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
    spatial: tuple[int, ...]
    """Positions of the data-parallel axes."""
    reduction: tuple[int, ...]
    """Positions of the reduction axes."""
    loads: tuple[Access, ...]
    store: Access
    free_uses: frozenset[tirx.Var]
    """Variables that are used outside of the indices of loads and stores (conditions, computed values)."""
    combines: str
    """The outermost operation of the stored value: `Add`, `Max`, ...; for a reduction, how terms are combined."""
    arithmetic: int
    """Arithmetic operations on floating-point numbers per iteration."""
    has_call: bool
    """Whether an iteration computes a transcendental function."""

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Loads and store."""
        return *self.loads, self.store

    @property
    def iterations(self) -> int:
        """Times the body runs."""
        return math.prod(self.extents)

    @property
    def touched(self) -> dict[tirx.Buffer, int]:
        """Bytes of each buffer that the block reads and writes, as far as one pass over it can reach."""
        buffers = {access.buffer: size_bytes(access.buffer) for access in self.accesses}
        return {buffer: min(size, 4 * self.iterations) for buffer, size in buffers.items()}


def size_bytes(buffer: tirx.Buffer) -> int:
    """Return the bytes of a dense buffer of constant shape."""
    return elements(buffer) * int(buffer.dtype.itemsize)


def top_blocks(schedule: Schedule) -> list[SBlockRV]:
    """Return the blocks below the root in order; none if the function is one opaque block."""
    root = schedule.mod["main"].body.block.name_hint
    return list(schedule.get_child_blocks(schedule.get_sblock(root)))


def read_nest(schedule: Schedule, block: SBlockRV) -> Nest | None:
    """Return the block's nest, or None if it is not a plain one: opaque, already scheduled, or of a symbolic shape."""
    statement = schedule.get(block)
    loops = [schedule.get(loop) for loop in schedule.get_loops(block)]
    kinds = tuple(int(axis.iter_type) for axis in statement.iter_vars)
    if len(loops) != len(kinds) or not kinds or set(kinds) - {_SPATIAL, _REDUCTION}:
        return None
    extents = []
    for loop, axis in zip(loops, statement.iter_vars, strict=True):
        if not all(isinstance(value, int | tirx.IntImm) for value in (loop.extent, axis.dom.extent, loop.min)):
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
        spatial=tuple(axis for axis, kind in enumerate(kinds) if kind == _SPATIAL),
        reduction=tuple(axis for axis, kind in enumerate(kinds) if kind == _REDUCTION),
        loads=tuple(uses.loads),
        store=Access(statement.body.buffer, tuple(statement.body.indices)),
        free_uses=frozenset(uses.free),
        combines=type(statement.body.value).__name__,
        arithmetic=uses.arithmetic,
        has_call=uses.has_call,
    )


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
        elif isinstance(expression, tirx.Var):
            self.free.add(expression)
        elif isinstance(expression, ir.Call):
            is_costly = getattr(expression.op, "name", "") in _FLOAT_CALLS
            self.has_call |= is_costly
            self.arithmetic += is_costly
            for argument in expression.args:
                self._visit(argument)
        else:
            if isinstance(expression, tirx.Add | tirx.Sub | tirx.Mul | tirx.Div | tirx.Min | tirx.Max):
                self.arithmetic += str(expression.ty).startswith("float")
            for child in ("a", "b", "value", "condition", "true_value", "false_value"):
                if hasattr(expression, child):
                    self._visit(getattr(expression, child))


def variables_of(expression: Any) -> set[tirx.Var]:
    """Return every variable in an expression."""
    variables: set[tirx.Var] = set()
    tvm_ffi.structural_walk(expression, (tirx.Var, variables.add))
    return variables


# Large inner buffers become parameters: a kernel allocates nothing at run time that a plan does not know of.
#
# TVM turns every inner buffer of 1 KiB or more, and every one outside the `global` scope, into a call of its workspace
# allocator. Here the large ones are appended to the parameters; the small ones are put into the `global` scope, where
# they live on the stack.

STACK_BYTES = 1024
"""Buffers below this live on the stack (runtime::kMaxStackAlloca)."""

Workspace = tuple[tuple[int, ...], str]
"""Shape and dtype."""


def hoist_workspaces(func: tirx.PrimFunc, *, relocate: bool = True) -> tuple[tirx.PrimFunc, tuple[Workspace, ...]]:
    """Return the function with its large inner buffers as further parameters, in order, and their shapes and dtypes.

    A buffer allocated inside a parallel loop is given one copy for each iteration, by a leading axis.

    Args:
        func: scheduled.
        relocate: first move every buffer to the innermost loops that use it, and shrink it to what one iteration of
            them uses. Wrong for buffers whose contents outlive such an iteration (sums over blocks of a reduction).
    """
    if relocate:
        passes = [
            s_tir.transform.CanonicalizeLoop(),
            s_tir.transform.LowerInitBlock(),
            s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
            s_tir.transform.ConvertBlocksToOpaque(),
            s_tir.transform.CompactBufferAllocation(),
            s_tir.transform.StmtSimplify(),
        ]
        func = tvm.transform.Sequential(passes)(tvm.IRModule({"main": func}))["main"]
    hoister = _Hoister()
    body, buffers = hoister.rewrite(func.body), hoister.buffers
    workspaces = tuple((extents(buffer), str(buffer.dtype)) for buffer in buffers)
    return tirx.PrimFunc([*func.params, *buffers], body, func.ret_type, func.attrs), workspaces


class _Hoister:
    """Rewrites a body: large buffers are taken out (`buffers`), small ones put into the `global` scope."""

    def __init__(self) -> None:
        self.buffers: list[tirx.Buffer] = []
        self._parallel: list[tirx.For] = []
        self._new: dict[tirx.Buffer, tuple[tirx.Buffer, list[tirx.Expr]]] = {}

    def rewrite(self, body: tirx.Stmt) -> tirx.Stmt:
        """Emit the body without large allocations."""
        return tvm_ffi.structural_mutate(
            body,
            [
                (tirx.For, self._for),
                (SBlock, self._block),
                (ir.TensorLoad, self._load),
                (tirx.BufferStore, self._store),
                (ir.TensorRegion, self._region),
                (tirx.Var, self._variable),
            ],
        )

    def _for(self, loop: tirx.For, mutator: StructuralMutator) -> tirx.For:
        if loop.kind != tirx.ForKind.PARALLEL:
            return mutator.default_mutate(loop)
        self._parallel.append(loop)
        changed = mutator.default_mutate(loop)
        self._parallel.pop()
        return changed

    def _block(self, block: SBlock, mutator: StructuralMutator) -> SBlock:
        kept = [new for new in map(self._place, block.alloc_buffers) if new is not None]
        return _allocating(mutator.default_mutate(_allocating(block, [])), kept)

    def _place(self, buffer: tirx.Buffer) -> tirx.Buffer | None:
        """Decide where a buffer lives; return its allocation if it stays."""
        shape = [int(extent) for extent in buffer.shape]
        is_small = size_bytes(buffer) < STACK_BYTES
        leading = [] if is_small else [(loop.loop_var - loop.min, int(loop.extent)) for loop in self._parallel]
        new = tirx.decl_buffer([*(extent for _, extent in leading), *shape], buffer.dtype, buffer.name, layout=None)
        self._new[buffer] = new, [index for index, _ in leading]
        if is_small:
            return new
        self.buffers.append(new)
        return None

    def _load(self, load: ir.TensorLoad, mutator: StructuralMutator) -> ir.TensorLoad:
        if load.source not in self._new:
            return mutator.default_mutate(load)
        new, leading = self._new[load.source]
        return tirx.BufferLoad(new, [*leading, *(mutator.mutate(index) for index in load.indices)])

    def _store(self, store: tirx.BufferStore, mutator: StructuralMutator) -> tirx.BufferStore:
        if store.buffer not in self._new:
            return mutator.default_mutate(store)
        new, leading = self._new[store.buffer]
        indices = [*leading, *(mutator.mutate(index) for index in store.indices)]
        return tirx.BufferStore(new, mutator.mutate(store.value), indices)

    def _region(self, region: ir.TensorRegion, mutator: StructuralMutator) -> ir.TensorRegion:
        if region.source not in self._new:
            return mutator.default_mutate(region)
        new, leading = self._new[region.source]
        ranges = [ir.Range.from_min_extent(index, 1) for index in leading]
        return tirx.BufferRegion(new, [*ranges, *(mutator.mutate(extent) for extent in region.region)])

    def _variable(self, variable: tirx.Var, mutator: StructuralMutator) -> tirx.Var:
        return self._new[variable][0] if variable in self._new else mutator.default_mutate(variable)


def _allocating(block: SBlock, buffers: Sequence[tirx.Buffer]) -> SBlock:
    """Return the block with other allocations."""
    parts = block.iter_vars, block.reads, block.writes, block.name_hint, block.body, block.init
    return SBlock(*parts, list(buffers), block.match_buffers, block.annotations)


# Loops, accesses by flat position, and rewritten expressions.

Index = int | tirx.Expr


def number(value: Index) -> tirx.Expr:
    """Return an int64 constant, or the expression itself."""
    return tirx.IntImm("int64", value) if isinstance(value, int) else value


def extents(shaped: tirx.Buffer | te.Tensor) -> tuple[int, ...]:
    """Return the static shape of a buffer or tensor."""
    return tuple(int(extent) for extent in shaped.shape)


def reduce_axes(names: str, extents: Sequence[int]) -> list[tirx.IterVar]:
    """Return reduction axes, each named by a letter."""
    return [te.reduce_axis((0, extent), name) for name, extent in zip(names, extents, strict=True)]


def elements(shaped: tirx.Buffer | te.Tensor) -> int:
    """Return the number of elements of a static shape."""
    return math.prod(extents(shaped))


def unravel(position: Index, shape: Sequence[int]) -> list[Index]:
    """Return the index in `shape` of a row-major position."""
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
    """Emit a loop over [start, start + extent); none is written around a single pass of known length."""
    if isinstance(extent, int) and extent == 1 and kind != tirx.ForKind.PARALLEL:
        return body(start)
    variable = tirx.Var(name, "int64")
    # Counted from zero: TVM loses the start of a loop that another loop's start is computed from.
    value = variable if isinstance(start, int) and start == 0 else start + variable
    return tirx.For(variable, number(0), number(extent), kind, body(value))


def parallel(extent: Index, body: Callable[[Index], tirx.Stmt], name: str, *, when: bool = True) -> tirx.Stmt:
    """Emit a loop from 0 whose iterations run on different threads if `when` holds."""
    return loop(extent, body, name, tirx.ForKind.PARALLEL if when else tirx.ForKind.SERIAL)


def in_tasks(
    tasks: int, total: int, body: Callable[[Index, Index], tirx.Stmt], name: str, *, when: bool = True
) -> tirx.Stmt:
    """Emit `body(item, task)` for each of `total` items; each of `tasks` parallel tasks takes neighbouring ones."""

    def task(index: Index) -> tirx.Stmt:
        first, last = share(index, tasks, total)
        return loop(last - first, lambda item: body(item, index), name, start=first)

    return parallel(tasks, task, "task", when=when)


def sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """Emit the statements one after the other."""
    if not statements:
        return tirx.Evaluate(tirx.IntImm("int32", 0))
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def choose(condition: tirx.Expr | bool, then: tirx.Stmt, otherwise: tirx.Stmt | None) -> tirx.Stmt:
    """Emit a branch; none is written for a condition known now."""
    if isinstance(condition, bool):
        return then if condition else otherwise if otherwise is not None else sequence([])
    return tirx.IfThenElse(condition, then, otherwise)


def bind(value: Index, body: Callable[[Index], tirx.Stmt], name: str) -> tirx.Stmt:
    """Name a value; constants stay constants."""
    return bind_all((value,), name, body)


def bind_all(values: Sequence[Index], names: str, body: Callable[..., tirx.Stmt]) -> tirx.Stmt:
    """Name several values, which keeps the expressions built of them small; `names` are separated by spaces."""
    bindings, arguments = [], []
    for value, name in zip(values, names.split(), strict=True):
        is_named = isinstance(value, int | tirx.Var)
        arguments.append(value if is_named else tirx.Var(name, "int64"))
        bindings += [] if is_named else [tirx.Bind(arguments[-1], value)]
    return sequence([*bindings, body(*arguments)])


def flat(buffer: tirx.Buffer, offset: Index, lanes: int = 1) -> list[tirx.Expr]:
    """Return the indices of the element at a linear offset, or of the vector that starts there."""
    last = number(offset)
    if lanes > 1:
        last = tirx.Ramp(last, tirx.IntImm("int64", 1), lanes)
    return [number(0)] * (len(buffer.shape) - 1) + [last]


def load(buffer: tirx.Buffer, offset: Index, lanes: int = 1) -> tirx.Expr:
    """Return the element or vector at a linear offset."""
    return tirx.BufferLoad(buffer, flat(buffer, offset, lanes))


def store(buffer: tirx.Buffer, offset: Index, value: tirx.Expr, lanes: int = 1) -> tirx.Stmt:
    """Write the element or vector at a linear offset."""
    return tirx.BufferStore(buffer, value, flat(buffer, offset, lanes))


def splat(value: tirx.Expr, lanes: int) -> tirx.Expr:
    """Return the value in every lane."""
    return tirx.Broadcast(value, lanes) if lanes > 1 else value


def constant(value: float, lanes: int = 1) -> tirx.Expr:
    """Return a float32 number in every lane."""
    return splat(tirx.FloatImm("float32", value), lanes)


def zeros(lanes: int) -> tirx.Expr:
    """Return a float32 vector of zeros."""
    return constant(0.0, lanes)


def segments(width: int, lanes: int) -> tuple[tuple[int, int], ...]:
    """Return (offset, lanes) of the vectors that cover `width` elements: full ones, then powers of two."""
    pieces, offset = [], 0
    while offset < width:
        while lanes > width - offset:
            lanes //= 2
        pieces.append((offset, lanes))
        offset += lanes
    return tuple(pieces)


def spans(count: int, lanes: int, write: Callable[[Index, int], tirx.Stmt]) -> tirx.Stmt:
    """Emit `write(offset, width)` for vectors that cover `count` elements: a loop of whole ones, then what remains."""
    whole = count // lanes
    statements = [loop(whole, lambda i: write(i * lanes, lanes), "vector")] if whole else []
    statements += [write(whole * lanes + offset, width) for offset, width in segments(count % lanes, lanes)]
    return sequence(statements)


def lanewise(extent: int, lanes: int, body: Callable[[Index], tirx.Stmt]) -> tirx.Stmt:
    """Emit `body(position)` for each element of a row, as lanes of the vectors of `spans`."""
    return spans(extent, lanes, lambda start, width: vector(width, lambda lane: body(start + lane)))


def vector(lanes: int, body: Callable[[Index], tirx.Stmt]) -> tirx.Stmt:
    """Emit `body(lane)` for each lane of one vector."""
    return loop(lanes, body, "lane", tirx.ForKind.VECTORIZED)


def pick(cut: Cut, tile: Index, body: Callable[[Index, int], tirx.Stmt]) -> tirx.Stmt:
    """Emit the body for piece `tile`, given its start and its length, which is a constant in each branch."""
    if cut.longer == cut.count:
        return body(tile * cut.size, cut.size)
    short = tile * (cut.size - 1) + cut.longer
    return choose(tile < cut.longer, body(tile * cut.size, cut.size), body(short, cut.size - 1))


def pick_overlapping(cut: Cut, tile: Index, body: Callable[[Index, int], tirx.Stmt]) -> tirx.Stmt:
    """Emit as `pick`, but with pieces of full length: the last ones share elements with those before them."""
    if cut.longer == cut.count:
        return body(tile * cut.size, cut.size)
    return body(tirx.min(tile * cut.size, number(cut.extent - cut.size)), cut.size)


def share(index: Index, parts: int, total: int) -> tuple[Index, Index]:
    """Return [first, last) of part `index` of `parts` nearly equal ones."""
    if parts == 1:
        return 0, total
    return index * total // parts, (index + 1) * total // parts


def workspace(size: int, name: str) -> tirx.Buffer:
    """Return a flat float32 buffer of the root block; never empty."""
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
        """Return one sum, or a vector of them."""
        return load(self.rows[row], offset, lanes)

    def set(self, row: int, offset: Index, value: tirx.Expr, lanes: int = 1) -> tirx.Stmt:
        """Overwrite a vector of sums."""
        return store(self.rows[row], offset, value, lanes)


def rewrite(
    expr: tirx.Expr, variables: Mapping[tirx.Var, tirx.Expr], loads: Mapping[tirx.Buffer, Callable[[], tirx.Expr]]
) -> tirx.Expr:
    """Return `expr` with variables and whole loads from the given buffers replaced."""

    def variable(node: tirx.Var, mutator: StructuralMutator) -> Any:
        return variables[node] if node in variables else mutator.default_mutate(node)

    def load(node: TensorLoad, mutator: StructuralMutator) -> Any:
        return loads[node.source]() if node.source in loads else mutator.default_mutate(node)

    return tvm_ffi.structural_mutate(expr, [(TensorLoad, load), (tirx.Var, variable)])


def loads_of(expr: tirx.Expr) -> list[TensorLoad]:
    """Return every load in an expression."""
    loads: list[TensorLoad] = []
    tvm_ffi.structural_walk(expr, (TensorLoad, loads.append))
    return loads


def is_own(indices: Sequence[tirx.Expr], variables: Sequence[tirx.Var]) -> bool:
    """Return whether the indices are the loops' variables themselves: an access of the loops' own element."""
    return len(indices) == len(variables) and all(i.same_as(v) for i, v in zip(indices, variables, strict=True))


# Code that is a function's body, or takes the place of its blocks.


def extern(
    body: Callable[[list[tirx.Buffer], list[tirx.Buffer]], tirx.Stmt],
    operands: Sequence[te.Tensor],
    results: Sequence[tuple[Sequence[int], str]],
    name: str,
    attrs: Mapping[str, Any] | None = None,
) -> Any:
    """Return a TE function of loops that `body(inputs, outputs)` writes: one tensor, or a list of several.

    `results` are shape and dtype of each output. No buffer has a layout, as none has of a computed tensor.
    """
    kinds = [*((operand.shape, operand.dtype) for operand in operands), *results]
    buffers = [tirx.decl_buffer(*kind, f"slot{slot}", layout=None) for slot, kind in enumerate(kinds)]
    return te.extern(
        [shape for shape, _ in results],
        list(operands),
        body,
        dtype=[dtype for _, dtype in results],
        in_buffers=buffers[: len(operands)],
        out_buffers=buffers[len(operands) :],
        name=name,
        attrs=attrs,
    )


@dataclass(frozen=True)
class Code:
    """Generated statements and the root-level buffers they use."""

    body: tirx.Stmt
    workspaces: tuple[tirx.Buffer, ...]


OPAQUE = {"op_pattern": 8}
"""Attributes of a function that must not be fused: its whole body is replaced by generated code."""


class _Buffers:
    """The buffers that code loads from, stores to, and allocates."""

    def __init__(self, code: tirx.Stmt) -> None:
        self.loaded: set[tirx.Buffer] = set()
        self.stored: set[tirx.Buffer] = set()
        self.allocated: set[tirx.Buffer] = set()
        tvm_ffi.structural_walk(
            code,
            [
                (TensorLoad, lambda load: self.loaded.add(load.source)),
                (tirx.BufferStore, lambda store: self.stored.add(store.buffer)),
                (SBlock, lambda block: self.allocated.update(block.alloc_buffers)),
                (tirx.AllocBuffer, lambda statement: self.allocated.add(statement.buffer)),
                (tirx.DeclBuffer, lambda statement: self.allocated.add(statement.buffer)),
            ],
        )


def parameters(sch: s_tir.Schedule) -> list[tirx.Buffer]:
    """Return inputs, then outputs, of the function in `sch`."""
    return list(sch.mod["main"].params)


def replace_body(sch: s_tir.Schedule, code: Code) -> None:
    """Let the function in `sch` run `code` in place of its blocks.

    Raises:
        ValueError: the code leaves a result out, or reads what a block computes that is replaced: the function has more
            blocks than who wrote the code knows.
    """
    root = sch.get_sref(sch.get_sblock(sch.mod["main"].body.block.name_hint))
    block = root.stmt
    operands, before, after = set(parameters(sch)), _Buffers(block.body), _Buffers(code.body)
    known = {*operands, *code.workspaces, *after.allocated}
    if lost := [*(before.stored & operands) - after.stored, *(after.stored | after.loaded) - known]:
        raise ValueError(f"'{lost[0].name}' is computed by a block that the schedule does not know")
    body = s_tir.SBlock(
        iter_vars=[],
        reads=block.reads,
        writes=block.writes,
        name_hint=block.name_hint,
        body=code.body,
        alloc_buffers=list(code.workspaces),
        annotations=block.annotations,
    )
    sch.state.replace(root, body)
