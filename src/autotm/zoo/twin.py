"""Networks of ours and their optimizers as modules of PyTorch that compute the same: a rival and a reference."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


# A network of the zoo as an ordinary PyTorch module, read off its Relax forward pass.
#
# The rival of figure 12, the anchor of the benchmarks and the numerical reference of the tests: activations are
# channels_last, convolutions and dense layers take their bias, views stay views.

_FACTORS = 2


@dataclass(frozen=True)
class Instruction:
    """One operator of PyTorch.

    Attributes:
        result: its name.
        function: that gives it.
        arguments: names of values, lists of them, or constants.
        last: names that nobody uses after it.
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
        """Loss of the fixed batch."""
        values: dict[str, Any] = {**self.inputs, **self.weights}
        for one in self._plan:
            values[one.result] = one.function(*[_value(values, argument) for argument in one.arguments])
            for name in one.last:
                del values[name]
        return values[self._result]

    def array(self, name: str) -> np.ndarray:
        """A parameter in its Relax layout."""
        weight = self.weights[name].detach().cpu()
        return (weight.permute(2, 3, 1, 0) if weight.dim() == IMAGE_RANK else weight).numpy()


def plan_of(network: Network, *, sparse: bool) -> list[Instruction]:
    """The operators of PyTorch that compute a network's loss, in order.

    Raises:
        BadInputError: it has states, or an operator that has no counterpart; names it.
    """
    if network.states:
        raise BadInputError(f"network {network.name}: it has states, which PyTorch's twin does not keep")
    return _with_last_uses(_instructions(network.module["main"], network.name, sparse=sparse))


def _to_torch(
    array: np.ndarray, dtype: torch.dtype, device: torch.device | None, *, weight: bool = True
) -> torch.Tensor:
    tensor = torch.from_numpy(np.array(array))
    tensor = tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)
    if tensor.dim() != IMAGE_RANK:
        return tensor
    ordered = tensor.permute(3, 2, 0, 1) if weight else tensor.permute(0, 3, 1, 2)
    return ordered.contiguous(memory_format=torch.channels_last)


def _value(values: Mapping[str, Any], argument: Any) -> Any:
    if isinstance(argument, list):
        return [values[name] for name in argument]
    return values[argument] if isinstance(argument, str) else argument


def _instructions(main: relax.Function, network: str, *, sparse: bool) -> list[Instruction]:
    """An operator each; a bias addition joins the product before it."""
    bindings = _leading_to_the_loss(main)
    names: dict[relax.Var, str] = {var: var.name for var in main.params}
    plan: list[Instruction] = []
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
            plan[-1] = Instruction(name, plan[-1].function, [*plan[-1].arguments, arguments[1]])
        else:
            plan.append(Instruction(name, function_of(value, network, sparse=sparse), arguments))
    return plan


def _leading_to_the_loss(main: relax.Function) -> list[relax.VarBinding]:
    """The bindings of a function that its first result needs, in order."""
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    bound = {binding.var: binding.value for binding in bindings}
    result = bound.get(main.body.body, main.body.body)
    needed = {result.fields[0] if isinstance(result, relax.Tuple) else main.body.body}
    for binding in reversed(bindings):
        if binding.var in needed:
            needed.update(relax.analysis.free_vars(binding.value))
    return [binding for binding in bindings if binding.var in needed]


def _with_last_uses(plan: list[Instruction]) -> list[Instruction]:
    """The same, each with the values that it is the last to use."""
    seen = {plan[-1].result}
    found = []
    for one in reversed(plan):
        used = [name for argument in one.arguments for name in _names(argument)]
        found.append(Instruction(one.result, one.function, one.arguments, tuple(dict.fromkeys({*used} - seen))))
        seen.update(used)
    return found[::-1]


def _names(argument: Any) -> list[str]:
    if isinstance(argument, list):
        return argument
    return [argument] if isinstance(argument, str) else []


def _takes_bias(last: Instruction, operand: Any) -> bool:
    return last.result == operand and last.function.__name__ == "product" and len(last.arguments) == _FACTORS


def _argument(names: Mapping[relax.Var, str], argument: relax.Expr) -> Any:
    if isinstance(argument, relax.Tuple):
        return [names[field] for field in argument.fields]
    if isinstance(argument, tvm.ir.Constant):
        return None if argument.value.shape else float(argument.value.numpy())
    return names.get(argument) if isinstance(argument, relax.Var) else None


# A network's update rules as an optimizer of PyTorch.

_KINDS = {Sgd: torch.optim.SGD, Adam: torch.optim.Adam, AdamW: torch.optim.AdamW}


def has_sparse_gradients(network: Network) -> bool:
    """Whether the update takes gradients that name rows of tables: it reads nothing but them, and clips nothing."""
    training = network.training
    return training is not None and training.clip_norm is None and not training.rules and _is_plain(training.rule)


def require_twin(network: Network) -> None:
    """Refuse a network whose step PyTorch cannot make here.

    Raises:
        BadInputError: as `plan_of`; or the network is not trained, or by rules of several kinds.
    """
    plan_of(network, sparse=False)
    _rules(network)


def optimizer_of(network: Network, module: TorchNetwork) -> torch.optim.Optimizer:
    """The optimizer that updates the module's weights as the network's rules say, a group a rule.

    Raises:
        BadInputError: the network is not trained, or by rules of several kinds.
    """
    groups = _rules(network)
    kind = _KINDS[type(next(iter(groups)))]
    return kind(
        [{"params": [module.weights[name] for name in names], **_options(rule)} for rule, names in groups.items()]
    )


def _rules(network: Network) -> dict[UpdateRule, list[str]]:
    """Parameters by rule."""
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


def _is_plain(rule: UpdateRule) -> bool:
    return isinstance(rule, Sgd) and rule.is_plain


def _options(rule: UpdateRule) -> dict[str, object]:
    found = dataclasses.asdict(rule)
    return {"lr": found.pop("learning_rate"), **found}
