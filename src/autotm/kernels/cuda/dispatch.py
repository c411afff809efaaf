"""One PrimFunc, possibly fused -> a kernel for a GPU: launches and their source, or a call of cuDNN or cuBLAS."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import tvm
import tvm_ffi
from tvm import s_tir, te, tirx
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
    device_memory,
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
from autotm.kernels.schedules.problem import Problem as Contraction
from autotm.kernels.schedules.problem import problem_of
from autotm.kernels.tables import ScatterLoops, UpdateLoops
from autotm.kernels.tir import Workspace, extents, top_blocks
from autotm.kernels.vendor import operand_bytes
from autotm.model.errors import AutotmError
from autotm.model.graph import DEFAULT_IMPLEMENTATION, OpClass, ScheduleKind
from autotm.model.launch import Convolution, Launch, Product, VendorAlgorithm, VendorCall
from autotm.model.machine import Products

# Functions whose loops are written out (copies, scatters, running sums): their loops shared among threads.

_SHARED = ("element", "column")
"""Names of innermost loops whose iterations are independent of each other."""
_BLOCKS = ("row", "line")
"""Names of outermost loops whose iterations are."""
_THREADS = 256  # Of a block at most.
_FEW = 32  # Of a block at least: a warp.


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
    return [_copy(statement) for statement in (body if isinstance(body, tirx.SeqStmt) else [body])]


def single_thread(func: tirx.PrimFunc) -> tuple[list[Stage], list[tirx.Buffer]]:
    """The last resort: the loops as they are, on one thread; and the workspaces of the function."""
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


_LOG = logging.getLogger(__name__)
_WRITTEN = {"scatter_sum": scatter_sum, "embedding_update": embedding_update}


def cuda_kernel(
    func: tirx.PrimFunc,
    device: CudaDevice,
    implementation: str = DEFAULT_IMPLEMENTATION,
    products: Products = "float32",
) -> CudaKernel:
    """A function by its main block; one that no rule knows runs on a single thread, and a warning says so.

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
    parameters = list(func.params)
    if implementation != DEFAULT_IMPLEMENTATION:
        if op_class not in CONTRACTIONS:
            raise ValueError(f"'{op}' has no implementation '{implementation}'")
        problem = problem_of(sch, sch.get_sblock(op))
        (stages, workspaces), done = contraction_stages(problem, device, implementation, products)
        facts = Facts(op=op, op_class=op_class, flops=flops, kind=ScheduleKind.GENERATED, products=done)
        return kernel_of(stages, parameters, workspaces, facts, device)
    facts = Facts(op=op, op_class=op_class, flops=flops, kind=ScheduleKind.AS_WRITTEN)
    try:
        stages, workspaces, facts = _scheduled(sch, facts, device, products)
    except Exception as error:  # noqa: BLE001  (TVM's checks raise anything; a slow kernel is better than none)
        _LOG.warning("no GPU schedule for '%s', on one thread: %s", op, str(error).strip().splitlines()[-1])
        stages, workspaces = single_thread(func)
    return kernel_of(stages, parameters, workspaces, facts, device)


def _scheduled(
    sch: Schedule, facts: Facts, device: CudaDevice, products: Products
) -> tuple[list[Stage], list[tirx.Buffer], Facts]:
    op = facts.op
    if op in _WRITTEN:
        return _WRITTEN[op](sch, sch.get_sblock(op), device), [], replace(facts, kind=ScheduleKind.GENERATED)
    if facts.op_class in CONTRACTIONS:
        problem = problem_of(sch, sch.get_sblock(op))
        (stages, workspaces), done = contraction_stages(problem, device, DEFAULT_IMPLEMENTATION, products)
        others, kind = implementations(problem, device, products), ScheduleKind.GENERATED
        return stages, workspaces, replace(facts, others=others, kind=kind, products=done)
    stages, workspaces = _general(sch, device)
    return stages, workspaces, replace(facts, kind=ScheduleKind.GENERAL)


def _general(sch: Schedule, device: CudaDevice) -> tuple[list[Stage], list[tirx.Buffer]]:
    inline_intermediates(sch)
    surround_scalars(sch)
    blocks = [read_loops(sch, block) for block in top_blocks(sch)]
    if not blocks or None in blocks:
        return _mixed(sch, device)
    intermediates = _intermediates(sch)
    if (found := rows_of(blocks, intermediates, device)) is not None:
        stage, workspaces = found
        return [stage], workspaces
    return _in_order(blocks, device, intermediates)


