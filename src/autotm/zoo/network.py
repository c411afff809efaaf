"""Networks: a Relax function, the initial values of its arguments, its source, and marks for gradients."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from autotm.model.errors import BadInputError, DamagedFileError, unknown_name
from autotm.model.files import write_atomically
from autotm.model.graph import Initial, InitialValue
from autotm.model.training import STEP, Training

# The source of a network that was imported: the names and layouts that its tensors have there.

Array = npt.NDArray[Any]
Check = Callable[[Mapping[str, Array]], None]


ReferenceMode = Literal["float32", "float64", "another order"]
"""How a source computes a step: in its own float32 or float64, or in float32 with sums in another order."""


class NotComputedError(RuntimeError):
    """A source cannot compute a step in the requested mode."""


class Reference(Protocol):
    """The source of a network, computing a step itself.

    Attributes:
        name: name and version of the source.
        eager: calls the source itself on its own values and returns the step's results; None where it cannot.
    """

    @property
    def name(self) -> str: ...  # noqa: D102 - above

    @property
    def eager(self) -> Callable[[], dict[str, Array]] | None: ...  # noqa: D102 - above

    def step(self, values: Mapping[str, Array], mode: ReferenceMode) -> dict[str, Array]:
        """Compute the step from its arguments by name; return its results by their names here.

        Raises:
            NotComputedError: the source cannot compute the step in this mode.
        """

    def in_detail(self) -> tuple[Any, Sequence[Any]]:
        """Import the step with every operator's value as an output; return it and the operators."""

    def first_difference(self, values: Mapping[str, Array], actual: Mapping[Any, Array]) -> str | None:
        """Name the first operator whose result differs from the source's on the same operands; None if none does."""


def output_names(count: int) -> tuple[str, ...]:
    """Return the names of a step's outputs: `output`, or `output.0` and so on."""
    return ("output",) if count == 1 else tuple(f"output.{index}" for index in range(count))


@dataclass(frozen=True)
class Origin:
    """How the tensors of a network correspond to those of its source.

    Attributes:
        inputs: names of the source's arguments, in order; the step may lack some of them.
        turned: arguments whose axes have another order here: axis j is axis `turned[name][j]` in the source.
        tensors: names of the tensors in the source's state that a step may change.
        same: name in `tensors`, by each other name that the source has for that tensor.
        kept: tensors of the source's state that no step changes.
        counters: what every step adds to a whole number in `kept`, by the name of the number.
        is_torch: whether the source is a module of PyTorch.
        lines: where in the source an operator is first used, by name of the operator.
        check: called with the whole numbers among the inputs, by name, as they lie in the source; raises BadInputError
            where one would be an index out of range.
        reference: computes the step as the source does; None where nothing does.
        outputs: returns the outputs of an inference step nested as the source nests its own.
    """

    inputs: tuple[str, ...] = ()
    turned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    tensors: tuple[str, ...] = ()
    same: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, Array] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    is_torch: bool = False
    lines: Mapping[str, str] = field(default_factory=dict)
    check: Check = lambda _: None
    outputs: Callable[[Sequence[Any]], Any] = lambda outputs: outputs[0] if len(outputs) == 1 else tuple(outputs)
    reference: Reference | None = None

    def fed(self, known: Sequence[str], positional: Sequence[Array], named: Mapping[str, Array]) -> dict[str, Array]:
        """Return new values of a step's inputs, by name, with the axes in the step's order.

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
        by_name = {**dict(zip(names, positional, strict=False)), **named}
        return {
            name: value.transpose(self.turned[name]) if name in self.turned else value
            for name, value in by_name.items()
            if name in known
        }

    def state(self, values: Mapping[str, Array], steps: int) -> dict[str, Array]:
        """Return the source's state after so many steps: every tensor by its name and in its layout there."""
        back = {name: self.back(name, value) for name, value in values.items() if name in self.tensors}
        counted = {name: self.kept[name] + steps * added for name, added in self.counters.items()}
        others = {other: back[name] for other, name in self.same.items()}
        return {**self.kept, **counted, **back, **others}

    def rule_state(self, values: Mapping[str, Array], parameters: Sequence[str]) -> dict[str, Any]:
        """Return the states of the update rules, by parameter and state, in the source's layout; `step` is a number.

        Args:
            values: states of the step, by name.
            parameters: of the step.
        """
        states: dict[str, Any] = {STEP: int(values[STEP])} if STEP in values else {}
        for name, value in values.items():
            parameter, _, state = name.rpartition(".")
            if parameter in parameters and name not in parameters:
                states.setdefault(parameter, {})[state] = self.back(parameter, value)
        return states

    def from_rule_state(self, saved: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Array]:
        """Return the states of the step, by name, from a value that `rule_state` returned.

        Args:
            saved: a value that `rule_state` returned in another run of the same step.
            own: the value that `rule_state` returns for this step.

        Raises:
            BadInputError: `saved` and `own` differ in names or shapes.
        """
        _require_same_names(saved, own, "")
        states: dict[str, Array] = {}
        for name, mine in own.items():
            if name == STEP:
                states[STEP] = np.asarray(saved[STEP], np.int64)
                continue
            if not isinstance(saved[name], Mapping):
                kind, names = type(saved[name]).__name__, ", ".join(sorted(mine))
                raise BadInputError(f"optimizer state: '{name}' is a {kind}, not a mapping of {names}")
            _require_same_names(saved[name], mine, f" of '{name}'")
            for state, value in saved[name].items():
                if value.shape != mine[state].shape:
                    raise BadInputError(
                        f"optimizer state: '{state}' of '{name}' is {list(value.shape)}, not {list(mine[state].shape)}"
                    )
                states[f"{name}.{state}"] = value.transpose(self.turned[name]) if name in self.turned else value
        return states

    def back(self, name: str, value: Array) -> Array:
        """Return an argument's value as it lies in the source."""
        return np.ascontiguousarray(value.transpose(np.argsort(self.turned[name]))) if name in self.turned else value


