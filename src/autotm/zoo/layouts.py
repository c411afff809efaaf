"""Layouts: a network written channels first becomes one written channels last, as our kernels want it."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy.typing as npt
import tvm
from tvm import relax

from autotm.zoo.network import gradient_of, shape_and_dtype

# Every value is followed as a tensor whose axes lie in some order in memory. A permutation then costs nothing where
# it is asked for: it only changes the order, and operators that do not care about it work on the tensor as it lies.
# Values are turned where an operator needs another order, and written as products of any order where two matrices are
# multiplied.

Order = tuple[int, ...]
CONSTANT = "constant_"
"""The prefix of the names of arguments that were constants in the network."""


@dataclass(frozen=True)
class Laid:
    """A value and how it lies: axis `j` of `tensor` is axis `order[j]` of the value."""

    tensor: relax.Expr
    order: Order

    @property
    def shape(self) -> Order:
        """The shape of the value, not of the tensor."""
        extents = tuple(int(extent) for extent in self.tensor.ty.shape)
        return tuple(extents[self.order.index(axis)] for axis in range(len(extents)))

    @property
    def is_plain(self) -> bool:
        """Whether the tensor's axes have the order of the value's axes."""
        return self.order == tuple(range(len(self.order)))


@dataclass(frozen=True)
class Applied:
    """A call of an operator as it was rewritten; gradients follow it.

    Attributes:
        result: the variable that the call is bound to.
        order: order of the result's axes, or of its first part's.
        orders: order of each operand's axes.
    """

    result: relax.Var
    order: Order
    orders: tuple[Order, ...]


Value = Laid | tuple["Value", ...] | relax.Expr


class Layouts:
    """Rewrites one function, binding by binding; `RULES` say what operators do with orders."""

    def __init__(self, lying: Mapping[str, Order]) -> None:
        """Start without bindings; `lying` has the orders in which some arguments are stored."""
        self._lying = lying
        self._values: dict[relax.Var, Value] = {}
        self._turned: dict[tuple[relax.Expr, Order], relax.Var] = {}
        self._reshaped: dict[relax.Expr, relax.Expr] = {}
        self.builder = relax.BlockBuilder()
        self.constants: dict[str, npt.NDArray[Any]] = {}
        self._lifted: dict[tuple[object, ...], relax.Var] = {}
        self.asked: dict[str, set[Order]] = {}
        self.applied: dict[relax.Var, Applied] = {}
        self._bound: relax.Var | None = None

    def rewrite(self, module: tvm.IRModule, gradients: Sequence[str] = ()) -> tvm.IRModule:
        """Rewrite a module in other orders of axes; constants but for numbers become its last arguments.

        Its last results are the gradients by these arguments, and lie as the arguments do.
        """
        main = module["main"]
        with self.builder.function("main"):
            with self.builder.dataflow():
                arguments = [self._argument(var) for var in main.params]
                for block in main.body.blocks:
                    for binding in block.bindings:
                        self._bound = binding.var
                        self._values[binding.var] = self._value(binding.value)
                results = self._value(main.body.body)
                if gradients:
                    first = len(results) - len(gradients)
                    by_name = zip(results[first:], gradients, strict=True)
                    turned = [self._gradient(each, self._lying.get(name)) for each, name in by_name]
                    output = relax.Tuple([*map(self._whole, results[:first]), *turned])
                else:
                    output = self._whole(results)
                output = self.builder.emit_output(output)
            self.builder.emit_func_output(output, [*arguments, *self._lifted.values()])
        rewritten = self.builder.finalize()
        kept = {name: function for name, function in module.functions.items() if name.name_hint != "main"}
        return relax.transform.DeadCodeElimination(["main"])(tvm.IRModule({**kept, **rewritten.functions}))

    def at(self, expression: relax.Expr) -> Value:
        """Return the value of an argument; the expression itself where it holds no tensor."""
        if isinstance(expression, relax.Var):
            return self._values[expression]
        if isinstance(expression, relax.Tuple):
            return tuple(self.at(field) for field in expression.fields)
        is_tensor = isinstance(expression, tvm.ir.Constant) and isinstance(expression.ty, relax.TensorType)
        return self._constant(expression) if is_tensor else expression

    def tensor(self, value: Value, order: Order | None = None) -> relax.Expr:
        """Return the value as a tensor in that order: by default as it is written."""
        if not isinstance(value, Laid):
            return self._whole(value)
        order = tuple(range(len(value.order))) if order is None else order
        axes = tuple(value.order.index(axis) for axis in order)
        if isinstance(value.tensor, relax.Var) and value.tensor.name in self.asked:
            self.asked[value.tensor.name].add(axes)
        if value.order == order:
            return value.tensor
        if (value.tensor, axes) not in self._turned:
            self._turned[value.tensor, axes] = self._turn(value.tensor, axes)
        return self._turned[value.tensor, axes]

    def emit(self, expression: relax.Expr) -> relax.Var:
        """Bind an expression to a variable."""
        return self.builder.emit(expression)

    def apply(self, expression: relax.Expr, order: Order, *orders: Order) -> relax.Var:
        """Bind a call of an operator that may be differentiated, with the orders of its result and operands."""
        result = self.emit(expression)
        self.applied[self._bound] = Applied(result, order, orders)
        return result

    def as_written(self, call: relax.Call) -> Value:
        """Bind an operator's call on its arguments as they are written."""
        arguments = [self._whole(self.at(argument)) for argument in call.args]
        rewritten = self.emit(relax.Call(call.op, arguments, call.attrs, call.ty_args))
        first = rewritten.ty.fields[0] if isinstance(rewritten.ty, relax.TupleType) else rewritten.ty
        if isinstance(first, relax.TensorType):
            tensors = [item.ty for item in call.args if isinstance(item.ty, relax.TensorType)]
            self.applied[self._bound] = Applied(rewritten, _written(first), tuple(map(_written, tensors)))
        return plain(rewritten)

    def reshape(self, value: Laid, shape: Sequence[int]) -> Laid:
        """Reshape a value; its tensor is turned only where axes that are merged do not lie together."""
        order, wanted = reshaped_order(value.shape, tuple(shape), value.order)
        return Laid(self.in_shape(self.tensor(value, wanted), [shape[axis] for axis in order]), order)

    def in_shape(self, tensor: relax.Expr, extents: Sequence[int]) -> relax.Expr:
        """Reshape a tensor's elements as they lie: of several reshapes only the last is left."""
        if isinstance(tensor, tvm.ir.Constant):
            return self.emit(relax.op.full(list(extents), tensor, tensor.ty.dtype.dtype))
        source = self._reshaped.get(tensor, tensor)
        if tuple(extents) == tuple(int(extent) for extent in source.ty.shape):
            return source
        reshaped = self.emit(relax.op.reshape(source, list(extents)))
        self._reshaped[reshaped] = source
        return reshaped

    def _turn(self, tensor: relax.Expr, axes: Order) -> relax.Expr:
        """Permute axes; where that moves nothing but axes of extent one, reshape, which costs nothing."""
        extents = [int(extent) for extent in tensor.ty.shape]
        moved = [axis for axis in axes if extents[axis] > 1]
        if moved == sorted(moved):
            return self.in_shape(tensor, [extents[axis] for axis in axes])
        return self.emit(relax.op.permute_dims(tensor, axes))

    def _gradient(self, value: Laid, order: Order | None) -> relax.Expr:
        """Return the gradient by an argument that lies in that order; a product of matrices is computed transposed."""
        product = self.builder.lookup_binding(value.tensor) if isinstance(value.tensor, relax.Var) else None
        is_product = isinstance(product, relax.Call) and product.op == tvm.ir.Op.get("relax.matmul")
        is_product = is_product and len(value.order) == 2  # noqa: PLR2004 - rows and columns
        if order is None or value.order == order or not is_product:
            return self.tensor(value, order)
        left, right = (self.emit(relax.op.permute_dims(each)) for each in product.args)
        return self.emit(relax.op.matmul(right, left))

    def _argument(self, var: relax.Var) -> relax.Var:
        self.asked[var.name] = set()
        order = self._lying.get(var.name)
        if order is None:
            self._values[var] = plain(var)
            return var
        shape = [var.ty.shape[axis] for axis in order]
        turned = relax.Var(var.name, relax.TensorType(shape, var.ty.dtype))
        self._values[var] = Laid(turned, order)
        return turned

    def _constant(self, constant: tvm.ir.Constant) -> Value:
        """Return a number as it is, anything larger as an argument: equal ones as one."""
        array = constant.value.numpy()
        if not array.shape:
            return plain(constant)
        key = (array.tobytes(), array.shape, str(array.dtype))
        if key not in self._lifted:
            name = f"{CONSTANT}{len(self._lifted)}"
            self.constants[name] = array
            self._lifted[key] = relax.Var(name, constant.ty)
        return plain(self._lifted[key])

    def _value(self, expression: relax.Expr) -> Value:
        if isinstance(expression, relax.TupleGetItem):
            whole = self.at(expression.tuple_value)
            if isinstance(whole, tuple):
                return whole[expression.index]
            return plain(self.emit(relax.TupleGetItem(self._whole(whole), expression.index)))
        if not isinstance(expression, relax.Call) or not isinstance(expression.op, tvm.ir.Op):
            return self.at(expression)
        rule = RULES.get(expression.op.name)
        return self.as_written(expression) if rule is None else rule(self, expression)

    def _whole(self, value: Value) -> relax.Expr:
        if isinstance(value, Laid):
            return self.tensor(value)
        return relax.Tuple([self._whole(part) for part in value]) if isinstance(value, tuple) else value