def _in_order(
    blocks: list[Loops], device: CudaDevice, intermediates: list[tirx.Buffer]
) -> tuple[list[Stage], list[tirx.Buffer]]:
    """A launch, or several, for each group of blocks."""
    stages: list[Stage] = []
    workspaces = list(intermediates)
    for group in groups_of(blocks):
        if not group[0].nest.reduction:
            stages.append(elementwise(group))
            continue
        found, partial = reduction(group[0], device)
        stages += found
        workspaces += partial
    return stages, workspaces


def _mixed(sch: Schedule, device: CudaDevice) -> tuple[list[Stage], list[tirx.Buffer]]:
    """Blocks of which some are written out."""
    stages: list[Stage] = []
    workspaces = _intermediates(sch)
    for block in top_blocks(sch) or [sch.get_sblock(sch.mod["main"].body.block.name_hint)]:
        loops = read_loops(sch, block)
        if loops is None:
            stages += copies(sch.get(block).body)
            continue
        found, partial = _in_order([loops], device, [])
        stages += found
        workspaces += partial
    return stages, workspaces


def _intermediates(sch: Schedule) -> list[tirx.Buffer]:
    return list(sch.mod["main"].body.block.alloc_buffers)


# A contraction computed by a library of NVIDIA's: its call, and our launches before and after it.
#
# The library computes products and sums. Weights of convolutions are turned for it before; what a kernel is fused with,
# and weights' gradients turned back, are a launch of ours after it.

Shape = tuple[int, int, int, int]
Launched = Launch | VendorCall
_PRODUCTS = ("matmul", "matmul_nt", "matmul_tn")
_WEIGHT_GRADIENT = "conv2d_weight_gradient"


@dataclass(frozen=True)
class VendorKernel:
    """A kernel that calls a library.

    Attributes:
        symbol: name of the kernel.
        identity: hash of the call, with the library's version, and of our launches beside it.
        launches: in the order of execution, on one stream.
        workspaces: shape and dtype of each workspace: turned weights, the product, then the algorithm's own.
        own: our kernels whose functions are launched beside the call.
    """

    symbol: str
    identity: str
    launches: tuple[Launched, ...]
    workspaces: tuple[Workspace, ...]
    own: tuple[CudaKernel, ...]


@dataclass(frozen=True)
class VendorProblem:
    """A function as a contraction that libraries may compute, and what is left of it.

    Attributes:
        problem: as libraries have it.
        contraction: as it was read from the function.
        parameters: of the function.
        op, op_class: of its main block.
        device: that it runs on.
    """

    problem: Convolution | Product
    contraction: Contraction = field(repr=False)
    parameters: tuple[tirx.Buffer, ...] = field(repr=False)
    op: str
    op_class: OpClass
    device: CudaDevice

    def kernel(self, algorithm: VendorAlgorithm) -> VendorKernel:
        """The function by an algorithm."""
        left, right = self._place(self.contraction.left), self._place(self.contraction.right)
        workspaces: list[Workspace] = []

        def workspace(shape: tuple[int, ...], dtype: str) -> int:
            workspaces.append((shape, dtype))
            return len(self.parameters) + len(workspaces) - 1

        before: tuple[Launch, ...] = ()
        after: tuple[Launch, ...] = ()
        if self._turn is not None:
            turned = workspace(_turned(self.problem), "float32")
            before, right = _on(self._turn, [right, turned]), turned
        if self._finish is None:
            result = self._place(self.contraction.product)
        else:
            result = workspace(self._product_shape, "float32")
            after = _on(self._finish, [*range(len(self.parameters)), result])
        scratch = None
        if algorithm.workspace_bytes:
            scratch = workspace((operand_bytes(algorithm.workspace_bytes),), "uint8")
        call = VendorCall(self.problem, algorithm, (left, right, result), scratch)
        own = tuple(kernel for kernel in (self._turn, self._finish) if kernel is not None)
        launches: tuple[Launched, ...] = (*before, call, *after)
        text = f"{launches}\n{[kernel.identity for kernel in own]}\n{workspaces}"
        identity = hashlib.sha256(text.encode()).hexdigest()
        return VendorKernel(f"{self.op}_{algorithm.vendor}_{identity[:12]}", identity, launches, tuple(workspaces), own)

    def _place(self, buffer: tirx.Buffer) -> int:
        return next(place for place, one in enumerate(self.parameters) if one.same_as(buffer))

    @property
    def _product_shape(self) -> tuple[int, ...]:
        """Of the product as the library writes it."""
        return _turned(self.problem) if self.problem.kind == _WEIGHT_GRADIENT else self.contraction.shape

    @cached_property
    def _turn(self) -> CudaKernel | None:
        """Weights as the library reads them."""
        if not isinstance(self.problem, Convolution) or self.problem.kind == _WEIGHT_GRADIENT:
            return None
        return turned_weights(self.problem.w, self.device)

    @cached_property
    def _finish(self) -> CudaKernel | None:
        """From the library's product to the function's outputs, each element once."""
        if self.contraction.plain and self.problem.kind != _WEIGHT_GRADIENT:
            return None
        shape, product = self.contraction.shape, device_memory(self._product_shape, "float32", "product")

        def one(index: tirx.Expr) -> tirx.Stmt:
            at = tir.unravel(index, shape)
            place = index
            if self.problem.kind == _WEIGHT_GRADIENT:
                row, column, channel, feature = at
                place = ((feature * shape[0] + row) * shape[1] + column) * shape[2] + channel
            return self.contraction.finish(at, lambda: tir.load(product, place), index)

        facts = Facts(op=f"{self.op}_finish", op_class=self.op_class, flops=0, kind=ScheduleKind.GENERATED)
        return kernel_of([each(math.prod(shape), 256, one)], self.parameters, [product], facts, self.device)


