"""One PrimFunc, possibly fused -> a kernel for a GPU: launches and their source."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from autotm.kernels import tir
from autotm.kernels.cuda.contraction import contraction_stages, implementations
from autotm.kernels.cuda.device import CudaDevice
from autotm.kernels.cuda.reductions import reduction, rows_of
from autotm.kernels.cuda.source import CudaKernel, Facts, kernel_of
from autotm.kernels.cuda.stage import (
    Ids,
    Loops,
    Stage,
    each,
    elementwise,
    groups_of,
    launch,
    read_loops,
    strided,
    substituted,
)
from autotm.kernels.schedules.dispatch import CONTRACTIONS, FRAMEWORK, described
from autotm.kernels.schedules.memory_bound import inline_intermediates, surround_scalars
from autotm.kernels.schedules.problem import problem_of
from autotm.kernels.tables import ScatterLoops, UpdateLoops
from autotm.kernels.tir import top_blocks
from autotm.model.errors import AutotmError
from autotm.model.graph import DEFAULT_IMPLEMENTATION, ScheduleKind
from autotm.model.machine import Products

# Functions whose loops are written out (copies, scatters, running sums): their loops shared among threads.

_SHARED = ("element", "column")
"""Names of innermost loops whose iterations are independent of each other."""
_BLOCKS = ("row", "line")
"""Names of outermost loops whose iterations are independent of each other."""
_THREADS = 256  # Threads of a block, at most.
_FEW = 32  # Threads of a block, at least: a warp.


def scatter_sum(sch: Schedule, block: SBlockRV, device: CudaDevice) -> list[Stage]:
    """Emit code in which a thread owns a column and a range of places and reads all indices, without atomics.

    Entries of one place are added in their order, as on a CPU.
    """
    loops = ScatterLoops.of(sch, block)
    scatter = loops.scatter
    columns = scatter.outer * scatter.inner
    threads = min(_THREADS, max(_FEW, 1 << (columns - 1).bit_length()))
    blocks = math.ceil(columns / threads)
    parts = max(1, min(scatter.places, math.ceil(4 * device.multiprocessors / blocks)))

    def one(ids: Ids, thread: Ids) -> tirx.Stmt:
        at = ids[0] * threads + thread[0]
        first, last = tir.share(ids[1], parts, scatter.places)
        mine = None if parts == 1 else (tir.number(first), tir.number(last))
        inside = loops.part(at // scatter.inner, at % scatter.inner, 1, 1, mine)
        return tir.choose(at < tir.number(columns), inside, None)

    return [launch([blocks, parts], [threads], one)]


def embedding_update(sch: Schedule, block: SBlockRV, device: CudaDevice) -> list[Stage]:
    """Emit code in which a thread owns a column of rows equal modulo the number of blocks: no row has two writers."""
    update = UpdateLoops.of(sch, block)
    threads = max(_FEW, 1 << (update.width - 1).bit_length())
    columns = min(threads, _THREADS)
    groups = math.ceil(update.width / columns)
    buckets = 8 * device.multiprocessors

    def one(ids: Ids, thread: Ids) -> tirx.Stmt:
        column = ids[1] * columns + thread[0]
        return update.rows(1, lambda row: tirx.truncmod(row, tir.number(buckets)) == ids[0], column)

    return [launch([buckets, groups], [columns], one)]


def copies(body: tirx.Stmt) -> list[Stage]:
    """Emit loops written for a CPU: outermost ones of independent iterations become blocks, innermost ones threads.

    Raises:
        ValueError: nothing says which loops are independent.
    """
    named: dict[tirx.Var, tirx.Expr] = {}
    stages = []
    for statement in body if isinstance(body, tirx.SeqStmt) else [body]:
        if isinstance(statement, tirx.Bind):  # A row of its own: each launch computes it anew.
            named[statement.var] = substituted(statement.value, named)
        else:
            stages.append(_copy(substituted(statement, named)))
    return stages


def single_thread(func: tirx.PrimFunc) -> tuple[list[Stage], list[tirx.Buffer]]:
    """Return the last resort: the loops as they are, on one thread; and the workspaces of the function."""
    root = func.body.block
    inner = list(root.alloc_buffers)
    bare = s_tir.SBlock([], [], [], root.name_hint, root.body, root.init, [], [], root.annotations)
    whole = tirx.PrimFunc([*func.params, *inner], s_tir.SBlockRealize([], True, bare), func.ret_type, func.attrs)
    lowered = tvm.transform.Sequential(_UNBLOCKED)(tvm.IRModule({"main": whole}))["main"]
    places = {
        new: lambda indices, old=old: (old, indices)
        for new, old in zip(lowered.params, [*func.params, *inner], strict=True)
    }
    body = substituted(_serial(lowered.body), {}, places)
    return [launch([1], [1], lambda _, __: body)], inner


_UNBLOCKED = [
    s_tir.transform.LowerInitBlock(),
    s_tir.transform.ConvertBlocksToOpaque(),
    s_tir.transform.LowerOpaqueBlock(),
]


def _copy(statement: tirx.Stmt) -> Stage:
    if not isinstance(statement, tirx.For):
        return launch([1], [1], lambda _, __: statement)
    name, extent = statement.loop_var.name, int(statement.extent)
    inner = _shared_loops(statement.body)
    if _named(name, _SHARED) or (_named(name, _BLOCKS) and not inner):
        return each(extent, _THREADS, lambda index: _with(statement, index, statement.body))
    if not inner:
        raise ValueError(f"nothing is known of loop '{name}'")
    widest = max(int(loop.extent) for loop in inner)
    threads = min(_THREADS, max(_FEW, 1 << (widest - 1).bit_length()))
    if _named(name, _BLOCKS):
        return launch(
            [extent], [threads], lambda ids, at: _with(statement, ids[0], _over_threads(statement.body, threads, at[0]))
        )
    return launch([1], [threads], lambda _, at: _over_threads(_serial(statement), threads, at[0]))


def _with(loop: tirx.For, index: tirx.Expr, body: tirx.Stmt) -> tirx.Stmt:
    return substituted(body, {loop.loop_var: index})


def _named(name: str, names: Sequence[str]) -> bool:
    return name.rstrip("_0123456789") in names


def _shared_loops(body: tirx.Stmt) -> list[tirx.For]:
    loops: list[tirx.For] = []
    tvm_ffi.structural_walk(body, (tirx.For, loops.append))
    return [loop for loop in loops if _named(loop.loop_var.name, _SHARED)]


def _over_threads(body: tirx.Stmt, threads: int, thread: tirx.Expr) -> tirx.Stmt:
    def shared(loop: tirx.For) -> tirx.Stmt | None:
        if not _named(loop.loop_var.name, _SHARED):
            return None
        return strided(int(loop.extent), threads, thread, lambda at: _with(loop, at, loop.body))

    return _rewritten(body, shared)


def _serial(body: tirx.Stmt) -> tirx.Stmt:
    def serial(loop: tirx.For) -> tirx.Stmt | None:
        if loop.kind == tirx.ForKind.SERIAL:
            return None
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, _serial(loop.body))

    return _rewritten(body, serial)


def _rewritten(body: tirx.Stmt, change: Callable[[tirx.For], tirx.Stmt | None]) -> tirx.Stmt:
    def visit(loop: tirx.For, mutator: tvm_ffi.StructuralMutator) -> tirx.Stmt:
        changed = change(loop)
        return mutator.default_mutate(loop) if changed is None else changed

    return tvm_ffi.structural_mutate(body, [(tirx.For, visit)])


_LOG = logging.getLogger(__name__)
_WRITTEN = {"scatter_sum": scatter_sum, "embedding_update": embedding_update}


def cuda_kernel(
    func: tirx.PrimFunc,
    device: CudaDevice,
    implementation: str = DEFAULT_IMPLEMENTATION,
    products: Products = "float32",
) -> CudaKernel:
    """Return a function by its main block; one that no rule knows runs on a single thread, and a warning says so.

    Args:
        func: neither scheduled nor compiled.
        device: what it is tiled for.
        implementation: `default`, or one of its `others`.
        products: what contractions may round their factors to. Whether this one does, its own `products` says.

    Raises:
        ValueError: there is no such implementation of it.
        AutotmError: a framework computes it, on the processor.
    """
    if FRAMEWORK in func.attrs:
        raise AutotmError(
            f"operator {func.attrs[FRAMEWORK]} has no kernel here, and its framework's runs on the processor: steps on "
            "a GPU take kernels='tvm'"
        )
    sch = Schedule(tvm.IRModule({"main": func}))
    op, op_class, flops = described(sch)
    if implementation != DEFAULT_IMPLEMENTATION and op_class not in CONTRACTIONS:
        raise ValueError(f"'{op}' has no implementation '{implementation}'")
    facts = Facts(op=op, op_class=op_class, flops=flops, kind=ScheduleKind.AS_WRITTEN)
    try:
        stages, workspaces, facts = _scheduled(sch, facts, device, implementation, products)
    except Exception as error:  # TVM's checks raise anything; a slow kernel is better than none.
        if implementation != DEFAULT_IMPLEMENTATION:
            raise
        _LOG.warning("no GPU schedule for '%s', on one thread: %s", op, str(error).strip().splitlines()[-1])
        stages, workspaces = single_thread(func)
    return kernel_of(stages, list(func.params), workspaces, facts, device)


def _scheduled(
    sch: Schedule, facts: Facts, device: CudaDevice, implementation: str, products: Products
) -> tuple[list[Stage], list[tirx.Buffer], Facts]:
    op = facts.op
    if op in _WRITTEN:
        return _WRITTEN[op](sch, sch.get_sblock(op), device), [], replace(facts, kind=ScheduleKind.GENERATED)
    if facts.op_class in CONTRACTIONS:
        problem = problem_of(sch, sch.get_sblock(op))
        (stages, workspaces), done = contraction_stages(problem, device, implementation, products)
        others = implementations(problem, device, products) if implementation == DEFAULT_IMPLEMENTATION else ()
        return stages, workspaces, replace(facts, others=others, kind=ScheduleKind.GENERATED, products=done)
    stages, workspaces = _general(sch, device)
    return stages, workspaces, replace(facts, kind=ScheduleKind.GENERAL)


def _general(sch: Schedule, device: CudaDevice) -> tuple[list[Stage], list[tirx.Buffer]]:
    """Return one launch if the function works row by row, else some for each group of blocks; and the workspaces."""
    inline_intermediates(sch)
    surround_scalars(sch)
    own = top_blocks(sch) or [sch.get_sblock(sch.mod["main"].body.block.name_hint)]
    blocks = [read_loops(sch, block) for block in own]
    intermediates = list(sch.mod["main"].body.block.alloc_buffers)
    unread = [sch.get(block) for block, loops in zip(own, blocks, strict=True) if loops is None]
    if any(block.iter_vars for block in unread):
        raise ValueError(f"nothing is known of block '{unread[0].name_hint}'")
    if unread:  # They hold written-out loops.
        parts = [
            (copies(sch.get(block).body), []) if loops is None else _of_group([loops], device)
            for block, loops in zip(own, blocks, strict=True)
        ]
    elif (in_rows := rows_of(blocks, intermediates, device)) is not None:
        stage, workspaces = in_rows
        return [stage], workspaces
    else:
        parts = [_of_group(group, device) for group in groups_of(blocks)]
    stages, partial = (list(itertools.chain.from_iterable(each)) for each in zip(*parts, strict=True))
    return stages, [*intermediates, *partial]


def _of_group(group: list[Loops], device: CudaDevice) -> tuple[list[Stage], list[tirx.Buffer]]:
    return reduction(group[0], device) if group[0].nest.reduction else ([elementwise(group)], [])
