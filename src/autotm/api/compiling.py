"""`autotm.compile`: a PyTorch module with its loops and branches as one compiled function, forward, or backward too."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten

from autotm.capture import Captured
from autotm.control import ControlFunction, Limits, compile_function
from autotm.model.errors import BadInputError, unknown_name
from autotm.zoo.network import Array
from autotm.zoo.torch.control_flow import control_module
from autotm.zoo.torch.program import Inputs, Loss, Mode, arguments_of, captured_step
from autotm.zoo.torch.recurrent import REPLACED, scans_have_gradients


@dataclass(frozen=True)
class _Compiled:
    """What a module was compiled into.

    `print` tells which loops, branches and kernels it consists of.

    Attributes:
        name: of the module's class.
        function: the compiled function, of the tensors among the arguments.
        places: the line of the user's code of each loop, by its name.
    """

    name: str
    function: ControlFunction
    places: Mapping[str, str]
    _spec: TreeSpec
    _leaves: Sequence[Any]
    _names: Sequence[str]
    _order: Sequence[str]

    def __str__(self) -> str:
        whole, *parts = self.function.parts
        workspace = f"{self.function.workspace_bytes / 1e6:.3g} MB of workspace, one thread"
        lines = [f"{self.name}: {_cost(whole.kernels, whole.flops)}; {workspace}"]
        for part in parts:
            times = {None: "", 1: ", once"}.get(part.times, f", {part.times} times")
            each = "" if part.times == 1 else " each time"
            place = f"  ({self.places[part.name]})" if part.name in self.places else ""
            title = f"{'  ' * part.level}{part.kind} {part.name}".rstrip()
            lines.append(f"{title}{times}: {_cost(part.kernels, part.flops)}{each}{place}")
        return "\n".join(lines)

    def _computed(self, leaves: Sequence[Any], spec: TreeSpec, parameters: Mapping[str, Array]) -> Sequence[Array]:
        """Call the function with the leaves of the arguments, and parameters by name."""
        if spec != self._spec:
            raise BadInputError(f"{self.name}: compiled for arguments ({', '.join(self._names)}), called with others")
        arrays = dict(parameters)
        for name, leaf, example in zip(self._names, leaves, self._leaves, strict=True):
            if isinstance(example, torch.Tensor):
                arrays[name] = _array(leaf, f"{self.name}: argument {name}")
            elif leaf != example:
                raise BadInputError(f"{self.name}: argument {name} is {leaf!r}; it was compiled for {example!r}")
        results = self.function(*(arrays[name] for name in self._order))
        return results if isinstance(results, tuple) else [results]


@dataclass(frozen=True)
class CompiledModule(_Compiled):
    """A compiled forward pass; called as the module is, one call at a time.

    `print` tells which loops, branches and kernels it consists of.
    """

    _nested: Callable[[Sequence[Any]], Any]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Return what the module returns in evaluation mode, in new tensors.

        Arguments are tensors of PyTorch, arrays of NumPy, or others of the DLPack protocol, of the shapes and types
        that it was compiled for. The results are tensors if any argument is a tensor of PyTorch, else arrays.

        Raises:
            BadInputError: an argument has another shape or type, or is another number, than when it was compiled.
            AutotmError: an index is out of range, a loop does not end within its bound, or a condition compares NaN.
        """
        leaves, spec = tree_flatten(((arguments, named), ()))
        results: Sequence[Any] = self._computed(leaves, spec, {})
        if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
            results = [torch.from_numpy(result) for result in results]
        return self._nested(results)


@dataclass(frozen=True)
class CompiledStep(_Compiled):
    """A compiled training step, without the optimizer's; one call at a time.

    `print` tells which loops, branches and kernels it consists of.
    """

    _trained: Mapping[str, nn.Parameter]

    def __call__(self, *batch: Any, **named: Any) -> torch.Tensor:
        """Return the loss of a batch, inputs and then targets; add the gradients to `.grad` of the parameters.

        Parameters are read where they lie, with the values that they have now.

        Raises:
            BadInputError, AutotmError: as for `CompiledModule`.
        """
        count = len(batch) - self._spec.child(1).num_children
        leaves, spec = tree_flatten(((batch[:count], named), batch[count:]))
        parameters = {name: parameter.detach().numpy() for name, parameter in self._trained.items()}
        loss, *gradients = self._computed(leaves, spec, parameters)
        for parameter, gradient in zip(self._trained.values(), map(torch.from_numpy, gradients), strict=True):
            if parameter.grad is None:
                parameter.grad = gradient
            else:
                parameter.grad.add_(gradient)
        return torch.from_numpy(loss)


