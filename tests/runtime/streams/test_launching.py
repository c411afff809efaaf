"""Programs whose kernels are launches of a fatbin, on a played GPU."""

from __future__ import annotations

import pytest
from planned_streams import (
    STEPS,
    Planned,
    functions_of,
    launches_of,
    results,
    same,
)
from played_cudart import PlayedDriver, PlayedRuntime, plug_in
from thread_device import Delays

from autotm.memory.gpu.cuda_device import CudaDevice
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.graph import Launch
from autotm.model.timeline import Lane
from autotm.runtime.streams.executor import LaunchedKernels, prepare_streams
from autotm.runtime.streams.schedule import DeviceArguments, device_bytes


@pytest.mark.parametrize("optimizer", ["synchronous", "asynchronous"])
def test_planned_equals_plain_through_cudas_calls(
    planned: Planned, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = planned.programs[optimizer]
    size_bytes = device_bytes(planned.graph, planned.graph, program)
    for seed in range(5):
        played = PlayedRuntime(order=Delays(seed))
        plug_in(monkeypatch, played, functions_of(planned, played))
        with CudaDevice(0, size_bytes, program.slow_bytes) as device:
            kernels = LaunchedKernels(device, b"fatbin", launches_of(planned))
            arguments = DeviceArguments.of(planned.graph, planned.graph, program, device)
            arguments.fill(1)
            executor = prepare_streams(planned.graph, kernels, program, arguments)
            for _ in range(STEPS - 1):
                executor.queue()
            device.synchronize()
            timeline = executor.timeline()
            assert same(results(planned.graph, arguments), planned.expected)
        assert not played.events
        assert len(timeline.of(Lane.COMPUTE)) == len(planned.graph.kernels)
        assert len(timeline.of(Lane.INWARD)) == len(timeline.of(Lane.OUTWARD)) > 0
        assert all(0 <= one.start_ns <= one.end_ns <= timeline.step_ns for one in timeline.operations)


def test_launches_in_order_each_with_its_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    functions = {name: lambda extents, at, name=name: seen.append((name, *extents, *at)) for name in ("one", "two")}
    plug_in(monkeypatch, PlayedRuntime(), functions)
    launches = {
        "kernel": (Launch("one", (1,), (2, 1, 1), (32, 1, 1)), Launch("two", (0, 1), (1, 1, 1), (64, 1, 1))),
        "unknown": (Launch("three", (), (1, 1, 1), (1, 1, 1)),),
    }
    with CudaDevice(0, 1024, 64) as device:
        kernels = LaunchedKernels(device, b"fatbin", launches)
        first, second = (device.device_pool.view(offset, (4,), "float32") for offset in (0, 64))
        kernels.bind("kernel", [first, second])()
        device.synchronize()
        assert seen == [("one", 2, 1, 1, 32, 1, 1, second), ("two", 1, 1, 1, 64, 1, 1, first, second)]
        with pytest.raises(BadInputError, match="no launches of kernel 'other'"):
            kernels.bind("other", [])
        with pytest.raises(AutotmError, match=r"cuLibraryGetKernel: CUDA_ERROR_NOT_FOUND: .*another graph"):
            kernels.bind("unknown", [])
        with pytest.raises(AutotmError, match=r"CUDA_ERROR_INVALID_IMAGE: the file of kernels is damaged"):
            LaunchedKernels(device, b"", launches)


def test_the_played_driver_has_nvidias_names() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    assert [name for name in vars(PlayedDriver) if name.startswith(("cu", "CU")) and not hasattr(driver, name)] == []
