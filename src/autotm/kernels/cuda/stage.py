"""One launch as TIR (blocks, threads, shared memory), and the blocks of a fused function as such launches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import PointerType, PrimType, Range
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from autotm.kernels import tir
from autotm.kernels.cuda.device import WARP
from autotm.kernels.tir import Index, Nest, read_nest

# One launch as TIR: blocks and threads, what one of them does, and functions that write it.
#
# Indices are expressions, never named (`tirx.Bind`): TVM would compute named ones in 64 bits, which takes a GPU several
# times as long. It finds common ones itself.

_AXES = "xyz"
_MOST_BLOCKS = (2**31 - 1, 65535, 65535)  # blocks of a grid in x, y and z (CUDA C++ Programming Guide)
Ids = Sequence[tirx.Expr]


@dataclass(frozen=True)
class Stage:
    """A launch that has no name yet.

    Attributes:
        grid, block: extents of x, y and z.
        body: what every thread does.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    body: tirx.Stmt


def launch(grid: Sequence[int], block: Sequence[int], write: Callable[[Ids, Ids], tirx.Stmt]) -> Stage:
    """Emit a stage: `write` gets the block's and the thread's indices, x first, as int64, and tells what a thread does.

    Raises:
        ValueError: the grid is larger than CUDA allows.
    """
    if any(extent > most for extent, most in zip(grid, _MOST_BLOCKS, strict=False)):
        raise ValueError(f"a grid of {tuple(grid)} blocks; CUDA allows {_MOST_BLOCKS}")
    names = [f"blockIdx.{axis}" for axis in _AXES[: len(grid)]] + [f"threadIdx.{axis}" for axis in _AXES[: len(block)]]
    variables = [tirx.Var(name.replace(".", "_"), "int32") for name in names]
    wide = [tirx.Cast("int64", variable) for variable in variables]
    body = write(wide[: len(grid)], wide[len(grid) :])
    for name, variable, extent in reversed(list(zip(names, variables, (*grid, *block), strict=True))):
        axis = tirx.IterVar(Range(0, extent), variable, tirx.IterVar.ThreadIndex, name)
        body = tirx.AttrStmt(axis, "thread_extent", tirx.IntImm("int32", extent), body)
    (x, y, z, *_), (u, v, w, *_) = (*grid, 1, 1), (*block, 1, 1)
    return Stage((x, y, z), (u, v, w), body)


def each(total: int, threads: int, write: Callable[[tirx.Expr], tirx.Stmt]) -> Stage:
    """Emit `write(index)` for each of `total` indices, a thread each."""
    threads = min(threads, math.ceil(total / WARP) * WARP)
    blocks = math.ceil(total / threads)

    def one(block: Ids, thread: Ids) -> tirx.Stmt:
        index = block[0] * threads + thread[0]
        return tir.choose(total % threads == 0 or index < tir.number(total), write(index), None)

    return launch([blocks], [threads], one)


def barrier() -> tirx.Stmt:
    """Wait for all threads of the block; all of them must come here."""
    return tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))


def shared(elements: int, dtype: str, name: str) -> tirx.Buffer:
    """Return the memory of a thread block."""
    return tirx.decl_buffer((elements,), dtype, name, scope="shared", layout=None)


def local(elements: int, dtype: str, name: str) -> tirx.Buffer:
    """Return registers of a thread, as long as loops over it are unrolled."""
    return tirx.decl_buffer((elements,), dtype, name, scope="local", layout=None)


def device_memory(shape: Sequence[int], dtype: str, name: str) -> tirx.Buffer:
    """Return a workspace."""
    return tirx.decl_buffer(tuple(shape), dtype, name, layout=None)


def load_vector(buffer: tirx.Buffer, offset: Index, lanes: int) -> tirx.Expr:
    """Return the vector at a linear offset, a multiple of `lanes`, which is written so that TVM sees that."""
    return tir.load(buffer, _aligned(offset, lanes), lanes)


def store_vector(buffer: tirx.Buffer, offset: Index, value: tirx.Expr, lanes: int) -> tirx.Stmt:
    """Write a vector at such an offset."""
    return tir.store(buffer, _aligned(offset, lanes), value, lanes)


