"""A PyTorch module and its inputs as one checked graph without side effects, and the graph's constants."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import fx, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from autotm.capture import Captured, capture, eager_step, is_empty, is_own
from autotm.model.errors import BadInputError

Mode = Literal["train", "inference"]
Loss = Callable[..., torch.Tensor]
Inputs = torch.Tensor | Sequence[Any] | Mapping[str, Any]


def captured_step(
    module: nn.Module,
    inputs: Inputs,
    targets: Sequence[Any],
    loss: Loss | None,
    mode: Mode,
    *,
    decomposed: bool = True,
    replaced: Mapping[Any, Callable[..., Any]] | None = None,
) -> tuple[Captured, list[str]]:
    """Capture the step of a module by PyTorch; return it with the names of all leaves of inputs and targets.

    Args:
        module: in any mode; it is in `mode` for as long as it is captured.
        inputs: as in `from_torch`.
        targets: what the loss takes behind the module's output.
        loss: of the output and the targets; None if the module returns its loss itself.
        mode: `train`, or `inference`.
        decomposed: whether operators that have no kernels here are taken apart.
        replaced: as in `capture`.

    Raises:
        BadInputError: the module has tensors that no kernel takes (float64, bfloat16, on another device); it fails, or
            its control flow depends on data; its result is no loss.
    """
    positional, named = arguments_of(inputs)
    values = [*positional, *named.values(), *targets]
    _check(module, values, mode)
    leaves, spec = tree_flatten((positional, named, tuple(targets)))
    names = []
    for name, value in zip(_input_names(module, positional, named, len(targets)), values, strict=True):
        own = tree_leaves(value)
        names += [name] if own and own[0] is value else [f"{name}.{index}" for index in range(len(own))]
    tensors = {
        name: leaf.detach().clone() for name, leaf in zip(names, leaves, strict=True) if isinstance(leaf, torch.Tensor)
    }

    def call(applied: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> Any:
        rest = iter(tensors)
        filled = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        arguments, keywords, wanted = tree_unflatten(filled, spec)
        output = applied(*arguments, **keywords)
        return output if loss is None else loss(output, *wanted)

    class_name = type(module).__name__
    with _in_mode(module, mode):
        try:
            table = None if decomposed else {}
            captured = capture(module, call, tensors, trains=mode == "train", table=table, replaced=replaced)
        except BadInputError:
            raise
        except Exception as error:
            raise BadInputError(_why_not(class_name, error)) from error
    for node in captured.graph.nodes:
        if any(_is_open(value) for value in tree_leaves(node.meta.get("val"))):
            raise BadInputError(
                f"{where(node)}: the shape of a result depends on values of tensors (on the number of steps where a "
                "while_loop is differentiated), or differs between the sides of a branch; give it a fixed one"
            )
    if mode == "train":
        _check_loss(class_name, captured)
    elif not captured.outputs:
        raise BadInputError(f"{class_name}: it returns no tensor that holds anything, so there is nothing to compute")

    def eager() -> dict[str, Any]:
        with _in_mode(module, mode):
            return eager_step(module, call, list(tensors.values()), trains=mode == "train")

    return replace(captured, eager=eager), names


def _is_open(value: Any) -> bool:
    """Return whether a value's shape, or a number, is not known while the step is traced."""
    if isinstance(value, torch.Tensor):
        return not all(isinstance(extent, int) for extent in value.shape)
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def arguments_of(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and named arguments of a module."""
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    return ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs), {})


@contextmanager
def _in_mode(module: torch.nn.Module, mode: Mode) -> Iterator[None]:
    """Put a module into a mode, its parts too unless it is in that mode already; afterwards put all back."""
    before = {part: part.training for part in module.modules()}
    if mode == "inference" or not module.training:
        module.train(mode == "train")
    try:
        yield
    finally:
        for part, was_training in before.items():
            part.training = was_training


def _input_names(
    module: torch.nn.Module, positional: Sequence[Any], named: Mapping[str, Any], targets: int
) -> list[str]:
    """Return the names of the step's inputs, as the module calls them."""
    parameters = inspect.signature(module.forward).parameters.values()
    known = [item.name for item in parameters if item.kind is not item.VAR_POSITIONAL][: len(positional)]
    known += [f"input_{index}" for index in range(len(known), len(positional))]
    names = [*known, *named]
    names += ["target"] if targets == 1 else [f"target_{index}" for index in range(targets)]
    taken = {name for name, _ in (*module.named_parameters(), *module.named_buffers())} | {"loss", "output"}
    return [f"input_{name}" if name in taken else name for name in names]


def _check(module: torch.nn.Module, values: Sequence[Any], mode: Mode) -> None:
    class_name = type(module).__name__
    for name, parameter in module.named_parameters() if mode == "train" else ():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:  # noqa: SLF001 - no other name
            # Only PyTorch's own backward pass hands gradients to them.
            raise BadInputError(
                f"{class_name}: {name} has a hook on its gradient, which a step here would leave out; "
                "change the gradient by a hook on a tensor in forward, or by the optimizer's options"
            )
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if torch.nn.parameter.is_lazy(tensor):
            raise BadInputError(f"{class_name}: {name} has no shape yet; call the module once with these inputs")
        _check_tensor(f"{class_name}: {name}", tensor, is_trained=tensor.requires_grad)
    for number, value in enumerate(values):
        for leaf in tree_leaves(value):
            if isinstance(leaf, torch.Tensor):
                _check_tensor(f"{class_name}: input {number}", leaf)


def _check_tensor(name: str, tensor: torch.Tensor, *, is_trained: bool = False) -> None:
    if tensor.device.type not in {"cpu", "meta"}:
        raise BadInputError(f"{name} is on device {tensor.device}; kernels are compiled for the processor: call .cpu()")
    allowed = {torch.float32} if is_trained else {torch.float32, torch.float64, torch.float16}
    if tensor.is_floating_point() and tensor.dtype not in allowed:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise BadInputError(f"{name} is {kind}; kernels compute in float32: call .float()")
    if tensor.is_complex() or tensor.is_sparse or tensor.is_quantized:
        raise BadInputError(f"{name} is complex, sparse or quantized; only dense float32 and integers have kernels")


def _check_loss(class_name: str, captured: Captured) -> None:
    shapes = [tuple(node.meta["val"].shape) for node in captured.outputs]
    if shapes != [()]:
        returned = ", ".join(map(str, shapes)) or "nothing"
        raise BadInputError(
            f"{class_name}: training needs one number to descend, its step returns {returned}; give a loss, such "
            "as loss=torch.nn.functional.cross_entropy with targets=(labels,), or a module that returns its loss"
        )


def _why_not(class_name: str, error: Exception) -> str:
    text = str(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    if "data-dependent" in text or "DataDependent" in type(error).__name__:
        return (
            f"{class_name}: its control flow depends on values of tensors ({first}); a step has one fixed order of "
            "kernels: use torch.where, or pass what decides as a Python number"
        )
    return (
        f"{class_name}: PyTorch cannot trace it: {type(error).__name__}: {first}; calling the module with these "
        "inputs, or torch.export.export(module, inputs, strict=False), by itself shows more"
    )


def where(node: fx.Node) -> str:
    """Return the innermost line of the user's code that a node comes from; where there is none, its operator."""
    return innermost_line(node.meta, node.target)


def innermost_line(metadata: Mapping[str, Any], operator: object) -> str:
    """Return the innermost line of the user's code in the metadata of a node; where there is none, its operator."""
    lines = [line.strip() for line in (metadata.get("stack_trace") or "").splitlines()]
    places = [(place, lines[index + 1 : index + 2]) for index, place in enumerate(lines) if place.startswith("File ")]
    outside = [item for item in places if not is_own(item[0].split('"')[1])]
    if not outside:
        return f"operator {operator} of PyTorch's own code"
    place, code = outside[-1]
    return f"{place.removeprefix('File ')}: {code[0]}" if code else place.removeprefix("File ")


# What a program computes from nothing but constants (positions, masks, tables of indices), computed once.

_RANDOM = torch.Tag.nondeterministic_seeded


def constant_values(graph: fx.Graph, known: Mapping[fx.Node, torch.Tensor]) -> dict[fx.Node, Any]:
    """Return the value of every node that depends on none of the step's arguments but those `known`, or is empty."""
    values: dict[fx.Node, Any] = {}
    with torch.no_grad():
        for node in graph.nodes:
            if node in known:
                values[node] = known[node]
            elif is_empty(node):
                values[node] = torch.empty(node.meta["val"].shape, dtype=node.meta["val"].dtype)
            elif node.op == "get_attr":
                values[node] = getattr(graph.owning_module, node.target)
            elif node.op == "call_function" and is_pure(node) and all(item in values for item in node.all_input_nodes):
                arguments, named = fx.node.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
                values[node] = node.target(*arguments, **named)
    return values


def is_pure(node: fx.Node) -> bool:
    """Return whether a node's operator always gives the same for the same arguments, and does nothing else."""
    return _RANDOM not in getattr(node.target, "tags", ()) and "assert" not in getattr(node.target, "__name__", "")
