"""What a network that came from elsewhere calls its tensors there, and how they lie there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from autotm.model.files import BadInputError, unknown_name
from autotm.model.step import STEP

Array = npt.NDArray[Any]
Check = Callable[[Mapping[str, Array]], None]


Way = Literal["float32", "float64", "another order"]
"""How a source computes a step: in its own float32 or float64, or in float32 with sums in another order."""


class NotComputedError(RuntimeError):
    """A source does not compute a step in some way."""


class Reference(Protocol):
    """The source of a network, computing a step itself.

    Attributes:
        name: of the source, with its version.
        eager: computes the step's results on the source's own values, in another way than `step`; may be None.
    """

    @property
    def name(self) -> str: ...  # noqa: D102 - above

    @property
    def eager(self) -> Callable[[], dict[str, Array]] | None: ...  # noqa: D102 - above

    def step(self, values: Mapping[str, Array], way: Way) -> dict[str, Array]:
        """Compute the results by their names here, from arguments by name.

        Raises:
            NotComputedError: the source cannot, in any way.
        """

    def in_detail(self) -> tuple[Any, Sequence[Any]]:
        """Import the step with the value of every operator as an output; gives the operators too."""

    def first_difference(self, values: Mapping[str, Array], found: Mapping[Any, Array]) -> str | None:
        """Say which operator is the first that differs from the source's on the same operands, if any does."""


def one_or_all(outputs: Sequence[Any]) -> Any:
    """The output of a step that has one, or a tuple of all."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def unchecked(values: Mapping[str, Array]) -> None:
    """Accept any values: the source states nothing about those of its inputs."""
    del values


@dataclass(frozen=True)
class Origin:
    """The way from a network's tensors back to those of its source.

    Attributes:
        inputs: names of what the source is called with, in order; some may be no inputs of the step.
        turned: arguments whose axes lie otherwise here: axis j is axis `turned[name][j]` in the source.
        tensors: those of the source's state that a step may change.
        same: other names that the source has for one of them.
        kept: tensors of the source's state that no step changes.
        counters: of these, whole numbers, and what every step adds to them.
        is_torch: whether the source is a module of PyTorch.
        lines: where in the source an operator is first used, by name of the operator.
        check: called with the whole numbers among the inputs, by name, as they lie in the source; raises BadInputError
            where one would be an index out of range.
        reference: computes the step as the source does; None where nothing does.
        outputs: called with the outputs of a step that infers; returns them nested as the source nests its own.
    """

    inputs: tuple[str, ...] = ()
    turned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    tensors: tuple[str, ...] = ()
    same: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, Array] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    is_torch: bool = False
    lines: Mapping[str, str] = field(default_factory=dict)
    check: Check = unchecked
    outputs: Callable[[Sequence[Any]], Any] = one_or_all
    reference: Reference | None = None

    def fed(self, known: Sequence[str], positional: Sequence[Array], named: Mapping[str, Array]) -> dict[str, Array]:
        """New values of a step's inputs, by name, turned as the step has them.

        Args:
            known: inputs of the step.
            positional: values in the order of the source's arguments.
            named: values by name.

        Raises:
            BadInputError: more values than the source has arguments, or an unknown name.
        """
        names = self.inputs or tuple(known)
        if len(positional) > len(names):
            raise BadInputError(f"{len(positional)} inputs given, the network has {len(names)}: {', '.join(names)}")
        for name in named:
            if name not in names:
                raise unknown_name("input", name, names)
        given = {**dict(zip(names, positional, strict=False)), **named}
        return {
            name: value.transpose(self.turned[name]) if name in self.turned else value
            for name, value in given.items()
            if name in known
        }

    def state(self, values: Mapping[str, Array], steps: int) -> dict[str, Array]:
        """The source's state after so many steps: every tensor by its name there, as it lies there."""
        back = {name: self.back(name, value) for name, value in values.items() if name in self.tensors}
        counted = {name: self.kept[name] + steps * added for name, added in self.counters.items()}
        others = {other: back[name] for other, name in self.same.items()}
        return {**self.kept, **counted, **back, **others}

    def rule_state(self, values: Mapping[str, Array], parameters: Sequence[str]) -> dict[str, Any]:
        """What update rules keep, by parameter and state, as the parameter lies in the source; `step` is a number.

        Args:
            values: states of the step, by name.
            parameters: of the step.
        """
        found: dict[str, Any] = {STEP: int(values[STEP])} if STEP in values else {}
        for name, value in values.items():
            parameter, _, state = name.rpartition(".")
            if parameter in parameters and name not in parameters:
                found.setdefault(parameter, {})[state] = self.back(parameter, value)
        return found

    def from_rule_state(self, given: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Array]:
        """States of the step, by name, from what `rule_state` gave.

        Args:
            given: from another run of the same step.
            own: this step's.

        Raises:
            BadInputError: what is given and what this step keeps differ in names or shapes.
        """
        if wrong := sorted(given.keys() ^ own.keys()):
            raise BadInputError(f"optimizer state: '{wrong[0]}' {self._is(wrong[0] in own)}")
        found: dict[str, Array] = {}
        for name, mine in own.items():
            if name == STEP:
                found[STEP] = np.asarray(given[STEP], np.int64)
                continue
            if not isinstance(given[name], Mapping):
                kind, names = type(given[name]).__name__, ", ".join(sorted(mine))
                raise BadInputError(f"optimizer state: '{name}' is a {kind}, not a mapping of {names}")
            if wrong := sorted(given[name].keys() ^ mine.keys()):
                raise BadInputError(f"optimizer state: '{wrong[0]}' of '{name}' {self._is(wrong[0] in mine)}")
            for state, value in given[name].items():
                if value.shape != mine[state].shape:
                    raise BadInputError(
                        f"optimizer state: '{state}' of '{name}' is {list(value.shape)}, not {list(mine[state].shape)}"
                    )
                found[f"{name}.{state}"] = value.transpose(self.turned[name]) if name in self.turned else value
        return found

    def back(self, name: str, value: Array) -> Array:
        """An argument's value as it lies in the source."""
        return np.ascontiguousarray(value.transpose(np.argsort(self.turned[name]))) if name in self.turned else value

    @staticmethod
    def _is(is_missing: bool) -> str:
        return "is missing: it is of another training" if is_missing else "is nothing that this step keeps"
