"""Batched products against NumPy in float64: every order of axes that attention and matmul need, odd extents."""

import numpy as np
import pytest
from compiled_kernels import call, kernel_of, placeholders
from contraction_cases import aligned, error, function_of, host, random_array
from contraction_cases import call as call_on
from tvm import te

from autotm.kernels.contractions import Subscripts, batched_matmul
from autotm.kernels.target import CHAIN_STEPS
from autotm.model.graph import OpClass

SLOW = pytest.mark.slow
SUBSCRIPTS = [
    "bihd,bjhd->bhij",
    "bhij,bjhd->bihd",
    "bihd,bhij->bjhd",
    "abij,abjk->abik",
    "aik,ajk->aij",
    "aji,ajk->aik",
]
EXTENTS = [
    {"a": 2, "b": 3, "h": 2, "i": 5, "j": 7, "k": 33, "d": 37},
    {"a": 1, "b": 1, "h": 8, "i": 16, "j": 48, "k": 50, "d": 64},
    {"a": 5, "b": 2, "h": 1, "i": 40, "j": 3, "k": 4, "d": 2},
]


def operands(subscripts, extents):
    letters = Subscripts.parse(subscripts)
    return [
        random_array(tuple(extents[letter] for letter in text), seed)
        for seed, text in enumerate((letters.left, letters.right))
    ]


def exact(subscripts, left, right):
    return np.einsum(subscripts, left.astype(np.float64), right.astype(np.float64))


@pytest.mark.parametrize(
    ("extents", "threads"),
    [
        pytest.param(extents, threads, id=f"{number}-{threads}", marks=() if threads == (2, 3, 1)[number] else SLOW)
        for number, extents in enumerate(EXTENTS)
        for threads in (1, 2, 3)
    ],
)
@pytest.mark.parametrize("subscripts", SUBSCRIPTS)
def test_any_order_of_axes(subscripts, extents, threads):
    arrays = operands(subscripts, extents)
    tensors = placeholders(*(array.shape for array in arrays))
    kernel = kernel_of([*tensors, batched_matmul(*tensors, subscripts)], threads)
    assert kernel.op_class == OpClass.MATMUL
    expected = exact(subscripts, *arrays)
    assert kernel.flops == 2 * int(np.prod([extents[letter] for letter in set(subscripts) - set(",->")]))
    assert error(call(kernel, arrays)[0], expected) < 1e-6


@pytest.mark.parametrize("subscripts", [*SUBSCRIPTS[:3], *(pytest.param(one, marks=SLOW) for one in SUBSCRIPTS[3:])])
def test_vectors_of_another_width(subscripts):
    target = host(2, "haswell")
    arrays = operands(subscripts, EXTENTS[0])
    tensors = placeholders(*(array.shape for array in arrays))
    expected = exact(subscripts, *arrays)
    result = aligned(expected.shape)
    function = function_of(*tensors, batched_matmul(*tensors, subscripts))
    call_on(function, "batched_matmul", [*arrays, result], target)
    assert error(result, expected) < 1e-6


def test_long_sums_are_summed_in_parts():
    extents = {"a": 1, "i": 3, "j": 3 * CHAIN_STEPS + 5, "k": 17}
    arrays = operands("aij,ajk->aik", extents)
    arrays = [np.abs(array) + 1 for array in arrays]
    tensors = placeholders(*(array.shape for array in arrays))
    (found,) = call(kernel_of([*tensors, batched_matmul(*tensors, "aij,ajk->aik")]), arrays)
    assert error(found, exact("aij,ajk->aik", *arrays)) < 3e-6


def test_scale_and_mask_are_an_epilogue():
    arrays = [*operands("bihd,bjhd->bhij", EXTENTS[0]), random_array((5, 7), 2)]
    left, right, mask = placeholders(*(array.shape for array in arrays))
    product = batched_matmul(left, right, "bihd,bjhd->bhij")
    scores = te.compute(product.shape, lambda b, h, i, j: product(b, h, i, j) * 0.125 + mask(i, j), name="scores")
    kernel = kernel_of([left, right, mask, scores])
    assert (kernel.op, sum(len(shape) for shape, _ in kernel.workspaces)) == ("batched_matmul", 1)
    expected = exact("bihd,bjhd->bhij", *arrays[:2]) * 0.125 + arrays[2]
    assert error(call(kernel, arrays)[0], expected) < 1e-6


def test_gradients_swap_the_subscripts():
    letters = Subscripts.parse("bihd,bjhd->bhij")
    assert str(letters.left_gradient) == "bhij,bjhd->bihd"
    assert str(letters.right_gradient) == "bihd,bhij->bjhd"


@pytest.mark.parametrize("subscripts", ["ij,jk->ki ", "aij,ajk->ak", "aii,aik->aik", "ij,jk->ijk", "abi,abj->abij"])
def test_what_is_a_product(subscripts):
    assert Subscripts.parse(subscripts).is_product == (subscripts == "ij,jk->ki ")


@pytest.mark.parametrize("subscripts", ["ij,jk", "ij,jk,kl->il", "ij->ji"])
def test_other_subscripts_are_refused(subscripts):
    with pytest.raises(ValueError, match="left,right->result"):
        Subscripts.parse(subscripts)
