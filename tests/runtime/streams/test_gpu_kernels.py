"""The kernels that a GPU would run, compiled for this processor: planned steps on a played GPU equal plain ones."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import random_graphs
from emulated_cuda import EmulatedDevice
from planned_streams import STEPS, program_at_least_memory
from played_cudart import PlayedDriver, PlayedRuntime
from stream_cases import Values, results, same
from thread_device import Delays, Interleaving, Order

from autotm.kernels.cuda.device import device_named
from autotm.lower.cuda import CudaStep, cuda_step
from autotm.memory.gpu.cuda_device import CudaCode, CudaDevice
from autotm.memory.gpu.cuda_memory import Runtime
from autotm.model.program import Program
from autotm.runtime.streams.executor import LaunchedKernels, prepare_streams
from autotm.runtime.streams.schedule import DeviceArguments, device_bytes
from autotm.runtime.verify import plain_program
from autotm.zoo import build


def functions_of(step: CudaStep, folder: Path) -> dict[str, Callable[..., None]]:
    """Every device function of the step, run by this processor on addresses."""
    compiled = EmulatedDevice(step.kernels.values(), folder)._library

    def call(name: str, extents: list[int], addresses: tuple[int, ...]) -> None:
        grid, block = ((ctypes.c_uint * 3)(*each) for each in (extents[:3], extents[3:]))
        assert not compiled[f"run_{name}"]((ctypes.c_void_p * len(addresses))(*addresses), grid, block, 0)

    return {
        launch.function: functools.partial(call, launch.function)
        for kernel in step.kernels.values()
        for launch in kernel.launches
    }


@pytest.fixture(scope="module")
def step() -> CudaStep:
    return cuda_step(build("mlp", {"batch": 16, "width": 64}), "tiny", device_named("h100"))


def run(step: CudaStep, functions: dict[str, Callable[..., None]], program: Program, order: Order) -> Values:
    played = PlayedRuntime(order=order)
    size_bytes = device_bytes(step.graph, step.graph, program)
    with CudaDevice(0, size_bytes, program.slow_bytes, runtime=Runtime(played)) as device:
        code = CudaCode.load(b"fatbin", PlayedDriver(played, functions))
        arguments = DeviceArguments.of(step.graph, step.graph, program, device)
        arguments.fill(1)
        executor = prepare_streams(step.graph, LaunchedKernels(code, step.launches, device), program, arguments)
        for _ in range(STEPS):
            executor.queue()
        device.synchronize()
        return results(step.graph, arguments)


def test_planned_equals_plain(step: CudaStep, tmp_path: Path) -> None:
    functions = functions_of(step, tmp_path)
    case = random_graphs.Case(
        step.graph, random_graphs.roofline_profile(step.graph, 0), random_graphs.make_links(29.0, 12.0, tiny=True)
    )
    case = random_graphs.with_engines(case, slower=1.5)
    step = CudaStep(case.graph, step.kernels, step.functions)
    expected = run(step, functions, plain_program(case.graph), Order())
    for optimizer in ("synchronous", "asynchronous"):
        program = program_at_least_memory(case, optimizer)
        for order in (Delays(0), Interleaving(0)):
            assert same(run(step, functions, program, order), expected), (optimizer, order)
