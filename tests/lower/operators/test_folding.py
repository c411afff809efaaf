"""Products of permuted operands and permuted results: the same numbers, and nothing is moved."""

from __future__ import annotations

import numpy as np
import pytest
from product_networks import RATE, product_network, step
from tvm import relax

op = relax.op


def turned(x: relax.Expr, *axes: int) -> relax.Expr:
    return op.permute_dims(x, list(axes))


def heads(x: relax.Expr) -> relax.Expr:
    """(B,T,H*D) as (B,H,T,D)."""
    batch, rows, width = (int(extent) for extent in (2, 3, 8))
    return turned(op.reshape(x, (batch, rows, 2, width // 2)), 0, 2, 1, 3)


CASES = {
    "turned matrix": (lambda a, b: op.matmul(a, turned(b, 1, 0)), "ij,kj->ik", (3, 4), (5, 4)),
    "both turned": (lambda a, b: op.matmul(turned(a, 1, 0), turned(b, 1, 0)), "ji,kj->ik", (4, 3), (5, 4)),
    "first turned": (lambda a, b: op.matmul(turned(a, 1, 0), b), "ji,jk->ik", (4, 3), (4, 5)),
    "turned result": (lambda a, b: turned(op.matmul(a, b), 1, 0), "ij,jk->ki", (3, 4), (4, 5)),
    "rows times a turned matrix": (lambda a, b: op.matmul(a, turned(b, 1, 0)), "aij,kj->aik", (2, 3, 4), (5, 4)),
    "scores": (
        lambda a, b: op.matmul(turned(a, 0, 2, 1, 3), turned(turned(b, 0, 2, 1, 3), 0, 1, 3, 2)),
        "bihd,bjhd->bhij",
        (2, 3, 2, 4),
        (2, 5, 2, 4),
    ),
    "context": (
        lambda a, b: turned(op.matmul(a, turned(b, 0, 2, 1, 3)), 0, 2, 1, 3),
        "bhij,bjhd->bihd",
        (2, 2, 3, 5),
        (2, 5, 2, 4),
    ),
    "split after it was turned": (
        lambda a, b: op.matmul(
            op.reshape(turned(a, 1, 0, 2), (2, 2, 3, 4)), op.reshape(turned(b, 1, 2, 0), (2, 2, 4, 5))
        ),
        "iad,jad->aij",
        (3, 4, 4),
        (5, 4, 4),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_products_of_what_lies_otherwise(name: str) -> None:
    product, subscripts, left, right = CASES[name]
    network = product_network(product, left, right)
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal(shape, dtype=np.float32) for shape in (left, right))
    exact = np.einsum(subscripts, a.astype(np.float64), b.astype(np.float64))
    shape = [int(extent) for extent in network.module["main"].params[0].ty.shape]
    weights = generator.standard_normal(shape, dtype=np.float32)
    module, (loss, new_a, new_b) = step(network, [weights, a, b])
    operands, result = subscripts.split("->")
    first, second = operands.split(",")
    slope = weights.reshape(exact.shape).astype(np.float64)
    slopes = [
        np.einsum(f"{result},{second}->{first}", slope, b.astype(np.float64)),
        np.einsum(f"{first},{result}->{second}", a.astype(np.float64), slope),
    ]
    np.testing.assert_allclose(loss, (exact * slope).sum(), rtol=1e-4)
    np.testing.assert_allclose(new_a, a - RATE * slopes[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(new_b, b - RATE * slopes[1], rtol=1e-4, atol=1e-5)
    names = [kernel.name_hint for kernel in module.get_global_vars()]
    assert not any("transpose" in kernel for kernel in names), names


def test_heads_are_read_from_their_projection() -> None:
    network = product_network(lambda a, b: op.matmul(heads(a), turned(heads(b), 0, 1, 3, 2)), (2, 3, 8), (2, 3, 8))
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape, dtype=np.float32) for shape in ((2, 2, 3, 3), (2, 3, 8), (2, 3, 8))]
    module, (loss, *_) = step(network, arrays)
    weights, a, b = (array.astype(np.float64) for array in arrays)
    exact = np.einsum("bihd,bjhd->bhij", a.reshape(2, 3, 2, 4), b.reshape(2, 3, 2, 4))
    np.testing.assert_allclose(loss, (exact * weights).sum(), rtol=1e-4)
    names = [kernel.name_hint for kernel in module.get_global_vars()]
    assert not any("transpose" in kernel for kernel in names), names


def test_a_scale_goes_behind_the_product() -> None:
    half = relax.const(0.5, "float32")
    network = product_network(lambda a, b: op.matmul(op.multiply(turned(a, 1, 0), half), b), (4, 3), (4, 5))
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape, dtype=np.float32) for shape in ((3, 5), (4, 3), (4, 5))]
    _, (loss, *_) = step(network, arrays)
    weights, a, b = (array.astype(np.float64) for array in arrays)
    np.testing.assert_allclose(loss, (0.5 * a.T @ b * weights).sum(), rtol=1e-4)


def test_what_others_read_too_stays() -> None:
    """The permuted result of a product that is read twice is made once, and permuted."""

    def product(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        made = op.matmul(a, b)
        return op.add(made, turned(made, 1, 0))

    network = product_network(product, (3, 4), (4, 3))
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape, dtype=np.float32) for shape in ((3, 3), (3, 4), (4, 3))]
    _, (loss, *_) = step(network, arrays)
    weights, a, b = (array.astype(np.float64) for array in arrays)
    np.testing.assert_allclose(loss, ((a @ b + (a @ b).T) * weights).sum(), rtol=1e-4)
