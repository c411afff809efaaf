"""What a network is to the house: a Relax forward pass with a scalar loss, and how to fill its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tvm

from autotm.model.files import BadInputError
from autotm.model.step import Initial


@dataclass(frozen=True)
class Network:
    """A trainable network of fixed shapes.

    Attributes:
        name: registered name, used in paths.
        batch: samples per step.
        module: has one function `main(inputs and parameters) -> scalar float32 loss`, activations NHWC, weights HWIO.
        inputs: fill of every argument that training leaves alone (data, labels), by argument name.
        parameters: initial fill of every argument that training updates, by argument name.
        learning_rate: of plain SGD.

    Raises:
        BadInputError: the module has no `main`, or its arguments are not exactly the inputs and parameters.
    """

    name: str
    batch: int
    module: tvm.IRModule
    inputs: Mapping[str, Initial]
    parameters: Mapping[str, Initial]
    learning_rate: float

    def __post_init__(self) -> None:
        if "main" not in {variable.name_hint for variable in self.module.functions}:
            raise BadInputError(f"network {self.name}: its module has no function main")
        given, described = [var.name for var in self.module["main"].params], [*self.inputs, *self.parameters]
        if sorted(given) != sorted(described):
            odd = sorted(set(given) ^ set(described)) or sorted({n for n in described if described.count(n) > 1})
            raise BadInputError(
                f"network {self.name}: every argument of main must be an input or a parameter, once; see to {odd}"
            )
