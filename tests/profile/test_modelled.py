"""Modelled steps: of GPUs that are not here, by rooflines; at large batches, on the line through small ones."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from random_graphs import StepBuilder

from autotm.check.plan import check_plan
from autotm.model.errors import BadInputError
from autotm.model.files import hash_of
from autotm.model.graph import Graph, Kernel, OpClass, Operand, Role, Tensor, Tier, all_fast, configuration
from autotm.model.limit import Limit
from autotm.model.machine import GpuFile, load_gpu
from autotm.model.profile import Profile, Timing
from autotm.profile.extrapolate import Extrapolation, extrapolate
from autotm.profile.modelled_gpu import (
    WINOGRAD,
    kernel_us,
    modelled_links,
    roofline_profile,
    with_winograd,
    workspace_values,
)
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve

DEVICES = Path(__file__).parents[2] / "config" / "devices"
BATCH, SIZE, CHANNELS = 16, 28, 256
IMAGES = (BATCH, SIZE, SIZE, CHANNELS)


@pytest.fixture
def gpu() -> GpuFile:
    return load_gpu(DEVICES, "rtx-2080-ti")


def convolution(name: str, source: str, result: str, images: tuple[int, ...] = IMAGES, filters: int = 3) -> Kernel:
    batch, height, width, channels = images
    flops = 2 * filters**2 * batch * height * width * channels * CHANNELS
    weight = Operand("weight", (filters, filters, CHANNELS, channels), "float32")
    inputs, outputs = (Operand(source, IMAGES, "float32"), weight), (Operand(result, images, "float32"),)
    return Kernel(name, "conv", f"conv{images}", "conv2d", OpClass.CONV_FORWARD, flops, inputs, outputs)


def two_convolutions() -> Graph:
    kernels = (convolution("first", "data", "t0"), convolution("second", "t0", "t1"))
    size = 4 * BATCH * SIZE * SIZE * CHANNELS
    weight = 4 * 9 * CHANNELS * CHANNELS
    tensors = (
        Tensor("data", Role.INPUT, IMAGES, "float32", size, None, (0,)),
        Tensor("weight", Role.PARAMETER, (3, 3, CHANNELS, CHANNELS), "float32", weight, None, (0, 1)),
        Tensor("t0", Role.INTERMEDIATE, IMAGES, "float32", size, 0, (1,)),
        Tensor("t1", Role.INTERMEDIATE, IMAGES, "float32", size, 1, ()),
    )
    return Graph("convs", "tiny", BATCH, kernels, tensors)


def test_a_kernel_takes_its_launch_and_the_longer_of_computing_and_moving(gpu: GpuFile) -> None:
    graph = two_convolutions()
    first = graph.kernels[0]
    computing_us = 1e6 * first.flops / gpu.compute.flop_per_s
    assert roofline_profile(graph, gpu).base_us(first) == pytest.approx(gpu.launch.kernel_us + computing_us, abs=1e-3)
    idle = replace(first, identity="idle", flops=0)
    moving = replace(graph, kernels=(idle, graph.kernels[1]))
    moved = 2 * 4 * BATCH * SIZE * SIZE * CHANNELS + 4 * 9 * CHANNELS * CHANNELS
    moving_us = 1e6 * moved / gpu.bandwidth.bytes_per_s
    assert roofline_profile(moving, gpu).base_us(idle) == pytest.approx(gpu.launch.kernel_us + moving_us, abs=1e-3)


def test_links_are_a_latency_and_a_rate_each_way(gpu: GpuFile) -> None:
    links = modelled_links(gpu)
    for tier in Tier:
        for size in (10**6, 123_456_789, 10**10):
            expected_us = gpu.link.latency_us + 1e6 * size / 12e9
            assert links.copy_us(tier, size) == pytest.approx(expected_us, rel=1e-4)
            assert links.transfer_us(tier, size) == pytest.approx(expected_us, rel=1e-4)


def test_workspaces_are_those_of_the_transformed_squares() -> None:
    squares = BATCH * (SIZE // 2) ** 2
    assert workspace_values(convolution("c", "a", "b")) == 16 * (CHANNELS**2 + 2 * squares * CHANNELS)
    odd = workspace_values(convolution("c", "a", "b", (BATCH, SIZE - 1, SIZE - 1, CHANNELS)))
    assert odd == workspace_values(convolution("c", "a", "b"))
    for other in (
        convolution("c", "a", "b", (BATCH, SIZE // 2, SIZE // 2, CHANNELS)),
        convolution("c", "a", "b", filters=1),
        replace(convolution("c", "a", "b"), op_class=OpClass.CONV_WEIGHT_GRADIENT),
    ):
        assert workspace_values(other) == 0


def test_winograd_computes_results_of_36_multiplications_with_16(gpu: GpuFile) -> None:
    instant = gpu.model_copy(update={"bandwidth": gpu.bandwidth.model_copy(update={"bytes_per_s": 1e18})})
    kernel = with_winograd(two_convolutions(), instant).kernels[0].computed_by(WINOGRAD)
    expected_us = gpu.launch.kernel_us + 1e6 * kernel.flops * 16 / 36 / gpu.compute.flop_per_s
    assert kernel_us(two_convolutions(), kernel, instant) == pytest.approx(expected_us)


def test_plans_choose_the_implementation_whose_workspace_fits(gpu: GpuFile) -> None:
    graph = with_winograd(two_convolutions(), gpu)
    profile, links, options = roofline_profile(graph, gpu), modelled_links(gpu), SolveOptions(fast_operands_only=True)
    fast, lean = (profile.base_us(graph.kernels[0].computed_by(name)) for name in (WINOGRAD, "default"))
    assert fast < lean
    space = 4 * workspace_values(graph.kernels[0])
    tensor = 4 * BATCH * SIZE * SIZE * CHANNELS
    chosen = {}
    for limit in (2 * tensor + space, tensor + space, 2 * tensor):
        for name in ("synchronous", "asynchronous"):
            plan = solve(graph, profile, links, name, Limit(size_bytes=limit), options)
            check_plan(graph, profile, links, plan, fast_operands_only=True)
            chosen[limit, name] = plan.implementations or ("default", "default")
    for name in ("synchronous", "asynchronous"):
        assert chosen[2 * tensor + space, name] == (WINOGRAD, WINOGRAD)
        assert chosen[tensor + space, name] == (WINOGRAD, "default")
        assert chosen[2 * tensor, name] == ("default", "default")
    slow_memory = gpu.model_copy(update={"bandwidth": gpu.bandwidth.model_copy(update={"bytes_per_s": 50e9})})
    assert with_winograd(two_convolutions(), slow_memory) == two_convolutions(), "it is offered where it is faster"


def test_faults_of_gpu_files_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "gpu"
    folder.mkdir()
    whole = (DEVICES / "gpu" / "h200.yaml").read_text(encoding="utf-8")
    (folder / "bad.yaml").write_text(whole.replace("flop_per_s: 66.9e+12", "flop_per_s: 0"), encoding="utf-8")
    with pytest.raises(BadInputError, match=r"bad.yaml: compute.flop_per_s: 0 is not allowed"):
        load_gpu(tmp_path, "bad")
    with pytest.raises(BadInputError, match=r"no such GPU file \(known: bad\)"):
        load_gpu(tmp_path, "h100")


NS_PER_BYTE = 3


def step(batch: int, *, panel: int = 100, data: int | None = None) -> Graph:
    """Two kernels whose tensors grow with the batch, then an update that does not."""
    builder = StepBuilder()
    builder.argument("weight", 50)
    builder.argument("data", data or 10 * batch, Role.INPUT)
    builder.kernel(["data", "weight"], {"hidden": 40 * batch + 8}, {"padded": 12 * batch, "panel": panel})
    builder.kernel(["hidden"], {"gradient": 50})
    builder.kernel(["gradient", "weight"], {"new": 50}, role=Role.RESULT)
    return replace(builder.graph(), batch=batch)


def profile(graph: Graph, base_ns: list[float]) -> Profile:
    timings = {}
    for kernel, ns in zip(graph.kernels, base_ns, strict=True):
        timings[kernel.identity, "default", all_fast(kernel)] = timing(ns)
        for tensor in graph.slots_of(kernel):
            slow_ns = ns + NS_PER_BYTE * graph.by_name[tensor].size_bytes
            timings[kernel.identity, "default", configuration(graph, kernel, {tensor})] = timing(slow_ns)
    return Profile(hash_of(graph), timings, {"batch": graph.batch})


def timing(ns: float) -> Timing:
    return Timing(round(ns), round(ns), round(ns), round(ns), 9)


def lines(batch: int) -> list[float]:
    return [10_000.0 + 500 * batch, 2_000.0 + 100 * batch, 4_000.0]


def modelled(batch: int, times=lines, panels: tuple[int, ...] = (100, 100, 100)) -> Extrapolation:
    steps = [step(small, panel=panel) for small, panel in zip((2, 4, 8), panels, strict=True)]
    shuffled = random.Random(1).sample(steps, 3)
    return extrapolate([(graph, profile(graph, times(graph.batch))) for graph in shuffled], batch, "huge")


@pytest.mark.parametrize("batch", [8, 9, 4096])
def test_tensors_are_those_of_the_large_step(batch):
    graph, wanted = modelled(batch).graph, step(batch)
    assert set(graph.tensors) == set(wanted.tensors)
    assert graph.live_bytes == wanted.live_bytes
    assert [kernel.operands for kernel in graph.kernels] == [kernel.operands for kernel in wanted.kernels]
    assert (graph.batch, graph.scale) == (batch, "huge")


def test_times_follow_their_lines_and_slow_operands_their_bytes():
    step_model = modelled(1000)
    large = step_model.graph
    for kernel, ns in zip(large.kernels, lines(1000), strict=True):
        assert step_model.profile.base_us(kernel) == pytest.approx(ns / 1e3)
        for tensor in large.slots_of(kernel):
            extra_us = NS_PER_BYTE * large.by_name[tensor].size_bytes / 1e3
            assert step_model.profile.extra_us(large, kernel, tensor) == pytest.approx(extra_us, rel=1e-3)
    assert (step_model.step_error, step_model.kernel_error) == (pytest.approx(0), pytest.approx(0))


def test_the_error_is_that_of_predicting_the_largest_profiled_batch():
    step_model = modelled(1000, lambda batch: [1e6 * batch if batch < 8 else 1e7, 1.0, 1.0])
    assert step_model.step_error == pytest.approx(8e6 / 1e7 - 1, rel=1e-3)
    assert step_model.kernel_error == pytest.approx(0.2, rel=1e-3)


def test_noise_neither_shrinks_a_kernel_nor_makes_it_or_its_workspace_grow_faster_than_the_batch():
    shrinking = modelled(1000, lambda batch: [1e6 / batch, 1.0, 1.0])
    assert shrinking.profile.base_us(shrinking.graph.kernels[0]) == pytest.approx(1e3 / 8)
    leaping = modelled(1000, lambda batch: [1e6 if batch == 8 else 1.0, 1.0, 1.0])
    assert leaping.profile.base_us(leaping.graph.kernels[0]) == pytest.approx(1e3 * 1000 / 8)
    assert modelled(1000, panels=(100, 300, 300)).graph.by_name["panel"].size_bytes == 4 * 300
    assert modelled(1000, panels=(50, 100, 200)).graph.by_name["panel"].size_bytes == 4 * 25 * 1000


def test_steps_that_cannot_be_compared_are_refused():
    graphs = [step(batch) for batch in (2, 4, 8)]
    profiled = [(graph, profile(graph, lines(graph.batch))) for graph in graphs]
    with pytest.raises(BadInputError, match="at least 3"):
        extrapolate(profiled[:2], 100, "huge")
    bad = step(8, data=81)
    with pytest.raises(BadInputError, match=r"'data'|'kernel_0'"):
        extrapolate([*profiled[:2], (bad, profile(bad, lines(8)))], 100, "huge")
    other = replace(graphs[2], kernels=(replace(graphs[2].kernels[0], op="else"), *graphs[2].kernels[1:]))
    with pytest.raises(BadInputError, match="other kernels"):
        extrapolate([*profiled[:2], (other, profile(other, lines(8)))], 100, "huge")