def _written(tensor: relax.TensorType) -> Order:
    return tuple(range(len(tensor.shape)))


def plain(tensor: relax.Expr) -> Value:
    """Return a value that lies as it is written; a tuple or a shape stays what it is."""
    if isinstance(tensor.ty, relax.TensorType):
        return Laid(tensor, _written(tensor.ty))
    return tensor


# How a value lies after a reshape.


def reshaped_order(old: Order, new: Order, order: Order) -> tuple[Order, Order]:
    """Return the order in which the axes of the result may lie, and the order to turn the source to before.

    The source is turned as little as possible: only axes that become one axis, or are divided anew, must lie together.

    Args:
        old: shape before.
        new: shape after, of as many elements.
        order: of the source: axis j of its tensor is axis order[j] of the value.
    """
    groups = _groups(old, new)
    of_axis = {axis: number for number, (olds, _) in enumerate(groups) for axis in olds}
    lying = [of_axis[axis] for axis in order if axis in of_axis]
    last = {number: place for place, number in enumerate(lying)}
    sequence = [number for place, number in enumerate(lying) if last[number] == place]
    units = [axis for axis in range(len(old)) if axis not in of_axis]
    wanted = [axis for number in sequence for axis in groups[number][0]]
    kept = [axis for axis in order if axis in of_axis]
    source = order if kept == wanted else tuple(wanted + units)
    result = [axis for number in sequence for axis in groups[number][1]]
    for axis in range(len(new)):
        if axis not in result:
            result.insert(result.index(axis - 1) + 1 if axis else 0, axis)
    return tuple(result), source


