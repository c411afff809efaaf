"""Networks of ours and their optimizers as modules of PyTorch that compute the same, to be timed and compared with."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import tvm
from torch.nn import functional
from tvm import relax

from autotm.model.errors import BadInputError
from autotm.model.training import Adam, AdamW, Sgd, UpdateRule
from autotm.zoo.network import Network

# Relax's operators as functions of PyTorch, on images with channels last: what a network of the zoo may consist of.

Rule = Callable[[tvm.ir.Call], Callable[..., torch.Tensor]]
IMAGE_RANK = 4


def function_of(call: tvm.ir.Call, network: str, *, sparse: bool) -> Callable[..., torch.Tensor]:
    """Return PyTorch's counterpart of a call, if any; it is named `product` where a third argument may be a bias."""
    rules = {**_RULES, "relax.take": partial(_take, sparse=sparse)}
    if call.op.name not in rules:
        raise BadInputError(f"network {network}: {call.op.name} has no counterpart in PyTorch here")
    try:
        return rules[call.op.name](call)
    except NotImplementedError as error:
        raise BadInputError(
            f"network {network}: {call.op.name}: {error}; it has no counterpart in PyTorch here"
        ) from None


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


def _pool(call: tvm.ir.Call) -> Callable[..., torch.Tensor]:
    size, strides, padding = _ints(call.attrs.pool_size), _ints(call.attrs.strides), _symmetric(call.attrs.padding)
    if call.op.name == "relax.nn.max_pool2d":
        return lambda x: functional.max_pool2d(x, size, strides, padding)
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
    "relax.nn.max_pool2d": _pool,
    "relax.nn.avg_pool2d": _pool,
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


# A network of the zoo as an ordinary PyTorch module, read off its Relax forward pass.
#
# Figure 12 and the benchmarks time it, the tests compare numbers with it: activations are channels_last, convolutions
# and dense layers take their bias, views stay views.


@dataclass(frozen=True)
class Instruction:
    """One operator of PyTorch.

    Its `arguments` are names of values, lists of these, or constants. Nothing uses the values `last` after it.
    """

    result: str
    function: Callable[..., Any]
    arguments: list[Any]
    last: tuple[str, ...] = ()


class TorchNetwork(torch.nn.Module):
    """Computes the loss of one batch. A value lives as long as an operator to come or autograd needs it."""

    def __init__(
        self,
        network: Network,
        arrays: Mapping[str, np.ndarray],
        dtype: torch.dtype,
        *,
        sparse: bool = True,
        device: torch.device | None = None,
    ) -> None:
        """Take parameters and inputs from `arrays` (Relax layouts), converted to `dtype`, on `device` or the CPU.

        With `sparse`, gradients of tables name the rows that they change; else they are as large as the tables.

        Raises:
            BadInputError: the network has states, or an operator that has no counterpart.
        """
        super().__init__()
        self._plan = plan_of(network, sparse=sparse)
        self._result = self._plan[-1].result
        self.weights = torch.nn.ParameterDict(
            {name: torch.nn.Parameter(_to_torch(arrays[name], dtype, device)) for name in network.parameters}
        )
        self.inputs = {name: _to_torch(arrays[name], dtype, device, weight=False) for name in network.inputs}

    def forward(self) -> torch.Tensor:
        """Compute the loss of the fixed batch."""
        values: dict[str, Any] = {**self.inputs, **self.weights}

        def value(argument: Any) -> Any:
            if isinstance(argument, list):
                return [values[name] for name in argument]
            return values[argument] if isinstance(argument, str) else argument

        for one in self._plan:
            values[one.result] = one.function(*map(value, one.arguments))
            for name in one.last:
                del values[name]
        return values[self._result]

    def array(self, name: str) -> np.ndarray:
        """Return a parameter in its Relax layout."""
        weight = self.weights[name].detach().cpu()
        return (weight.permute(2, 3, 1, 0) if weight.dim() == IMAGE_RANK else weight).numpy()


