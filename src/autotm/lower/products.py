"""Rules of sums of products: products of matrices, and convolutions as the kernels compute them, NHWC x HWIO."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tvm import relax, te
from tvm.relax.op import _op_gradient as relax_rules

from autotm.kernels import contractions, windowed
from autotm.kernels.contractions import Subscripts, batched_matmul
from autotm.lower.rules import (
    Exprs,
    Ints,
    arranged,
    builtin,
    differentiates,
    ints,
    is_call,
    legalizes,
    number,
    restored,
    shape_of,
)

# Products of matrices, single and batched.

_LETTERS = "abcdefgh"


@legalizes("relax.matmul")
def _legalize_matmul(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    a, b = call.args
    if _is_dense(call):
        rows = builder.emit(relax.op.reshape(a, _flat(a)))
        return relax.op.reshape(builder.emit(builder.call_te(contractions.matmul, rows, b)), shape_of(call))
    letters = _batched(call)
    return _product(builder, a, b, letters) if letters else builtin(builder, call)


@differentiates("relax.matmul")
def _matmul_gradient(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    a, b = call.args
    if _is_dense(call):
        rows, slopes = (builder.emit(relax.op.reshape(value, _flat(value))) for value in (a, dy))
        by_rows = builder.emit(builder.call_te(contractions.matmul_nt, slopes, b))
        return [relax.op.reshape(by_rows, shape_of(a)), builder.call_te(contractions.matmul_tn, rows, slopes)]
    if all(len(shape_of(argument)) == 2 for argument in call.args):  # noqa: PLR2004  (matrices)
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
def _einsum_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    letters = _einsum(call)
    if letters is None or not (letters.left_gradient.is_product and letters.right_gradient.is_product):
        raise NotImplementedError(
            f"einsum '{call.attrs.subscripts}' has no gradient: only batched products of two matrices do"
        )
    return [relax.Tuple(_batched_gradient(*call.args[0], letters, dy, builder))]


def _batched_gradient(
    a: relax.Expr, b: relax.Expr, letters: Subscripts, dy: relax.Expr, builder: relax.BlockBuilder
) -> Exprs:
    # A multiplication by a number needs no kernel of its own if it follows the products.
    factor, value = None, builder.lookup_binding(dy)
    if is_call(value, "relax.multiply") and number(value.args[1]) is not None:
        dy, factor = value.args
    slopes = [
        builder.emit(_product(builder, dy, b, letters.left_gradient)),
        builder.emit(_product(builder, a, dy, letters.right_gradient)),
    ]
    return slopes if factor is None else [builder.emit(relax.op.multiply(slope, factor)) for slope in slopes]


def _product(builder: relax.BlockBuilder, a: relax.Expr, b: relax.Expr, letters: Subscripts) -> relax.Expr:
    """Call a batched product; of two matrices, the plain one that reads them as they lie."""
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
"""Kernels by the place of the rows' axis in the first operand, and of the columns' axis in the second."""


def _is_dense(call: relax.Call) -> bool:
    """Return whether every row of a tensor of more axes is multiplied by one matrix, as the rows of a matrix are."""
    a, b = (len(shape_of(argument)) for argument in call.args)
    return a > 2 and b == 2  # noqa: PLR2004  (matrices)


def _flat(rows: relax.Expr) -> tuple[int, int]:
    *leading, width = shape_of(rows)
    return math.prod(leading), width


def _batched(call: relax.Call) -> Subscripts | None:
    shapes = [shape_of(argument) for argument in call.args]
    a, b = (shape[:-2] for shape in shapes)
    if a != b or len(a) > len(_LETTERS) or min(map(len, shapes)) < 2:  # noqa: PLR2004  (vectors)
        return None
    batch = _LETTERS[: len(a)]
    return Subscripts(f"{batch}ij", f"{batch}jk", f"{batch}ik")


def _einsum(call: relax.Call) -> Subscripts | None:
    if len(call.args[0]) != 2:  # noqa: PLR2004  (a product)
        return None
    letters = Subscripts.parse(call.attrs.subscripts)
    return letters if letters.is_product else None


# Convolutions of images, (N,H,W,C) with (R,S,C/groups,K) as the kernels compute them. A dilated one is computed by a
# plain one: of every phase of the image where it slides by single pixels, else with zeros between the weights.

_UNIT = (1, 1)  # strides or dilation of neighbouring pixels
Pair = tuple[int, int]
Kernel = Callable[..., te.Tensor]


@dataclass(frozen=True)
class _Plain:
    """A window of neighbouring weights; strides are (vertical, horizontal), padding is (top, left, bottom, right)."""

    strides: Pair
    padding: tuple[int, int, int, int]
    groups: int

    def forward(self, builder: relax.BlockBuilder, x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return self._call(builder, contractions.conv2d, shape_of(w), x, w)

    def data_gradient(self, builder: relax.BlockBuilder, dy: relax.Expr, w: relax.Expr, shape: Ints) -> relax.Expr:
        """Return the gradient by an image of `shape`."""
        return self._call(builder, contractions.conv2d_data_gradient, shape_of(w), dy, w, shape)

    def weight_gradient(self, builder: relax.BlockBuilder, x: relax.Expr, dy: relax.Expr, shape: Ints) -> relax.Expr:
        """Return the gradient by weights of `shape`."""
        return self._call(builder, contractions.conv2d_weight_gradient, shape, x, dy, shape)

    def _call(
        self, builder: relax.BlockBuilder, kernel: Kernel, window: Ints, *operands: relax.Expr | Ints
    ) -> relax.Expr:
        """Call a kernel for weights of the shape `window`, or the depthwise one where each channel is a group."""
        if window[2] == 1 and self.groups > 1 and windowed.depthwise_fits(window[:2], self.padding):
            return builder.call_te(_DEPTHWISE[kernel], *operands, self.strides, self.padding)
        return builder.call_te(kernel, *operands, self.strides, self.padding, self.groups)


_DEPTHWISE: dict[Kernel, Kernel] = {
    contractions.conv2d: windowed.depthwise_conv2d,
    contractions.conv2d_data_gradient: windowed.depthwise_conv2d_data_gradient,
    contractions.conv2d_weight_gradient: windowed.depthwise_conv2d_weight_gradient,
}


@dataclass(frozen=True)
class _Phases:
    """A dilated window of stride 1, as a plain convolution of every phase of the image."""

    padding: tuple[int, int, int, int]
    groups: int
    dilation: Pair

    def forward(self, builder: relax.BlockBuilder, x: relax.Expr, w: relax.Expr) -> relax.Expr:
        (rows, columns), (top, left, bottom, right), (down, across) = shape_of(x)[1:3], self.padding, self.dilation
        taps = shape_of(w)
        outputs = (rows + top + bottom - (taps[0] - 1) * down, columns + left + right - (taps[1] - 1) * across)
        phases = builder.emit(self._inner.forward(builder, self._images(builder, x, taps, outputs), w))
        return builder.call_te(contractions.from_phases, phases, self.dilation, (0, 0), outputs)

    def data_gradient(self, builder: relax.BlockBuilder, dy: relax.Expr, w: relax.Expr, shape: Ints) -> relax.Expr:
        phases, (height, width) = self._results(builder, dy), shape_of(w)[:2]
        batch, rows, columns, _ = shape_of(phases)
        images = (batch, rows + height - 1, columns + width - 1, shape[3])
        gradients = builder.emit(self._inner.data_gradient(builder, phases, w, images))
        return builder.call_te(contractions.from_phases, gradients, self.dilation, self.padding[:2], shape[1:3])

    def weight_gradient(self, builder: relax.BlockBuilder, x: relax.Expr, dy: relax.Expr, shape: Ints) -> relax.Expr:
        images = self._images(builder, x, shape, shape_of(dy)[1:3])
        return self._inner.weight_gradient(builder, images, self._results(builder, dy), shape)

    @property
    def _inner(self) -> _Plain:
        return _Plain(_UNIT, (0, 0, 0, 0), self.groups)

    def _phase(self, outputs: Ints) -> Pair:
        return -(-outputs[0] // self.dilation[0]), -(-outputs[1] // self.dilation[1])

    def _images(self, builder: relax.BlockBuilder, x: relax.Expr, window: Ints, outputs: Ints) -> relax.Var:
        rows, columns = self._phase(outputs)
        extents = (rows + window[0] - 1, columns + window[1] - 1)
        return builder.emit(builder.call_te(contractions.to_phases, x, self.dilation, self.padding[:2], extents))

    def _results(self, builder: relax.BlockBuilder, dy: relax.Expr) -> relax.Var:
        extents = self._phase(shape_of(dy)[1:3])
        return builder.emit(builder.call_te(contractions.to_phases, dy, self.dilation, (0, 0), extents))


@dataclass(frozen=True)
class _Spread:
    """A dilated window of any stride, as a plain convolution with zeros between the weights."""

    inner: _Plain
    dilation: Pair

    def forward(self, builder: relax.BlockBuilder, x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return self.inner.forward(builder, x, self._weights(builder, w))

    def data_gradient(self, builder: relax.BlockBuilder, dy: relax.Expr, w: relax.Expr, shape: Ints) -> relax.Expr:
        return self.inner.data_gradient(builder, dy, self._weights(builder, w), shape)

    def weight_gradient(self, builder: relax.BlockBuilder, x: relax.Expr, dy: relax.Expr, shape: Ints) -> relax.Expr:
        wide = [(extent - 1) * apart + 1 for extent, apart in zip(shape[:2], self.dilation, strict=True)]
        gradient = builder.emit(self.inner.weight_gradient(builder, x, dy, (*wide, *shape[2:])))
        return builder.call_te(contractions.taps, gradient, self.dilation)

    def _weights(self, builder: relax.BlockBuilder, w: relax.Expr) -> relax.Var:
        return builder.emit(builder.call_te(contractions.spread_taps, w, self.dilation))


Geometry = _Plain | _Phases | _Spread


def _geometry(strides: Ints, padding: Ints, groups: int, dilation: Ints) -> Geometry:
    plain = _Plain(strides, padding, groups)
    if dilation == _UNIT:
        return plain
    return _Phases(padding, groups, dilation) if strides == _UNIT else _Spread(plain, dilation)


# Convolutions of lines (images of one row) and images, in any layout.

_DATA, _WEIGHTS = "NHWC", "HWIO"


@dataclass(frozen=True)
class _Convolution:
    """A call's geometry, and the letters of its operands' axes; a transposed one is read from result to operand."""

    geometry: Geometry
    data: str
    weights: str
    result: str

    @classmethod
    def of(cls, call: relax.Call) -> _Convolution:
        attrs = call.attrs
        strides, padding, dilation = (ints(value) for value in (attrs.strides, attrs.padding, attrs.dilation))
        if len(strides) == 1:
            strides, padding, dilation = (1, *strides), (0, padding[0], 0, padding[1]), (1, *dilation)
        weights = str(attrs.kernel_layout)
        if "transpose" in call.op.name:
            weights = weights.translate(str.maketrans("IO", "OI"))
        geometry = _geometry(strides, padding, int(attrs.groups), dilation)
        return cls(geometry, str(attrs.data_layout), weights, str(attrs.out_layout))

    def operands(self, builder: relax.BlockBuilder, call: relax.Call) -> tuple[relax.Expr, relax.Expr]:
        x, w = call.args
        return arranged(builder, x, self.data, _DATA), arranged(builder, w, self.weights, _WEIGHTS)


@legalizes("relax.nn.conv1d", "relax.nn.conv2d")
def _legalize_conv(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    conv = _Convolution.of(call)
    result = conv.geometry.forward(builder, *conv.operands(builder, call))
    return restored(builder, result, _DATA, conv.result)


@differentiates("relax.nn.conv1d", "relax.nn.conv2d")
def _conv_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    conv = _Convolution.of(call)
    x, w = conv.operands(builder, call)
    dy = arranged(builder, dy, conv.result, _DATA)
    return [
        restored(builder, conv.geometry.data_gradient(builder, dy, w, shape_of(x)), _DATA, conv.data),
        restored(builder, conv.geometry.weight_gradient(builder, x, dy, shape_of(w)), _WEIGHTS, conv.weights),
    ]


@legalizes("relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose")
def _legalize_transposed(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    # A transposed convolution is the data gradient of the convolution from its result to its operand.
    conv = _Convolution.of(call)
    extents = dict(zip(conv.result, shape_of(call), strict=True))
    shape = tuple(extents.get(letter, 1) for letter in _DATA)
    result = conv.geometry.data_gradient(builder, *conv.operands(builder, call), shape)
    return restored(builder, result, _DATA, conv.result)


@differentiates("relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose")
def _transposed_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    conv = _Convolution.of(call)
    x, w = conv.operands(builder, call)
    dy = arranged(builder, dy, conv.result, _DATA)
    return [
        restored(builder, conv.geometry.forward(builder, dy, w), _DATA, conv.data),
        restored(builder, conv.geometry.weight_gradient(builder, dy, x, shape_of(w)), _WEIGHTS, conv.weights),
    ]


# Convolutions of volumes as convolutions of images, whose channels are those of all slices in a window.


@dataclass(frozen=True)
class _Volumes:
    """A call's slices, how many slices its result has, the geometry within a slice, and the letters of its axes."""

    builder: relax.BlockBuilder
    slices: contractions.Slices
    count: int
    geometry: Geometry
    data: str
    weights: str
    result: str

    @classmethod
    def of(cls, builder: relax.BlockBuilder, call: relax.Call) -> _Volumes:
        attrs = call.attrs
        data, weights, result = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)
        strides, dilation, groups = ints(attrs.strides), ints(attrs.dilation), int(attrs.groups)
        front, top, left, _, bottom, right = ints(attrs.padding)
        window = shape_of(call.args[1])[weights.index("D")]
        slices = contractions.Slices(window, strides[0], dilation[0], front, groups)
        geometry = _geometry(strides[1:], (top, left, bottom, right), groups, dilation[1:])
        return cls(builder, slices, shape_of(call)[result.index("D")], geometry, data, weights, result)

    def operands(self, call: relax.Call) -> tuple[relax.Expr, relax.Expr]:
        """Return the images and weights of the convolution of images."""
        x, w = call.args
        x = arranged(self.builder, x, self.data, "NDHWC")
        images = self.builder.emit(self.builder.call_te(self.slices.gathered, x, self.count))
        w = arranged(self.builder, w, self.weights, "HWDIO")
        rows, columns, depth, channels, features = shape_of(w)
        return images, self.builder.emit(relax.op.reshape(w, (rows, columns, depth * channels, features)))