def vendor_problem(func: tirx.PrimFunc, device: CudaDevice) -> VendorProblem | None:
    """A function whose contraction libraries may compute; None where it has none, or none of theirs."""
    sch = Schedule(tvm.IRModule({"main": func}))
    op, op_class, _ = described(sch)
    if op_class not in CONTRACTIONS:
        return None
    try:
        found = problem_of(sch, sch.get_sblock(op))
    except ValueError:  # What ours runs on one thread is none of theirs either.
        return None
    problem = _problem(found)
    if problem is None or any(str(one.dtype) != "float32" for one in (found.left, found.right, found.product)):
        return None
    return VendorProblem(problem, found, tuple(func.params), op, op_class, device)


def _problem(found: Contraction) -> Convolution | Product | None:
    left, right, result = tuple(extents(found.left)), tuple(extents(found.right)), found.shape
    if found.kind in _PRODUCTS:
        return Product(found.kind, result[0], result[1], found.steps)
    shapes = {
        "conv2d": (left, right, result),
        "conv2d_data_gradient": (result, right, left),
        _WEIGHT_GRADIENT: (left, result, right),
    }
    if found.kind not in shapes:
        return None
    x, w, y = (_four(shape) for shape in shapes[found.kind])
    return Convolution(found.kind, x, w, y, found.stride, found.padding)


def _four(shape: tuple[int, ...]) -> Shape:
    first, second, third, fourth = shape
    return first, second, third, fourth


def _turned(problem: Convolution | Product) -> tuple[int, ...]:
    """Weights (R, S, C, K) as the library has them."""
    assert isinstance(problem, Convolution)
    rows, columns, channels, features = problem.w
    return features, rows, columns, channels


def _on(kernel: CudaKernel, places: list[int]) -> tuple[Launch, ...]:
    """Launches of a kernel whose operands are elsewhere among those of another."""
    return tuple(
        Launch(one.function, tuple(places[place] for place in one.arguments), one.grid, one.block, one.shared_bytes)
        for one in kernel.launches
    )


def turned_weights(shape: Shape, device: CudaDevice) -> CudaKernel:
    """The kernel from our weights (R, S, C, K) to the library's (K, R, S, C)."""
    rows, columns, channels, features = shape
    weights = te.placeholder(shape, name="weights")
    turned = te.compute(
        (features, rows, columns, channels), lambda k, r, s, c: weights[r, s, c, k], name="turned_weights"
    )
    return cuda_kernel(te.create_prim_func([weights, turned]), device)