def plan_of(network: Network, *, sparse: bool) -> list[Instruction]:
    """Return the operators of PyTorch that compute a network's loss, in order; a bias addition joins its product.

    Raises:
        BadInputError: it has states, or an operator or an option that has no counterpart; names it.
    """
    if network.states:
        raise BadInputError(f"network {network.name}: it has states, which PyTorch does not keep here")
    main = network.module["main"]
    names: dict[relax.Var, str] = {var: var.name for var in main.params}
    plan: list[Instruction] = []
    for index, binding in enumerate(_leading_to_the_loss(main)):
        names[binding.var] = name = f"%{index}"
        value = binding.value
        if isinstance(value, relax.Var | relax.TupleGetItem):
            names[binding.var] = names[value if isinstance(value, relax.Var) else value.tuple_value]
            continue
        arguments = [_argument(names, argument) for argument in value.args]
        last = plan[-1] if plan and value.op.name == "relax.add" and plan[-1].result == arguments[0] else None
        if last is not None and last.function.__name__ == "product" and len(last.arguments) == 2:  # noqa: PLR2004 - no bias yet
            plan[-1] = Instruction(name, last.function, [*last.arguments, arguments[1]])
        else:
            plan.append(Instruction(name, function_of(value, network.name, sparse=sparse), arguments))
    seen = {plan[-1].result}
    for place, one in reversed(list(enumerate(plan))):
        several = (argument if isinstance(argument, list) else [argument] for argument in one.arguments)
        used = [name for group in several for name in group if isinstance(name, str)]
        plan[place] = replace(one, last=tuple(dict.fromkeys({*used} - seen)))
        seen.update(used)
    return plan


def _to_torch(
    array: np.ndarray, dtype: torch.dtype, device: torch.device | None, *, weight: bool = True
) -> torch.Tensor:
    tensor = torch.from_numpy(np.array(array))
    tensor = tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)
    if tensor.dim() != IMAGE_RANK:
        return tensor
    ordered = tensor.permute(3, 2, 0, 1) if weight else tensor.permute(0, 3, 1, 2)
    return ordered.contiguous(memory_format=torch.channels_last)


def _leading_to_the_loss(main: relax.Function) -> list[relax.VarBinding]:
    """Return the bindings of a function that its first result needs, in order."""
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    bound = {binding.var: binding.value for binding in bindings}
    result = bound.get(main.body.body, main.body.body)
    needed = {result.fields[0] if isinstance(result, relax.Tuple) else main.body.body}
    for binding in reversed(bindings):
        if binding.var in needed:
            needed.update(relax.analysis.free_vars(binding.value))
    return [binding for binding in bindings if binding.var in needed]


def _argument(names: Mapping[relax.Var, str], argument: relax.Expr) -> Any:
    if isinstance(argument, relax.Tuple):
        return [names[field] for field in argument.fields]
    if isinstance(argument, tvm.ir.Constant):
        return None if argument.value.shape else float(argument.value.numpy())
    return names.get(argument) if isinstance(argument, relax.Var) else None


_KINDS = {Sgd: torch.optim.SGD, Adam: torch.optim.Adam, AdamW: torch.optim.AdamW}


def has_sparse_gradients(network: Network) -> bool:
    """Return whether the update takes gradients that name rows: it reads nothing but them, and clips nothing."""
    training = network.training
    is_alone = training is not None and training.clip_norm is None and not training.rules
    return is_alone and isinstance(training.rule, Sgd) and training.rule.is_plain


def require_pytorch_step(network: Network) -> None:
    """Refuse a network whose step PyTorch cannot make here.

    Raises:
        BadInputError: as `plan_of`; or the network is not trained, or by rules of several kinds.
    """
    plan_of(network, sparse=False)
    _rules(network)


def optimizer_of(network: Network, module: TorchNetwork) -> torch.optim.Optimizer:
    """Return the optimizer that updates the module's weights as the network's rules say, a group a rule.

    Raises:
        BadInputError: the network is not trained, or by rules of several kinds.
    """
    groups = _rules(network)
    kind, options = _KINDS[type(next(iter(groups)))], []
    for rule, names in groups.items():
        own = dataclasses.asdict(rule)
        options.append({"params": [module.weights[name] for name in names], "lr": own.pop("learning_rate"), **own})
    return kind(options)


def _rules(network: Network) -> dict[UpdateRule, list[str]]:
    """Return the parameters by rule."""
    if network.training is None:
        raise BadInputError(f"network {network.name}: it is not trained, so there is nothing to update")
    if network.gradients is not None:
        raise BadInputError(f"network {network.name}: it comes from PyTorch with its gradients; run the module itself")
    groups: dict[UpdateRule, list[str]] = defaultdict(list)
    for name in network.parameters:
        groups[network.training.rule_of(name)].append(name)
    kinds = sorted({type(rule).__name__ for rule in groups})
    if len(kinds) > 1:
        raise BadInputError(f"network {network.name}: rules of several kinds ({', '.join(kinds)}); give one kind")
    return groups
