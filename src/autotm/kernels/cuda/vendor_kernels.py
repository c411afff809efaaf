"""A contraction computed by a library of NVIDIA's: its call, and our kernel that turns weights before or after it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from autotm.kernels.code import Workspace, extents
from autotm.kernels.cuda.device import CudaDevice
from autotm.kernels.cuda.dispatch import cuda_kernel
from autotm.kernels.cuda.source import CudaKernel
from autotm.kernels.schedules import CONTRACTIONS, described, problem_of
from autotm.kernels.schedules import Problem as Contraction
from autotm.kernels.vendor import operand_bytes
from autotm.model.step import Convolution, Launch, Product, VendorAlgorithm, VendorCall

Shape = tuple[int, int, int, int]
_PRODUCTS = {"matmul", "matmul_nt", "matmul_tn"}


@dataclass(frozen=True)
class VendorProblem:
    """A function that is one contraction and nothing else.

    Attributes:
        problem: as libraries have it.
        arguments: places of its two factors and its result among the function's parameters.
        parameters: how many these are.
    """

    problem: Convolution | Product
    arguments: tuple[int, int, int]
    parameters: int


@dataclass(frozen=True)
class VendorKernel:
    """A kernel that calls a library.

    Attributes:
        symbol: name of the kernel.
        identity: hash of the call, with the library's version, and of our launches beside it.
        launches: in the order of execution, on one stream.
        workspaces: shape and dtype of each workspace: turned weights, then the algorithm's own.
        turning: our kernel that is launched beside the call.
    """

    symbol: str
    identity: str
    launches: tuple[Launch | VendorCall, ...]
    workspaces: tuple[Workspace, ...]
    turning: CudaKernel | None


def vendor_problem(func: tirx.PrimFunc) -> VendorProblem | None:
    """The contraction that a function is; None where it is fused with other work, not float32, or no library's."""
    sch = Schedule(tvm.IRModule({"main": func}))
    op, op_class, _ = described(sch)
    if op_class not in CONTRACTIONS:
        return None
    try:
        found = problem_of(sch, sch.get_sblock(op))
    except ValueError:
        return None
    parameters = list(func.params)
    operands = (found.left, found.right, found.product)
    if not found.plain or any(str(buffer.dtype) != "float32" for buffer in operands):
        return None
    problem = _problem(found)
    if problem is None:
        return None
    left, right, result = (
        next(place for place, one in enumerate(parameters) if one.same_as(buffer)) for buffer in operands
    )
    return VendorProblem(problem, (left, right, result), len(parameters))


def _problem(found: Contraction) -> Convolution | Product | None:
    left, right, result = _shape(found.left), _shape(found.right), found.shape
    if found.kind in _PRODUCTS:
        return Product(found.kind, result[0], result[1], found.steps)
    shapes = {"conv2d": (left, right, result), "conv2d_data_gradient": (result, right, left),
              "conv2d_weight_gradient": (left, result, right)}  # fmt: skip
    if found.kind not in shapes:
        return None
    x, w, y = (_four(shape) for shape in shapes[found.kind])
    return Convolution(found.kind, x, w, y, found.stride, found.padding)


def _shape(buffer: tirx.Buffer) -> tuple[int, ...]:
    return tuple(extents(buffer))


def _four(shape: tuple[int, ...]) -> Shape:
    first, second, third, fourth = shape
    return first, second, third, fourth


def vendor_kernel(found: VendorProblem, algorithm: VendorAlgorithm, device: CudaDevice) -> VendorKernel:
    """A problem's kernel by an algorithm."""
    arguments, workspaces, turning = list(found.arguments), list[Workspace](), None
    before: tuple[Launch, ...] = ()
    after: tuple[Launch, ...] = ()
    if isinstance(found.problem, Convolution):
        back = found.problem.kind == "conv2d_weight_gradient"
        turning = turned_weights(found.problem.w, device, back=back)
        rows, columns, channels, features = found.problem.w
        weights, turned = 2 if back else 1, found.parameters
        # Its first operand is read, its second written.
        places = (turned, arguments[weights]) if back else (arguments[weights], turned)
        launches = tuple(
            Launch(one.function, tuple(places[place] for place in one.arguments), one.grid, one.block, one.shared_bytes)
            for one in turning.launches
        )
        before, after = ((), launches) if back else (launches, ())
        arguments[weights] = turned
        workspaces.append(((features, rows, columns, channels), "float32"))
    workspace = None
    if algorithm.workspace_bytes:
        workspace = found.parameters + len(workspaces)
        workspaces.append(((operand_bytes(algorithm.workspace_bytes),), "uint8"))
    left, right, result = arguments
    call = VendorCall(found.problem, algorithm, (left, right, result), workspace)
    text = f"{call}\n{turning.identity if turning else ''}\n{before or after}\n{workspaces}"
    identity = hashlib.sha256(text.encode()).hexdigest()
    symbol = f"{found.problem.kind}_{algorithm.vendor}_{identity[:12]}"
    return VendorKernel(symbol, identity, (*before, call, *after), tuple(workspaces), turning)


def turned_weights(shape: Shape, device: CudaDevice, *, back: bool = False) -> CudaKernel:
    """The kernel from our weights (R, S, C, K) to cuDNN's (K, R, S, C), or back."""
    rows, columns, channels, features = shape
    if back:
        weights = te.placeholder((features, rows, columns, channels), name="weights")
        result = te.compute(shape, lambda r, s, c, k: weights[k, r, s, c], name="turned")
    else:
        weights = te.placeholder(shape, name="weights")
        turned = (features, rows, columns, channels)
        result = te.compute(turned, lambda k, r, s, c: weights[r, s, c, k], name="turned")
    return cuda_kernel(te.create_prim_func([weights, result]), device)