def _aligned(offset: Index, lanes: int) -> Index:
    return offset if isinstance(offset, int) or lanes == 1 else offset // lanes * lanes


def unrolled(extent: int, body: Callable[[Index], tirx.Stmt], name: str = "u") -> tirx.Stmt:
    """Emit a loop that nvcc unrolls."""
    return tir.loop(extent, body, name, tirx.ForKind.UNROLLED)


def strided(total: int, threads: int, thread: tirx.Expr, body: Callable[[tirx.Expr], tirx.Stmt]) -> tirx.Stmt:
    """Emit the indices below `total` shared among `threads`: neighbours take neighbouring ones."""

    def turn(index: Index) -> tirx.Stmt:
        at = index * threads + thread
        return tir.choose(total % threads == 0 or at < tir.number(total), body(at), None)

    return tir.loop(math.ceil(total / threads), turn, "turn")


Place = Callable[[Sequence[tirx.Expr]], tuple[tirx.Buffer, Sequence[tirx.Expr]]]


def substituted(
    node: Any, variables: Mapping[tirx.Var, tirx.Expr], buffers: Mapping[tirx.Buffer, Place] | None = None
) -> Any:
    """Return a statement or expression with variables replaced, and accesses of some buffers put elsewhere."""
    places = buffers or {}

    def variable(part: tirx.Var, mutator: tvm_ffi.StructuralMutator) -> Any:
        if part not in variables:
            return mutator.default_mutate(part)
        value = variables[part]
        return value if str(value.ty) == str(part.ty) else tirx.Cast(str(part.ty.dtype), value)

    def load(part: ir.TensorLoad, mutator: tvm_ffi.StructuralMutator) -> Any:
        indices = [mutator.mutate(index) for index in part.indices]
        if part.source not in places:
            return tirx.BufferLoad(part.source, indices)
        return tirx.BufferLoad(*places[part.source](indices))

    def store(part: tirx.BufferStore, mutator: tvm_ffi.StructuralMutator) -> Any:
        indices, value = [mutator.mutate(index) for index in part.indices], mutator.mutate(part.value)
        if part.buffer not in places:
            return tirx.BufferStore(part.buffer, value, indices)
        buffer, indices = places[part.buffer](indices)
        return tirx.BufferStore(buffer, value, indices)

    return tvm_ffi.structural_mutate(node, [(ir.TensorLoad, load), (tirx.BufferStore, store), (tirx.Var, variable)])


def _flat(buffer: tirx.Buffer, instead: tirx.Buffer) -> Place:
    """Return the row-major positions in one buffer for indices of another."""
    extents = tir.extents(buffer)

    def place(indices: Sequence[tirx.Expr]) -> tuple[tirx.Buffer, Sequence[tirx.Expr]]:
        *outer, last = indices or [tir.number(0)]
        position: tirx.Expr = tir.number(0)
        for extent, index in zip(extents[1:], outer, strict=True):
            position = (position + tirx.Cast("int64", index)) * extent
        if isinstance(last, tirx.Ramp):
            return instead, [tirx.Ramp(position + tirx.Cast("int64", last.base), last.stride, last.lanes)]
        return instead, [position + tirx.Cast("int64", last)]

    return place


def used_buffers(body: tirx.Stmt) -> set[tirx.Buffer]:
    """Return every buffer that is loaded from or stored to."""
    buffers: set[tirx.Buffer] = set()
    tvm_ffi.structural_walk(body, (ir.TensorLoad, lambda load: buffers.add(load.source)))
    tvm_ffi.structural_walk(body, (tirx.BufferStore, lambda store: buffers.add(store.buffer)))
    return buffers


