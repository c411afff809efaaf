"""What a network is to the house: a Relax forward pass with a scalar loss, and how to fill its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tvm

from autotm.model.graph import Initial


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
    """

    name: str
    batch: int
    module: tvm.IRModule
    inputs: Mapping[str, Initial]
    parameters: Mapping[str, Initial]
    learning_rate: float
