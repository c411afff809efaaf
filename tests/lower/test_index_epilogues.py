"""Elementwise work behind a product that computes with its own position: parities, triangles."""

import numpy as np
import plain_steps
from tvm import relax, te, tirx

op = relax.op


def flickering(x: te.Tensor) -> te.Tensor:
    """Only where the bits of row and column differ in the last place."""

    def element(row: tirx.Var, column: tirx.Var) -> tirx.Expr:
        differs = tirx.floormod(row ^ column, 2) > 0
        return tirx.Select(differs, x(row, column), tirx.const(0.0, x.dtype))

    return te.compute(x.shape, element, name="flickering")


def test_bits_of_a_position_behind_a_product(tmp_path) -> None:
    def body(b: relax.BlockBuilder, x: relax.Var, w: relax.Var) -> relax.Expr:
        return b.emit(b.call_te(flickering, b.emit(op.matmul(x, w))))

    steps = plain_steps.compiled(plain_steps.network(body, {"x": (24, 40)}, {"w": (40, 48)}), tmp_path).run(1)
    rows, columns = np.indices((24, 48))
    wanted = np.where((rows ^ columns) & 1, steps.start["x"] @ steps.start["w"], 0)
    np.testing.assert_allclose(steps.after[0]["output"], wanted, rtol=1e-4, atol=1e-4)
    assert len(steps.graph.kernels) == 1, "one kernel, or nothing is tested here"