def device_function(stage: Stage, operands: Sequence[tirx.Buffer], name: str, target: Any) -> tirx.PrimFunc:
    """Return the stage as a function of pointers to the operands that it uses, given in their order."""
    pointers = [tirx.Var(f"p{i}", PointerType(PrimType(str(b.dtype)), "global")) for i, b in enumerate(operands)]
    # Operands are declared anew, as fused functions give some an unknown offset, and flat, by 64-bit positions, which
    # TVM narrows where they fit into 32: those that it makes itself overflow on tensors of more than 2³¹ elements.
    own = [device_memory((tir.number(max(1, tir.elements(b))),), str(b.dtype), f"b{i}") for i, b in enumerate(operands)]
    declared = [tirx.DeclBuffer(b, data=pointer) for b, pointer in zip(own, pointers, strict=True)]
    body = substituted(stage.body, {}, {old: _flat(old, new) for old, new in zip(operands, own, strict=True)})
    attributes = {
        "tirx.noalias": True,
        "global_symbol": name,
        "target": target,
        "calling_conv": 2,
        "tirx.is_global_func": True,
    }
    return tirx.PrimFunc(pointers, tir.sequence([*declared, body])).with_attr(attributes)


# The blocks of a fused function as stages: elementwise ones together, reductions by how their threads can read.

_THREADS = 256  # Threads of a block.


@dataclass(frozen=True)
class Loops:
    """A block with its loops: what is stored at each index, and for a reduction what is there before the first term."""

    nest: Nest
    store: tirx.BufferStore
    init: tirx.BufferStore | None

    @property
    def spatial_extents(self) -> list[int]:
        """Extents of the data-parallel axes."""
        return [self.nest.extents[axis] for axis in self.nest.spatial]

    @property
    def reduced_extents(self) -> list[int]:
        """Extents of the reduced axes."""
        return [self.nest.extents[axis] for axis in self.nest.reduction]

    @property
    def result(self) -> tirx.Buffer:
        """The buffer that the block writes."""
        return self.store.buffer

    def at(self, spatial: tir.Index, reduced: tir.Index = 0) -> dict[tirx.Var, tirx.Expr]:
        """Return the block's variables at row-major positions among its data-parallel and its reduced axes."""
        return self.in_row(0, 0, spatial, reduced)

    def in_row(self, axes: int, row: tir.Index, inner: tir.Index, reduced: tir.Index = 0) -> dict[tirx.Var, tirx.Expr]:
        """Return the values as `at` returns, with the first data-parallel axes at `row` and the others at `inner`."""
        spatial = self.nest.spatial
        return {
            **self._values(spatial[:axes], row),
            **self._values(spatial[axes:], inner),
            **self._values(self.nest.reduction, reduced),
        }

    def _values(self, axes: Sequence[int], position: tir.Index) -> dict[tirx.Var, tirx.Expr]:
        index = tir.unravel(position, [self.nest.extents[axis] for axis in axes])
        return {self.nest.variables[axis]: tir.number(at) for axis, at in zip(axes, index, strict=True)}


def read_loops(sch: Schedule, block: SBlockRV) -> Loops | None:
    """Return a block as loops; None if it is not a plain nest of constant extents."""
    nest, statement = read_nest(sch, block), sch.get(block)
    is_plain = isinstance(statement.init, tirx.BufferStore | None)
    if nest is None or not is_plain or (nest.reduction and statement.init is None):
        return None
    return Loops(nest, statement.body, statement.init)


def groups_of(blocks: Sequence[Loops]) -> list[list[Loops]]:
    """Return neighbouring elementwise blocks of equal extents that one thread can compute at its own element only."""
    groups: list[list[Loops]] = []
    for block in blocks:
        if not groups or not _joins(groups[-1], block):
            groups.append([])
        groups[-1].append(block)
    return groups


def _joins(group: Sequence[Loops], block: Loops) -> bool:
    together = [*group, block]
    if any(item.nest.reduction or item.nest.extents != block.nest.extents for item in together):
        return False
    written = {item.result for item in together}
    least = min(tir.elements(item.result) for item in together)
    # A result may lie in an operand's memory: then each thread must be alone with its element. An operand that is
    # smaller than every result cannot be such memory.
    return all(
        tir.is_own(access.indices, item.nest.variables)
        or (access.buffer not in written and tir.elements(access.buffer) < least)
        for item in together
        for access in item.nest.accesses
    )


def elementwise(group: Sequence[Loops]) -> Stage:
    """Emit a thread for each element."""

    def element(index: tirx.Expr) -> tirx.Stmt:
        return tir.sequence([substituted(block.store, block.at(index)) for block in group])

    return each(group[0].nest.iterations, _THREADS, element)
