"""Operators differentiated and compiled as they are, and their gradients against central differences in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from autotm.lower.operators import fold_transposes
from autotm.lower.rules import LEGALIZE

STEP = 1e-6
TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})
"""Half of compiling is LLVM's optimization, which code that runs a moment does not need."""
UNCHECKED = {"tirx.disable_assert": True}
"""Checks of arguments are most of such code, and half of what is left of compiling."""
Operator = Callable[..., relax.Expr]
op = relax.op


def differentiated(operator: Operator, shapes: list[tuple[int, ...]]) -> tuple[relax.VirtualMachine, tuple[int, ...]]:
    """A machine with `main`, the operator's result times weights, summed, and its adjoint; the result's shape."""
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"x{n}", relax.TensorType(shape, "float64")) for n, shape in enumerate(shapes)]
    with builder.function("main"):
        with builder.dataflow():
            result = builder.emit(operator(*variables))
            weights = relax.Var("weights", relax.TensorType(result.ty.shape, "float64"))
            loss = builder.emit_output(op.sum(builder.emit(op.multiply(result, weights))))
        builder.emit_func_output(loss, [weights, *variables])
    module = relax.transform.Gradient("main", variables)(fold_transposes(builder.finalize()))
    module = relax.transform.LegalizeOps(LEGALIZE)(module)
    with tvm.transform.PassContext(opt_level=2, config=UNCHECKED):
        code = tvm.compile(module, TARGET)
    return relax.VirtualMachine(code, tvm.cpu()), tuple(int(n) for n in result.ty.shape)


def assert_gradients(operator: Operator, arrays: list[np.ndarray]) -> None:
    machine, shape = differentiated(operator, [array.shape for array in arrays])
    weights = np.random.default_rng(1).standard_normal(shape)

    def run(function: str, at: list[np.ndarray]) -> Any:
        return machine[function](*(tvm.runtime.tensor(array) for array in [weights, *at]))

    _, gradients = run("main_adjoint", arrays)
    for n, array in enumerate(arrays):
        expected = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            ends = []
            for sign in (1, -1):
                moved = array.copy()
                moved[place] += sign * STEP
                ends.append(float(run("main", [*arrays[:n], moved, *arrays[n + 1 :]]).numpy()))
            expected[place] = (ends[0] - ends[1]) / (2 * STEP)
        np.testing.assert_allclose(gradients[n].numpy(), expected, rtol=1e-6, atol=1e-7)
