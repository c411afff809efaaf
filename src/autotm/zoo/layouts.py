"""Layouts: a network written channels first becomes one written channels last, as our kernels want it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import tvm
from tvm import relax

# How a value lies after a reshape.

Groups = list[tuple[list[int], list[int]]]


def reshaped_order(old: Order, new: Order, order: Order) -> tuple[Order, Order]:
    """The order in which the axes of the result may lie, and the order that the source must be turned to before.

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
    found = [axis for number in sequence for axis in groups[number][1]]
    for axis in range(len(new)):
        if axis not in found:
            found.insert(found.index(axis - 1) + 1 if axis else 0, axis)
    return tuple(found), source


def _groups(old: Order, new: Order) -> Groups:
    """Least runs of axes, those of extent one left out, whose extents have the same product before and after."""
    olds = [axis for axis, extent in enumerate(old) if extent != 1]
    news = [axis for axis, extent in enumerate(new) if extent != 1]
    groups: Groups = []
    while olds or news:
        before, after = [olds.pop(0)], [news.pop(0)]
        while (size := math.prod(old[axis] for axis in before)) != (goal := math.prod(new[axis] for axis in after)):
            if size < goal:
                before.append(olds.pop(0))
            else:
                after.append(news.pop(0))
        groups.append((before, after))
    return groups


# Layouts: a network written channels first becomes one written channels last, as our kernels want it.
#
# Every value is followed as a tensor whose axes lie in some order in memory. A permutation then costs nothing where
# it is asked for: it only changes the order, and operators that do not care about it work on the tensor as it lies.
# Values are turned where an operator needs another order, and written as products of any order where two matrices are
# multiplied.

Order = tuple[int, ...]
CONSTANT = "constant_"
"""What the names of arguments begin with that were constants."""


@dataclass(frozen=True)
class Laid:
    """A value and how it lies: axis `j` of `tensor` is axis `order[j]` of the value."""

    tensor: relax.Expr
    order: Order

    @property
    def shape(self) -> Order:
        """Of the value, not of the tensor."""
        extents = tuple(int(extent) for extent in self.tensor.ty.shape)
        return tuple(extents[self.order.index(axis)] for axis in range(len(extents)))

    @property
    def is_plain(self) -> bool:
        """Whether it lies as it is written."""
        return self.order == tuple(range(len(self.order)))


@dataclass(frozen=True)
class Applied:
    """A call of an operator as it was rewritten, for the gradients that refer to it.

    Attributes:
        result: what it gave, a tensor or a tuple.
        order: of the result, or of its first part.
        orders: of its first operands.
    """

    result: relax.Var
    order: Order
    orders: tuple[Order, ...]


Value = Laid | tuple["Value", ...] | relax.Expr


class Layouts:
    """Rewrites one function, binding by binding; `rules` (in `layout_rules.py`) say what operators do with orders."""

    def __init__(self, rules: Mapping[str, Callable[[Layouts, relax.Call], Value]], lying: Mapping[str, Order]) -> None:
        """Start with nothing known but the orders in which some arguments lie."""
        self._rules = rules
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
        """A module with the same results, its insides turned; constants but for numbers become arguments, the last.

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
                    turned = [
                        self._gradient(each, self._lying.get(name))
                        for each, name in zip(results[first:], gradients, strict=True)
                    ]
                    output = relax.Tuple([*(self._whole(each) for each in results[:first]), *turned])
                else:
                    output = self._whole(results)
                output = self.builder.emit_output(output)
            self.builder.emit_func_output(output, [*arguments, *self._lifted.values()])
        found = self.builder.finalize()
        kept = {name: function for name, function in module.functions.items() if name.name_hint != "main"}
        return relax.transform.DeadCodeElimination(["main"])(tvm.IRModule({**kept, **found.functions}))

    def at(self, expression: relax.Expr) -> Value:
        """What is known of an argument."""
        if isinstance(expression, relax.Var):
            return self._values[expression]
        if isinstance(expression, relax.Tuple):
            return tuple(self.at(field) for field in expression.fields)
        is_tensor = isinstance(expression, tvm.ir.Constant) and isinstance(expression.ty, relax.TensorType)
        return self._constant(expression) if is_tensor else expression

    def tensor(self, value: Value, order: Order | None = None) -> relax.Expr:
        """The value as a tensor in that order: by default as it is written."""
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
        found = self.emit(expression)
        self.applied[self._bound] = Applied(found, order, orders)
        return found

    def call(self, original: relax.Call, *arguments: relax.Expr) -> relax.Var:
        """The same operator with the same attributes on other arguments."""
        return self.emit(relax.Call(original.op, list(arguments), original.attrs, original.ty_args))

    def reshape(self, value: Laid, shape: Sequence[int]) -> Laid:
        """The value in another shape; its tensor is turned only where axes that are merged do not lie together."""
        order, wanted = reshaped_order(value.shape, tuple(shape), value.order)
        return Laid(self.in_shape(self.tensor(value, wanted), [shape[axis] for axis in order]), order)

    def in_shape(self, tensor: relax.Expr, extents: Sequence[int]) -> relax.Expr:
        """A tensor's elements, as they lie, in another shape: of several reshapes only the last is left."""
        if isinstance(tensor, tvm.ir.Constant):
            return self.emit(relax.op.full(list(extents), tensor, tensor.ty.dtype.dtype))
        source = self._reshaped.get(tensor, tensor)
        if tuple(extents) == tuple(int(extent) for extent in source.ty.shape):
            return source
        found = self.emit(relax.op.reshape(source, list(extents)))
        self._reshaped[found] = source
        return found

    def _turn(self, tensor: relax.Expr, axes: Order) -> relax.Expr:
        """A permutation; where it moves nothing but axes of extent one, a reshape, which costs nothing."""
        extents = [int(extent) for extent in tensor.ty.shape]
        moved = [axis for axis in axes if extents[axis] > 1]
        if moved == sorted(moved):
            return self.in_shape(tensor, [extents[axis] for axis in axes])
        return self.emit(relax.op.permute_dims(tensor, axes))

    def _gradient(self, value: Laid, order: Order | None) -> relax.Expr:
        """The gradient by an argument that lies in that order; a product of matrices is worked out turned."""
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
        """A number as it is, anything larger as an argument: equal ones as one."""
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
        rule = self._rules.get(expression.op.name)
        if rule is not None:
            return rule(self, expression)
        found = self.call(expression, *(self._whole(self.at(argument)) for argument in expression.args))
        first = found.ty.fields[0] if isinstance(found.ty, relax.TupleType) else found.ty
        if isinstance(first, relax.TensorType):
            tensors = [item.ty for item in expression.args if isinstance(item.ty, relax.TensorType)]
            self.applied[self._bound] = Applied(found, _written(first), tuple(map(_written, tensors)))
        return plain(found)

    def _whole(self, value: Value) -> relax.Expr:
        if isinstance(value, Laid):
            return self.tensor(value)
        return relax.Tuple([self._whole(part) for part in value]) if isinstance(value, tuple) else value


def _written(tensor: relax.TensorType) -> Order:
    return tuple(range(len(tensor.shape)))


def plain(tensor: relax.Expr) -> Value:
    """A value that lies as it is written; a tuple or a shape stays what it is."""
    if isinstance(tensor.ty, relax.TensorType):
        return Laid(tensor, tuple(range(len(tensor.ty.shape))))
    return tensor
