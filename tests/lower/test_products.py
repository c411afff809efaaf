"""Products of matrices and their gradients: the numbers of formulas in float64, and nothing is moved for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import plain_steps
import pytest
import tvm
from central_differences import UNCHECKED
from tvm import relax, te, tirx

from autotm.kernels.target import host_target
from autotm.lower.calls import fused_kernels
from autotm.lower.step import whole_step
from autotm.model.graph import Initial
from autotm.model.training import Sgd, Training
from autotm.zoo import Network, NetworkBuilder

RATE = 0.5
TRAINING = Training(Sgd(RATE))


def product_network(product, left: tuple[int, ...], right: tuple[int, ...]) -> Network:
    """Loss: the sum of `product` of two parameters times an input."""
    builder = relax.BlockBuilder()
    shapes = {"a": left, "b": right}
    variables = [relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in shapes.items()]
    with builder.function("main"):
        with builder.dataflow():
            result = builder.emit(product(*variables))
            weights = relax.Var("weights", relax.TensorType(result.ty.shape, "float32"))
            loss = builder.emit_output(relax.op.sum(builder.emit(relax.op.multiply(result, weights))))
        builder.emit_func_output(loss, [weights, *variables])
    parameters = dict.fromkeys(shapes, Initial("normal"))
    return Network("product", 1, builder.finalize(), {"weights": Initial("normal")}, parameters, TRAINING)


def step(network: Network, arrays: list[np.ndarray]) -> tuple[tvm.IRModule, list[np.ndarray]]:
    """The step's functions, and loss and updated parameters."""
    target = host_target(2)
    module = fused_kernels(whole_step(network).module, target)
    with tvm.transform.PassContext(opt_level=2, config=UNCHECKED):
        machine = relax.VirtualMachine(tvm.compile(module, target), tvm.cpu())
    return module, [value.numpy() for value in machine["main"](*(tvm.runtime.tensor(array) for array in arrays))]


op = relax.op
Product = Callable[[relax.Expr, relax.Expr], relax.Expr]
Shape = tuple[int, ...]


def turned(x: relax.Expr, *axes: int) -> relax.Expr:
    return op.permute_dims(x, list(axes))


def heads(x: relax.Expr) -> relax.Expr:
    """(B,T,H*D) as (B,H,T,D)."""
    return turned(op.reshape(x, (2, 3, 2, 4)), 0, 2, 1, 3)


PLAIN = {
    "matrices": (op.matmul, "ij,jk->ik", (3, 4), (4, 5)),
    "rows": (op.matmul, "aij,jk->aik", (2, 3, 4), (4, 5)),
    "a batch": (op.matmul, "aij,ajk->aik", (2, 3, 4), (2, 4, 5)),
    "two batch axes": (op.matmul, "abij,abjk->abik", (2, 3, 4, 5), (2, 3, 5, 6)),
    "scores": (lambda a, b: op.einsum((a, b), "bihd,bjhd->bhij"), "bihd,bjhd->bhij", (2, 3, 4, 5), (2, 6, 4, 5)),
}  # fmt: skip
TURNED = {
    "turned matrix": (lambda a, b: op.matmul(a, turned(b, 1, 0)), "ij,kj->ik", (3, 4), (5, 4)),
    "both turned": (lambda a, b: op.matmul(turned(a, 1, 0), turned(b, 1, 0)), "ji,kj->ik", (4, 3), (5, 4)),
    "first turned": (lambda a, b: op.matmul(turned(a, 1, 0), b), "ji,jk->ik", (4, 3), (4, 5)),
    "turned result": (lambda a, b: turned(op.matmul(a, b), 1, 0), "ij,jk->ki", (3, 4), (4, 5)),
    "rows times a turned matrix": (lambda a, b: op.matmul(a, turned(b, 1, 0)), "aij,kj->aik", (2, 3, 4), (5, 4)),
    "scores of turned heads": (
        lambda a, b: op.matmul(turned(a, 0, 2, 1, 3), turned(turned(b, 0, 2, 1, 3), 0, 1, 3, 2)), "bihd,bjhd->bhij",
        (2, 3, 2, 4), (2, 5, 2, 4),
    ),
    "context": (
        lambda a, b: turned(op.matmul(a, turned(b, 0, 2, 1, 3)), 0, 2, 1, 3), "bhij,bjhd->bihd", (2, 2, 3, 5),
        (2, 5, 2, 4),
    ),
}  # fmt: skip


