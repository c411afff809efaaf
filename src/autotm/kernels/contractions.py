"""Convolutions and matrix products as tensor expressions, and images rearranged for other convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import te, tirx

from autotm.kernels.tir import extents, reduce_axes

# Convolution and its two gradients as tensor expressions: NHWC activations, HWIO weights, float32.
#
# With G groups, output features [g K/G, (g+1) K/G) see input channels [g C/G, (g+1) C/G) only; weights are (R,S,C/G,K).
# The expressions state the meaning; `schedules/contraction.py` generates the code. It finds the main block by its name
# and reads stride and padding from the block's annotations.

Pair = tuple[int, int]
"""(vertical, horizontal)."""
Padding = tuple[int, int, int, int]
"""(top, left, bottom, right)."""


def output_extent(extent: int, window: int, stride: int, before: int, after: int) -> int:
    """Return the positions of a window of `window` sliding by `stride` over `extent` padded by `before` and `after`."""
    return (extent + before + after - window) // stride + 1


def conv2d(x: te.Tensor, w: te.Tensor, stride: Pair, padding: Padding, groups: int = 1) -> te.Tensor:
    """Compute cross-correlation: (N,H,W,C) with (R,S,C/G,K) gives (N,P,Q,K)."""
    rows, columns, channels, features = extents(w)
    padded = _padded(x, padding)
    batch, height, width, _ = extents(padded)
    r, s, c = reduce_axes("rsc", (rows, columns, channels))
    results = (output_extent(height, rows, stride[0], 0, 0), output_extent(width, columns, stride[1], 0, 0))

    def element(n: tirx.Var, i: tirx.Var, j: tirx.Var, k: tirx.Var) -> tirx.Expr:
        pixel = padded[n, i * stride[0] + r, j * stride[1] + s, _member(c, channels, k, features, groups)]
        return te.sum(pixel * w[r, s, c, k], axis=[r, s, c])

    shape = (batch, *results, features)
    return te.compute(shape, element, name="conv2d", attrs=_window(stride, padding, groups))


def conv2d_data_gradient(
    dy: te.Tensor, w: te.Tensor, x_shape: tuple[int, int, int, int], stride: Pair, padding: Padding, groups: int = 1
) -> te.Tensor:
    """Compute the gradient with respect to the input: (N,P,Q,K) with (R,S,C/G,K) gives `x_shape`, (N,H,W,C).

    Written as the convolution of dy, spread to the input's grid, with the turned weights; no such grid is made when
    the stride is above 1 (each phase of the grid meets its own taps only).
    """
    rows, columns, width_of_group, features = extents(w)
    batch, height, width, channels = x_shape
    spread = _spread(
        dy, stride, (rows - 1 - padding[0], columns - 1 - padding[1]), (height + rows - 1, width + columns - 1)
    )
    part = features // groups

    def turn(r: tirx.Var, s: tirx.Var, k: tirx.Var, c: tirx.Var) -> tirx.Expr:
        feature = _member(k, part, c, channels, groups)
        return w[rows - 1 - r, columns - 1 - s, c if groups == 1 else c % width_of_group, feature]

    turned = te.compute((rows, columns, part, channels), turn, name="turned_weights")
    r, s, k = reduce_axes("rsk", (rows, columns, part))

    def element(n: tirx.Var, i: tirx.Var, j: tirx.Var, c: tirx.Var) -> tirx.Expr:
        pixel = spread[n, i + r, j + s, _member(k, part, c, channels, groups)]
        return te.sum(pixel * turned[r, s, k, c], axis=[r, s, k])

    return te.compute(
        (batch, height, width, channels), element, name="conv2d_data_gradient", attrs=_window(stride, padding, groups)
    )


def conv2d_weight_gradient(
    x: te.Tensor, dy: te.Tensor, w_shape: tuple[int, int, int, int], stride: Pair, padding: Padding, groups: int = 1
) -> te.Tensor:
    """Compute the gradient with respect to the weights: (N,H,W,C) with (N,P,Q,K) gives `w_shape`, (R,S,C/G,K)."""
    padded = _padded(x, padding)
    n, i, j = reduce_axes("nij", extents(dy)[:3])
    _, _, channels, features = w_shape

    def element(r: tirx.Var, s: tirx.Var, c: tirx.Var, k: tirx.Var) -> tirx.Expr:
        pixel = padded[n, i * stride[0] + r, j * stride[1] + s, _member(c, channels, k, features, groups)]
        return te.sum(pixel * dy[n, i, j, k], axis=[n, i, j])

    return te.compute(w_shape, element, name="conv2d_weight_gradient", attrs=_window(stride, padding, groups))


def _padded(x: te.Tensor, padding: Padding) -> te.Tensor:
    _, height, width, _ = extents(x)
    top, left, bottom, right = padding
    return _spread(x, (1, 1), (top, left), (height + top + bottom, width + left + right))


def _spread(x: te.Tensor, stride: Pair, offset: tuple[int, int], extent: tuple[int, int]) -> te.Tensor:
    """Put the pixels of `x` at offset + stride * index of a zero grid of `extent`; `x` itself if unchanged.

    A negative offset, or an extent below what `x` covers, cuts pixels off.
    """
    batch, height, width, channels = extents(x)
    if stride == (1, 1) and offset == (0, 0) and extent == (height, width):
        return x

    def element(n: tirx.Var, i: tirx.Var, j: tirx.Var, c: tirx.Var) -> tirx.Expr:
        row, column = i - offset[0], j - offset[1]
        inside = [row >= 0, row < height * stride[0], column >= 0, column < width * stride[1]]
        inside += [row % stride[0] == 0] if stride[0] > 1 else []
        inside += [column % stride[1] == 0] if stride[1] > 1 else []
        value = x[n, row // stride[0], column // stride[1], c]
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0.0, x.dtype))

    return te.compute((batch, *extent, channels), element, name="padded" if stride == (1, 1) else "spread")


def _member(index: tirx.Var, size: int, other: tirx.Var, extent: int, groups: int) -> tirx.Expr:
    """Return channel `index` of the group of `size` channels of feature `other` of `extent`; or vice versa."""
    return index if groups == 1 else other // (extent // groups) * size + index


def _window(stride: Pair, padding: Padding, groups: int) -> dict[str, list[int]]:
    return {"stride": list(stride), "padding": list(padding), "groups": [groups]}


# Images rearranged so that other convolutions become plain ones: (N,H,W,C), as TE functions.
#
# A dilated convolution of stride 1 meets, from one result, only pixels a multiple of the dilation apart: it is a plain
# convolution of each such *phase*, and the phases are images of a batch. A convolution of volumes is one of images
# whose channels are those of all the slices that a window meets.


def to_phases(x: te.Tensor, dilation: Pair, before: Pair, shape: Pair) -> te.Tensor:
    """Return the phases of `x` moved by `before`, each cut or zero-filled to `shape`: (dilations * N, *shape, C)."""
    batch, height, width, channels = extents(x)
    down, across = dilation

    def element(m: tirx.Var, i: tirx.Var, j: tirx.Var, c: tirx.Var) -> tirx.Expr:
        phase, image = m // batch, m % batch
        row, column = i * down + phase // across - before[0], j * across + phase % across - before[1]
        inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
        return _where(inside, x[image, row, column, c], x.dtype)

    return te.compute((down * across * batch, *shape, channels), element, name="to_phases")


def from_phases(x: te.Tensor, dilation: Pair, before: Pair, shape: Pair) -> te.Tensor:
    """Return the images that phases are of, (N, *shape, C): undoes `to_phases`."""
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
    """Return weights (R,S,C,K) with zeros between the taps: those of the same convolution without dilation."""
    rows, columns, channels, features = extents(w)
    down, across = dilation

    def element(r: tirx.Var, s: tirx.Var, c: tirx.Var, k: tirx.Var) -> tirx.Expr:
        return _where(tirx.all(r % down == 0, s % across == 0), w[r // down, s // across, c, k], w.dtype)

    shape = ((rows - 1) * down + 1, (columns - 1) * across + 1, channels, features)
    return te.compute(shape, element, name="spread_taps")


def taps(w: te.Tensor, dilation: Pair) -> te.Tensor:
    """Return the taps of weights with zeros between them."""
    rows, columns, *rest = extents(w)
    down, across = dilation
    shape = ((rows - 1) // down + 1, (columns - 1) // across + 1, *rest)
    return te.compute(shape, lambda r, s, c, k: w[r * down, s * across, c, k], name="taps")


@dataclass(frozen=True)
class Slices:
    """Which slices of a volume a window meets.

    Attributes:
        window: slices of a window.
        stride, dilation: slices from one window to the next, and within one.
        before: slices of padding in front.
        groups: of channels; those of a group lie side by side, slice by slice.
    """

    window: int
    stride: int
    dilation: int
    before: int
    groups: int

    def gathered(self, x: te.Tensor, count: int) -> te.Tensor:
        """Compute (N,D,H,W,C) as (N * count, H, W, window * C): what each of `count` windows meets."""
        batch, depth, height, width, channels = extents(x)
        part = channels // self.groups

        def element(m: tirx.Var, h: tirx.Var, w: tirx.Var, q: tirx.Var) -> tirx.Expr:
            group, tap, c = q // (self.window * part), q // part % self.window, q % part
            at = m % count * self.stride + tap * self.dilation - self.before
            return _where(tirx.all(at >= 0, at < depth), x[m // count, at, h, w, group * part + c], x.dtype)

        return te.compute((batch * count, height, width, self.window * channels), element, name="gathered_slices")

    def scattered(self, dy: te.Tensor, shape: Sequence[int]) -> te.Tensor:
        """Return the gradient of `gathered`, (N,D,H,W,C): each slice's, summed over the windows that meet it."""
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


