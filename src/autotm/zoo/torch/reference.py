"""A captured step as PyTorch computes it: a step here is compared with it before the step is timed."""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.utils._pytree import tree_map

from autotm.capture import Captured, array_of
from autotm.kernels.torch_operators import seeded
from autotm.model.graph import Role
from autotm.zoo.imported import NOISE, Imported, difference
from autotm.zoo.network import Array, ReferenceMode, output_names
from autotm.zoo.torch.framework import has_own_type
from autotm.zoo.torch.program import where
from autotm.zoo.torch.random_numbers import COUNTER, uniform_numbers


@dataclass(frozen=True)
class TorchReference:
    """A step as PyTorch computes it; the step is given as captured and as imported.

    `detailed` imports it again with other nodes as outputs; `eager` calls the module itself on its own values, and is
    None where the step draws random numbers.
    """

    captured: Captured
    imported: Imported
    detailed: Callable[[Captured], Imported]
    eager: Callable[[], dict[str, Array]] | None
    name: str = f"PyTorch {torch.__version__}"

    def step(self, values: Mapping[str, Array], mode: ReferenceMode) -> dict[str, Array]:
        """Compute a step from its arguments by name, as they lie in the module; another order is without oneDNN.

        Returns:
            Its results by the names that they have here: `output`, `output.0`, `w.gradient`, `mean.new`; but for those
            of types that NumPy lacks.
        """
        outputs = self.captured.outputs
        names = dict(zip(output_names(len(outputs)), outputs, strict=True))
        names |= {f"{name}.gradient": self.captured.gradients[name] for name in self.imported.gradients or ()}
        names |= {f"{name}.new": self.captured.updates[name] for name in self.imported.states if name != COUNTER}
        with contextlib.ExitStack() as stack:
            if mode == "another order":
                stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")  # of PyTorch, about settings of Intel's GPUs
                stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
            results = _Run(self, values, torch.float64 if mode == "float64" else torch.float32).results()
        return {name: results[node] for name, node in names.items() if node in results}

    def in_detail(self) -> tuple[Imported, list[fx.Node]]:
        """Import the step with the value of every operator among its outputs; gives these operators too."""
        nodes = [
            node
            for node in self.captured.graph.nodes
            if node.op == "call_function"
            and isinstance(value := node.meta.get("val"), torch.Tensor)
            and value.numel() > 0
            and has_own_type(value)
        ]
        return self.detailed(replace(self.captured, outputs=nodes, gradients={}, updates={})), nodes

    def first_difference(self, values: Mapping[str, Array], actual: Mapping[fx.Node, Array]) -> str | None:
        """Name the first operator whose result here differs from PyTorch's on the same operands."""
        return _Comparison(self, values, actual).first_difference()


