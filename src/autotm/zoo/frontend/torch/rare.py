"""What PyTorch computes although TVM's importer has it: rare operators, and rare cases that TVM has wrong."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from autotm.model.files import BadInputError

SAME = (torch.ops.aten.alias.default, torch.ops.aten.detach.default, torch.ops.aten.clone.default)
"""Operators whose result equals their operand."""
_RARE = {
    "_upsample_bilinear2d_aa.default", "argsort.default", "avg_pool3d.default", "cosh.default", "cumprod.default",
    "div.Tensor_mode", "exponential.default", "max.dim", "max_pool3d_with_indices.default", "randn.default",
    "randn_like.default", "sinh.default", "sort.default", "topk.default",
}  # fmt: skip


def refuse_rare(node: fx.Node) -> None:
    """Refuse an operator that PyTorch computes.

    Raises:
        BadInputError: it is rare, or so is what it is called with.
    """
    name = node.target.__name__
    if name in _RARE:
        raise BadInputError("it has no kernel here")
    for names, what, is_case in _CASES:
        if name in names and is_case(node):
            raise BadInputError(f"{what} has no kernel here")


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """An argument of a node, by position or name."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _is_of_whole_numbers(node: fx.Node) -> bool:
    return not node.args[0].meta["val"].is_floating_point()


def _is_equal_to_itself(node: fx.Node) -> bool:
    first, second = (source_of(item) for item in node.args)
    return first is second and not _is_of_whole_numbers(node)


def _shows_places(node: fx.Node) -> bool:
    places = [item for item in node.users if item.args[1] == 1]
    return any("backward" not in str(user.target) for item in places for user in item.users)


def source_of(node: Any) -> Any:
    """Return the node whose operator computes what a node passes on."""
    while isinstance(node, fx.Node) and (node.target is operator.getitem or node.target in SAME):
        node = node.args[0]
    return node


_Cases = list[tuple[set[str], str, Callable[[fx.Node], bool]]]
_CASES: _Cases = [
    (
        {"add.Tensor", "add.Scalar", "mul.Tensor", "sub.Tensor", "sub.Scalar"}, "arithmetic of truth values",
        lambda node: node.meta["val"].dtype == torch.bool,
    ),
    ({"add.Scalar", "sub.Scalar"}, "alpha", lambda node: argument(node, 2, "alpha", 1) != 1),
    (
        {
            "clamp.default", "clamp_max.default", "clamp_min.default", "isfinite.default", "isinf.default",
            "isnan.default", "relu.default",
        }, "a tensor of whole numbers", _is_of_whole_numbers,
    ),
    (
        {"argmax.default", "argmin.default"}, "an order in which NaN is the largest",
        lambda node: not _is_of_whole_numbers(node),
    ),
    ({"avg_pool2d.default"}, "divisor_override", lambda node: argument(node, 6, "divisor_override") is not None),
    ({"avg_pool2d_backward.default"}, "divisor_override", lambda node: node.args[7] is not None),
    ({"div.Tensor", "div.Scalar"}, "a divisor of zero", lambda node: node.args[1] == 0),
    ({"elu.default"}, "a scale", lambda node: any(scale != 1 for scale in node.args[2:])),
    ({"embedding.default"}, "scale_grad_by_freq=True", lambda node: bool(argument(node, 3, "scale_grad_by_freq"))),
    ({"embedding_dense_backward.default"}, "scale_grad_by_freq=True", lambda node: node.args[4]),
    ({"eq.Tensor", "ne.Tensor"}, "a comparison with itself", _is_equal_to_itself),
    ({"max_pool2d_with_indices.default"}, "return_indices=True", _shows_places),
    ({"split.Tensor", "split_with_sizes.default"}, "a single part", lambda node: len(node.meta["val"]) == 1),
]  # fmt: skip
"""Names of operators, what they are rarely called with, and whether that is so."""
