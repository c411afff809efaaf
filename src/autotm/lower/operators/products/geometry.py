"""Convolutions as the kernels compute them, NHWC x HWIO, dilated ones brought to plain ones."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import relax

from autotm.kernels.operators import conv, depthwise, rearrange
from autotm.lower.operators.rules import Ints, shape_of

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
            return builder.call_te(depthwise.depthwise_conv2d, x, w, *self._plain[:2])
        return builder.call_te(conv.conv2d, x, w, *self._plain)

    def data_gradient(self, builder: relax.BlockBuilder, dy: relax.Expr, w: relax.Expr, shape: Ints) -> relax.Expr:
        """The gradient by an image of `shape`."""
        if self.dilation != _UNIT:
            return self._dilated.data_gradient(builder, dy, w, shape)
        if self._is_depthwise(w):
            return builder.call_te(depthwise.depthwise_conv2d_data_gradient, dy, w, shape, *self._plain[:2])
        return builder.call_te(conv.conv2d_data_gradient, dy, w, shape, *self._plain)

    def weight_gradient(self, builder: relax.BlockBuilder, x: relax.Expr, dy: relax.Expr, shape: Ints) -> relax.Expr:
        """The gradient by weights of `shape`."""
        if self.dilation != _UNIT:
            return self._dilated.weight_gradient(builder, x, dy, shape)
        if self._is_channelwise(shape):
            return builder.call_te(depthwise.depthwise_conv2d_weight_gradient, x, dy, shape, *self._plain[:2])
        return builder.call_te(conv.conv2d_weight_gradient, x, dy, shape, *self._plain)

    @property
    def _plain(self) -> tuple[tuple[int, int], tuple[int, int, int, int], int]:
        return self.strides, self.padding, self.groups

    @property
    def _dilated(self) -> _Phases | _Spread:
        return _Phases(self) if self.strides == _UNIT else _Spread(self)

    def _is_depthwise(self, w: relax.Expr) -> bool:
        return self._is_channelwise(shape_of(w))

    def _is_channelwise(self, window: Ints) -> bool:
        return window[2] == 1 and self.groups > 1 and depthwise.fits(window[:2], self.padding)


@dataclass(frozen=True)
class _Phases:
    """Dilated, of stride 1: a plain convolution of every phase of the image."""

    geometry: Geometry

    def forward(self, builder: relax.BlockBuilder, x: relax.Expr, w: relax.Expr) -> relax.Expr:
        outputs = self.geometry.outputs(shape_of(x)[1:3], shape_of(w)[:2])
        made = builder.emit(self._inner.forward(builder, self._images(builder, x, shape_of(w), outputs), w))
        return builder.call_te(rearrange.from_phases, made, self.geometry.dilation, (0, 0), outputs)

    def data_gradient(self, builder: relax.BlockBuilder, dy: relax.Expr, w: relax.Expr, shape: Ints) -> relax.Expr:
        phases = self._results(builder, dy)
        batch, *outputs, _ = shape_of(phases)
        images = (batch, *self._extents(outputs, shape_of(w)), shape[3])
        made = builder.emit(self._inner.data_gradient(builder, phases, w, images))
        return builder.call_te(rearrange.from_phases, made, self.geometry.dilation, self._before, shape[1:3])

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
        return builder.emit(builder.call_te(rearrange.to_phases, x, self.geometry.dilation, self._before, extents))

    def _results(self, builder: relax.BlockBuilder, dy: relax.Expr) -> relax.Var:
        extents = self._phase(shape_of(dy)[1:3])
        return builder.emit(builder.call_te(rearrange.to_phases, dy, self.geometry.dilation, (0, 0), extents))


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
        return builder.call_te(rearrange.taps, found, dilation)

    @property
    def _inner(self) -> Geometry:
        return Geometry(self.geometry.strides, self.geometry.padding, self.geometry.groups)

    def _weights(self, builder: relax.BlockBuilder, w: relax.Expr) -> relax.Var:
        return builder.emit(builder.call_te(rearrange.spread_taps, w, self.geometry.dilation))
