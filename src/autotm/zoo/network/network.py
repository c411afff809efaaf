"""What a network is to the house: a Relax function, how to fill its arguments, and what it trains with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import tvm
from tvm import relax

from autotm.model.files import BadInputError, unknown_name
from autotm.model.step import Given, Initial, Training
from autotm.zoo.network.origin import Origin

Fill = Initial | Given | npt.NDArray[Any]
"""What an argument holds before the first step: a rule, a file, or the value itself."""


@dataclass(frozen=True)
class Network:
    """A network of fixed shapes, to be trained or, without `training`, to infer with.

    Attributes:
        name: registered name, used in paths.
        batch: samples per step.
        module: has one function `main(inputs, parameters and states)`, activations NHWC, weights HWIO. It returns what
            the step is run for, then the new value of each state in the order of `states`, as a tuple unless that is a
            single tensor. A step that trains is run for the scalar float32 loss, any other for its outputs.
        inputs: fill of every argument that a step leaves alone (data, labels), by argument name.
        parameters: initial fill of every argument that training updates, by argument name.
        training: the rules by which it does; None: nothing is differentiated, and parameters stay as they are.
        states: initial fill of every argument that a step replaces by what `main` computes for it (running averages,
            counters), by argument name; training does not differentiate by them.
        gradients: parameters whose gradients `main` returns, behind the new states; None: lowering differentiates it.
            Without training they are results of the step, `w.gradient` and so on.
        origin: of a network that came from elsewhere, the way back.
        rule_states: what the rules of training keep before the first step, by name of the state (`w.momentum`, `step`);
            zeros where nothing is named.

    Raises:
        BadInputError: the module has no `main`; its arguments are not exactly the inputs, parameters and states; it
            does not return what it should; `training` is no Training, or has a rule for no parameter; an argument has
            the name of a result.
    """

    name: str
    batch: int
    module: tvm.IRModule
    inputs: Mapping[str, Fill]
    parameters: Mapping[str, Fill]
    training: Training | None
    states: Mapping[str, Fill] = field(default_factory=dict)
    origin: Origin | None = None
    gradients: tuple[str, ...] | None = None
    rule_states: Mapping[str, Fill] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "main" not in {variable.name_hint for variable in self.module.functions}:
            raise BadInputError(f"network {self.name}: its module has no function main")
        self._check_training()
        self._check_arguments()
        self._check_returned()

    @property
    def results(self) -> tuple[str, ...]:
        """Names of what a step is run for: `loss`; or without training `output`, or `output.0` and so on."""
        if self.training:
            return ("loss",)
        count = len(_fields(self.module["main"].ret_ty)) - len(self.states) - len(self.gradients or ())
        return ("output",) if count == 1 else tuple(f"output.{index}" for index in range(count))

    def _check_training(self) -> None:
        if self.training is None:
            return
        if not isinstance(self.training, Training):
            raise BadInputError(
                f"network {self.name}: training: {self.training!r}: give Training(Sgd(0.1)), say, or None"
            )
        for name in self.training.rules:
            if name not in self.parameters:
                raise unknown_name(f"parameter with a rule of its own in network {self.name}", name, self.parameters)

    def _check_arguments(self) -> None:
        given = [var.name for var in self.module["main"].params]
        described = [*self.inputs, *self.parameters, *self.states]
        if sorted(given) != sorted(described):
            odd = sorted(set(given) ^ set(described)) or sorted({n for n in described if described.count(n) > 1})
            raise BadInputError(
                f"network {self.name}: every argument of main must be an input, a parameter or a state, once; "
                f"see to {odd}"
            )
        taken = {*self.results, *(f"{name}.new" for name in (*self.parameters, *self.states))} & set(given)
        if taken:
            raise BadInputError(f"network {self.name}: {sorted(taken)} are names of results; rename these arguments")

    def _check_returned(self) -> None:
        main = self.module["main"]
        returned, states = _fields(main.ret_ty), len(self.states)
        returned = returned[: len(returned) - len(self.gradients or ())]
        first, new = returned[: len(returned) - states], returned[len(returned) - states :]
        if self.training and (len(first) != 1 or _described(first[0]) != ((), "float32")):
            raise BadInputError(
                f"network {self.name}: main returns {main.ret_ty}; to be trained it returns a scalar float32 loss, "
                f"then the new value of each of its {states} states"
            )
        if not first:
            raise BadInputError(
                f"network {self.name}: main returns {main.ret_ty}: {states} states at most, and no output before them"
            )
        types = {var.name: var.ty for var in main.params}
        for name, item in zip(self.states, new, strict=True):
            if _described(item) != _described(types[name]):
                raise BadInputError(
                    f"network {self.name}: state '{name}' is {types[name]}, but main returns {item} for it"
                )


def _fields(returned: tvm.ir.Type) -> list[tvm.ir.Type]:
    return list(returned.fields) if isinstance(returned, relax.TupleType) else [returned]


def _described(item: tvm.ir.Type) -> tuple[tuple[int, ...], str] | None:
    """Shape and dtype of a tensor of fixed shape; None of anything else."""
    if not isinstance(item, relax.TensorType) or item.shape is None:
        return None
    dtype = item.dtype
    return tuple(int(extent) for extent in item.shape), str(getattr(dtype, "dtype", dtype))