class _Run(fx.Interpreter):
    """One run of a step, with the random numbers that are drawn here."""

    def __init__(self, reference: TorchReference, values: Mapping[str, Array], dtype: torch.dtype) -> None:
        super().__init__(reference.captured.graph.owning_module)
        self._captured, self._places, self._values, self._dtype = (
            reference.captured, reference.imported.places, values, dtype
        )  # fmt: skip

    def results(self) -> dict[fx.Node, Array]:
        """Run the step."""
        (output,) = self.module.graph.find_nodes(op="output")
        with torch.no_grad():
            outputs = self.run(*map(self._argument, self._captured.arguments), enable_io_processing=False)
        pairs = zip(output.args[0], outputs, strict=True)
        arrays = {node: array_of(value) for node, value in pairs if isinstance(value, torch.Tensor)}
        return {node: array for node, array in arrays.items() if array is not None}

    def _argument(self, node: fx.Node) -> torch.Tensor:
        role, name = self._captured.arguments[node]
        if role is Role.CONSTANT:
            return torch.ones((), dtype=self._dtype)
        value = self._captured.values[name].detach()
        if name in self._values:
            value = torch.from_numpy(np.array(self._values[name])).reshape(value.shape)
        return self._in(value.clone())

    def _in(self, value: Any, dtype: torch.dtype | None = None) -> Any:
        is_real = isinstance(value, torch.Tensor) and value.dtype in {torch.float32, torch.float64}
        return value.to(dtype or self._dtype) if is_real else value

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return a constant of the graph."""
        return self._in(super().get_attr(target, args, kwargs))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Compute an operator; what it names as float32 is in this run's precision."""
        if self._dtype is torch.float64:
            args, kwargs = tree_map(lambda item: torch.float64 if item is torch.float32 else item, (args, kwargs))
        return super().call_function(target, args, kwargs)

    def run_node(self, node: fx.Node) -> Any:
        """Compute a node; one that draws random numbers draws those of a step here."""
        if node.name not in self._places:
            return super().run_node(node)
        place, is_own = self._places[node.name]
        counter, (args, named) = int(self._values[COUNTER].item()), self.fetch_args_kwargs_from_env(node)
        if is_own:
            return self._drawn(node, counter, place, args, named)
        with seeded(torch.tensor([counter]), place):  # By PyTorch, here too: in float32, whatever this run is in.
            args, named = tree_map(lambda item: self._in(item, torch.float32), (args, named))
            return tree_map(self._in, node.target(*args, **named))

    def _drawn(self, node: fx.Node, counter: int, place: int, args: Any, named: Any) -> Any:
        """Return the Bernoulli numbers, or the result of dropout, that a step here draws."""
        example = node.meta["val"]
        shape = [int(extent) for extent in (example[0] if isinstance(example, tuple) else example).shape]
        numbers = torch.from_numpy(uniform_numbers(counter, shape, place)).to(self._dtype)
        if "bernoulli" in node.target.__name__:
            return (numbers >= 1 - (args[1] if len(args) > 1 else named["p"])).to(self._dtype)
        x, share = args[:2]
        return torch.where(numbers >= share, x * (1 / (1 - share) if share < 1 else 0.0), 0.0), numbers >= share


class _Comparison(_Run):
    """A run in which each operator has the operands that it had here, and its result is compared."""

    def __init__(self, reference: TorchReference, values: Mapping[str, Array], actual: Mapping[fx.Node, Array]) -> None:
        super().__init__(reference, values, torch.float64)
        self._actual, self._first = actual, ""
        self._rounded: dict[fx.Node, tuple[Any, Any]] = {}
        self._noise = torch.Generator().manual_seed(0)

    def first_difference(self) -> str | None:
        """Return the first operator that differs, with the user's line."""
        try:
            self.results()
        except Exception:
            # PyTorch may refuse the wrong result of an operator that differs.
            if not self._first:
                raise
        return self._first or None

    def run_node(self, node: fx.Node) -> Any:
        """Compute an operator on the operands that it had here; its result here is what others read."""
        exact = super().run_node(node)
        if node.op == "call_function" and not self._first:
            self._rounded[node] = self._with_roundings(node, exact)
        if node not in self._actual:
            return exact
        ours = torch.from_numpy(np.array(self._actual[node])).reshape(exact.shape)
        if not self._first and node.op == "call_function":
            rounded = [other.double().numpy() for other in self._rounded[node]]
            if text := difference(ours.numpy(), exact.numpy(), rounded, "PyTorch"):
                self._first = f"{where(node)}: operator {node.target}: {text}"
        return ours.to(exact.dtype)

    def _with_roundings(self, node: fx.Node, exact: Any) -> tuple[Any, Any]:
        """Return PyTorch's results in float32, and in float64 for operands with noise."""
        if node.name in self._places:
            return exact, exact
        if node.target is operator.getitem:
            first, second = self._rounded[node.args[0]]
            return first[node.args[1]], second[node.args[1]]
        operands = self.fetch_args_kwargs_from_env(node)
        single = tree_map(lambda item: self._in(item, torch.float32), operands)
        noisy = tree_map(self._noisy, operands)
        try:
            return node.target(*single[0], **single[1]), node.target(*noisy[0], **noisy[1])
        except RuntimeError:  # The operator takes no other type than the one it names.
            return exact, exact

    def _noisy(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        return value * (1 + NOISE * torch.randn(value.shape, generator=self._noise, dtype=value.dtype))
