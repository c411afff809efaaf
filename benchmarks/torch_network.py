"""A network of the zoo as an ordinary PyTorch module, read off its Relax forward pass.

The anchor of the benchmarks and the numerical reference of the tests: activations are channels_last, convolutions and
dense layers take their bias, views stay views.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import tvm
from torch.nn import functional
from tvm import relax

from autotm.zoo import Network

Values = dict[str, torch.Tensor]
Rule = Callable[[tvm.ir.Call], Callable[..., torch.Tensor]]
_SPATIAL = 4
_FACTORS = 2


class TorchNetwork(torch.nn.Module):
    """Computes the loss of one batch; trains with `torch.optim.SGD`."""

    def __init__(
        self, network: Network, arrays: Mapping[str, np.ndarray], dtype: torch.dtype, *, sparse: bool = True
    ) -> None:
        """Take parameters and inputs from `arrays` (Relax layouts), converted to `dtype`.

        With `sparse`, gradients of tables name the rows that they change; else they are as large as the tables.
        """
        super().__init__()
        self._plan = _instructions(network.module["main"], {**_RULES, "relax.take": partial(_take, sparse=sparse)})
        self._result = self._plan[-1][0]
        self.weights = torch.nn.ParameterDict(
            {name: torch.nn.Parameter(_to_torch(arrays[name], dtype)) for name in network.parameters}
        )
        self.inputs = {name: _to_torch(arrays[name], dtype, weight=False) for name in network.inputs}

    def forward(self) -> torch.Tensor:
        """Loss of the fixed batch."""
        values: dict[str, Any] = {**self.inputs, **self.weights}
        for name, rule, arguments in self._plan:
            values[name] = rule(*[_value(values, argument) for argument in arguments])
        return values[self._result]

    def array(self, name: str) -> np.ndarray:
        """A parameter in its Relax layout."""
        weight = self.weights[name].detach()
        return (weight.permute(2, 3, 1, 0) if weight.dim() == _SPATIAL else weight).numpy()


def _to_torch(array: np.ndarray, dtype: torch.dtype, *, weight: bool = True) -> torch.Tensor:
    tensor = torch.from_numpy(np.array(array))
    tensor = tensor.to(dtype) if tensor.is_floating_point() else tensor
    if tensor.dim() != _SPATIAL:
        return tensor
    ordered = tensor.permute(3, 2, 0, 1) if weight else tensor.permute(0, 3, 1, 2)
    return ordered.contiguous(memory_format=torch.channels_last)


def _value(values: Mapping[str, Any], argument: Any) -> Any:
    if isinstance(argument, list):
        return [values[name] for name in argument]
    return values[argument] if isinstance(argument, str) else argument


def _instructions(main: relax.Function, rules: Mapping[str, Rule]) -> list[tuple[str, Callable[..., Any], list[Any]]]:
    """(result, function, arguments) per operator; a bias addition joins the product before it."""
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    names: dict[relax.Var, str] = {var: var.name for var in main.params}
    plan: list[tuple[str, Callable[..., Any], list[Any]]] = []
    for index, binding in enumerate(bindings):
        names[binding.var] = name = f"%{index}"
        value = binding.value
        if isinstance(value, relax.Var):
            names[binding.var] = names[value]
            continue
        if isinstance(value, relax.TupleGetItem):
            names[binding.var] = names[value.tuple_value]
            continue
        arguments = [_argument(names, argument) for argument in value.args]
        if value.op.name == "relax.add" and plan and _takes_bias(plan[-1], arguments[0]):
            plan[-1] = (name, plan[-1][1], [*plan[-1][2], arguments[1]])
        else:
            plan.append((name, rules[value.op.name](value), arguments))
    return plan


def _takes_bias(last: tuple[str, Callable[..., Any], list[Any]], operand: Any) -> bool:
    name, function, arguments = last
    return name == operand and function.__name__ == "product" and len(arguments) == _FACTORS


def _argument(names: Mapping[relax.Var, str], argument: relax.Expr) -> Any:
    if isinstance(argument, relax.Tuple):
        return [names[field] for field in argument.fields]
    if isinstance(argument, tvm.ir.Constant):
        return None if argument.value.shape else float(argument.value.numpy())
    return names.get(argument) if isinstance(argument, relax.Var) else None


def _ints(values: Any) -> list[int]:
    return [int(value) for value in values]


def _symmetric(padding: Any) -> list[int]:
    top, left, bottom, right = _ints(padding)
    if (top, left) != (bottom, right):
        raise NotImplementedError(f"padding {padding} is not symmetric")
    return [top, left]


def _conv2d(call: tvm.ir.Call) -> Callable[..., torch.Tensor]:
    strides, padding = _ints(call.attrs.strides), _symmetric(call.attrs.padding)
    groups = int(call.attrs.groups)

    def product(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return functional.conv2d(x, w, bias, strides, padding, 1, groups)

    return product


def _matmul(_call: tvm.ir.Call) -> Callable[..., torch.Tensor]:
    def product(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return x @ w if bias is None else torch.addmm(bias, x, w)

    return product


def _max_pool(call: tvm.ir.Call) -> Callable[..., torch.Tensor]:
    size, strides, padding = _ints(call.attrs.pool_size), _ints(call.attrs.strides), _symmetric(call.attrs.padding)
    return lambda x: functional.max_pool2d(x, size, strides, padding)


def _avg_pool(call: tvm.ir.Call) -> Callable[..., torch.Tensor]:
    size, strides, padding = _ints(call.attrs.pool_size), _ints(call.attrs.strides), _symmetric(call.attrs.padding)
    return lambda x: functional.avg_pool2d(x, size, strides, padding, count_include_pad=False)


def _batch_norm(call: tvm.ir.Call) -> Callable[..., torch.Tensor]:
    epsilon = float(call.attrs.epsilon)

    def normalise(x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, *_: None) -> torch.Tensor:
        return functional.batch_norm(x, None, None, gamma, beta, training=True, eps=epsilon)

    return normalise


def _mean(call: tvm.ir.Call) -> Callable[..., torch.Tensor]:
    axes = [(0, 2, 3, 1)[axis] for axis in _ints(call.attrs.axis)]
    return lambda x: x.mean(axes)


def _reshape(call: tvm.ir.Call) -> Callable[..., torch.Tensor]:
    before, shape = tuple(_ints(call.args[0].ty.shape)), _ints(call.ty.shape)
    # Of tensors with four axes, only images have another order here than in Relax.
    return lambda x, _: (x if tuple(x.shape) == before else x.permute(0, 2, 3, 1)).reshape(shape)


def _layer_norm(call: tvm.ir.Call) -> Callable[..., torch.Tensor]:
    epsilon = float(call.attrs.epsilon)
    return lambda x, scale, shift: functional.layer_norm(x, x.shape[-1:], scale, shift, epsilon)


def _einsum(call: tvm.ir.Call) -> Callable[..., torch.Tensor]:
    subscripts = str(call.attrs.subscripts)
    return lambda operands: torch.einsum(subscripts, *operands)


def _take(call: tvm.ir.Call, *, sparse: bool) -> Callable[..., torch.Tensor]:
    if call.attrs.axis != 0:
        raise NotImplementedError(f"take along axis {call.attrs.axis}")
    return lambda table, indices: functional.embedding(indices, table, sparse=sparse)


def _permute(call: tvm.ir.Call) -> Callable[..., torch.Tensor]:
    axes = _ints(call.attrs.axes)
    return lambda x: x.permute(axes)


def _concat(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(parts, 1 if parts[0].dim() == _SPATIAL else -1)


_RULES: dict[str, Rule] = {
    "relax.nn.conv2d": _conv2d,
    "relax.matmul": _matmul,
    "relax.nn.max_pool2d": _max_pool,
    "relax.nn.avg_pool2d": _avg_pool,
    "relax.nn.batch_norm": _batch_norm,
    "relax.mean": _mean,
    "relax.reshape": _reshape,
    "relax.concat": lambda _: _concat,
    "relax.permute_dims": _permute,
    "relax.nn.softplus": lambda _: functional.softplus,
    "relax.nn.relu": lambda _: functional.relu,
    "relax.nn.softmax": lambda _: lambda x: functional.softmax(x, -1),
    "relax.nn.layer_norm": _layer_norm,
    "relax.einsum": _einsum,
    "relax.nn.log_softmax": lambda _: lambda x: functional.log_softmax(x, -1),
    "relax.add": lambda _: torch.add,
    "relax.subtract": lambda _: torch.sub,
    "relax.multiply": lambda _: torch.mul,
    "relax.maximum": lambda _: torch.clamp_min,
    "relax.log": lambda _: torch.log,
    "relax.sum": lambda _: torch.sum,
}
