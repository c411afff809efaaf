"""On a real GPU, where there is one with nvcc: bytes, time, views for TVM, and planned steps equal to plain ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import random_graphs
import small_step
from planned_streams import ONLY_FAST, SIZES, Values, program_at_least_memory, results

from autotm.kernels.cuda.device import device_named
from autotm.kernels.library import FatbinLibrary
from autotm.layout.compile import compile_program
from autotm.lower.cuda import lower_for_gpu
from autotm.memory.gpu.cuda_device import CudaDevice
from autotm.memory.gpu.cuda_memory import DeviceMemoryError, Span
from autotm.memory.gpu.opening import gpu_facts, open_device
from autotm.model.errors import AutotmError
from autotm.model.graph import Graph
from autotm.model.limit import Limit
from autotm.model.machine import CudaTier, Products
from autotm.model.program import Program
from autotm.model.timeline import Lane
from autotm.runtime.step_times import RunOptions
from autotm.runtime.streams.executor import LaunchedKernels, open_machines_gpu, plain_on_device, prepare_streams
from autotm.runtime.streams.run import profile_on_gpu, run_on_device
from autotm.runtime.streams.schedule import DeviceArguments, device_bytes
from autotm.runtime.verify import Digests, digested, plain_program
from autotm.solve.placing import solve_and_pack
from autotm.zoo import build


def here() -> bool:
    try:
        return bool(gpu_facts()) and shutil.which("nvcc") is not None
    except AutotmError:
        return False


pytestmark = pytest.mark.skipif(not here(), reason="no GPU, or no nvcc")
MACHINE = replace(small_step.machine(), slow_tier=CudaTier(kind="cuda"))
MIB = 1 << 20


def test_bytes_go_out_and_come_back_and_take_time() -> None:
    with open_device(MACHINE, 64 * MIB, 64 * MIB) as device:
        fast, slow = (Span(pool, 0, 64 * MIB) for pool in (device.device_pool, device.host_pool))
        values = np.random.default_rng(0).integers(256, size=64 * MIB, dtype=np.uint8)
        device.write(fast, values)
        begin, end = device.event(timed=True), device.event(timed=True)
        device.outward.record(begin)
        device.outward.copy(slow, fast)
        device.outward.record(end)
        device.compute.wait(end)
        device.compute.fill(fast, 0)
        device.synchronize()
        assert not device.read(fast).any()
        np.testing.assert_array_equal(device.read(slow), values)
        assert 100_000 < device.elapsed_ns(begin, end) < 1_000_000_000, "64 MiB at 0.07 to 700 GB/s"


def lowered(name: str, folder: Path, products: Products = "float32") -> tuple[random_graphs.Case, FatbinLibrary]:
    """A network for this GPU, profiled on it, and its kernels."""
    files = folder / "graph.json", folder / "kernels.zip"
    graph = lower_for_gpu(build(name, SIZES[name]), "tiny", device_named("h100"), *files, {}, products=products)
    library = FatbinLibrary.load(files[1])
    profile, links = profile_on_gpu(graph, library, MACHINE, 3, {}), random_graphs.make_links(25.0, 25.0, tiny=True)
    return random_graphs.with_engines(random_graphs.Case(graph, profile, links)), library


def values_after(graph: Graph, library: FatbinLibrary, program: Program) -> tuple[Values, list[Lane]]:
    with open_machines_gpu(MACHINE, library, device_bytes(graph, graph, program), program.slow_bytes) as opened:
        arguments = DeviceArguments.of(graph, graph, program, opened[0])
        arguments.fill(1)
        executor = prepare_streams(graph, opened[1], program, arguments)
        for _ in range(3):
            executor.queue()
        opened[0].synchronize()
        return results(graph, arguments), [one.lane for one in executor.timeline().operations]


@pytest.mark.parametrize("products", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("name", sorted(SIZES))
def test_planned_equals_plain(name: str, products: Products, tmp_path: Path) -> None:
    case, library = lowered(name, tmp_path, products)
    plain, _ = values_after(case.graph, library, plain_program(case.graph))
    for optimizer in ("synchronous", "asynchronous"):
        values, lanes = values_after(case.graph, library, program_at_least_memory(case, optimizer))
        assert {Lane.INWARD, Lane.OUTWARD} <= set(lanes)
        for tensor, expected in plain.items():
            np.testing.assert_array_equal(values[tensor], expected)


@pytest.mark.parametrize("optimizer", ["managed-memory", "lru-paging", "swap-all", "recompute"])
def test_rivals_equal_the_plain_step(optimizer: str, tmp_path: Path) -> None:
    """With a limit that managed memory keeps anyway: to exceed the GPU's memory may hang it, which no test risks."""
    case, library = lowered("mlp", tmp_path)
    least = f"{program_at_least_memory(case, 'synchronous').fast_bytes}B"
    limit = Limit.parse(least if optimizer == "lru-paging" else "0:1")
    plan, layout = solve_and_pack(case.graph, case.profile, case.links, optimizer, limit, ONLY_FAST)
    program = compile_program(case.graph, plan, layout)
    options = RunOptions(min_seconds=0.01, patience_s=0.05, verify_steps=2)
    opened = partial(open_machines_gpu, MACHINE, library)
    record, timeline = run_on_device(case.graph, program, plan, MACHINE, case.links, case.profile, options, opened)
    assert (record.verified_steps, record.fits) == (2, True)
    assert bool(timeline.of(Lane.INWARD)) == (optimizer in {"lru-paging", "swap-all"})


def test_kernel_by_kernel_equals_the_plain_step(tmp_path: Path) -> None:
    case, library = lowered("mlp", tmp_path)
    graph = case.graph
    plain_bytes = device_bytes(graph, graph, plain_program(graph))

    def within(most_bytes: int) -> tuple[str, Digests]:
        @contextmanager
        def opened(device_bytes: int, host_bytes: int, **_: object) -> Iterator[tuple[CudaDevice, LaunchedKernels]]:
            if device_bytes > most_bytes:
                raise DeviceMemoryError("as on a smaller GPU")
            with open_machines_gpu(MACHINE, library, device_bytes, host_bytes) as pair:
                yield pair

        with plain_on_device(graph, opened) as (how, executor):
            return how, digested(graph, executor, 1, 3)

    whole, single = within(plain_bytes), within(plain_bytes - 1)
    assert whole[0] != single[0]
    assert whole[1] == single[1]
