"""Which Relax operators our kernels cover, and their geometry: the same answer for forward pass and gradient."""

from __future__ import annotations

from tvm import relax

Ints = tuple[int, ...]


def shape_of(expression: relax.Expr) -> Ints:
    """Static shape of a tensor expression."""
    return _ints(expression.ty.shape)


def conv_geometry(call: relax.Call) -> tuple[Ints, Ints] | None:
    """(strides, padding) of a plain NHWC x HWIO convolution; None for any other."""
    attrs = call.attrs
    is_plain = attrs.groups == 1 and _ints(attrs.dilation) == (1, 1)
    if attrs.data_layout != "NHWC" or attrs.kernel_layout != "HWIO" or not is_plain:
        return None
    return _ints(attrs.strides), _ints(attrs.padding)


def pool_geometry(call: relax.Call) -> tuple[Ints, Ints, Ints] | None:
    """(window, strides, padding) of a plain NHWC pool whose padding does not count; None for any other."""
    attrs = call.attrs
    if attrs.layout != "NHWC" or _ints(attrs.dilation) != (1, 1) or attrs.count_include_pad or attrs.ceil_mode:
        return None
    return _ints(attrs.pool_size), _ints(attrs.strides), _ints(attrs.padding)


def is_matrix_product(call: relax.Call) -> bool:
    """Whether both operands of a matmul are matrices."""
    return all(len(shape_of(argument)) == 2 for argument in call.args)  # noqa: PLR2004  (matrices)


def _ints(values: object) -> Ints:
    return tuple(int(value) for value in values)
