"""Networks whose loss is that of one product, and their steps by unscheduled kernels."""

import numpy as np
import tvm
from central_differences import UNCHECKED
from tvm import relax

from autotm.kernels.target import host_target
from autotm.lower.calls import fused_kernels
from autotm.lower.step import whole_step
from autotm.model.graph import Initial
from autotm.model.training import Sgd, Training
from autotm.zoo import Network

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
