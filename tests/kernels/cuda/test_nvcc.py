"""Kernels of three networks compile within the limits that a GPU runs them well in, on tensor cores too."""

from __future__ import annotations

import warnings
from dataclasses import replace
from importlib.util import find_spec

import pytest
from cuda_contractions import by_tiling, product
from tvm import te

from autotm import zoo
from autotm.kernels.cuda import source as compiling
from autotm.kernels.cuda.contraction import Tiling, warp_tiles
from autotm.kernels.cuda.device import DEVICES
from autotm.kernels.cuda.source import ARCHITECTURES, Usage, fatbin, find_nvcc, translation_unit, usage_in
from autotm.lower.cuda import cuda_step
from autotm.model.errors import AutotmError
from autotm.model.files import hash_of
from autotm.model.graph import ScheduleKind

NETWORKS = {"mnist": {"batch": 16, "image": 28}, "dlrm": {"batch": 16, "rows": 1000}}
MORE = {"transformer": {"batch": 1, "sequence": 8, "vocabulary": 500}}
MOST_SPILLED_BYTES = 0
MOST_SHARED_BYTES = 48 << 10
SPILLED_FOR_ANOTHER_BLOCK = 32
"""Bytes that kernels on tensor cores may spill: ptxas spills a few rather than have one resident block fewer."""
LEAST_RESIDENT_THREADS = 256
"""Threads that the registers of a multiprocessor must suffice for."""

WITH_PACKAGES = pytest.mark.skipif(find_spec("cuda") is None, reason="takes half a minute: in `make test-cuda`")
"""`make test-cuda` installs NVIDIA's packages; `make test` does not."""