@legalizes("relax.nn.conv3d")
def _legalize_volumes(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    conv = _Volumes.of(builder, call)
    result = builder.emit(conv.geometry.forward(builder, *conv.operands(call)))
    images, *rest = shape_of(result)
    result = builder.emit(relax.op.reshape(result, (images // conv.count, conv.count, *rest)))
    return arranged(builder, result, "NDHWC", conv.result)


@differentiates("relax.nn.conv3d")
def _volume_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    conv, emit = _Volumes.of(builder, call), builder.emit
    images, weights = conv.operands(call)
    slopes = arranged(builder, dy, conv.result, "NDHWC")
    batch, depth, *rest = shape_of(slopes)
    slopes = emit(relax.op.reshape(slopes, (batch * depth, *rest)))
    by_images = emit(conv.geometry.data_gradient(builder, slopes, weights, shape_of(images)))
    by_weights = emit(conv.geometry.weight_gradient(builder, images, slopes, shape_of(weights)))
    data, taps = (
        dict(zip(layout, shape_of(operand), strict=True))
        for layout, operand in zip((conv.data, conv.weights), call.args, strict=True)
    )
    by_data = emit(builder.call_te(conv.slices.scattered, by_images, tuple(data[letter] for letter in "NDHWC")))
    by_taps = emit(relax.op.reshape(by_weights, [taps[letter] for letter in "HWDIO"]))
    return [arranged(builder, by_data, "NDHWC", conv.data), arranged(builder, by_taps, "HWDIO", conv.weights)]
