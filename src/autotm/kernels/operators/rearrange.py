"""Images rearranged so that other convolutions become plain ones: (N,H,W,C), as TE functions.

A dilated convolution of stride 1 meets, from one result, only pixels a multiple of the dilation apart: it is a plain
convolution of each such *phase*, and the phases are images of a batch. A convolution of volumes is one of images whose
channels are those of all the slices that a window meets.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te, tirx

from autotm.kernels.code import extents

Pair = tuple[int, int]


def to_phases(x: te.Tensor, dilation: Pair, before: Pair, shape: Pair) -> te.Tensor:
    """The phases of `x` moved by `before`, each cut or filled with zeros to `shape`: (dilations * N, *shape, C)."""
    batch, height, width, channels = extents(x)
    down, across = dilation

    def element(m: tirx.Var, i: tirx.Var, j: tirx.Var, c: tirx.Var) -> tirx.Expr:
        phase, image = m // batch, m % batch
        row, column = i * down + phase // across - before[0], j * across + phase % across - before[1]
        inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
        return _where(inside, x[image, row, column, c], x.dtype)

    return te.compute((down * across * batch, *shape, channels), element, name="to_phases")


def from_phases(x: te.Tensor, dilation: Pair, before: Pair, shape: Pair) -> te.Tensor:
    """The images that phases are of, (N, *shape, C): undoes `to_phases`."""
    batch, height, width, channels = extents(x)
    down, across = dilation
    images = batch // (down * across)

    def element(n: tirx.Var, h: tirx.Var, w: tirx.Var, c: tirx.Var) -> tirx.Expr:
        row, column = h + before[0], w + before[1]
        phase = row % down * across + column % across
        i, j = row // down, column // across
        value = x[phase * images + n, i, j, c]
        is_whole = (shape[0] - 1 + before[0]) // down < height and (shape[1] - 1 + before[1]) // across < width
        return value if is_whole else _where(tirx.all(i < height, j < width), value, x.dtype)

    return te.compute((images, *shape, channels), element, name="from_phases")


def spread_taps(w: te.Tensor, dilation: Pair) -> te.Tensor:
    """Weights (R,S,C,K) with zeros between the taps: those of the undilated convolution that does the same."""
    rows, columns, channels, features = extents(w)
    down, across = dilation

    def element(r: tirx.Var, s: tirx.Var, c: tirx.Var, k: tirx.Var) -> tirx.Expr:
        return _where(tirx.all(r % down == 0, s % across == 0), w[r // down, s // across, c, k], w.dtype)

    shape = ((rows - 1) * down + 1, (columns - 1) * across + 1, channels, features)
    return te.compute(shape, element, name="spread_taps")


def taps(w: te.Tensor, dilation: Pair) -> te.Tensor:
    """The taps of weights with zeros between them."""
    rows, columns, *rest = extents(w)
    down, across = dilation
    shape = ((rows - 1) // down + 1, (columns - 1) // across + 1, *rest)
    return te.compute(shape, lambda r, s, c, k: w[r * down, s * across, c, k], name="taps")


class Slices:
    """Which slices of a volume a window meets.

    Attributes:
        window: slices of a window.
        stride, dilation: slices from one window to the next, and within one.
        before: slices of padding in front.
        groups: of channels; those of a group lie side by side, slice by slice.
    """

    def __init__(self, window: int, stride: int, dilation: int, before: int, groups: int) -> None:
        self.window, self.stride, self.dilation, self.before, self.groups = window, stride, dilation, before, groups

    def gathered(self, x: te.Tensor, count: int) -> te.Tensor:
        """(N,D,H,W,C) as (N * count, H, W, window * C): what each of `count` windows meets."""
        batch, depth, height, width, channels = extents(x)
        part = channels // self.groups

        def element(m: tirx.Var, h: tirx.Var, w: tirx.Var, q: tirx.Var) -> tirx.Expr:
            group, tap, c = q // (self.window * part), q // part % self.window, q % part
            at = m % count * self.stride + tap * self.dilation - self.before
            return _where(tirx.all(at >= 0, at < depth), x[m // count, at, h, w, group * part + c], x.dtype)

        return te.compute((batch * count, height, width, self.window * channels), element, name="gathered_slices")

    def scattered(self, dy: te.Tensor, shape: Sequence[int]) -> te.Tensor:
        """The gradient of `gathered`, of `shape` (N,D,H,W,C): each slice's, summed over the windows that meet it."""
        batch, _, _, _, channels = shape
        images, *_ = extents(dy)
        count, part = images // batch, channels // self.groups
        tap = te.reduce_axis((0, self.window), "tap")

        def element(n: tirx.Var, d: tirx.Var, h: tirx.Var, w: tirx.Var, c: tirx.Var) -> tirx.Expr:
            offset = d + self.before - tap * self.dilation
            window = offset // self.stride
            meets = tirx.all(offset >= 0, offset % self.stride == 0, window < count)
            q = (c // part * self.window + tap) * part + c % part
            return te.sum(_where(meets, dy[n * count + window, h, w, q], dy.dtype), axis=tap)

        return te.compute(tuple(shape), element, name="scattered_slices")


def _where(condition: tirx.Expr, value: tirx.Expr, dtype: str) -> tirx.Expr:
    return tirx.if_then_else(condition, value, tirx.const(0.0, dtype))
