"""Relax's operators as functions of PyTorch, on images with channels last: what a network of the zoo may consist of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import tvm
from torch.nn import functional

from autotm.model.files import BadInputError

Rule = Callable[[tvm.ir.Call], Callable[..., torch.Tensor]]
IMAGE_RANK = 4


def function_of(call: tvm.ir.Call, network: str, *, sparse: bool) -> Callable[..., torch.Tensor]:
    """What computes a call; named `product` where it takes a bias as a third argument.

    With `sparse`, the gradient of a table names the rows that it changes.

    Raises:
        BadInputError: the operator, or one of its options, has no counterpart.
    """
    rules = {**_RULES, "relax.take": partial(_take, sparse=sparse)}
    if call.op.name not in rules:
        raise BadInputError(f"network {network}: {call.op.name} is not among the operators that PyTorch's twin knows")
    try:
        return rules[call.op.name](call)
    except NotImplementedError as error:
        raise BadInputError(f"network {network}: {call.op.name}: {error}; PyTorch's twin cannot have it") from None


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
    return torch.cat(parts, 1 if parts[0].dim() == IMAGE_RANK else -1)


_RULES: Mapping[str, Rule] = {
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
