"""Which operators of a captured graph PyTorch itself runs (rare ones, or all), and their calls as kernels."""

from __future__ import annotations

import functools
import math
import operator
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils.flop_counter import FlopCounterMode
from tvm import relax

from autotm.capture import is_empty
from autotm.kernels.library import FRAMEWORK_CALL
from autotm.kernels.schedules.dispatch import framework_kernel
from autotm.kernels.torch_operators import Operation, bound, constant_as_text, encoded
from autotm.model.errors import BadInputError
from autotm.model.graph import OpClass
from autotm.zoo.network import shape_and_dtype

if TYPE_CHECKING:
    from autotm.zoo.torch.operators import ForwardImporter

# Rare operators, and rare cases that TVM's importer has wrong: PyTorch computes them although TVM has a conversion.

SAME = (torch.ops.aten.alias.default, torch.ops.aten.detach.default, torch.ops.aten.clone.default)
"""Operators whose result equals their operand."""
_RARE = {
    "_upsample_bilinear2d_aa.default", "argsort.default", "avg_pool3d.default", "cosh.default", "cumprod.default",
    "div.Tensor_mode", "exponential.default", "max.dim", "max_pool3d_with_indices.default", "randn.default",
    "randn_like.default", "sinh.default", "sort.default", "topk.default",
}  # fmt: skip


