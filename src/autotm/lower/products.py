"""Rules of sums of products: products of matrices, and convolutions as the kernels compute them, NHWC x HWIO."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.relax.op import _op_gradient as relax_rules

from autotm.kernels import contractions, windowed
from autotm.kernels.contractions import Subscripts, batched_matmul
from autotm.lower.rules import Ints, arranged, builtin, differentiates, ints, legalizes, restored, shape_of

# Products of matrices, single and batched.

_LETTERS = "abcdefgh"


@legalizes("relax.matmul")
def _legalize_matmul(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    a, b = call.args
    if _is_dense(call):
        rows = builder.emit(relax.op.reshape(a, _flat(a)))
        return relax.op.reshape(builder.emit(builder.call_te(contractions.matmul, rows, b)), shape_of(call))
    if _is_matrix_product(call):
        return builder.call_te(contractions.matmul, a, b)
    letters = _batched(call)
    return builder.call_te(batched_matmul, a, b, str(letters)) if letters else builtin(builder, call)


@differentiates("relax.matmul")
def _matmul_gradient(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    a, b = call.args
    if _is_dense(call):
        rows, slopes = (builder.emit(relax.op.reshape(value, _flat(value))) for value in (a, dy))
        by_rows = builder.emit(builder.call_te(contractions.matmul_nt, slopes, b))
        return [relax.op.reshape(by_rows, shape_of(a)), builder.call_te(contractions.matmul_tn, rows, slopes)]
    if _is_matrix_product(call):
        return [builder.call_te(contractions.matmul_nt, dy, b), builder.call_te(contractions.matmul_tn, a, dy)]
    letters = _batched(call)
    if letters is None:
        return relax_rules.matmul_grad(y, call, dy, builder)
    return _batched_gradient(a, b, letters, dy, builder)


@legalizes("relax.einsum")
def _legalize_einsum(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    letters = _einsum(call)
    return _product(builder, *call.args[0], letters) if letters else builtin(builder, call)


@differentiates("relax.einsum")
def _einsum_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    letters = _einsum(call)
    if letters is None:
        message = f"einsum '{call.attrs.subscripts}' has no gradient: only batched products of two matrices do"
        raise NotImplementedError(message)
    return [relax.Tuple(_batched_gradient(*call.args[0], letters, dy, builder))]


def _batched_gradient(
    a: relax.Expr, b: relax.Expr, letters: Subscripts, dy: relax.Expr, builder: relax.BlockBuilder
) -> list[relax.Expr]:
    dy, factor = _factored(dy, builder)
    found = [
        builder.emit(_product(builder, dy, b, letters.left_gradient)),
        builder.emit(_product(builder, a, dy, letters.right_gradient)),
    ]
    return found if factor is None else [builder.emit(relax.op.multiply(slope, factor)) for slope in found]


def _product(builder: relax.BlockBuilder, a: relax.Expr, b: relax.Expr, letters: Subscripts) -> relax.Expr:
    """A batched product; of two matrices, the plain one that reads them as they lie."""
    if len(letters.result) == 2:  # noqa: PLR2004  (a matrix)
        row, column = letters.result
        (first, ours), (second, theirs) = sorted(
            ((a, letters.left), (b, letters.right)), key=lambda operand: column in operand[1]
        )
        form = _FORMS.get((ours.index(row), theirs.index(column)))
        if form is not None:
            return builder.call_te(form, first, second)
    return builder.call_te(batched_matmul, a, b, str(letters))


_FORMS = {(0, 1): contractions.matmul, (0, 0): contractions.matmul_nt, (1, 1): contractions.matmul_tn}
"""By where the rows' axis is in the first operand, and the columns' in the second."""


def _factored(dy: relax.Expr, builder: relax.BlockBuilder) -> tuple[relax.Expr, relax.Expr | None]:
    """`dy` as a tensor times a number: behind the products of its gradients, a multiplication costs no kernel."""
    value = builder.lookup_binding(dy)
    if not isinstance(value, relax.Call) or value.op != tvm.ir.Op.get("relax.multiply"):
        return dy, None
    x, factor = value.args
    is_number = isinstance(factor, tvm.ir.Constant) and not factor.value.shape
    return (x, factor) if is_number else (dy, None)


def _is_matrix_product(call: relax.Call) -> bool:
    return all(len(shape_of(argument)) == 2 for argument in call.args)  # noqa: PLR2004  (matrices)


def _is_dense(call: relax.Call) -> bool:
    """Whether every row of a tensor of more axes is multiplied by one matrix: to the kernels, rows of a matrix."""
    a, b = (len(shape_of(argument)) for argument in call.args)
    return a > 2 and b == 2  # noqa: PLR2004  (matrices)


def _flat(rows: relax.Expr) -> tuple[int, int]:
    *leading, width = shape_of(rows)
    return math.prod(leading), width


def _batched(call: relax.Call) -> Subscripts | None:
    a, b = (shape_of(argument)[:-2] for argument in call.args)
    if a != b or not 0 < len(a) <= len(_LETTERS):
        return None
    batch = _LETTERS[: len(a)]
    return Subscripts(f"{batch}ij", f"{batch}jk", f"{batch}ik")


def _einsum(call: relax.Call) -> Subscripts | None:
    if len(call.args[0]) != 2:  # noqa: PLR2004  (a product)
        return None
    letters = Subscripts.parse(call.attrs.subscripts)
    return letters if letters.is_product else None


# Convolutions as the kernels compute them, NHWC x HWIO, dilated ones brought to plain ones.

_UNIT = (1, 1)


@dataclass(frozen=True)
class Geometry:
    """How a window slides over an image: (vertical, horizontal), padding (top, left, bottom, right).

    `dilation` is how far apart neighbouring weights of the window lie in the image.
    """

    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    groups: int
    dilation: tuple[int, int] = _UNIT

    def outputs(self, image: Ints, window: Ints) -> tuple[int, int]:
        """Rows and columns of the result of (rows, columns) of an image."""
        top, left, bottom, right = self.padding
        whole = (image[0] + top + bottom, image[1] + left + right)
        return tuple(
            (extent - (taps - 1) * apart - 1) // step + 1
            for extent, taps, apart, step in zip(whole, window, self.dilation, self.strides, strict=True)
        )

    def forward(self, builder: relax.BlockBuilder, x: relax.Expr, w: relax.Expr) -> relax.Expr:
        """The convolution of (N,H,W,C) with (R,S,C/groups,K)."""
        if self.dilation != _UNIT:
            return self._dilated.forward(builder, x, w)
        if self._is_depthwise(w):
            return builder.call_te(windowed.depthwise_conv2d, x, w, *self._plain[:2])
        return builder.call_te(contractions.conv2d, x, w, *self._plain)

    def data_gradient(self, builder: relax.BlockBuilder, dy: relax.Expr, w: relax.Expr, shape: Ints) -> relax.Expr:
        """The gradient by an image of `shape`."""
        if self.dilation != _UNIT:
            return self._dilated.data_gradient(builder, dy, w, shape)
        if self._is_depthwise(w):
            return builder.call_te(windowed.depthwise_conv2d_data_gradient, dy, w, shape, *self._plain[:2])
        return builder.call_te(contractions.conv2d_data_gradient, dy, w, shape, *self._plain)

    def weight_gradient(self, builder: relax.BlockBuilder, x: relax.Expr, dy: relax.Expr, shape: Ints) -> relax.Expr:
        """The gradient by weights of `shape`."""
        if self.dilation != _UNIT:
            return self._dilated.weight_gradient(builder, x, dy, shape)
        if self._is_channelwise(shape):
            return builder.call_te(windowed.depthwise_conv2d_weight_gradient, x, dy, shape, *self._plain[:2])
        return builder.call_te(contractions.conv2d_weight_gradient, x, dy, shape, *self._plain)

    @property
    def _plain(self) -> tuple[tuple[int, int], tuple[int, int, int, int], int]:
        return self.strides, self.padding, self.groups

    @property
    def _dilated(self) -> _Phases | _Spread:
        return _Phases(self) if self.strides == _UNIT else _Spread(self)

    def _is_depthwise(self, w: relax.Expr) -> bool:
        return self._is_channelwise(shape_of(w))

    def _is_channelwise(self, window: Ints) -> bool:
        return window[2] == 1 and self.groups > 1 and windowed.depthwise_fits(window[:2], self.padding)


@dataclass(frozen=True)
class _Phases:
    """Dilated, of stride 1: a plain convolution of every phase of the image."""

    geometry: Geometry

    def forward(self, builder: relax.BlockBuilder, x: relax.Expr, w: relax.Expr) -> relax.Expr:
        outputs = self.geometry.outputs(shape_of(x)[1:3], shape_of(w)[:2])
        made = builder.emit(self._inner.forward(builder, self._images(builder, x, shape_of(w), outputs), w))
        return builder.call_te(contractions.from_phases, made, self.geometry.dilation, (0, 0), outputs)

    def data_gradient(self, builder: relax.BlockBuilder, dy: relax.Expr, w: relax.Expr, shape: Ints) -> relax.Expr:
        phases = self._results(builder, dy)
        batch, *outputs, _ = shape_of(phases)
        images = (batch, *self._extents(outputs, shape_of(w)), shape[3])
        made = builder.emit(self._inner.data_gradient(builder, phases, w, images))
        return builder.call_te(contractions.from_phases, made, self.geometry.dilation, self._before, shape[1:3])

    def weight_gradient(self, builder: relax.BlockBuilder, x: relax.Expr, dy: relax.Expr, shape: Ints) -> relax.Expr:
        images = self._images(builder, x, shape, shape_of(dy)[1:3])
        return self._inner.weight_gradient(builder, images, self._results(builder, dy), shape)

    @property
    def _inner(self) -> Geometry:
        return Geometry(_UNIT, (0, 0, 0, 0), self.geometry.groups)

    @property
    def _before(self) -> tuple[int, int]:
        return self.geometry.padding[:2]

    def _extents(self, outputs: Ints, window: Ints) -> tuple[int, int]:
        """Of a phase of the image, from those of a phase of the result."""
        return outputs[0] + window[0] - 1, outputs[1] + window[1] - 1

    def _phase(self, outputs: Ints) -> tuple[int, int]:
        down, across = self.geometry.dilation
        return -(-outputs[0] // down), -(-outputs[1] // across)

    def _images(self, builder: relax.BlockBuilder, x: relax.Expr, window: Ints, outputs: Ints) -> relax.Var:
        extents = self._extents(self._phase(outputs), window)
        return builder.emit(builder.call_te(contractions.to_phases, x, self.geometry.dilation, self._before, extents))

    def _results(self, builder: relax.BlockBuilder, dy: relax.Expr) -> relax.Var:
        extents = self._phase(shape_of(dy)[1:3])
        return builder.emit(builder.call_te(contractions.to_phases, dy, self.geometry.dilation, (0, 0), extents))


@dataclass(frozen=True)
class _Spread:
    """Dilated, of any stride: a plain convolution with zeros between the weights."""

    geometry: Geometry

    def forward(self, builder: relax.BlockBuilder, x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return self._inner.forward(builder, x, self._weights(builder, w))

    def data_gradient(self, builder: relax.BlockBuilder, dy: relax.Expr, w: relax.Expr, shape: Ints) -> relax.Expr:
        return self._inner.data_gradient(builder, dy, self._weights(builder, w), shape)

    def weight_gradient(self, builder: relax.BlockBuilder, x: relax.Expr, dy: relax.Expr, shape: Ints) -> relax.Expr:
        dilation = self.geometry.dilation
        wide = [(extent - 1) * apart + 1 for extent, apart in zip(shape[:2], dilation, strict=True)]
        found = builder.emit(self._inner.weight_gradient(builder, x, dy, (*wide, *shape[2:])))
        return builder.call_te(contractions.taps, found, dilation)

    @property
    def _inner(self) -> Geometry:
        return Geometry(self.geometry.strides, self.geometry.padding, self.geometry.groups)

    def _weights(self, builder: relax.BlockBuilder, w: relax.Expr) -> relax.Var:
        return builder.emit(builder.call_te(contractions.spread_taps, w, self.geometry.dilation))


# Convolutions of lines, images and volumes, in any layout; the kernels' own is NHWC x HWIO.

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
def _legalize_conv(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    found, (x, w) = _Convolution.of(builder, call), call.args
    made = found.geometry.forward(builder, found.data(x), found.weights(w))
    return found.back(made, _DATA, str(call.attrs.out_layout))


@differentiates("relax.nn.conv1d")
@differentiates("relax.nn.conv2d")
def _conv_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
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
    found, (x, w) = _transposed_conv(builder, call), call.args
    layout = str(call.attrs.out_layout)
    extents = dict(zip(layout, shape_of(call), strict=True))
    shape = tuple(extents.get(letter, 1) for letter in _DATA)
    made = found.geometry.data_gradient(builder, found.data(x), found.weights(w), shape)
    return found.back(made, _DATA, layout)


@differentiates("relax.nn.conv1d_transpose")
@differentiates("relax.nn.conv2d_transpose")
def _transposed_conv_gradient(
    _y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder
) -> list[relax.Expr]:
    found = _transposed_conv(builder, call)
    x, w = found.data(call.args[0]), found.weights(call.args[1])
    dy = arranged(builder, dy, str(call.attrs.out_layout), _DATA)
    return [
        found.back(found.geometry.forward(builder, dy, w), _DATA, found.data_layout),
        found.back(found.geometry.weight_gradient(builder, dy, x, shape_of(w)), _WEIGHTS, found.kernel_layout),
    ]


def _transposed_conv(builder: relax.BlockBuilder, call: relax.Call) -> _Convolution:
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
    slices: contractions.Slices
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
        slices = contractions.Slices(window, strides[0], dilation[0], front, groups)
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