def _groups(old: Order, new: Order) -> list[tuple[list[int], list[int]]]:
    """Return the least runs of axes, those of extent one left out, of the same product before and after."""
    olds = [axis for axis, extent in enumerate(old) if extent != 1]
    news = [axis for axis, extent in enumerate(new) if extent != 1]
    groups = []
    while olds or news:
        before, after = [olds.pop(0)], [news.pop(0)]
        while (size := math.prod(old[axis] for axis in before)) != (goal := math.prod(new[axis] for axis in after)):
            if size < goal:
                before.append(olds.pop(0))
            else:
                after.append(news.pop(0))
        groups.append((before, after))
    return groups


# Rules by which operators read operands, and lay out results, in some order of axes.

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
_NHWC = (0, 2, 3, 1)
_MATRIX = 2  # axes


def _elementwise(layouts: Layouts, call: relax.Call) -> Value:
    values = [layouts.at(argument) for argument in call.args]
    shape = _shape(call)
    order = _common(values, len(shape))
    operands = [_broadcast(layouts, value, values, shape, order) for value in values]
    applied = relax.Call(call.op, operands, call.attrs, call.ty_args)
    # An operand of fewer axes than the result lies as it is written.
    ranks = [len(item.ty.shape) if isinstance(item.ty, relax.TensorType) else 0 for item in operands]
    orders = (order if rank == len(order) else tuple(range(rank)) for rank in ranks)
    return Laid(layouts.apply(applied, order, *orders), order)


