"""Contractions as CUDA source, run on this CPU, against float64: every way, tile and pass, on tensor cores too."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from contraction_cases import WINDOWS
from cuda_contractions import CASES, SETS, SMALL, Contraction, by_tiling, contraction, product, workspace_bytes
from emulated_cuda import EmulatedDevice
from tvm import get_global_func, te

from autotm.kernels import contractions
from autotm.kernels.cuda.contraction import TILES, Tiling, warp_tiles
from autotm.kernels.cuda.dispatch import cuda_kernel
from autotm.kernels.cuda.product import Operand
from autotm.kernels.cuda.source import CudaKernel
from autotm.kernels.cuda.stage import device_memory
from autotm.kernels.cuda.tiles import WordPanel
from autotm.model.graph import ScheduleKind

BITS = {"tf32": 11, "bf16": 8}
"""Bits of a rounded factor's mantissa, with the leading one, which is not stored."""
LYING = [
    ("matmul_nt", 139, 141, 70, 1),
    ("matmul_nt", 70, 75, 64, 1),
    ("matmul_tn", 139, 141, 70, 1),
    ("matmul_tn", 140, 68, 67, 2),
    ("matmul", 33, 34, 129, 2),
]
"""Products whose operands lie along k or not, in vectors of 4, 2 and 1; and parts of their sums."""
QUICK_LYING = [("tf32", LYING[3]), ("bf16", LYING[0])]
SLOW = pytest.mark.slow
"""A test that compiles a library of its own takes seconds."""


def rounded(array: np.ndarray, products: str) -> np.ndarray:
    """The nearest numbers of so few bits: of two, tf32 takes the larger magnitude, bf16 the even one."""
    fraction, exponent = np.frexp(array.astype(np.float64))
    scaled = fraction * 2.0 ** BITS[products]
    whole = np.rint(scaled) if products == "bf16" else np.trunc(scaled + np.copysign(0.5, scaled))
    return np.ldexp(whole, exponent - BITS[products])


def allowed(one: Contraction, unit: float) -> np.ndarray:
    """How far each result may be off, if each product is by `unit` of it, and each sum in float32 is rounded once."""
    left, right = one.inputs[:2]
    size = one.compute(np.abs(left), np.abs(right))
    terms = one.compute(np.ones_like(left), np.ones_like(right)).max()
    return (unit + (terms + 4) * 2.0**-24) * size + 2.0**-20


def close(result: np.ndarray, one: Contraction, products: str) -> None:
    """Assert that `result` is the product of rounded factors to float32's error, the exact one to that of rounding."""
    factors = [rounded(array, products) for array in one.inputs[:2]]
    assert (np.abs(result - one.of(*factors)) <= allowed(one, 0.0)).all()
    unit = 2.0 ** -BITS[products]
    assert (np.abs(result - one.exact) <= allowed(one, 2 * unit + unit**2)).all()


def results(device: EmulatedDevice, kernel: CudaKernel, one: Contraction, order: int = 0) -> np.ndarray:
    return device.run(kernel, one.inputs, order=order)[len(one.inputs)]


def implementations(one: Contraction, products: str) -> dict[str, CudaKernel]:
    """All implementations of a contraction, by name."""
    function = te.create_prim_func(one.tensors)
    default = cuda_kernel(function, SMALL, products=products)
    return {"default": default, **{name: cuda_kernel(function, SMALL, name, products) for name in default.others}}


@functools.cache
def made_of(name: str, products: str) -> dict[str, CudaKernel]:
    return implementations(CASES[name], products)


def on_tensor_cores(by_name: dict[str, CudaKernel], products: str) -> CudaKernel:
    """The default, or the one that is named after what it rounds to."""
    return by_name["default"] if by_name["default"].products == products else by_name[products]


# Exact products.


def exact(kernel, one, device):
    for order in (0, 1):
        result = device.run(kernel, one.inputs, order=order)[len(one.inputs)]
        np.testing.assert_allclose(result, one.exact, rtol=1e-4, atol=1e-4 * np.abs(one.exact).max())


