"""What operators do with the order in which their arguments lie."""

from __future__ import annotations

import string

import tvm
from tvm import relax

from autotm.zoo.layouts import Laid, Layouts, Order, Value, plain
from autotm.zoo.network import gradient_of

_UNARY = (
    "abs", "acos", "asin", "atan", "bitwise_not", "ceil", "clip", "cos", "cosh", "erf", "exp", "floor",
    "full_like", "isfinite", "isinf", "isnan", "log", "logical_not", "negative", "ones_like", "round", "rsqrt",
    "sigmoid", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc", "zeros_like", "grad.no_grad",
    "nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.relu6", "nn.selu", "nn.silu", "nn.softplus",
)  # fmt: skip
_ELEMENTWISE = (
    *_UNARY, "add", "atan2", "bitwise_and", "bitwise_or", "bitwise_xor", "divide", "equal", "floor_divide",
    "floor_mod", "greater", "greater_equal", "less", "less_equal", "logical_and", "logical_or", "logical_xor",
    "maximum", "minimum", "mod", "multiply", "not_equal", "power", "subtract", "where",
)  # fmt: skip
_REDUCTIONS = ("max", "mean", "min", "prod", "std", "sum", "variance")
_NCHW, _NHWC, _HWIO = (0, 1, 2, 3), (0, 2, 3, 1), (2, 3, 1, 0)
_MATRIX = 2


def _elementwise(layouts: Layouts, call: relax.Call) -> Value:
    values = [layouts.at(argument) for argument in call.args]
    shape = _shape(call)
    order = _common(values, len(shape))
    operands = [_broadcast(layouts, value, values, shape, order) for value in values]
    found = relax.Call(call.op, operands, call.attrs, call.ty_args)
    return Laid(layouts.apply(found, order, *(_lying(operand, order) for operand in operands)), order)


def _lying(operand: relax.Expr, order: Order) -> Order:
    """The order of an operand of full rank; one of fewer axes lies as it is written."""
    rank = len(operand.ty.shape) if isinstance(operand.ty, relax.TensorType) else 0
    return order if rank == len(order) else tuple(range(rank))


def _cast(layouts: Layouts, call: relax.Call) -> Value:
    """Of a number, the number: a kernel has no place for one."""
    value, dtype = layouts.at(call.args[0]), str(call.attrs.dtype)
    if isinstance(value, Laid) and isinstance(value.tensor, tvm.ir.Constant):
        return plain(relax.const(value.tensor.value.numpy().astype(dtype), dtype))
    return _elementwise(layouts, call)


def _common(values: list[Value], rank: int) -> Order:
    """The order of the largest argument of full rank that does not lie as written, or as written."""
    full = [value for value in values if isinstance(value, Laid) and len(value.order) == rank]
    sizes = [_size(value) for value in full]
    largest = [value for value, size in zip(full, sizes, strict=True) if size == max(sizes)]
    turned = [value.order for value in largest if not value.is_plain]
    return turned[0] if turned else tuple(range(rank))


def _size(value: Laid) -> int:
    size = 1
    for extent in value.shape:
        size *= extent
    return size


def _broadcast(layouts: Layouts, value: Value, values: list[Value], shape: Order, order: Order) -> relax.Expr:
    """An argument as an operator needs it whose result is `shape` and lies in `order`.

    It loses leading axes of extent one where another argument has the result's shape: a bias is a vector to our rules.
    """
    if not isinstance(value, Laid) or not value.order:
        return value.tensor if isinstance(value, Laid) else value
    if missing := len(shape) - len(value.order):
        value = layouts.reshape(value, (1,) * missing + value.shape)
    tensor = layouts.tensor(value, order)
    others = (other for other in values if other is not value and isinstance(other, Laid))
    if value.shape == shape or not any(other.shape == shape for other in others):
        return tensor
    extents = [int(extent) for extent in tensor.ty.shape]
    leading = next((axis for axis, extent in enumerate(extents) if extent > 1), len(shape) - 1)
    return layouts.in_shape(tensor, extents[leading:])


def _permute(layouts: Layouts, call: relax.Call) -> Value:
    value, rank = layouts.at(call.args[0]), len(call.ty.shape)
    axes = [int(axis) % rank for axis in call.attrs.axes] if call.attrs.axes is not None else list(range(rank))[::-1]
    return Laid(value.tensor, tuple(axes.index(axis) for axis in value.order))


