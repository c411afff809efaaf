"""One step of small networks of products, by the rules and the unscheduled kernels, against formulas in float64."""

import numpy as np
import pytest
from product_networks import RATE, product_network, step
from tvm import relax

from autotm.kernels.target import host_target
from autotm.lower.calls import fused_kernels
from autotm.lower.step import whole_step
from autotm.model.graph import Initial
from autotm.zoo import NetworkBuilder


@pytest.mark.parametrize(
    ("product", "subscripts", "left", "right", "factor"),
    [
        (relax.op.matmul, "ij,jk->ik", (3, 4), (4, 5), 1.0),
        (relax.op.matmul, "aij,jk->aik", (2, 3, 4), (4, 5), 1.0),
        (relax.op.matmul, "aij,ajk->aik", (2, 3, 4), (2, 4, 5), 1.0),
        (relax.op.matmul, "abij,abjk->abik", (2, 3, 4, 5), (2, 3, 5, 6), 1.0),
        (lambda a, b: relax.op.einsum((a, b), "bihd,bjhd->bhij"), "bihd,bjhd->bhij", (2, 3, 4, 5), (2, 6, 4, 5), 1.0),
        (
            lambda a, b: relax.op.multiply(relax.op.einsum((a, b), "bihd,bjhd->bhij"), relax.const(0.25, "float32")),
            "bihd,bjhd->bhij",
            (2, 3, 4, 5),
            (2, 6, 4, 5),
            0.25,
        ),
    ],
)
def test_products_and_their_gradients(product, subscripts, left, right, factor):
    network = product_network(product, left, right)
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal(shape, dtype=np.float32) for shape in (left, right))
    exact = factor * np.einsum(subscripts, a.astype(np.float64), b.astype(np.float64))
    weights = generator.standard_normal(exact.shape, dtype=np.float32)
    module, (loss, new_a, new_b) = step(network, [weights, a, b])
    operands, result = subscripts.split("->")
    first, second = operands.split(",")
    slopes = [
        factor * np.einsum(f"{result},{second}->{first}", weights.astype(np.float64), b.astype(np.float64)),
        factor * np.einsum(f"{first},{result}->{second}", a.astype(np.float64), weights.astype(np.float64)),
    ]
    np.testing.assert_allclose(loss, (exact * weights).sum(), rtol=1e-4)
    np.testing.assert_allclose(new_a, a - RATE * slopes[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(new_b, b - RATE * slopes[1], rtol=1e-4, atol=1e-5)
    kernels = [name for name in module.get_global_vars() if name.name_hint != "main"]
    # Product with the weights, sum, slope of the product, and a product with its update for each operand. Behind a
    # view, what follows is a kernel of its own.
    assert len(kernels) <= 5 + 2 * ("aij,jk" in subscripts), [name.name_hint for name in kernels]


def test_only_products_of_two_have_gradients():
    network = product_network(lambda a, b: relax.op.einsum((a, b), "ij,jk->ijk"), (2, 3), (3, 4))
    with pytest.raises(Exception, match="ij,jk->ijk"):
        whole_step(network)


def test_attention_blocks_are_not_moved():
    net = NetworkBuilder("attention", 2, learning_rate=RATE)
    x = net.parameter("x", (2, 6, 4, 8), Initial("normal"))
    scores = net.softmax(net.scale(net.product("bihd,bjhd->bhij", x, x), 0.5))
    context = net.reshape(net.product("bhij,bjhd->bihd", scores, x), (12, 32))
    module = fused_kernels(whole_step(net.softmax_cross_entropy(context)).module, host_target(2))
    names = [name.name_hint for name in module.get_global_vars()]
    assert not any("transpose" in name or "reshape" in name for name in names), names