def _cast(layouts: Layouts, call: relax.Call) -> Value:
    """Cast a constant number at once, for a kernel has no place for one."""
    value, dtype = layouts.at(call.args[0]), str(call.attrs.dtype)
    if isinstance(value, Laid) and isinstance(value.tensor, tvm.ir.Constant):
        return plain(relax.const(value.tensor.value.numpy().astype(dtype), dtype))
    return _elementwise(layouts, call)


def _common(values: list[Value], rank: int) -> Order:
    """Return the order of the largest argument of full rank that does not lie as written, else the written order."""
    full = [value for value in values if isinstance(value, Laid) and len(value.order) == rank]
    sizes = [math.prod(value.shape) for value in full]
    largest = [value for value, size in zip(full, sizes, strict=True) if size == max(sizes)]
    turned = [value.order for value in largest if not value.is_plain]
    return turned[0] if turned else tuple(range(rank))


def _broadcast(layouts: Layouts, value: Value, values: list[Value], shape: Order, order: Order) -> relax.Expr:
    """Return an argument as an operator needs it whose result is `shape` and lies in `order`.

    Leading axes of extent one are dropped if another argument has the result's shape: our rules take a bias as vector.
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
        # The gradient of a bias is such a sum, and has a kernel of its own.
        reduced = layouts.emit(relax.op.collapse_sum_to(value.tensor, extents[-1:]))
        reduced = layouts.in_shape(reduced, [1] * (rank - 1) + extents[-1:]) if attrs.keepdims else reduced
    else:
        reduced = layouts.emit(_operator(call)(value.tensor, lying, keepdims=bool(attrs.keepdims)))
    if attrs.keepdims:
        return Laid(reduced, value.order)
    kept = [axis for axis in range(rank) if axis not in axes]
    return Laid(reduced, tuple(kept.index(axis) for axis in value.order if axis not in axes))


def _softmax(layouts: Layouts, call: relax.Call) -> Value:
    value, order = _with_last(layouts, call.args[0], [int(call.attrs.axis)])
    return Laid(layouts.apply(_operator(call)(value, axis=len(order) - 1), order, order), order)


def _layer_norm(layouts: Layouts, call: relax.Call) -> Value:
    axes = [int(axis) for axis in call.attrs.axes]
    value, order = _with_last(layouts, call.args[0], axes)
    rest = [layouts.tensor(layouts.at(argument)) for argument in call.args[1:]]
    last = list(range(len(order) - len(axes), len(order)))
    normalized = _operator(call)(value, *rest, axes=last, epsilon=call.attrs.epsilon)
    written = tuple(range(len(axes)))
    return Laid(layouts.apply(normalized, order, order, written, written), order)


def _batch_norm(layouts: Layouts, call: relax.Call) -> Value:
    value, order = _with_last(layouts, call.args[0], [int(call.attrs.axis)])
    rest = [layouts.tensor(layouts.at(argument)) for argument in call.args[1:]]
    attrs = _attributes(call, "epsilon", "center", "scale", "momentum", "training")
    normalized = relax.op.nn.batch_norm(value, *rest, axis=len(order) - 1, **attrs)
    normalized = layouts.apply(normalized, order, order, (0,), (0,))
    y, *moments = (layouts.emit(relax.TupleGetItem(normalized, index)) for index in range(3))
    return (Laid(y, order), *map(plain, moments))


def _with_last(layouts: Layouts, argument: relax.Expr, axes: list[int]) -> tuple[relax.Expr, Order]:
    """Return the argument with those axes last, in that sequence, the others as they lie."""
    value = layouts.at(argument)
    rank = len(value.order)
    last = [axis % rank for axis in axes]
    order = (*(axis for axis in value.order if axis not in last), *last)
    return layouts.tensor(value, order), order


_CONVOLUTIONS = {
    "relax.nn.conv1d": ("NCW", "OIW", "NWC", "WIO"), "relax.nn.conv2d": ("NCHW", "OIHW", "NHWC", "HWIO"),
}  # fmt: skip
"""Layouts of data and weights that are rewritten, then the layouts that replace them."""


def _convolution(layouts: Layouts, call: relax.Call) -> Value:
    data_layout, kernel_layout, *last = _CONVOLUTIONS[call.op.name]
    if (call.attrs.data_layout, call.attrs.kernel_layout) != (data_layout, kernel_layout):
        return layouts.as_written(call)
    orders = [
        tuple(map(layout.index, turned)) for layout, turned in zip((data_layout, kernel_layout), last, strict=True)
    ]
    data, weight = (
        layouts.tensor(layouts.at(argument), order) for argument, order in zip(call.args, orders, strict=True)
    )
    attrs = _attributes(call, "strides", "padding", "dilation", "groups")
    convolution = _operator(call)(data, weight, data_layout=last[0], kernel_layout=last[1], **attrs)
    return Laid(layouts.apply(convolution, orders[0], *orders), orders[0])


_POOL = ("pool_size", "strides", "padding", "dilation", "ceil_mode", "count_include_pad")
_OF_IMAGES = {
    "relax.nn.adaptive_avg_pool2d": ("output_size",), "relax.nn.avg_pool2d": _POOL, "relax.nn.max_pool2d": _POOL,
    "relax.image.resize2d": (
        "roi", "method", "coordinate_transformation_mode", "rounding_method", "cubic_alpha", "cubic_exclude",
        "extrapolation_value",
    ),
}  # fmt: skip
"""Attributes, besides the layout, of operators that take images and compute them with channels last."""


def _of_image(layouts: Layouts, call: relax.Call) -> Value:
    if call.attrs.layout != "NCHW":
        return layouts.as_written(call)
    attrs = _attributes(call, *_OF_IMAGES[call.op.name])
    if "roi" in attrs:
        attrs["roi"] = tuple(map(float, call.attrs.roi))
    data = layouts.tensor(layouts.at(call.args[0]), _NHWC)
    applied = _operator(call)(data, *call.args[1:], layout="NHWC", **attrs)
    return Laid(layouts.apply(applied, _NHWC, _NHWC), _NHWC)


def _concat(layouts: Layouts, call: relax.Call) -> Value:
    parts = list(layouts.at(call.args[0]))
    rank = len(call.ty.shape)
    order = _common(parts, rank)
    axis = order.index(int(call.attrs.axis or 0) % rank)
    return Laid(layouts.emit(relax.op.concat([layouts.tensor(part, order) for part in parts], axis)), order)


def _split(layouts: Layouts, call: relax.Call) -> Value:
    value = layouts.at(call.args[0])
    axis = value.order.index(int(call.attrs.axis) % len(value.order))
    parts = layouts.emit(relax.op.split(value.tensor, call.attrs.indices_or_sections, axis))
    return tuple(
        Laid(layouts.emit(relax.TupleGetItem(parts, index)), value.order) for index in range(len(parts.ty.fields))
    )


def _slice(layouts: Layouts, call: relax.Call) -> Value:
    value = layouts.at(call.args[0])
    rank = len(value.order)
    axes, *bounds = ([int(item) for item in argument] for argument in call.args[1:])
    lying = [value.order.index(axis % rank) for axis in axes]
    is_forward = all(step > 0 for steps in bounds[2:] for step in steps)
    if _shape(call) == value.shape and is_forward:
        return value
    sliced = relax.op.strided_slice(value.tensor, lying, *bounds)
    return Laid(layouts.apply(sliced, value.order, value.order), value.order)


def _pad(layouts: Layouts, call: relax.Call) -> Value:
    value, widths = layouts.at(call.args[0]), [int(width) for width in call.attrs.pad_width]
    lying = [width for axis in value.order for width in widths[2 * axis : 2 * axis + 2]]
    padded = relax.op.nn.pad(value.tensor, lying, call.attrs.pad_mode, call.attrs.pad_value)
    return Laid(layouts.emit(padded), value.order)


def _broadcast_to(layouts: Layouts, call: relax.Call) -> Value:
    value, shape = layouts.at(call.args[0]), _shape(call)
    if len(value.order) < len(shape):
        value = layouts.reshape(value, (1,) * (len(shape) - len(value.order)) + value.shape)
    if value.shape == shape:
        return value
    expanded = relax.op.broadcast_to(value.tensor, [shape[axis] for axis in value.order])
    return Laid(layouts.emit(expanded), value.order)


def _matmul(layouts: Layouts, call: relax.Call) -> Value:
    left, right = (layouts.at(argument) for argument in call.args)
    rank = len(left.order)
    if len(right.order) == _MATRIX and rank >= _MATRIX and left.order[-1] == rank - 1:
        return Laid(layouts.emit(relax.op.matmul(left.tensor, layouts.tensor(right))), left.order)
    is_batched = rank == len(right.order) > _MATRIX and left.shape[:-2] == right.shape[:-2]
    if not is_batched or (left.is_plain and right.is_plain):
        return plain(layouts.emit(relax.op.matmul(layouts.tensor(left), layouts.tensor(right))))
    batch = string.ascii_lowercase[: rank - _MATRIX]
    # The result lies as the right operand does if the columns of that lie last; else as it is written.
    order = right.order if right.order[-1] == rank - 1 else tuple(range(rank))
    sides = (("".join(names[axis] for axis in value.order)) for names, value in
             ((f"{batch}xy", left), (f"{batch}yz", right), (f"{batch}xz", Laid(left.tensor, order))))  # fmt: skip
    first, second, result = sides
    product = relax.op.einsum((left.tensor, right.tensor), f"{first},{second}->{result}")
    return Laid(layouts.emit(product), order)


def _gradient(layouts: Layouts, call: relax.Call) -> Value:
    """Mark the gradients of the rewritten operator: the slope lies as the result, each gradient as its operand."""
    applied = layouts.applied[call.args[1]]
    first = applied.result
    if isinstance(first.ty, relax.TupleType):
        first = layouts.emit(relax.TupleGetItem(first, 0))
    slope = layouts.reshape(layouts.at(call.args[2]), Laid(first, applied.order).shape)
    count = len(call.ty.fields)
    operands = layouts.builder.lookup_binding(applied.result).args[:count]
    gradients = gradient_of(layouts.builder, applied.result, layouts.tensor(slope, applied.order), operands)
    return tuple(
        layouts.reshape(Laid(gradient, order), shape_and_dtype(wanted)[0])
        for gradient, order, wanted in zip(gradients, applied.orders, call.ty.fields, strict=False)
    )


def _shape(call: relax.Call) -> Order:
    return shape_and_dtype(call.ty)[0]


def _operator(call: relax.Call) -> Callable[..., relax.Call]:
    """Return Relax's function of the name of the call's operator: `relax.op.nn.softmax`, say."""
    return attrgetter(call.op.name.removeprefix("relax."))(relax.op)


def _attributes(call: relax.Call, *names: str) -> dict[str, object]:
    return {name: getattr(call.attrs, name) for name in names}


RULES: dict[str, Callable[[Layouts, relax.Call], Value]] = {
    **{f"relax.{name}": _elementwise for name in _ELEMENTWISE},
    **{f"relax.{name}": _reduction for name in _REDUCTIONS},
    **{f"relax.{name}": _reshape for name in ("expand_dims", "flatten", "reshape", "squeeze")},
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys(_OF_IMAGES, _of_image),
    **{f"relax.nn.{name}": _softmax for name in ("log_softmax", "softmax")},
    **{f"relax.nn.{name}": _layer_norm for name in ("layer_norm", "rms_norm")},
    "relax.astype": _cast,
    "relax.call_pure_packed": _gradient,
    "relax.broadcast_to": _broadcast_to,
    "relax.concat": _concat,
    "relax.matmul": _matmul,
    "relax.nn.batch_norm": _batch_norm,
    "relax.nn.pad": _pad,
    "relax.permute_dims": _permute,
    "relax.split": _split,
    "relax.strided_slice": _slice,
}
"""By name of an operator; those without a rule get their arguments as they are written."""