def _require_same_names(saved: Mapping[str, Any], own: Mapping[str, Any], of: str) -> None:
    if wrong := sorted(saved.keys() ^ own.keys()):
        why = "is missing: it is of another training" if wrong[0] in own else "is nothing that this step keeps"
        raise BadInputError(f"optimizer state: '{wrong[0]}'{of} {why}")


Fill = Initial | InitialValue | npt.NDArray[Any]
"""The initial content of an argument before the first step: a rule, a file, or the value itself."""


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
        training: update rules of the parameters; None: nothing is differentiated, and parameters stay as they are.
        states: initial fill of every argument that a step replaces by what `main` computes for it (running averages,
            counters), by argument name; training does not differentiate by them.
        gradients: parameters whose gradients `main` returns, behind the new states; None: lowering differentiates it.
            Without training they are results of the step, `w.gradient` and so on.
        origin: how the tensors of an imported network correspond to those of its source; None for other networks.
        rule_states: values of the update rules' states before the first step, by name (`w.momentum`, `step`); zeros
            for the states that are not named.

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
        return output_names(count)

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
        arguments = [var.name for var in self.module["main"].params]
        described = [*self.inputs, *self.parameters, *self.states]
        if sorted(arguments) != sorted(described):
            odd = sorted(set(arguments) ^ set(described)) or sorted({n for n in described if described.count(n) > 1})
            raise BadInputError(
                f"network {self.name}: every argument of main must be an input, a parameter or a state, once; "
                f"see to {odd}"
            )
        taken = {*self.results, *(f"{name}.new" for name in (*self.parameters, *self.states))} & set(arguments)
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


def shape_and_dtype(kind: relax.TensorType) -> tuple[tuple[int, ...], str]:
    """Return the extents and the element type, by NumPy's name, of a tensor of fixed shape."""
    return tuple(int(extent) for extent in kind.shape), str(getattr(kind.dtype, "dtype", kind.dtype))


def _described(item: tvm.ir.Type) -> tuple[tuple[int, ...], str] | None:
    """Return the shape and dtype of a tensor of fixed shape; None for anything else."""
    return shape_and_dtype(item) if isinstance(item, relax.TensorType) and item.shape is not None else None


# Values that came with a network, stored in files where every program of a step reads them.


def with_values_stored(network: Network, folder: Path) -> Network:
    """Store a network's arrays in files of `folder`, each named after its content, and let the network name these."""

    def stored(fills: Mapping[str, Fill]) -> dict[str, Fill]:
        return {
            name: InitialValue.stored(fill, folder) if isinstance(fill, np.ndarray) else fill
            for name, fill in fills.items()
        }

    kinds = ("inputs", "parameters", "states", "rule_states")
    return replace(network, **{kind: stored(getattr(network, kind)) for kind in kinds})


# A network in a file, where other processes read it without what it was defined in.


def save_network(network: Network, path: Path, provenance: Mapping[str, Any]) -> None:
    """Write a network with its provenance, for processes of the same versions; its source is left out."""
    content = pickle.dumps({"provenance": dict(provenance), "network": replace(network, origin=None)})
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def load_network(path: Path) -> Network:
    """Read a network that `save_network` wrote; a pickle, so only one's own files.

    Raises:
        DamagedFileError: it is gone or cut, or other versions wrote it.
    """
    try:
        network: Network = pickle.loads(path.read_bytes())["network"]  # noqa: S301 - Our own study wrote it.
    except Exception as error:  # noqa: BLE001 - An unfit pickle raises what its parts do.
        raise DamagedFileError(f"{path}: the network cannot be read ({error}); delete the file and run again") from None
    return network


# Marks for gradients: the network names the operator that is differentiated, lowering inserts the computation.

_MARK = "autotm.gradient"


def gradient_of(
    builder: relax.BlockBuilder, result: relax.Var, slope: relax.Expr, operands: Sequence[relax.Expr]
) -> list[relax.Var]:
    """Mark the gradients by an operator's first operands; only the number and the shapes of the operands are read.

    `result` is bound to the operator's call; `slope` is the gradient by `result`, or by the first part of a tuple.
    """
    types = relax.TupleType([operand.ty for operand in operands])
    gradients = builder.emit(relax.op.call_pure_packed(_MARK, result, slope, ty_args=types))
    return [builder.emit(relax.TupleGetItem(gradients, place)) for place in range(len(operands))]


def gradient_by(builder: relax.BlockBuilder, x: relax.Var, y: relax.Var, slope: relax.Var) -> relax.Var:
    """Return the gradient by `x`; operators from `x` to `y` take the previous result as first operand."""
    while not y.same_as(x):
        call = builder.lookup_binding(y)
        if call.op.name == "relax.permute_dims":
            axes = [int(axis) for axis in call.attrs.axes]
            slope = builder.emit(relax.op.permute_dims(slope, [axes.index(axis) for axis in range(len(axes))]))
        else:
            (slope,) = gradient_of(builder, y, slope, call.args[:1])
        y = call.args[0]
    return slope


def is_gradient(expression: relax.Expr) -> bool:
    """Return whether an expression is a mark of `gradient_of`; its arguments are then the result and the slope."""
    return (
        isinstance(expression, relax.Call)
        and expression.op == tvm.ir.Op.get("relax.call_pure_packed")
        and expression.args[0].global_symbol == _MARK
    )