def _reshape(layouts: Layouts, call: relax.Call) -> Value:
    return layouts.reshape(layouts.at(call.args[0]), _shape(call))


def _reduction(layouts: Layouts, call: relax.Call) -> Value:
    value = layouts.at(call.args[0])
    rank, attrs = len(value.order), call.attrs
    axes = [int(axis) % rank for axis in attrs.axis] if attrs.axis is not None else list(range(rank))
    lying = sorted(value.order.index(axis) for axis in axes)
    extents = [int(extent) for extent in value.tensor.ty.shape]
    if call.op.name == "relax.sum" and rank > 1 and lying == list(range(rank - 1)):
        # As gradients of biases are: these have a kernel of their own.
        found = layouts.emit(relax.op.collapse_sum_to(value.tensor, extents[-1:]))
        found = layouts.in_shape(found, [1] * (rank - 1) + extents[-1:]) if attrs.keepdims else found
    else:
        operator = getattr(relax.op, call.op.name.removeprefix("relax."))
        found = layouts.emit(operator(value.tensor, lying, keepdims=bool(attrs.keepdims)))
    if attrs.keepdims:
        return Laid(found, value.order)
    kept = [axis for axis in range(rank) if axis not in axes]
    return Laid(found, tuple(kept.index(axis) for axis in value.order if axis not in axes))


def _softmax(layouts: Layouts, call: relax.Call) -> Value:
    value, order = _with_last(layouts, call.args[0], [int(call.attrs.axis)])
    operator = getattr(relax.op.nn, call.op.name.removeprefix("relax.nn."))
    return Laid(layouts.apply(operator(value, axis=len(order) - 1), order, order), order)


def _layer_norm(layouts: Layouts, call: relax.Call) -> Value:
    axes = [int(axis) for axis in call.attrs.axes]
    value, order = _with_last(layouts, call.args[0], axes)
    rest = [layouts.tensor(layouts.at(argument)) for argument in call.args[1:]]
    last = list(range(len(order) - len(axes), len(order)))
    operator = getattr(relax.op.nn, call.op.name.removeprefix("relax.nn."))
    written = tuple(range(len(axes)))
    found = operator(value, *rest, axes=last, epsilon=call.attrs.epsilon)
    return Laid(layouts.apply(found, order, order, written, written), order)


def _batch_norm(layouts: Layouts, call: relax.Call) -> Value:
    value, order = _with_last(layouts, call.args[0], [int(call.attrs.axis)])
    rest = [layouts.tensor(layouts.at(argument)) for argument in call.args[1:]]
    names = ("epsilon", "center", "scale", "momentum", "training")
    attrs = {name: getattr(call.attrs, name) for name in names}
    found = relax.op.nn.batch_norm(value, *rest, axis=len(order) - 1, **attrs)
    found = layouts.apply(found, order, order, (0,), (0,))
    y, *moments = (layouts.emit(relax.TupleGetItem(found, index)) for index in range(3))
    return (Laid(y, order), *map(plain, moments))


def _with_last(layouts: Layouts, argument: relax.Expr, axes: list[int]) -> tuple[relax.Expr, Order]:
    """The argument with those axes last, in that sequence, the others as they lie."""
    value = layouts.at(argument)
    rank = len(value.order)
    last = [axis % rank for axis in axes]
    order = (*(axis for axis in value.order if axis not in last), *last)
    return layouts.tensor(value, order), order


def _conv2d(layouts: Layouts, call: relax.Call) -> Value:
    if (call.attrs.data_layout, call.attrs.kernel_layout) != ("NCHW", "OIHW"):
        return plain(layouts.call(call, *(layouts.tensor(layouts.at(argument)) for argument in call.args)))
    data, weight = (layouts.at(argument) for argument in call.args)
    attrs = {name: getattr(call.attrs, name) for name in ("strides", "padding", "dilation", "groups")}
    found = relax.op.nn.conv2d(
        layouts.tensor(data, _NHWC), layouts.tensor(weight, _HWIO), data_layout="NHWC", kernel_layout="HWIO", **attrs
    )
    return Laid(layouts.apply(found, _NHWC, _NHWC, _HWIO), _NHWC)


