"""A contraction computed by a library of NVIDIA's: its call, and our launches before and after it.

The library computes products and sums. Weights of convolutions are turned for it before; what a kernel is fused with,
and weights' gradients turned back, are a launch of ours after it.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from functools import cached_property

import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from autotm.kernels.code import Workspace, extents, tir
from autotm.kernels.cuda.device import CudaDevice
from autotm.kernels.cuda.dispatch import cuda_kernel
from autotm.kernels.cuda.source import CudaKernel, Facts, kernel_of
from autotm.kernels.cuda.stage import device_memory, each
from autotm.kernels.schedules import CONTRACTIONS, described, problem_of
from autotm.kernels.schedules import Problem as Contraction
from autotm.kernels.vendor import operand_bytes
from autotm.model.step import Convolution, Launch, OpClass, Product, ScheduleKind, VendorAlgorithm, VendorCall

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

        facts = Facts(f"{self.op}_finish", self.op_class, 0, (), ScheduleKind.GENERATED)
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