def refuse_rare(node: fx.Node) -> None:
    """Refuse a rare operator, or a rare case of another one, so that PyTorch computes it."""
    name = node.target.__name__
    if name in _RARE:
        raise BadInputError("it has no kernel here")
    for names, case, is_case in _CASES:
        if name in names and is_case(node):
            raise BadInputError(f"{case} has no kernel here")


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """Return an argument of a node, by position or name."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _is_of_whole_numbers(node: fx.Node) -> bool:
    return not node.args[0].meta["val"].is_floating_point()


def source_of(node: Any) -> Any:
    """Return the node whose operator computes the value that a node passes on."""
    while isinstance(node, fx.Node) and (node.target is operator.getitem or node.target in SAME):
        node = node.args[0]
    return node


def _overlap(image: fx.Node, means: fx.Node) -> bool:
    """Return whether the parts of an image whose means are taken overlap."""
    extents, parts = (node.meta["val"].shape[-2:] for node in (image, means))
    return any(extent % count for extent, count in zip(extents, parts, strict=True))


_CASES: list[tuple[set[str], str, Callable[[fx.Node], bool]]] = [
    ({"_adaptive_avg_pool2d.default"}, "parts that overlap", lambda node: _overlap(node.args[0], node)),
    (
        {"_adaptive_avg_pool2d_backward.default"}, "parts that overlap",
        lambda node: _overlap(node.args[1], node.args[0]),
    ),
    (
        {"add.Tensor", "add.Scalar", "mul.Tensor", "sub.Tensor", "sub.Scalar"}, "arithmetic of truth values",
        lambda node: node.meta["val"].dtype == torch.bool,
    ),
    (
        {"add.Scalar", "add.Tensor", "sub.Scalar", "sub.Tensor"}, "alpha",
        lambda node: argument(node, 2, "alpha", 1) != 1,
    ),
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
    (
        {"eq.Tensor", "ne.Tensor"}, "a comparison with itself",
        lambda node: source_of(node.args[0]) is source_of(node.args[1]) and not _is_of_whole_numbers(node),
    ),
    (
        {"max_pool2d_with_indices.default"}, "return_indices=True",
        lambda node: any(
            "backward" not in str(user.target) for item in node.users if item.args[1] == 1 for user in item.users
        ),
    ),
    ({"split.Tensor", "split_with_sizes.default"}, "a single part", lambda node: len(node.meta["val"]) == 1),
]  # fmt: skip
"""Names of operators, the rare case of these in words, and whether a node is such a case."""


# Operators of a captured graph as kernels that PyTorch runs: those for which there are no kernels of ours, or all.

os.environ.setdefault("KINETO_LOG_LEVEL", "6")
"""Higher than all levels: PyTorch's profiler would tell the terminal that it starts and stops."""
_ATEN = torch.ops.aten
_OWN_TYPES = {torch.float32, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
"""Types that kernels of ours compute with."""
_STORED_AS = {
    torch.complex32: ("float16", (2,)), torch.complex64: ("float32", (2,)), torch.complex128: ("float64", (2,)),
    torch.bfloat16: ("uint16", ()), torch.float8_e4m3fn: ("uint8", ()), torch.float8_e5m2: ("uint8", ()),
}  # fmt: skip
"""How tensors lie in memory whose types TVM or NumPy lacks: element type, and axes behind the tensor's own."""
_RESHAPES = {_ATEN.view.default, _ATEN._unsafe_view.default}  # noqa: SLF001 - an operator's name
"""Views that depend on how their tensor lies; here all tensors lie contiguous, where PyTorch's may not."""
_BY_STRIDES = ("as_strided", "det", "linalg", "lu_")
"""Parts of names of operators for which it matters how operands lie: they read by strides, or factorise a matrix or its
transpose, whichever lies contiguous by columns."""
_ERRORS = _ATEN._linalg_check_errors.default  # noqa: SLF001 - an operator's name
_WRITTEN_OUT = 8
"""Elements of a constant that is part of a call's text; a larger one takes memory."""
_CLASSES = (
    ("convolution_backward", OpClass.CONV_DATA_GRADIENT), ("convolution", OpClass.CONV_FORWARD),
    ("mm", OpClass.MATMUL), ("attention", OpClass.MATMUL), ("linear", OpClass.MATMUL),
    ("norm_backward", OpClass.NORMALIZATION_GRADIENT), ("softmax_backward", OpClass.NORMALIZATION_GRADIENT),
    ("norm", OpClass.NORMALIZATION), ("softmax", OpClass.NORMALIZATION),
    ("pool2d_backward", OpClass.WINDOW_GRADIENT), ("pool3d_backward", OpClass.WINDOW_GRADIENT),
    ("pool", OpClass.WINDOW), ("sum", OpClass.REDUCTION), ("mean", OpClass.REDUCTION), ("cat", OpClass.DATA_MOVEMENT),
    ("gather", OpClass.DATA_MOVEMENT), ("index", OpClass.DATA_MOVEMENT), ("embedding", OpClass.DATA_MOVEMENT),
)  # fmt: skip
"""Class of an operator's memory accesses, by a part of its name; the first that fits. All others are elementwise."""


class FrameworkKernels:
    """The operators of a graph that PyTorch runs.

    Attributes:
        all_of_them: whether PyTorch runs every operator; views are then part of the operators that read them.
    """

    def __init__(self, importer: ForwardImporter, *, all_of_them: bool) -> None:
        """Begin without kernels."""
        self._importer, self.all_of_them = importer, all_of_them
        self._results: dict[fx.Node, Any] = {}

    def convert(self, node: fx.Node) -> Any:
        """Emit the kernel of a node, once; return its result, or its results, with None for those that nothing reads.

        Raises:
            BadInputError: PyTorch's call cannot be kept as text, or one of its arguments has no value here.
        """
        if _is_item(node):
            source, number = node.args
            return self.convert(source)[number]
        if node not in self._results:
            self._results[node] = self._kernel(node)
        return self._results[node]

    def value(self, node: fx.Node) -> relax.Expr:
        """Return what a node computes, as it is stored; PyTorch computes what kernels of ours leave out."""
        importer = self._importer
        if node in importer.known:
            return stored_constant(importer.known[node])
        value, example = importer.env.get(node), node.meta["val"]
        if isinstance(value, relax.Expr) and lies_as(value.ty, example):
            return value
        if node.op == "placeholder":
            raise BadInputError(f"its argument {node.name} has no value here")
        return self.convert(node)

    def _kernel(self, node: fx.Node) -> Any:
        if not isinstance(node.target, torch._ops.OpOverload):  # noqa: SLF001 - no other name
            raise BadInputError("PyTorch captures it as a function of its own, which is no operator")
        operands: dict[fx.Node, int] = {}
        exprs: list[relax.Expr] = []
        place = None
        if torch.Tag.nondeterministic_seeded in node.target.tags:
            place = self._importer.draws.take_place()
            exprs.append(self._importer.draws.counter)
        name, arguments, named = self._call_as_text(node, operands)
        exprs += [self.value(operand) for operand in operands]
        kinds = [_described(operand.meta["val"]) for operand in operands]
        if place is not None:
            kinds.insert(0, ([1], "int32"))
        examples = node.meta["val"]
        is_several = isinstance(examples, tuple | list)
        several = list(examples) if is_several else [examples]
        read = {user.args[1] for user in node.users if _is_item(user)} if is_several else {0}
        kept = [
            (number, *_described(example))
            for number, example in enumerate(several)
            if isinstance(example, torch.Tensor) and (number in read or not read)
        ]
        operation = Operation(name, arguments, named, kinds, kept, place)
        costs = _costs(operation.text())
        if _is_checked(node):
            named["check_errors"] = True
        short = node.target._opname  # noqa: SLF001 - the name without its overload
        op_class = next((op_class for part, op_class in _CLASSES if part in short), OpClass.ELEMENTWISE)
        emitted = framework_kernel(
            self._importer.block_builder, exprs, [_stored(several[number]) for number, *_ in kept], f"torch_{short}",
            operation.text(), op_class, *costs, FRAMEWORK_CALL,
        )  # fmt: skip
        if not is_several:
            return emitted[0]
        by_number = {number: value for (number, *_), value in zip(kept, emitted, strict=True)}
        return tuple(by_number.get(number) for number in range(len(several)))

    def _call_as_text(self, node: fx.Node, operands: dict[fx.Node, int]) -> tuple[str, list[Any], dict[str, Any]]:
        """Return an operator's name and arguments as text holds them; tensors are added to the operands."""

        def encode(value: Any) -> Any:
            if isinstance(value, fx.Node):
                return self._operand(value, operands, node.target.name())
            if isinstance(value, tuple | list):
                return [encode(item) for item in value]
            try:
                return encoded(int(value) if isinstance(value, torch.SymInt) else value)
            except TypeError as error:
                raise BadInputError(str(error)) from None

        target = _ATEN.reshape.default if node.target in _RESHAPES else node.target
        named = {key: encode(value) for key, value in node.kwargs.items()}
        return target.name() + ("" if "." in target.name() else ".default"), encode(node.args), named

    def _operand(self, node: fx.Node, operands: dict[fx.Node, int], name: str) -> Any:
        if not isinstance(node.meta.get("val"), torch.Tensor):
            raise BadInputError(f"its argument {node.name} is no tensor")
        if node in self._importer.known and self._importer.known[node].numel() <= _WRITTEN_OUT:
            return constant_as_text(self._importer.known[node])
        if not self.all_of_them or node in self._importer.known or not is_view(node):
            number, value = operands.setdefault(node, len(operands)), node.meta["val"]
            if any(part in name for part in _BY_STRIDES) and not value.is_contiguous():
                if 0 not in value.stride():
                    return {"strided": [number, list(value.stride())]}
                if "as_strided" in name:
                    raise BadInputError("as_strided of a tensor whose elements share memory")
            return {"tensor": number}
        if _is_item(node):
            source, number = node.args
            return {"item": [{"operation": list(self._call_as_text(source, operands))}, number]}
        return {"operation": list(self._call_as_text(node, operands))}


def is_foreign(node: fx.Node) -> bool:
    """Return whether a node takes or gives tensors of types that no kernel of ours computes with."""
    values = [item.meta.get("val") for item in (node, *node.all_input_nodes)]
    tensors = [value for several in values for value in (several if isinstance(several, tuple | list) else [several])]
    return any(isinstance(value, torch.Tensor) and not has_own_type(value) for value in tensors)


def is_degenerate(node: fx.Node) -> bool:
    """Return whether a node reads a tensor without elements, or takes an axis of one without axes."""
    if node.target is not _ATEN.cat.default and any(map(is_empty, node.all_input_nodes)):
        return True
    first = node.args[0] if node.args else None
    value = first.meta.get("val") if isinstance(first, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.ndim or not isinstance(node.target, torch._ops.OpOverload):  # noqa: SLF001
        return False
    return any(item.name in {"dim", "dims"} for item in node.target._schema.arguments)  # noqa: SLF001


def has_own_type(value: torch.Tensor) -> bool:
    """Return whether kernels of ours compute with tensors of its type."""
    return value.dtype in _OWN_TYPES


def stored_constant(value: torch.Tensor) -> relax.Expr:
    """Return a tensor known before the step, as it is stored."""
    value = value.detach().cpu().contiguous()
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    dtype = _stored(value)[1]
    if value.dtype in _STORED_AS:
        value = value.view(getattr(torch, dtype))
    return relax.const(value.resolve_neg().numpy(), dtype)


def restored(value: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the type of an example, as which it is stored."""
    if example.is_complex():
        return torch.view_as_complex(value)
    return value.view(example.dtype) if example.dtype in _STORED_AS else value


def is_view(node: fx.Node) -> bool:
    """Return whether a node only reads an operand in another order, in part, or repeatedly."""
    if _is_item(node):
        return is_view(node.args[0])
    if not isinstance(node.target, torch._ops.OpOverload):  # noqa: SLF001 - no other name
        return False
    if node.target in _RESHAPES:
        return True
    if node.target is _ATEN.as_strided.default:
        base = node
        while base.op == "call_function" and (base.target is _ATEN.as_strided.default or is_view(base)):
            base = base.args[0]
        if not base.meta["val"].is_contiguous():
            raise BadInputError("as_strided of a tensor that does not lie contiguous")
    returns = node.target._schema.returns  # noqa: SLF001 - as PyTorch's own tools read it
    return bool(returns) and all(item.alias_info is not None and not item.alias_info.is_write for item in returns)


def _is_item(node: fx.Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def _is_checked(node: fx.Node) -> bool:
    """Return whether the graph raises an error if an operator's result says that it failed, as on a singular matrix."""
    return any(_ERRORS in (user.target, *user.args) for item in node.users if _is_item(item) for user in item.users)


def _described(value: torch.Tensor) -> tuple[list[int], str]:
    return [int(extent) for extent in value.shape], str(value.dtype).removeprefix("torch.")


def _stored(value: torch.Tensor) -> tuple[tuple[int, ...], str]:
    """Return the shape and type of a tensor as it is stored."""
    shape, name = _described(value)
    dtype, behind = _STORED_AS.get(value.dtype, (name, ()))
    return (*shape, *behind), dtype


def lies_as(kind: relax.Type, example: torch.Tensor) -> bool:
    """Return whether a value of this type is stored as a tensor like the example is."""
    return isinstance(kind, relax.TensorType) and shape_and_dtype(kind) == _stored(example)


@functools.lru_cache(maxsize=4096)
def _costs(text: str) -> tuple[int, int]:
    """Count the floating-point operations of a call, and the bytes that it allocates besides its operands at most.

    The call is run once, on numbers like those of a step: zeros for indices. If it refuses these, its results count.
    """
    operation = Operation.read(text)
    operands = [_example(shape, kind) for shape, kind in operation.operands]
    kept = [torch.empty(shape, dtype=getattr(torch, kind)) for _, shape, kind in operation.results]
    call = bound(operation, operands, kept)
    counter = FlopCounterMode(display=False)
    try:
        with counter:
            call()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
            call()
    except (RuntimeError, IndexError, ValueError):
        return 0, sum(tensor.nbytes for tensor in kept)
    changes = [
        (event.start_ns(), event.nbytes())
        for event in profiled.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    held = most = 0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return counter.get_total_flops(), most


def _example(shape: Sequence[int], kind: str) -> torch.Tensor:
    dtype = getattr(torch, kind)
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.zeros(shape, dtype=dtype)
    # A random draw would change the state of the user's generator.
    return torch.linspace(0.1, 0.9, math.prod(shape)).reshape(shape).to(dtype)