def _conv1d(layouts: Layouts, call: relax.Call) -> Value:
    """As a convolution of images one pixel high, which has kernels."""
    if (call.attrs.data_layout, call.attrs.kernel_layout) != ("NCW", "OIW"):
        return plain(layouts.call(call, *(layouts.tensor(layouts.at(argument)) for argument in call.args)))
    data, weight = (layouts.at(argument) for argument in call.args)
    high = [layouts.reshape(item, (*item.shape[:2], 1, item.shape[2])) for item in (data, weight)]
    ((stride,), (dilation,)) = call.attrs.strides, call.attrs.dilation
    before, after = call.attrs.padding
    found = relax.op.nn.conv2d(
        layouts.tensor(high[0], _NHWC), layouts.tensor(high[1], _HWIO), strides=(1, stride),
        padding=(0, before, 0, after), dilation=(1, dilation), groups=call.attrs.groups,
        data_layout="NHWC", kernel_layout="HWIO",
    )  # fmt: skip
    wide = Laid(layouts.apply(found, _NHWC, _NHWC, _HWIO), _NHWC)
    batch, channels, _, width = wide.shape
    return layouts.reshape(wide, (batch, channels, width))


def _pool(layouts: Layouts, call: relax.Call) -> Value:
    value = layouts.at(call.args[0])
    if call.attrs.layout != "NCHW":
        return plain(layouts.call(call, layouts.tensor(value)))
    operator = getattr(relax.op.nn, call.op.name.removeprefix("relax.nn."))
    if "adaptive" in call.op.name:
        attrs = {"output_size": call.attrs.output_size}
    else:
        names = ("pool_size", "strides", "padding", "dilation", "ceil_mode", "count_include_pad")
        attrs = {name: getattr(call.attrs, name) for name in names}
    return Laid(layouts.apply(operator(layouts.tensor(value, _NHWC), layout="NHWC", **attrs), _NHWC, _NHWC), _NHWC)


def _concat(layouts: Layouts, call: relax.Call) -> Value:
    parts = list(layouts.at(call.args[0]))
    rank = len(call.ty.shape)
    order = _common(parts, rank)
    axis = order.index(int(call.attrs.axis or 0) % rank)
    return Laid(layouts.emit(relax.op.concat([layouts.tensor(part, order) for part in parts], axis)), order)


def _split(layouts: Layouts, call: relax.Call) -> Value:
    value = layouts.at(call.args[0])
    axis = value.order.index(int(call.attrs.axis) % len(value.order))
    found = layouts.emit(relax.op.split(value.tensor, call.attrs.indices_or_sections, axis))
    return tuple(
        Laid(layouts.emit(relax.TupleGetItem(found, index)), value.order) for index in range(len(found.ty.fields))
    )


def _slice(layouts: Layouts, call: relax.Call) -> Value:
    value = layouts.at(call.args[0])
    rank = len(value.order)
    axes, *bounds = ([int(item) for item in argument] for argument in call.args[1:])
    lying = [value.order.index(axis % rank) for axis in axes]
    is_forward = all(step > 0 for steps in bounds[2:] for step in steps)
    if tuple(int(extent) for extent in call.ty.shape) == value.shape and is_forward:
        return value
    found = relax.op.strided_slice(value.tensor, lying, *bounds)
    return Laid(layouts.apply(found, value.order, value.order), value.order)


def _pad(layouts: Layouts, call: relax.Call) -> Value:
    value, widths = layouts.at(call.args[0]), [int(width) for width in call.attrs.pad_width]
    lying = [width for axis in value.order for width in widths[2 * axis : 2 * axis + 2]]
    found = relax.op.nn.pad(value.tensor, lying, call.attrs.pad_mode, call.attrs.pad_value)
    return Laid(layouts.emit(found), value.order)


def _broadcast_to(layouts: Layouts, call: relax.Call) -> Value:
    value, shape = layouts.at(call.args[0]), _shape(call)
    if len(value.order) < len(shape):
        value = layouts.reshape(value, (1,) * (len(shape) - len(value.order)) + value.shape)
    if value.shape == shape:
        return value
    found = relax.op.broadcast_to(value.tensor, [shape[axis] for axis in value.order])
    return Laid(layouts.emit(found), value.order)