OUTPUT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'sum_0' for 'sm_90'
ptxas info    : Function properties for sum_0
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 26 registers, used 1 barriers, 16 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 5.863 ms
ptxas info    : Compiling entry function 'copy_0' for 'sm_80'
ptxas info    : Function properties for copy_0
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 368 bytes cmem[0]
"""


def lowered(networks):
    return {name: cuda_step(zoo.build(name, sizes), "test", DEVICES["h100"], "all") for name, sizes in networks.items()}


@pytest.fixture(scope="module")
def steps():
    return lowered(NETWORKS)


@pytest.fixture(scope="module", params=[pytest.param("tf32", marks=pytest.mark.slow), "bf16"])
def rounded(request):
    """The step with factors rounded, and what they are rounded to."""
    network = zoo.build("mnist", NETWORKS["mnist"])
    return cuda_step(network, "test", DEVICES["h100"], "all", request.param), request.param


@pytest.fixture(scope="module")
def nvcc():
    try:
        return find_nvcc()
    except AutotmError as error:
        warnings.warn(f"!!! SKIPPED: kernels were not compiled for GPUs: {error}", stacklevel=1)
        return pytest.skip(f"!!! {error}")


def test_what_ptxas_says_is_read():
    assert usage_in(OUTPUT) == [Usage("copy_0", "sm_80", 8, 0, 0, 0), Usage("sum_0", "sm_90", 26, 20, 16, 1024)]


def test_every_kernel_has_a_schedule_and_launches_are_what_the_graph_calls(steps):
    for step in steps.values():
        scheduled(step)
    convolutions = [kernel for kernel in steps["mnist"].graph.kernels if kernel.op.startswith("conv2d")]
    assert convolutions
    assert all(len(kernel.alternatives) > 1 for kernel in convolutions), "there is a choice"


def scheduled(step):
    assert all(kernel.kind != ScheduleKind.AS_WRITTEN for kernel in step.kernels.values())
    for kernel in step.graph.kernels:
        for called in (kernel, *kernel.alternatives):
            cuda_kernel = step.kernels[called.function]
            assert [(tuple(space.shape), space.dtype) for space in called.workspaces] == list(cuda_kernel.workspaces)
            operands = len(kernel.inputs) + len(kernel.outputs) + len(called.workspaces)
            assert len(cuda_kernel.operands) == operands
            assert all(max(launch.arguments) < operands for launch in cuda_kernel.launches)


def test_same_code_every_time(steps):
    again, before = lowered({"mnist": NETWORKS["mnist"]})["mnist"], steps["mnist"]
    assert again.graph == before.graph
    identities = [{name: one.identity for name, one in step.kernels.items()} for step in (again, before)]
    assert identities[0] == identities[1]


def within_limits(kernels, binary, spilled=MOST_SPILLED_BYTES):
    threads = {launch.function: launch.block for kernel in kernels for launch in kernel.launches}
    assert {usage.function for usage in binary.usage} == set(threads)
    for usage in binary.usage:
        block = threads[usage.function]
        assert usage.spill_bytes <= spilled, usage
        assert usage.shared_bytes <= MOST_SHARED_BYTES, usage
        assert block[0] * block[1] * block[2] <= 1024, usage
        assert usage.registers * LEAST_RESIDENT_THREADS <= DEVICES["h100"].registers, usage


@WITH_PACKAGES
@pytest.mark.usefixtures("nvcc")
@pytest.mark.parametrize("more", [{}, pytest.param(MORE, marks=pytest.mark.slow)], ids=["two", "three"])
def test_kernels_compile_within_limits(steps, more, tmp_path, monkeypatch):
    more = lowered(more)
    for step in more.values():
        scheduled(step)
    kernels = [kernel for step in (steps | more).values() for kernel in step.kernels.values()]
    binary = fatbin(kernels, ("sm_90",), tmp_path)
    within_limits(kernels, binary)
    # The same source again is read, not compiled.
    monkeypatch.setattr(compiling, "_compiled", None)
    assert fatbin(kernels, ("sm_90",), tmp_path) == binary


def test_a_step_that_rounds_is_another_step(steps, rounded):
    step, products = rounded
    plain = steps["mnist"]
    assert hash_of(step.graph) != hash_of(plain.graph)
    names = {kernel.function for kernel in step.graph.kernels if kernel.op.startswith(("conv2d", "matmul"))}
    rounding = {name for name in names if step.kernels[name].products == products}
    assert rounding
    assert all(f"_{products}_" in name for name in rounding)
    assert names - rounding <= set(plain.kernels), "what does not round is the exact kernel"
    # All else is the same code.
    others = {kernel.function for kernel in step.graph.kernels} - names
    assert others == {k.function for k in plain.graph.kernels if not k.op.startswith(("conv2d", "matmul"))}


@WITH_PACKAGES
@pytest.mark.usefixtures("nvcc")
def test_kernels_that_round_compile_within_limits(rounded, tmp_path):
    step, products = rounded
    kernels = [kernel for kernel in step.kernels.values() if kernel.products == products]
    binary = fatbin(kernels, folder=tmp_path)
    assert {usage.arch for usage in binary.usage} == set(ARCHITECTURES)
    within_limits(kernels, binary, SPILLED_FOR_ANOTHER_BLOCK)


@pytest.mark.usefixtures("nvcc")
@pytest.mark.slow
@pytest.mark.parametrize("products", ["tf32", "bf16"])
def test_every_tile_of_warps_compiles_within_limits(products, tmp_path):
    kernels = []
    for kind in ("matmul_nt", "matmul_tn"):
        function = te.create_prim_func(product(kind, 512, 500, 1030).tensors)
        kernels += [by_tiling(function, Tiling(tile, 1)) for tile in warp_tiles(products)]
    within_limits(kernels, fatbin(kernels, folder=tmp_path), SPILLED_FOR_ANOTHER_BLOCK)


@pytest.mark.usefixtures("nvcc")
def test_what_nvcc_refuses_is_told(steps):
    (kernel, *_) = steps["mnist"].kernels.values()
    with pytest.raises(AutotmError, match=r"nvcc failed.*not_there"):
        fatbin([replace(kernel, source="int x = not_there;")], ("sm_90",))
    assert "not_there" not in translation_unit([kernel])


def test_the_compiler_of_pythons_packages_serves_too(steps, monkeypatch):
    if not compiling.packaged_nvcc():
        pytest.skip("NVIDIA's compiler is not among Python's packages: make setup-cuda")
    monkeypatch.setenv("NVCC", compiling.packaged_nvcc()[-1])
    kernels = list(steps["mnist"].kernels.values())[:3]
    binary = fatbin(kernels, ("sm_90",))
    assert {usage.function for usage in binary.usage} == {one.function for each in kernels for one in each.launches}


def test_a_missing_nvcc_is_told(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("NVCC", raising=False)
    monkeypatch.setattr(compiling, "_FOLDERS", ())
    monkeypatch.setattr(compiling, "packaged_nvcc", list)
    with pytest.raises(AutotmError, match="NVCC"):
        find_nvcc()
