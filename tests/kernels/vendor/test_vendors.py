"""Algorithms of cuDNN and cuBLAS, both played: which are offered, and that each computes every contraction exactly."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cuda_cases import random
from emulated_cuda import EmulatedDevice
from played_cublas import ALGORITHMS
from played_cudnn import ENGINES
from tvm import te
from vendor_cases import CASES, DEVICE, installed, missing, played_results

from autotm.kernels.contractions import batched_matmul
from autotm.kernels.cuda.dispatch import VendorKernel, turned_weights, vendor_problem
from autotm.kernels.vendor import VendorError, VendorMissingError, Vendors, operands_of, product_layouts
from autotm.model.launch import Convolution, Product, VendorAlgorithm, VendorCall

CONVOLUTION = Convolution("conv2d", (2, 9, 8, 12), (3, 2, 12, 20), (2, 7, 7, 20), (1, 1), (0, 0, 0, 0))


def opened() -> Vendors:
    vendors = Vendors()
    vendors.installed()
    return vendors


def kernels_of(name: str) -> list[VendorKernel]:
    """The kernels of a case by every algorithm that is offered."""
    found = vendor_problem(CASES[name].func, DEVICE)
    assert found is not None
    return [found.kernel(one) for one in opened().offers(found.problem)]


def call_of(kernel: VendorKernel) -> VendorCall:
    (call,) = (one for one in kernel.launches if isinstance(one, VendorCall))
    return call


def test_extents_and_strides_address_what_lies_channels_last() -> None:
    for role, shape in (("x", CONVOLUTION.x), ("y", CONVOLUTION.y), ("w", (20, 3, 2, 12))):
        extents, strides = operands_of(CONVOLUTION)[role]
        array = np.arange(np.prod(shape)).reshape(shape)
        seen = np.lib.stride_tricks.as_strided(array, extents, [stride * array.itemsize for stride in strides])
        np.testing.assert_array_equal(seen, array.transpose(0, 3, 1, 2))


def test_weights_are_turned(tmp_path: Path) -> None:
    kernel, weights = turned_weights(CONVOLUTION.w, DEVICE), random(CONVOLUTION.w)
    turned = EmulatedDevice([kernel], tmp_path).run(kernel, [weights])[1]
    np.testing.assert_array_equal(turned, weights.transpose(3, 0, 1, 2))


@pytest.mark.parametrize("kind", ["matmul", "matmul_nt", "matmul_tn"])
def test_products_lie_as_cublas_reads_them(kind: str) -> None:
    left, right = random((3, 5)), random((5, 4), 1)
    lying = [left.T.copy() if kind == "matmul_tn" else left, right.T.copy() if kind == "matmul_nt" else right]
    first, second, result = product_layouts(Product(kind, 3, 4, 5))

    def seen(array: np.ndarray, layout: tuple[int, int, bool]) -> np.ndarray:
        rows, columns, turned = layout
        matrix = array.reshape(-1).reshape((rows, columns), order="F")
        return matrix.T if turned else matrix

    found = seen(lying[1], first) @ seen(lying[0], second)
    assert found.shape == result[:2]
    np.testing.assert_allclose(found.reshape(-1, order="F").reshape(3, 4), left @ right, rtol=1e-5)


QUICK = {
    *("forward 2", "fused forward grouped", "data gradient grouped", "fused data gradient 12", "weight gradient 6"),
    *("fused weight gradient 2", "fused matmul", "matmul_nt", "matmul_tn"),
}
"""Each pass plain and fused; each case compiles the contraction."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]
)
def test_every_algorithm_computes_the_contraction(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    played, case = installed(monkeypatch), CASES[name]
    kernels = kernels_of(name)
    assert len(kernels) == len({kernel.symbol for kernel in kernels}) == 2
    for kernel in kernels:
        found = played_results(kernel, case, played, tmp_path)
        np.testing.assert_allclose(found[0], case.exact, rtol=1e-4, atol=1e-3)
        assert found[0].tobytes() == found[1].tobytes()


def test_offered_is_what_is_exact_the_same_every_time_and_can_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    names = {call_of(kernel).algorithm.name for kernel in kernels_of("forward 2")}
    assert names == {"cudnn eng0_k2=2", "cudnn eng3_k2=1_k3=0"}
    others = "for tensor cores, that differs every time, that cannot be built, that needs 5 GiB, that is not cuDNN's"
    assert len(ENGINES) == 2 + len(others.split(", ")), others


def test_offered_is_what_takes_operands_as_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    names = {call_of(kernel).algorithm.name for kernel in kernels_of("matmul")}
    assert names == {"cublas ID=6 TILE_ID=15 STAGES_ID=8", "cublas ID=13 TILE_ID=15 SPLITK_NUM=3 REDUCTION_SCHEME=2"}
    assert len(ALGORITHMS) == 3, "one wants multiples of 256 bytes"


def test_workspaces_are_turned_weights_the_product_and_what_the_algorithm_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed(monkeypatch)
    turned, product = ((40, 1, 7, 24), "float32"), ((2, 17, 17, 40), "float32")
    # 1000 bytes that start at a multiple of 256 fit into 1192 that start at one of 64.
    scratch = ((1000 + 192,), "uint8")
    assert [one.workspaces for one in kernels_of("forward 2")] == [(turned,), (turned, scratch)]
    assert [one.workspaces for one in kernels_of("fused forward 2")] == [(turned, product), (turned, product, scratch)]
    # Of a weight gradient, the product is turned back.
    assert [one.workspaces for one in kernels_of("weight gradient 2")] == [(turned,), (turned, scratch)]
    assert [one.workspaces for one in kernels_of("matmul")] == [(), (((4000 + 192,), "uint8"),)]


def test_a_call_is_read_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    for name in ("weight gradient 6", "matmul_tn"):
        for kernel in kernels_of(name):
            call = call_of(kernel)
            assert VendorCall.from_json(call.to_json()) == call


def test_another_version_is_another_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    played = installed(monkeypatch)
    before = {kernel.identity for kernel in kernels_of("forward 2")}
    assert before == {kernel.identity for kernel in kernels_of("forward 2")}
    played.cudnn.version = "9.29.0"
    assert not before & {kernel.identity for kernel in kernels_of("forward 2")}


def test_what_is_no_contraction_of_theirs_is_left_out() -> None:
    x, y = te.placeholder((9, 8), name="x"), te.placeholder((2, 5, 3, 36), name="y")
    more = te.compute(x.shape, lambda *i: x(*i) + 1.0, name="more")
    assert vendor_problem(te.create_prim_func([x, more]), DEVICE) is None
    heads = batched_matmul(y, y, "bihd,bjhd->bhij")
    assert vendor_problem(te.create_prim_func([y, heads]), DEVICE) is None


@pytest.mark.parametrize(("name", "vendor", "package"), [("forward 2", "cuDNN", "nvidia-cudnn-frontend"),
                                                         ("matmul", "cuBLAS", "nvmath-python")])  # fmt: skip
def test_a_missing_library_is_told(
    name: str,
    vendor: str,
    package: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    played = installed(monkeypatch)
    kernel = kernels_of(name)[0]
    missing(monkeypatch)
    with caplog.at_level(logging.INFO):
        assert Vendors().installed() == {}
    assert f"{vendor} and its Python package are not installed here" in caplog.text
    said = rf"a kernel needs {vendor.lower()} [\d.]+: .*pip install 'autotm\[nvidia\]' \(which brings {package}"
    with pytest.raises(VendorMissingError, match=said):
        played_results(kernel, CASES[name], played, tmp_path)
    assert not played.cudnn.ran + played.lt.ran


@pytest.mark.parametrize("name", ["forward 2", "matmul"])
def test_another_version_is_refused_where_a_kernel_would_run(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    played = installed(monkeypatch)
    kernel = kernels_of(name)[0]
    played.cudnn.version, played.lt.version = "9.30.2", 130102
    said = r"a kernel needs cu\w+ (9.28.1|13.10.0), here is (9.30.2|13.1.2): .*profile again here"
    with pytest.raises(VendorError, match=said):
        played_results(kernel, CASES[name], played, tmp_path)


@pytest.mark.parametrize("name", ["forward 2", "matmul"])
def test_an_algorithm_that_this_gpu_lacks_or_needs_more_for_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    played = installed(monkeypatch)
    kernel = kernels_of(name)[1]
    call = call_of(kernel)

    def refused(algorithm: VendorAlgorithm, said: str) -> None:
        launches = tuple(replace(one, algorithm=algorithm) if one is call else one for one in kernel.launches)
        with pytest.raises(VendorError, match=said):
            played_results(replace(kernel, launches=launches), CASES[name], played, tmp_path)

    refused(replace(call.algorithm, key={"cudnn": "eng40", "cublas": "ID=40"}[call.algorithm.vendor]), "does not have")
    refused(replace(call.algorithm, key={"cudnn": "eng9", "cublas": "ID=6"}[call.algorithm.vendor]), "does not have")
    refused(replace(call.algorithm, workspace_bytes=64), r"bytes of workspace .* 64 where it was profiled")


def test_a_library_that_does_not_load_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    played = installed(monkeypatch)

    def fails() -> None:
        raise RuntimeError("cudaGetDeviceCount failed")

    monkeypatch.setattr(played.cudnn, "create_handle", fails)
    with pytest.raises(Exception, match=r"cuDNN found no GPU to work on \(cudaGetDeviceCount failed\)"):
        Vendors().installed()