def checked(product: Product, subscripts: str, left: Shape, right: Shape, factor: float = 1.0) -> tvm.IRModule:
    """Compare the loss and both updates of a network of one product with formulas; return the step's kernels."""
    network = product_network(product, left, right)
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal(shape, dtype=np.float32) for shape in (left, right))
    exact = factor * np.einsum(subscripts, a.astype(np.float64), b.astype(np.float64))
    shape = [int(extent) for extent in network.module["main"].params[0].ty.shape]
    weights = generator.standard_normal(shape, dtype=np.float32)
    module, (loss, new_a, new_b) = step(network, [weights, a, b])
    operands, result = subscripts.split("->")
    first, second = operands.split(",")
    slope = factor * weights.reshape(exact.shape).astype(np.float64)
    slopes = [
        np.einsum(f"{result},{second}->{first}", slope, b.astype(np.float64)),
        np.einsum(f"{first},{result}->{second}", a.astype(np.float64), slope),
    ]
    np.testing.assert_allclose(loss, (exact * weights.reshape(exact.shape)).sum(), rtol=1e-4)
    np.testing.assert_allclose(new_a, a - RATE * slopes[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(new_b, b - RATE * slopes[1], rtol=1e-4, atol=1e-5)
    return module


def names(module: tvm.IRModule) -> list[str]:
    return [name.name_hint for name in module.get_global_vars() if name.name_hint != "main"]


@pytest.mark.parametrize(("name", "factor"), [*((name, 1.0) for name in PLAIN), ("scores", 0.25)])
def test_products_and_their_gradients(name: str, factor: float) -> None:
    product, *rest = PLAIN[name]
    scaled: Product = lambda a, b: op.multiply(product(a, b), relax.const(factor, "float32"))  # noqa: E731
    kernels = names(checked(product if factor == 1 else scaled, *rest, factor))
    # Product with the weights, sum, slope of the product, and a product with its update for each operand. Behind a
    # view, what follows is a kernel of its own.
    assert len(kernels) <= 5 + 2 * (name == "rows"), kernels


@pytest.mark.parametrize("name", TURNED)
def test_products_of_what_lies_otherwise(name: str) -> None:
    kernels = names(checked(*TURNED[name]))
    assert not any("transpose" in kernel for kernel in kernels), kernels


def scaled(a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """The factor goes behind the product."""
    return op.matmul(op.multiply(turned(a, 1, 0), relax.const(0.5, "float32")), b)


def read_twice(a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """A product that another operator reads too: it is computed once, then permuted for the other."""
    product = op.matmul(a, b)
    return op.add(product, turned(product, 1, 0))


FOLDED = {
    "heads of a projection": (
        lambda a, b: op.matmul(heads(a), turned(heads(b), 0, 1, 3, 2)),
        lambda a, b: np.einsum("bihd,bjhd->bhij", a.reshape(2, 3, 2, 4), b.reshape(2, 3, 2, 4)), (2, 3, 8), (2, 3, 8),
    ),
    "scaled": (scaled, lambda a, b: 0.5 * a.T @ b, (4, 3), (4, 5)),
    "read twice": (read_twice, lambda a, b: a @ b + (a @ b).T, (3, 4), (4, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDED)
def test_the_loss_of_products_in_other_work(name: str) -> None:
    product, formula, left, right = FOLDED[name]
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal(shape, dtype=np.float32) for shape in (left, right))
    exact = formula(a.astype(np.float64), b.astype(np.float64))
    weights = generator.standard_normal(exact.shape, dtype=np.float32)
    module, (loss, *_) = step(product_network(product, left, right), [weights, a, b])
    np.testing.assert_allclose(loss, (exact * weights).sum(), rtol=1e-4)
    assert name == "read twice" or not any("transpose" in kernel for kernel in names(module)), names(module)


def test_only_products_of_two_have_gradients():
    network = product_network(lambda a, b: op.einsum((a, b), "ij,jk->ijk"), (2, 3), (3, 4))
    with pytest.raises(Exception, match="ij,jk->ijk"):
        whole_step(network)


def test_attention_blocks_are_not_moved():
    net = NetworkBuilder("attention", 2, learning_rate=RATE)
    x = net.parameter("x", (2, 6, 4, 8), Initial("normal"))
    scores = net.softmax(net.scale(net.product("bihd,bjhd->bhij", x, x), 0.5))
    context = net.reshape(net.product("bhij,bjhd->bihd", scores, x), (12, 32))
    module = fused_kernels(whole_step(net.softmax_cross_entropy(context)).module, host_target(2))
    assert not any("transpose" in name or "reshape" in name for name in names(module)), names(module)


def flickering(x: te.Tensor) -> te.Tensor:
    """Only where the bits of row and column differ in the last place."""

    def element(row: tirx.Var, column: tirx.Var) -> tirx.Expr:
        return tirx.Select(tirx.floormod(row ^ column, 2) > 0, x(row, column), tirx.const(0.0, x.dtype))

    return te.compute(x.shape, element, name="flickering")


def test_bits_of_a_position_behind_a_product(tmp_path) -> None:
    def body(b: relax.BlockBuilder, x: relax.Var, w: relax.Var) -> relax.Expr:
        return b.emit(b.call_te(flickering, b.emit(op.matmul(x, w))))

    steps = plain_steps.compiled(plain_steps.network(body, {"x": (24, 40)}, {"w": (40, 48)}), tmp_path).run(1)
    rows, columns = np.indices((24, 48))
    wanted = np.where((rows ^ columns) & 1, steps.start["x"] @ steps.start["w"], 0)
    np.testing.assert_allclose(steps.after[0]["output"], wanted, rtol=1e-4, atol=1e-4)
    assert len(steps.graph.kernels) == 1, "one kernel, or nothing is tested here"
