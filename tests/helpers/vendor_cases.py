"""Contractions with their exact results, alone and fused, and a played GPU with played libraries to compute them on."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from contraction_cases import GROUPED, WINDOWS, Window
from cuda_cases import SMALL, random
from emulated_cuda import EmulatedDevice
from played_cublas import PlayedCublasLt, modules
from played_cudart import PlayedDriver, PlayedRuntime
from played_cudnn import PlayedCudnn
from thread_device import Delays
from tvm import te, tirx

from autotm.kernels import contractions
from autotm.kernels.cuda.dispatch import VendorKernel
from autotm.kernels.cuda.source import CudaKernel
from autotm.memory.gpu.cuda_device import CudaCode, CudaDevice
from autotm.memory.gpu.cuda_memory import Runtime
from autotm.memory.gpu.interface import Span
from autotm.runtime.streams.executor import LaunchedKernels


@dataclass(frozen=True)
class Case:
    """A function with one contraction, values of its inputs, and the exact result."""

    func: tirx.PrimFunc
    inputs: list[np.ndarray]
    exact: np.ndarray


def cases(
    name: str, function: Callable[..., te.Tensor], left: np.ndarray, right: np.ndarray, exact: np.ndarray
) -> dict[str, Case]:
    """A contraction alone, and with an epilogue that reads an operand of its shape and one of its last axis."""
    operands = [te.placeholder(array.shape, name=f"p{slot}") for slot, array in enumerate((left, right))]
    result = function(*operands)
    whole, bias = te.placeholder(result.shape, name="whole"), te.placeholder(result.shape[-1:], name="bias")
    end = te.compute(result.shape, lambda *i: result(*i) * 0.5 + whole(*i) + bias(i[-1]), name="end")
    more = [random(exact.shape, 8), random(exact.shape[-1:], 9)]
    return {
        name: Case(te.create_prim_func([*operands, result]), [left, right], exact),
        f"fused {name}": Case(
            te.create_prim_func([*operands, whole, bias, end]), [left, right, *more], exact * 0.5 + more[0] + more[1]
        ),
    }


def passes(number: str, window: Window, groups: int) -> dict[str, Case]:
    x, w, dy = random(window.x, 0), random(window.w, 1), random(window.y, 2)
    how = (window.stride, window.padding, groups)
    wide, features = window.w[2], window.w[3] // groups
    one = Window((*window.x[:3], wide), (*window.w[:3], features), window.stride, window.padding)
    parts = [(slice(g * wide, (g + 1) * wide), slice(g * features, (g + 1) * features)) for g in range(groups)]
    exact = [
        np.concatenate(each, axis=-1)
        for each in zip(
            *(
                (
                    one.forward(x[..., c], w[..., k]),
                    one.data_gradient(dy[..., k], w[..., k]),
                    one.weight_gradient(x[..., c], dy[..., k]),
                )
                for c, k in parts
            ),
            strict=True,
        )
    ]
    return {
        **cases(f"forward {number}", lambda x, w: contractions.conv2d(x, w, *how), x, w, exact[0]),
        **cases(
            f"data gradient {number}",
            lambda dy, w: contractions.conv2d_data_gradient(dy, w, window.x, *how),
            dy,
            w,
            exact[1],
        ),
        **cases(
            f"weight gradient {number}",
            lambda x, dy: contractions.conv2d_weight_gradient(x, dy, window.w, *how),
            x,
            dy,
            exact[2],
        ),
    }


def product(kind: str, rows: int, columns: int, steps: int) -> dict[str, Case]:
    a, b = random((rows, steps)), random((steps, columns), 1)
    lying = {"matmul": (a, b), "matmul_nt": (a, b.T.copy()), "matmul_tn": (a.T.copy(), b)}[kind]
    return cases(kind, getattr(contractions, kind), *lying, a.astype(np.float64) @ b)


CASES: dict[str, Case] = {
    **passes("2", WINDOWS[2], 1),
    **passes("6", WINDOWS[6], 1),
    **passes("12", WINDOWS[12], 1),
    **passes("grouped", *GROUPED[2]),
    **product("matmul", 37, 50, 29),
    **product("matmul_nt", 37, 50, 29),
    **product("matmul_tn", 37, 50, 29),
}
DEVICE = SMALL


@dataclass(frozen=True)
class Played:
    """A played GPU's runtime, and the libraries that are installed beside it."""

    runtime: PlayedRuntime
    cudnn: PlayedCudnn
    lt: PlayedCublasLt