def _resize(layouts: Layouts, call: relax.Call) -> Value:
    attrs, data = call.attrs, layouts.at(call.args[0])
    if attrs.layout != "NCHW":
        return plain(layouts.call(call, layouts.tensor(data), call.args[1]))
    names = ("method", "coordinate_transformation_mode", "rounding_method", "cubic_alpha", "cubic_exclude")
    rest = {name: getattr(attrs, name) for name in (*names, "extrapolation_value")}
    rest["roi"] = tuple(map(float, attrs.roi))
    found = relax.op.image.resize2d(layouts.tensor(data, _NHWC), call.args[1], layout="NHWC", **rest)
    return Laid(layouts.apply(found, _NHWC, _NHWC), _NHWC)


def _matmul(layouts: Layouts, call: relax.Call) -> Value:
    left, right = (layouts.at(argument) for argument in call.args)
    rank = len(left.order)
    if len(right.order) == _MATRIX and rank >= _MATRIX and left.order[-1] == rank - 1:
        return Laid(layouts.emit(relax.op.matmul(left.tensor, layouts.tensor(right))), left.order)
    is_batched = rank == len(right.order) > _MATRIX and left.shape[:-2] == right.shape[:-2]
    if not is_batched or (left.is_plain and right.is_plain):
        return plain(layouts.emit(relax.op.matmul(layouts.tensor(left), layouts.tensor(right))))
    batch = string.ascii_lowercase[: rank - _MATRIX]
    order = _product_order(right.order, rank)
    sides = (("".join(names[axis] for axis in value.order)) for names, value in
             ((f"{batch}xy", left), (f"{batch}yz", right), (f"{batch}xz", Laid(left.tensor, order))))  # fmt: skip
    first, second, result = sides
    found = relax.op.einsum((left.tensor, right.tensor), f"{first},{second}->{result}")
    return Laid(layouts.emit(found), order)


def _product_order(right: Order, rank: int) -> Order:
    """As the right matrices lie, with the result's rows for their rows, if their columns lie last; else as written."""
    return right if right[-1] == rank - 1 else tuple(range(rank))


def _gradient(layouts: Layouts, call: relax.Call) -> Value:
    """Mark the gradients of the operator as it was rewritten: the slope lies as its result, they as its operands."""
    applied = layouts.applied[call.args[1]]
    first = applied.result
    if isinstance(first.ty, relax.TupleType):
        first = layouts.emit(relax.TupleGetItem(first, 0))
    slope = layouts.reshape(layouts.at(call.args[2]), Laid(first, applied.order).shape)
    count = len(call.ty.fields)
    operands = layouts.builder.lookup_binding(applied.result).args[:count]
    found = gradient_of(layouts.builder, applied.result, layouts.tensor(slope, applied.order), operands)
    return tuple(
        layouts.reshape(Laid(gradient, order), tuple(int(extent) for extent in wanted.shape))
        for gradient, order, wanted in zip(found, applied.orders, call.ty.fields, strict=False)
    )


def _shape(call: relax.Call) -> Order:
    return tuple(int(extent) for extent in call.ty.shape)


RULES = {
    **{f"relax.{name}": _elementwise for name in _ELEMENTWISE},
    **{f"relax.{name}": _reduction for name in _REDUCTIONS},
    **{f"relax.{name}": _reshape for name in ("expand_dims", "flatten", "reshape", "squeeze")},
    **{f"relax.nn.{name}": _pool for name in ("adaptive_avg_pool2d", "avg_pool2d", "max_pool2d")},
    **{f"relax.nn.{name}": _softmax for name in ("log_softmax", "softmax")},
    **{f"relax.nn.{name}": _layer_norm for name in ("layer_norm", "rms_norm")},
    "relax.astype": _cast,
    "relax.call_pure_packed": _gradient,
    "relax.broadcast_to": _broadcast_to,
    "relax.concat": _concat,
    "relax.image.resize2d": _resize,
    "relax.matmul": _matmul,
    "relax.nn.batch_norm": _batch_norm,
    "relax.nn.conv1d": _conv1d,
    "relax.nn.conv2d": _conv2d,
    "relax.nn.pad": _pad,
    "relax.permute_dims": _permute,
    "relax.split": _split,
    "relax.strided_slice": _slice,
}
"""By name of an operator; those without a rule get their arguments as they are written."""
