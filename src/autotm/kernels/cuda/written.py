"""Functions whose loops are written out (copies, scatters, running sums): their loops shared among threads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from autotm.kernels.code import tir
from autotm.kernels.cuda.device import CudaDevice
from autotm.kernels.cuda.stage import Ids, Place, Stage, each, launch, strided, substituted
from autotm.kernels.operators import ScatterLoops, UpdateLoops

_SHARED = ("element", "column")
"""Names of innermost loops whose iterations are independent of each other."""
_BLOCKS = ("row", "line")
"""Names of outermost loops whose iterations are."""
_THREADS = 256
_FEW = 32


def scatter_sum(sch: Schedule, block: SBlockRV, device: CudaDevice) -> list[Stage]:
    """Each thread owns a column and a range of places, reads all indices and adds what belongs to it: no atomics.

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

        def part(outer: tir.Index, column: tir.Index) -> tirx.Stmt:
            return loops.part(outer, column, 1, 1, mine)

        inside = part(at // scatter.inner, at % scatter.inner)
        return tir.choose(at < tir.number(columns), inside, None)

    return [launch([blocks, parts], [threads], one)]


def embedding_update(sch: Schedule, block: SBlockRV, device: CudaDevice) -> list[Stage]:
    """Each thread owns a column of the rows that are equal modulo the number of blocks: no row has two writers."""
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
    """Loops written for a CPU: outermost ones of independent iterations become blocks, innermost ones threads.

    Raises:
        ValueError: nothing says which loops are independent.
    """
    statements = list(body) if isinstance(body, tirx.SeqStmt) else [body]
    return [_copy(statement) for statement in statements]


def single_thread(func: tirx.PrimFunc) -> tuple[list[Stage], list[tirx.Buffer]]:
    """The last resort: the loops as they are, on one thread; and the workspaces of the function."""
    root = func.body.block
    inner = list(root.alloc_buffers)
    bare = s_tir.SBlock([], [], [], root.name_hint, root.body, root.init, [], [], root.annotations)
    whole = tirx.PrimFunc([*func.params, *inner], s_tir.SBlockRealize([], True, bare), func.ret_type, func.attrs)
    lowered = tvm.transform.Sequential(_UNBLOCKED)(tvm.IRModule({"main": whole}))["main"]
    operands = dict(zip(lowered.params, [*func.params, *inner], strict=True))
    body = substituted(_serial(lowered.body), {}, {new: _instead(old) for new, old in operands.items()})
    return [launch([1], [1], lambda _, __: body)], inner


_UNBLOCKED = [
    s_tir.transform.LowerInitBlock(),
    s_tir.transform.ConvertBlocksToOpaque(),
    s_tir.transform.LowerOpaqueBlock(),
]


def _instead(buffer: tirx.Buffer) -> Place:
    return lambda indices: (buffer, indices)


def _copy(statement: tirx.Stmt) -> Stage:
    if not isinstance(statement, tirx.For):
        return launch([1], [1], lambda _, __: statement)
    name, extent = statement.loop_var.name, int(statement.extent)
    inner = _shared_loops(statement.body)
    if _named(name, _SHARED) or (_named(name, _BLOCKS) and not inner):
        return each(extent, _THREADS, lambda index: _with(statement, index, statement.body))
    if not inner:
        message = f"nothing is known of loop '{name}'"
        raise ValueError(message)
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
    found: list[tirx.For] = []

    def look(loop: tirx.For) -> None:
        if _named(loop.loop_var.name, _SHARED):
            found.append(loop)

    tvm_ffi.structural_walk(body, (tirx.For, look))
    return found


def _over_threads(body: tirx.Stmt, threads: int, thread: tirx.Expr) -> tirx.Stmt:
    def shared(loop: tirx.For) -> tirx.Stmt:
        return strided(int(loop.extent), threads, thread, lambda at: _with(loop, at, loop.body))

    return _rewritten(body, lambda loop: shared(loop) if _named(loop.loop_var.name, _SHARED) else None)


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