def installed(patch: pytest.MonkeyPatch, runtime: PlayedRuntime | None = None) -> Played:
    """Both libraries among the modules of Python."""
    played = runtime or PlayedRuntime(order=Delays(0))
    cudnn, lt = PlayedCudnn(played), PlayedCublasLt(played)
    for name, module in {"cudnn": cudnn, **modules(lt)}.items():
        patch.setitem(sys.modules, name, module)
    return Played(played, cudnn, lt)


def missing(patch: pytest.MonkeyPatch) -> None:
    """Neither, whatever the computer has."""
    for name in ("cudnn", "nvmath", "nvmath.bindings", "nvmath.bindings.cublas", "nvmath.bindings.cublasLt"):
        patch.setitem(sys.modules, name, None)


Functions = dict[str, Callable[..., None]]
_compiled: dict[str, Functions] = {}


def own_functions(kernel: VendorKernel, folder: Path) -> Functions:
    """Device functions of a kernel's own launches; those of one kernel are compiled once."""
    found: Functions = {}
    for one in kernel.own:
        if one.symbol not in _compiled:
            (folder / one.symbol).mkdir()
            _compiled[one.symbol] = functions_of([one], folder / one.symbol)
        found |= _compiled[one.symbol]
    return found


def functions_of(kernels: Iterable[CudaKernel], folder: Path) -> Functions:
    """Device functions, run by this processor on addresses."""
    listed = list(kernels)
    compiled = EmulatedDevice(listed, folder)._library

    def call(name: str, extents: list[int], addresses: tuple[int, ...]) -> None:
        grid, block = ((ctypes.c_uint * 3)(*each) for each in (extents[:3], extents[3:]))
        assert not compiled[f"run_{name}"]((ctypes.c_void_p * len(addresses))(*addresses), grid, block, 0)

    return {
        launch.function: functools.partial(call, launch.function) for kernel in listed for launch in kernel.launches
    }


GUARD_BYTES = 256


def laid(kernel: VendorKernel, case: Case) -> tuple[list[tuple[tuple[int, ...], str]], list[int], int]:
    """Operands of a kernel, where each begins, and where all end: at multiples of 64 bytes, with room between them."""
    operands = [(array.shape, "float32") for array in case.inputs]
    operands += [(case.exact.shape, "float32"), *kernel.workspaces]
    places, end = [], 64
    for shape, dtype in operands:
        places.append(end)
        end += -(-_bytes(shape, dtype) // 64) * 64 + GUARD_BYTES
    return operands, places, end


def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    return int(np.prod(shape)) * np.dtype(dtype).itemsize


def computed(kernel: VendorKernel, case: Case, device: CudaDevice, code: CudaCode) -> list[np.ndarray]:
    """The results of two calls, each after a look at the bytes behind operands."""
    operands, places, end = laid(kernel, case)
    pool = device.device_pool
    views = [pool.view(at, shape, dtype) for at, (shape, dtype) in zip(places, operands, strict=True)]
    device.write(Span(pool, 0, end), np.full(end, 0xFF, np.uint8))
    for at, array in zip(places, case.inputs, strict=False):
        device.write(Span(pool, at, array.nbytes), array)
    bound = LaunchedKernels(code, {"kernel": kernel.launches}, device).bind("kernel", views)
    found = []
    for _ in range(2):
        device.compute.launch(bound)
        device.synchronize()
        for at, (shape, dtype) in zip(places, operands, strict=True):
            behind = device.read(Span(pool, at + _bytes(shape, dtype), GUARD_BYTES))
            assert (behind == 0xFF).all(), "written outside of an operand"
        result = Span(pool, places[len(case.inputs)], case.exact.size * 4)
        found.append(device.read(result).view(np.float32).reshape(case.exact.shape))
    return found


def played_results(kernel: VendorKernel, case: Case, played: Played, folder: Path) -> list[np.ndarray]:
    """As `computed`, on a played GPU."""
    driver = PlayedDriver(played.runtime, own_functions(kernel, folder))
    with CudaDevice(0, laid(kernel, case)[2], 0, runtime=Runtime(played.runtime)) as device:
        return computed(kernel, case, device, CudaCode.load(b"fatbin", 0, driver))