@overload
def compile(  # noqa: A001 - as PyTorch's
    module: nn.Module, inputs: Inputs, *, mode: Literal["inference"] = ..., max_steps: int | None = ...
) -> CompiledModule: ...


@overload
def compile(  # noqa: A001 - as PyTorch's
    module: nn.Module,
    inputs: Inputs,
    *,
    loss: Loss | None = ...,
    targets: Sequence[Any] = ...,
    mode: Literal["train"],
    max_steps: int | None = ...,
) -> CompiledStep: ...


def compile(  # noqa: A001 - as PyTorch's
    module: nn.Module,
    inputs: Inputs,
    *,
    loss: Loss | None = None,
    targets: Sequence[Any] = (),
    mode: Mode = "inference",
    max_steps: int | None = None,
) -> CompiledModule | CompiledStep:
    """Compile a module, loops and branches included, into one function for one thread.

    `torch.cond`, `torch.while_loop`, `scan`, `nn.LSTM`, `nn.GRU` and `nn.RNN` stay control flow: the time to compile
    does not grow with the number of steps.

    Args:
        module: with float32 parameters on the processor.
        inputs: one tensor, a sequence of positional arguments, or a mapping of named ones; of these shapes.
        loss: with `train`, of the module's output and the targets; None if the module returns its loss itself.
        targets: what `loss` takes behind the output.
        mode: `inference`: the forward pass in evaluation mode, with the weights that the module has now. `train`: the
            loss and its gradients by the parameters, which are arguments.
        max_steps: of a `while_loop`; more are an error. None: no bound.

    Raises:
        BadInputError: what cannot be compiled, with the line of the module's code.
    """
    if mode not in ("train", "inference"):
        raise unknown_name("mode", mode, ("train", "inference"))
    if not isinstance(module, nn.Module):
        raise BadInputError(f"a {type(module).__name__} is no torch.nn.Module; give the module itself")
    if mode == "inference" and (loss is not None or targets):
        raise BadInputError("a loss and targets are for mode='train'; leave them out")
    with scans_have_gradients():
        captured, names = captured_step(module, inputs, targets, loss, mode, replaced=REPLACED)
    written = control_module(captured)
    bounds = {} if max_steps is None else dict.fromkeys(written.places, max_steps)
    function = compile_function(written.module, limits=Limits(steps=bounds))
    leaves, spec = tree_flatten((arguments_of(inputs), tuple(targets)))
    common = (type(module).__name__, function, written.places, spec, leaves, names, written.inputs)
    if mode == "inference":
        return CompiledModule(*common, captured.nested)
    return CompiledStep(*common, _trained(module, captured))


def _trained(module: nn.Module, captured: Captured) -> dict[str, nn.Parameter]:
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return {name: parameters[name] for name in captured.gradients}


def _array(value: Any, name: str) -> Array:
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            raise BadInputError(f"{name} is on device {value.device}; call .cpu()")
        return value.detach().numpy()
    if isinstance(value, np.ndarray):
        return value
    try:
        return np.from_dlpack(value)
    except (AttributeError, TypeError, BufferError) as error:
        raise BadInputError(f"{name} is a {type(value).__name__}, not a tensor on the processor: {error}") from None


def _cost(kernels: int, flops: int) -> str:
    unit = min(3, int(math.log10(max(flops, 1)) // 3))
    amount = f"{flops / 1000**unit:.3g} {('', 'k', 'M', 'G')[unit]}FLOP"
    return f"{kernels} kernel{'s' * (kernels != 1)}, {amount}"
