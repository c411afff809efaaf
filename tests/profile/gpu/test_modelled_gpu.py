"""Modelled GPUs: rooflines by hand, links, a second implementation that plans choose where its workspace fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotm.check.plan import check_plan
from autotm.model.errors import BadInputError
from autotm.model.graph import Graph, Kernel, OpClass, Operand, Role, Tensor, Tier
from autotm.model.limit import Limit
from autotm.model.machine import GpuFile, load_gpu
from autotm.profile.modelled_gpu import WINOGRAD, modelled_links, roofline_profile, with_winograd, workspace_values
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve

DEVICES = Path(__file__).parents[3] / "config" / "devices"
BATCH, SIZE, CHANNELS = 16, 28, 256
IMAGES = (BATCH, SIZE, SIZE, CHANNELS)


@pytest.fixture
def gpu() -> GpuFile:
    return load_gpu(DEVICES, "rtx-2080-ti")


def convolution(name: str, source: str, result: str, images: tuple[int, ...] = IMAGES, filters: int = 3) -> Kernel:
    batch, height, width, channels = images
    return Kernel(
        name=name,
        function="conv",
        identity=f"conv{images}",
        op="conv2d",
        op_class=OpClass.CONV_FORWARD,
        flops=2 * filters**2 * batch * height * width * channels * CHANNELS,
        inputs=(
            Operand(source, IMAGES, "float32"),
            Operand("weight", (filters, filters, CHANNELS, channels), "float32"),
        ),
        outputs=(Operand(result, images, "float32"),),
    )


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


def test_an_implementation_that_is_no_faster_is_not_offered(gpu: GpuFile) -> None:
    slow_memory = gpu.model_copy(update={"bandwidth": gpu.bandwidth.model_copy(update={"bytes_per_s": 50e9})})
    graph = two_convolutions()
    assert with_winograd(graph, slow_memory) == graph


def test_faults_of_gpu_files_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "gpu"
    folder.mkdir()
    whole = (DEVICES / "gpu" / "h200.yaml").read_text(encoding="utf-8")
    (folder / "bad.yaml").write_text(whole.replace("flop_per_s: 66.9e+12", "flop_per_s: 0"), encoding="utf-8")
    with pytest.raises(BadInputError, match=r"bad.yaml: compute.flop_per_s: 0 is not allowed"):
        load_gpu(tmp_path, "bad")
    with pytest.raises(BadInputError, match=r"no such GPU file \(known: bad\)"):
        load_gpu(tmp_path, "h100")