@pytest.mark.parametrize("names", SETS)
def test_every_implementation_is_the_contraction(names, tmp_path):
    pairs = [(kernel, CASES[name]) for name in names for kernel in made_of(name, "float32").values()]
    assert all(kernel.kind == ScheduleKind.GENERATED for kernel, _ in pairs)
    device = EmulatedDevice([kernel for kernel, _ in pairs], tmp_path)
    for kernel, one in pairs:
        exact(kernel, one, device)


def test_each_pass_of_a_convolution_has_several_implementations():
    several = made_of("weight gradient 8", "float32")
    assert {"default", "direct", "unfolded"} <= set(several)
    assert workspace_bytes(several["direct"]) == 0
    window = WINDOWS[8]
    pixels, taps = math.prod(window.y[:3]), math.prod(window.w[:3])
    assert workspace_bytes(several["unfolded"]) == 4 * pixels * taps


def test_a_long_sum_is_split_with_exactly_stated_workspace():
    several = made_of("matmul (8, 12, 30000)", "float32")
    parts = several["default"].launches[0].grid[2]
    assert parts > 1
    assert several["default"].workspaces == (((parts, 8 * 12), "float32"),)
    assert several["default"].others == ("lean",)
    assert workspace_bytes(several["lean"]) == 0


@pytest.mark.parametrize("parts", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_every_tile_of_threads(parts, tmp_path):
    one = product("matmul_nt", 139, 141, 70)
    function = te.create_prim_func(one.tensors)
    tiled = [by_tiling(function, Tiling(tile, parts)) for tile in TILES]
    device = EmulatedDevice(tiled, tmp_path)
    for kernel in tiled:
        exact(kernel, one, device)


def test_an_implementation_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="unfolded"):
        cuda_kernel(te.create_prim_func(product("matmul", 4, 4, 4).tensors), SMALL, "unfolded")


# On tensor cores.


@pytest.fixture(scope="module", params=["tf32", "bf16"])
def products(request):
    return request.param


@pytest.fixture(scope="module", params=SETS)
def kernels(products, request):
    return {name: made_of(name, products) for name in request.param}


@pytest.fixture(scope="module")
def device(kernels, products, tmp_path_factory):
    several = [on_tensor_cores(each, products) for each in kernels.values()]
    several += [each["lean"] for each in kernels.values() if "lean" in each]
    return EmulatedDevice(several, tmp_path_factory.mktemp("cuda"))


def test_every_contraction_of_rounded_factors(kernels, device, products):
    for name, several in kernels.items():
        kernel, one = on_tensor_cores(several, products), CASES[name]
        assert (kernel.products, kernel.kind) == (products, ScheduleKind.GENERATED)
        first, *others = (results(device, kernel, one, order) for order in (0, 1, 5))
        close(first, one, products)
        assert all(np.array_equal(first, other) for other in others)
        if "lean" in several:
            close(results(device, several["lean"], one), one, products)
        if name == "matmul (64, 96, 32)":
            assert (np.abs(first - one.exact) > allowed(one, 0.0)).mean() > 0.5, "factors really are rounded"


def test_what_rounds_says_so_and_nothing_else_does(kernels, products):
    for name, several in kernels.items():
        rounding = several["default"].products == products
        assert ("exact" in several) == rounding, name
        assert (products in several) == (not rounding), name
        for each, kernel in several.items():
            rounds = each == products or (rounding and each in {"default", "lean"})
            assert kernel.products == (products if rounds else "float32"), (name, each)
            assert (f"_{products}_" in kernel.symbol) == ("add_product" in kernel.source) == rounds, (name, each)


def test_exact_is_what_there_is_without_tensor_cores(kernels):
    for name, several in kernels.items():
        plain = cuda_kernel(te.create_prim_func(CASES[name].tensors), SMALL)
        rounds = several["default"].products != "float32"
        assert several["exact" if rounds else "default"].identity == plain.identity, name
        assert (several["default"].identity == plain.identity) == (not rounds), name


def test_a_sum_too_short_for_words_of_two_is_exact(products):
    several = made_of("turned heads", products)
    assert several["default"].products == {"tf32": "tf32", "bf16": "float32"}[products]
    assert several.get(products, several["default"]).products == products


