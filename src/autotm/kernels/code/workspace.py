"""Large inner buffers become parameters: a kernel allocates nothing at run time that a plan does not know of.

TVM turns every inner buffer of 1 KiB or more, and every one outside the `global` scope, into a call of its workspace
allocator. Here the large ones are appended to the parameters; the small ones are put into the `global` scope, where
they live on the stack.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir import SBlock
from tvm_ffi import StructuralMutator

from autotm.kernels.code.blocks import size_bytes

STACK_BYTES = 1024
"""Buffers below this live on the stack (runtime::kMaxStackAlloca)."""

Workspace = tuple[tuple[int, ...], str]
"""Shape and dtype."""


def hoist_workspaces(func: tirx.PrimFunc, *, relocate: bool = True) -> tuple[tirx.PrimFunc, tuple[Workspace, ...]]:
    """The function with its large inner buffers as further parameters, in order, and their shapes and dtypes.

    A buffer allocated inside a parallel loop is given one copy for each iteration, by a leading axis.

    Args:
        func: scheduled.
        relocate: first move every buffer to the innermost loops that use it, and shrink it to what one iteration of
            them uses. Wrong for buffers whose contents outlive such an iteration (sums over blocks of a reduction).
    """
    located = _at_their_place(func) if relocate else func
    hoister = _Hoister()
    body = hoister.rewrite(located.body)
    found = hoister.found
    workspaces = tuple((tuple(int(extent) for extent in buffer.shape), str(buffer.dtype)) for buffer in found)
    return tirx.PrimFunc([*located.params, *found], body, located.ret_type, located.attrs), workspaces


def _at_their_place(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Allocate each buffer where it is used, at the size that is used there."""
    passes = [
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.StmtSimplify(),
    ]
    return tvm.transform.Sequential(passes)(tvm.IRModule({"main": func}))["main"]


class _Hoister:
    """Rewrites a body: large buffers are taken out (`found`), small ones put into the `global` scope."""

    def __init__(self) -> None:
        self.found: list[tirx.Buffer] = []
        self._parallel: list[tirx.For] = []
        self._new: dict[tirx.Buffer, tuple[tirx.Buffer, list[tirx.Expr]]] = {}

    def rewrite(self, body: tirx.Stmt) -> tirx.Stmt:
        """The body without large allocations."""
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
        try:
            return mutator.default_mutate(loop)
        finally:
            self._parallel.pop()

    def _block(self, block: SBlock, mutator: StructuralMutator) -> SBlock:
        kept = [new for new in map(self._place, block.alloc_buffers) if new is not None]
        bare = SBlock(
            block.iter_vars,
            block.reads,
            block.writes,
            block.name_hint,
            block.body,
            block.init,
            [],
            block.match_buffers,
            block.annotations,
        )
        bare = mutator.default_mutate(bare)
        return SBlock(
            bare.iter_vars,
            bare.reads,
            bare.writes,
            bare.name_hint,
            bare.body,
            bare.init,
            kept,
            bare.match_buffers,
            bare.annotations,
        )

    def _place(self, buffer: tirx.Buffer) -> tirx.Buffer | None:
        """Decide where a buffer lives; its allocation if it stays."""
        shape = [int(extent) for extent in buffer.shape]
        is_small = size_bytes(buffer) < STACK_BYTES
        leading = [] if is_small else [(loop.loop_var - loop.min, int(loop.extent)) for loop in self._parallel]
        new = tirx.decl_buffer([*(extent for _, extent in leading), *shape], buffer.dtype, buffer.name, layout=None)
        self._new[buffer] = new, [index for index, _ in leading]
        if is_small:
            return new
        self.found.append(new)
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