def matmul(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """Return A B: (M,K) with (K,N) gives (M,N)."""
    (m, k), (_, n) = extents(a), extents(b)
    return _product(m, n, k, lambda i, j, s: a[i, s] * b[s, j], "matmul")


def matmul_nt(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """Return A Bᵀ: (M,K) with (N,K) gives (M,N)."""
    (m, k), (n, _) = extents(a), extents(b)
    return _product(m, n, k, lambda i, j, s: a[i, s] * b[j, s], "matmul_nt")


def matmul_tn(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """Compute Aᵀ B: (K,M) with (K,N) gives (M,N)."""
    (k, m), (_, n) = extents(a), extents(b)
    return _product(m, n, k, lambda i, j, s: a[s, i] * b[s, j], "matmul_tn")


def _product(
    rows: int, columns: int, steps: int, term: Callable[[tirx.Var, tirx.Var, tirx.IterVar], tirx.Expr], name: str
) -> te.Tensor:
    k = te.reduce_axis((0, steps), "k")
    return te.compute((rows, columns), lambda m, n: te.sum(term(m, n, k), axis=k), name=name)


# Many products of matrices at once, as a tensor expression, float32; operands may lie in any order of their axes.
#
# An operand is read where it lies: attention heads, say, are an axis in the middle, and are never moved to the front.


@dataclass(frozen=True)
class Subscripts:
    """One letter an axis, as in `numpy.einsum`: `left,right->result`."""

    left: str
    right: str
    result: str

    @classmethod
    def parse(cls, text: str) -> Subscripts:
        """Read e.g. `bihd,bjhd->bhij`.

        Raises:
            ValueError: there are not two operands and a result.
        """
        operands, _, result = text.replace(" ", "").partition("->")
        parts = operands.split(",")
        if len(parts) != 2 or not result:  # noqa: PLR2004  (a product has two factors)
            raise ValueError(f"subscripts '{text}' are not of the form left,right->result")
        return cls(*parts, result)

    @property
    def is_product(self) -> bool:
        """Whether this is a product of matrices for each index of the other axes.

        One letter is summed; each operand has a letter that the other lacks; no operand holds a letter twice, or one
        that neither the other operand nor the result has.
        """
        parts = set(self.left), set(self.right), set(self.result)
        if list(map(len, parts)) != list(map(len, (self.left, self.right, self.result))):
            return False
        left, right, result = parts
        return (
            len((left & right) - result) == 1
            and bool(left - right)
            and bool(right - left)
            and (left ^ right) <= result <= left | right
            and self.result[-1] in left ^ right
        )

    @property
    def left_gradient(self) -> Subscripts:
        """Subscripts of the left operand's gradient, from the gradient of the result and the right operand."""
        return Subscripts(self.result, self.right, self.left)

    @property
    def right_gradient(self) -> Subscripts:
        """Subscripts of the right operand's gradient, from the left operand and the gradient of the result."""
        return Subscripts(self.left, self.result, self.right)

    def __str__(self) -> str:
        """Return the subscripts as `numpy.einsum` takes them."""
        return f"{self.left},{self.right}->{self.result}"


def batched_matmul(left: te.Tensor, right: te.Tensor, subscripts: str) -> te.Tensor:
    """Return the sums over the one letter that the result lacks, e.g. `bihd,bjhd->bhij`.

    Raises:
        ValueError: the subscripts are no batched product of matrices.
    """
    letters = Subscripts.parse(subscripts)
    if not letters.is_product:
        raise ValueError(f"'{subscripts}' is no batched product of matrices")
    operands = ((left, letters.left), (right, letters.right))
    sizes = {letter: extent for tensor, text in operands for letter, extent in zip(text, extents(tensor), strict=True)}
    (summed,) = (set(letters.left) & set(letters.right)) - set(letters.result)
    axis = te.reduce_axis((0, sizes[summed]), "k")

    def element(*at: te.Var) -> te.PrimExpr:
        place = {**dict(zip(letters.result, at, strict=True)), summed: axis}
        factors = [tensor(*(place[letter] for letter in text)) for tensor, text in operands]
        return te.sum(factors[0] * factors[1], axis=axis)

    return te.compute(tuple(sizes[letter] for letter in letters.result), element, name="batched_matmul")
