"""A network of the zoo as an ordinary PyTorch module, read off its Relax forward pass.

The rival of figure 12, the anchor of the benchmarks and the numerical reference of the tests: activations are
channels_last, convolutions and dense layers take their bias, views stay views.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax

from autotm.model.files import BadInputError
from autotm.zoo.network import Network
from autotm.zoo.twin.operators import IMAGE_RANK, function_of

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