def test_a_long_sum_on_tensor_cores_is_split_or_lean(products):
    several = made_of("matmul (8, 12, 30000)", products)
    default = several["default"]
    assert (default.products, len(default.launches)) == (products, 2)
    assert workspace_bytes(default) == 4 * default.launches[0].grid[2] * 8 * 12
    assert workspace_bytes(several["lean"]) == 0


@pytest.mark.parametrize(
    ("products", "lying"),
    [
        pytest.param(products, lying, id=f"{products}-{lying}", marks=() if (products, lying) in QUICK_LYING else SLOW)
        for products in BITS
        for lying in LYING
    ],
)
def test_every_tile_of_warps(lying, products, tmp_path):
    *sizes, parts = lying
    one = product(*sizes)
    function = te.create_prim_func(one.tensors)
    tiled = [by_tiling(function, Tiling(tile, parts)) for tile in warp_tiles(products)]
    device = EmulatedDevice(tiled, tmp_path)
    for kernel in tiled:
        close(results(device, kernel, one), one, products)


@pytest.mark.parametrize("along_k", [True, False])
def test_words_that_a_warp_reads_at_once_lie_in_different_banks(along_k, products):
    operand = Operand(device_memory((1,), "float32", "x"), lambda *_: (0, []), along_k, 4)
    for tile in warp_tiles(products):
        panel = WordPanel.of(operand, 1000, tile.rows, tile, "left")
        for word in range(0, tile.words, 4):
            assert len({panel.place(8 + lane // 4, word + lane % 4) % 32 for lane in range(32)}) == 32, tile


def test_halves_and_extremes_are_rounded_as_documented(products, tmp_path):
    # One row that is picked out by a column of ones: results are the rounded factors themselves.
    step = 2.0 ** (1 - BITS[products])
    values = np.float32([1 + step / 2, -1 - step / 2, 1 + 1.5 * step, 1 + step / 2 + 2**-20, 3e38, 2e-38, 0, 2**-120])
    a, b = np.zeros((16, 8), np.float32), np.zeros((8, 8), np.float32)
    a[0], b[np.arange(8), np.arange(8)] = values, 1
    one = contraction(contractions.matmul, [a, b], lambda left, right: left.astype(np.float64) @ right)
    one.inputs[2][:], one.inputs[3][:] = 0, 0
    kernel = on_tensor_cores(implementations(one, products), products)
    result = results(EmulatedDevice([kernel], tmp_path), kernel, one)
    np.testing.assert_array_equal(result[0] * 2, rounded(values, products).astype(np.float32))


BROKEN = {
    "words that nobody rounded": ("= rounded_tf32(", "= __float_as_uint("),
    "operands of the instruction in another order": ('"r"(b[0]), "r"(b[1])', '"r"(b[1]), "r"(b[0])'),
    "results at other places": ("& 3) * 2", "& 3) * 1"),
    "no barrier": ("__syncthreads();", ";"),
}


@pytest.mark.parametrize("how", [next(iter(BROKEN)), *(pytest.param(how, marks=SLOW) for how in list(BROKEN)[1:])])
def test_wrong_code_is_seen(how, tmp_path):
    one = product("matmul", 40, 48, 64)
    kernel = on_tensor_cores(implementations(one, "tf32"), "tf32")
    with pytest.raises(AssertionError):
        close(results(EmulatedDevice([kernel], tmp_path, BROKEN[how]), kernel, one, 1), one, "tf32")


def test_a_warp_that_parts_is_seen(tmp_path):
    one = product("matmul", 40, 48, 64)
    kernel = on_tensor_cores(implementations(one, "tf32"), "tf32")
    parted = ("add_product_tf32((&", "if (threadIdx.x != 7) add_product_tf32((&")
    with pytest.raises(AssertionError, match="parted"):
        results(EmulatedDevice([kernel], tmp_path, parted), kernel, one)


def test_tvm_compiles_nothing_where_there_is_a_gpu() -> None:
    """On a GPU TVM would compile each kernel without the device functions that it calls; on an H100 that failed."""
    source = "void kernel() { rounded_bf16(0, 0); }"
    assert bytes(get_global_func("tvm_callback_cuda_compile")(source)).startswith(b"//")
