"""`autotm.compile`: a PyTorch module with its loops and branches as one compiled function."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten

from autotm.control import ControlFunction, Limits, compile_function
from autotm.model.errors import BadInputError
from autotm.zoo.torch.control_flow import control_module
from autotm.zoo.torch.program import Inputs, arguments_of, captured_step
from autotm.zoo.torch.recurrent import REPLACED


@dataclass(frozen=True)
class CompiledModule:
    """A compiled forward pass; called as the module is, one call at a time.

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
    _nested: Callable[[Sequence[Any]], Any]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Return what the module returns in evaluation mode, in new tensors.

        Arguments are tensors of PyTorch, arrays of NumPy, or others of the DLPack protocol, of the shapes and types
        that it was compiled for. The results are tensors if any argument is a tensor of PyTorch, else arrays.

        Raises:
            BadInputError: an argument has another shape or type, or is another number, than when it was compiled.
            AutotmError: an index is out of range, a loop does not end within its bound, or a condition compares NaN.
        """
        leaves, spec = tree_flatten((arguments, named))
        if spec != self._spec:
            raise BadInputError(f"{self.name}: compiled for arguments ({', '.join(self._names)}), called with others")
        arrays = []
        for name, leaf, example in zip(self._names, leaves, self._leaves, strict=True):
            if isinstance(example, torch.Tensor):
                arrays.append(_array(leaf, f"{self.name}: argument {name}"))
            elif leaf != example:
                raise BadInputError(f"{self.name}: argument {name} is {leaf!r}; it was compiled for {example!r}")
        results = self.function(*arrays)
        several: Sequence[Any] = results if isinstance(results, tuple) else [results]
        if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
            several = [torch.from_numpy(result) for result in several]
        return self._nested(several)

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


def compile(module: nn.Module, inputs: Inputs, *, max_steps: int | None = None) -> CompiledModule:  # noqa: A001 - as PyTorch's
    """Compile the forward pass of a module, loops and branches included, into one function for one thread.

    `torch.cond`, `torch.while_loop`, `scan`, `nn.LSTM`, `nn.GRU` and `nn.RNN` stay control flow: the time to compile
    does not grow with the number of steps. Weights are compiled in, with the values that they have now.

    Args:
        module: with float32 parameters on the processor; compiled as in evaluation mode.
        inputs: one tensor, a sequence of positional arguments, or a mapping of named ones; of these shapes.
        max_steps: of a `while_loop`; more are an error. None: no bound.

    Raises:
        BadInputError: what cannot be compiled, with the line of the module's code.
    """
    if not isinstance(module, nn.Module):
        raise BadInputError(f"a {type(module).__name__} is no torch.nn.Module; give the module itself")
    captured, names = captured_step(module, inputs, (), None, "inference", replaced=REPLACED)
    written = control_module(captured)
    bounds = {} if max_steps is None else dict.fromkeys(written.places, max_steps)
    function = compile_function(written.module, limits=Limits(steps=bounds))
    leaves, spec = tree_flatten(arguments_of(inputs))
    return CompiledModule(type(module).__name__, function, written.places, spec, leaves, names, captured.nested)


def _array(value: Any, name: str) -> np.ndarray[Any, Any]:
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
