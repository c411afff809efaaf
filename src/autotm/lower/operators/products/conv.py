"""Convolutions of lines, images and volumes, in any layout; the kernels' own is NHWC x HWIO."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import relax

from autotm.kernels.operators import rearrange
from autotm.lower.operators.layouts import arranged, restored
from autotm.lower.operators.products.geometry import Geometry
from autotm.lower.operators.rules import Ints, differentiates, ints, legalizes, shape_of

_DATA, _WEIGHTS = "NHWC", "HWIO"


@dataclass(frozen=True)
class _Convolution:
    """A call, with its operands' axes in the kernels' order."""

    builder: relax.BlockBuilder
    data_layout: str
    kernel_layout: str
    geometry: Geometry

    @classmethod
    def of(cls, builder: relax.BlockBuilder, call: relax.Call) -> _Convolution:
        """Of images; of lines, as images of one row."""
        attrs = call.attrs
        strides, padding, dilation = (ints(value) for value in (attrs.strides, attrs.padding, attrs.dilation))
        if len(strides) == 1:
            strides, padding, dilation = (1, *strides), (0, padding[0], 0, padding[1]), (1, *dilation)
        geometry = Geometry(strides, padding, int(attrs.groups), dilation)
        return cls(builder, str(attrs.data_layout), str(attrs.kernel_layout), geometry)

    def data(self, x: relax.Expr) -> relax.Expr:
        return arranged(self.builder, x, self.data_layout, _DATA)

    def weights(self, w: relax.Expr) -> relax.Expr:
        return arranged(self.builder, w, self.kernel_layout, _WEIGHTS)

    def back(self, made: relax.Expr, layout: str, wanted: str) -> relax.Expr:
        """What a kernel made, in the axes of the operator."""
        return restored(self.builder, made, layout, wanted)


@legalizes("relax.nn.conv1d")
@legalizes("relax.nn.conv2d")
def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    found, (x, w) = _Convolution.of(builder, call), call.args
    made = found.geometry.forward(builder, found.data(x), found.weights(w))
    return found.back(made, _DATA, str(call.attrs.out_layout))


@differentiates("relax.nn.conv1d")
@differentiates("relax.nn.conv2d")
def _gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    found = _Convolution.of(builder, call)
    x, w = found.data(call.args[0]), found.weights(call.args[1])
    dy = arranged(builder, dy, str(call.attrs.out_layout), _DATA)
    return [
        found.back(found.geometry.data_gradient(builder, dy, w, shape_of(x)), _DATA, found.data_layout),
        found.back(found.geometry.weight_gradient(builder, x, dy, shape_of(w)), _WEIGHTS, found.kernel_layout),
    ]


@legalizes("relax.nn.conv1d_transpose")
@legalizes("relax.nn.conv2d_transpose")
def _legalize_transposed(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    # The gradient of the convolution that takes the result to the operand, by what that convolves.
    found, (x, w) = _transposed(builder, call), call.args
    layout = str(call.attrs.out_layout)
    extents = dict(zip(layout, shape_of(call), strict=True))
    shape = tuple(extents.get(letter, 1) for letter in _DATA)
    made = found.geometry.data_gradient(builder, found.data(x), found.weights(w), shape)
    return found.back(made, _DATA, layout)


@differentiates("relax.nn.conv1d_transpose")
@differentiates("relax.nn.conv2d_transpose")
def _transposed_gradient(
    _y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder
) -> list[relax.Expr]:
    found = _transposed(builder, call)
    x, w = found.data(call.args[0]), found.weights(call.args[1])
    dy = arranged(builder, dy, str(call.attrs.out_layout), _DATA)
    return [
        found.back(found.geometry.forward(builder, dy, w), _DATA, found.data_layout),
        found.back(found.geometry.weight_gradient(builder, dy, x, shape_of(w)), _WEIGHTS, found.kernel_layout),
    ]


def _transposed(builder: relax.BlockBuilder, call: relax.Call) -> _Convolution:
    """The convolution from result to operand: its weights' inputs are the operator's outputs."""
    found = _Convolution.of(builder, call)
    swapped = found.kernel_layout.translate(str.maketrans("IO", "OI"))
    return _Convolution(builder, found.data_layout, swapped, found.geometry)


@legalizes("relax.nn.conv3d")
def _legalize_volumes(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    found, (x, w) = _Volumes.of(builder, call), call.args
    made = builder.emit(found.geometry.forward(builder, found.images(x), found.weights(w)))
    return found.volumes(made, str(call.attrs.out_layout))


@differentiates("relax.nn.conv3d")
def _volume_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    found, (x, w) = _Volumes.of(builder, call), call.args
    images, weights = found.images(x), found.weights(w)
    slopes = arranged(builder, dy, str(call.attrs.out_layout), "NDHWC")
    batch, depth, *rest = shape_of(slopes)
    slopes = builder.emit(relax.op.reshape(slopes, (batch * depth, *rest)))
    by_images = builder.emit(found.geometry.data_gradient(builder, slopes, weights, shape_of(images)))
    by_weights = builder.emit(found.geometry.weight_gradient(builder, images, slopes, shape_of(weights)))
    return [found.data_slope(by_images, x), found.weight_slope(by_weights, w)]


@dataclass(frozen=True)
class _Volumes:
    """A convolution of volumes as one of images, whose channels are those of all slices that a window meets."""

    builder: relax.BlockBuilder
    attrs: object
    slices: rearrange.Slices
    count: int
    """Slices of the result."""
    geometry: Geometry

    @classmethod
    def of(cls, builder: relax.BlockBuilder, call: relax.Call) -> _Volumes:
        attrs = call.attrs
        strides, dilation = ints(attrs.strides), ints(attrs.dilation)
        front, top, left, _, bottom, right = ints(attrs.padding)
        window = shape_of(call.args[1])[str(attrs.kernel_layout).index("D")]
        groups = int(attrs.groups)
        slices = rearrange.Slices(window, strides[0], dilation[0], front, groups)
        geometry = Geometry(strides[1:], (top, left, bottom, right), groups, dilation[1:])
        return cls(builder, attrs, slices, shape_of(call)[str(attrs.out_layout).index("D")], geometry)

    def images(self, x: relax.Expr) -> relax.Expr:
        x = arranged(self.builder, x, str(self.attrs.data_layout), "NDHWC")
        return self._emit(self.slices.gathered, x, self.count)

    def weights(self, w: relax.Expr) -> relax.Expr:
        w = arranged(self.builder, w, str(self.attrs.kernel_layout), "HWDIO")
        rows, columns, depth, channels, features = shape_of(w)
        return self.builder.emit(relax.op.reshape(w, (rows, columns, depth * channels, features)))

    def volumes(self, made: relax.Expr, layout: str) -> relax.Expr:
        images, *rest = shape_of(made)
        made = self.builder.emit(relax.op.reshape(made, (images // self.count, self.count, *rest)))
        return arranged(self.builder, made, "NDHWC", layout)

    def data_slope(self, slope: relax.Expr, x: relax.Expr) -> relax.Expr:
        layout = str(self.attrs.data_layout)
        extents = dict(zip(layout, shape_of(x), strict=True))
        found = self._emit(self.slices.scattered, slope, tuple(extents[letter] for letter in "NDHWC"))
        return arranged(self.builder, found, "NDHWC", layout)

    def weight_slope(self, slope: relax.Expr, w: relax.Expr) -> relax.Expr:
        layout = str(self.attrs.kernel_layout)
        extents = dict(zip(layout, shape_of(w), strict=True))
        slope = self.builder.emit(relax.op.reshape(slope, [extents[letter] for letter in "HWDIO"]))
        return arranged(self.builder, slope, "HWDIO", layout)

    def _emit(self, function: Callable[..., object], x: relax.Expr, last: int | Ints) -> relax.Var:
        return self.builder.emit(self.builder.call_te(function, x, last))
