"""A PyTorch module and its inputs as an exported program: one graph without side effects, checked before it is used."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map_only

from autotm.model.files import BadInputError

Mode = Literal["train", "inference"]
Loss = Callable[..., torch.Tensor]
Inputs = torch.Tensor | Sequence[Any] | Mapping[str, Any]

_KEPT = (
    "gelu", "layer_norm", "linear", "matmul", "max_pool2d", "prelu", "roll", "scaled_dot_product_attention", "silu",
    "softplus", "upsample_bilinear2d", "upsample_nearest2d",
)  # fmt: skip
"""Operators of PyTorch that stay whole: what they are made of would compile to slower kernels."""

_PYTORCH = str(Path(torch.__file__).parent)
_OWN = str(Path(__file__).parents[3])
"""This package; a user's folder may be called `torch` as well."""


class Step(torch.nn.Module):
    """What a step computes of a module: its loss, or its outputs."""

    def __init__(self, module: torch.nn.Module, loss: Loss | None, targets: int, keywords: Sequence[str]) -> None:
        """The last `targets` inputs go to the loss, those before to the module, the last of them by `keywords`."""
        super().__init__()
        self.module, self.loss, self._targets, self._keywords = module, loss, targets, tuple(keywords)

    def forward(self, *inputs: Any) -> Any:
        """The loss of the module's output and the targets, or the output."""
        given, targets = inputs[: len(inputs) - self._targets], inputs[len(inputs) - self._targets :]
        positional = len(given) - len(self._keywords)
        named = dict(zip(self._keywords, given[positional:], strict=True))
        output = self.module(*given[:positional], **named)
        return output if self.loss is None else self.loss(output, *targets)


def exported(
    module: torch.nn.Module, inputs: Inputs, targets: Sequence[Any], loss: Loss | None, mode: Mode
) -> torch.export.ExportedProgram:
    """The module's forward pass, with the loss behind it, as one graph of PyTorch's operators.

    Raises:
        BadInputError: the module is none, or has tensors that no kernel takes (float64, bfloat16, on another device);
            it fails, or its control flow depends on data; its result is no loss.
    """
    if not isinstance(module, torch.nn.Module):
        what = type(module).__name__
        raise BadInputError(f"a {what} is no torch.nn.Module; give the module itself, not what it returns")
    positional, named = arguments_of(inputs)
    values = [*positional, *named.values(), *targets]
    _check(module, values)
    # One tensor given twice would become one input.
    values = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), values)
    step = Step(module, loss, len(targets), list(named))
    what = type(module).__name__
    with _in_mode(module, mode), warnings.catch_warnings():
        # PyTorch's own, of how it copies its programs: nobody else can do anything about them.
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"copyreg|torch\.")
        try:
            program = torch.export.export(step, tuple(values), strict=False)
            program = program.run_decompositions(_decompositions())
        except Exception as error:
            raise BadInputError(_why_not(what, error)) from error
    if mode == "train":
        _check_loss(what, program)
    return program


@contextmanager
def _in_mode(module: torch.nn.Module, mode: Mode) -> Iterator[None]:
    """The module in that mode, its parts as they are where it is in that mode already; then as it was before."""
    before = {part: part.training for part in module.modules()}
    if mode == "inference" or not module.training:
        module.train(mode == "train")
    try:
        yield
    finally:
        for part, was_training in before.items():
            part.training = was_training


def arguments_of(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments of a module's call."""
    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs), {}


def _check(module: torch.nn.Module, values: Sequence[Any]) -> None:
    what = type(module).__name__
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        _check_tensor(f"{what}: {name}", tensor)
    for number, value in enumerate(values):
        for leaf in tree_leaves(value):
            if isinstance(leaf, torch.Tensor):
                _check_tensor(f"{what}: input {number}", leaf)


def _check_tensor(what: str, tensor: torch.Tensor) -> None:
    if tensor.device.type not in {"cpu", "meta"}:
        raise BadInputError(f"{what} is on device {tensor.device}; kernels are compiled for the processor: call .cpu()")
    if tensor.is_floating_point() and tensor.dtype != torch.float32:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise BadInputError(f"{what} is {kind}; kernels compute in float32: call .float()")
    if tensor.is_complex() or tensor.is_sparse or tensor.is_quantized:
        raise BadInputError(f"{what} is complex, sparse or quantized; only dense float32 and integers have kernels")


def _check_loss(what: str, program: torch.export.ExportedProgram) -> None:
    kinds = torch.export.graph_signature.OutputKind
    names = [spec.arg.name for spec in program.graph_signature.output_specs if spec.kind is kinds.USER_OUTPUT]
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.name in names}
    shapes = [tuple(values[name].shape) if name in values else None for name in names]
    if shapes != [()]:
        found = ", ".join(map(str, shapes))
        raise BadInputError(
            f"{what}: training needs one number to descend, its step returns {found or 'nothing'}; give a loss, such "
            "as loss=torch.nn.functional.cross_entropy with targets=(labels,), or a module that returns its loss"
        )


def _why_not(what: str, error: Exception) -> str:
    text = str(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    if "data-dependent" in text or "GuardOnDataDependent" in type(error).__name__:
        return (
            f"{what}: its control flow depends on values of tensors ({first}); a step has one fixed order of kernels: "
            "use torch.where, or pass what decides as a Python number"
        )
    return (
        f"{what}: torch.export cannot export it: {type(error).__name__}: {first}; torch.export.export(module, inputs, "
        "strict=False) by itself shows more"
    )


def _decompositions() -> dict[Any, Callable[..., Any]]:
    table = torch.export.default_decompositions()
    for name in _KEPT:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            table.pop(getattr(packet, overload), None)
    return table


def where(node: fx.Node) -> str:
    """The innermost line of the user's code that a node comes from; where there is none, its operator."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines()]
    places = [(place, lines[index + 1 : index + 2]) for index, place in enumerate(lines) if place.startswith("File ")]
    outside = [item for item in places if not any(f'"{folder}/' in item[0] for folder in (_PYTORCH, _OWN))]
    if not outside:
        return f"operator {node.target} of PyTorch's own code"
    place, code = outside[-1]
    return f"{place.removeprefix('File ')}: {code[0]}" if code else place.removeprefix("File ")
