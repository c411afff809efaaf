"""Contractions with their exact results, alone and fused, and a played GPU with played libraries to compute them on."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contraction_cases import GROUPED, WINDOWS, Window
from cuda_cases import SMALL, random
from emulated_cuda import EmulatedDevice
from played_cublas import PlayedCublasLt, modules
from played_cudart import PlayedDriver, PlayedRuntime
from played_cudnn import PlayedCudnn
from tvm import te, tirx

from autotm.kernels.cuda import CudaKernel, VendorKernel
from autotm.kernels.operators import conv, matmul
from autotm.memory.gpu import CudaCode, CudaDevice, Delays
from autotm.memory.gpu.cuda import Runtime
from autotm.runtime.streams import LaunchedKernels


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
        **cases(f"forward {number}", lambda x, w: conv.conv2d(x, w, *how), x, w, exact[0]),
        **cases(
            f"data gradient {number}",
            lambda dy, w: conv.conv2d_data_gradient(dy, w, window.x, *how),
            dy,
            w,
            exact[1],
        ),
        **cases(
            f"weight gradient {number}",
            lambda x, dy: conv.conv2d_weight_gradient(x, dy, window.w, *how),
            x,
            dy,
            exact[2],
        ),
    }


def product(kind: str, rows: int, columns: int, steps: int) -> dict[str, Case]:
    a, b = random((rows, steps)), random((steps, columns), 1)
    lying = {"matmul": (a, b), "matmul_nt": (a, b.T.copy()), "matmul_tn": (a.T.copy(), b)}[kind]
    return cases(kind, getattr(matmul, kind), *lying, a.astype(np.float64) @ b)


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


@contextmanager
def called(kernel: VendorKernel, case: Case, played: Played, folder: Path) -> Iterator[Callable[[], np.ndarray]]:
    """A call of the kernel; gives the result, after a look at the bytes between operands.

    Operands start at multiples of 64 bytes, not of more.
    """
    driver = PlayedDriver(played.runtime, own_functions(kernel, folder))
    operands: list[tuple[tuple[int, ...], Any]] = [(array.shape, np.float32) for array in case.inputs]
    operands += [(case.exact.shape, np.float32), *kernel.workspaces]
    places, end = [], 64
    for shape, dtype in operands:
        places.append(end)
        end += -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // 64) * 64 + GUARD_BYTES
    with CudaDevice(0, end, 0, runtime=Runtime(played.runtime)) as device:
        code = CudaCode.load(b"fatbin", 0, driver)
        views = [device.device_pool.view(at, shape, dtype) for at, (shape, dtype) in zip(places, operands, strict=True)]
        memory = [
            played.runtime.bytes_at(view.address, int(np.prod(shape)) * np.dtype(dtype).itemsize + GUARD_BYTES)
            for view, (shape, dtype) in zip(views, operands, strict=True)
        ]
        for held in memory:
            held.fill(0xFF)
        for held, array in zip(memory, case.inputs, strict=False):
            held[: array.nbytes] = np.ascontiguousarray(array).view(np.uint8).ravel()
        bound = LaunchedKernels(code, {"kernel": kernel.launches}, device).bind("kernel", views)

        def call() -> np.ndarray:
            device.compute.launch(bound)
            device.synchronize()
            for held in memory:
                assert (held[-GUARD_BYTES:] == 0xFF).all(), "written outside of an operand"
            size = case.exact.size * 4
            return memory[len(case.inputs)][:size].view(np.float32).reshape(case.exact.shape).copy()

        yield call
