"""Batch norm in training mode and its gradient (Ioffe and Szegedy, 2015), over all axes but the last, as TE functions.

Forward: `statistics`, one reduction over the batch, then `normalise`, one elementwise pass that what follows fuses
with. Backward: `gradient_sums`, one reduction, then `data_gradient`, elementwise. The reductions' code is generated
(`batch_norm_code.py` knows them by the block names given here); the forms below state their meaning.
"""

from __future__ import annotations

import math

from tvm import te, tirx

from autotm.kernels.code import extents


def statistics(x: te.Tensor, epsilon: float) -> list[te.Tensor]:
    """Mean, and 1 / sqrt(variance + epsilon), of each channel; the variance is that of the batch, not an estimate."""
    *leading, channels = extents(x)
    count = tirx.const(math.prod(leading), x.dtype)
    mean_axes, square_axes = _axes(leading), _axes(leading)
    total = te.compute((channels,), lambda c: te.sum(x(*mean_axes, c), axis=mean_axes), name="batch_norm_total")
    mean = te.compute((channels,), lambda c: total[c] / count, name="batch_norm_mean")

    def square(c: tirx.Var) -> tirx.Expr:
        deviation = x(*square_axes, c) - mean[c]
        return te.sum(deviation * deviation, axis=square_axes)

    squares = te.compute((channels,), square, name="batch_norm_squares")
    one = tirx.const(1.0, x.dtype)
    inverse = te.compute(
        (channels,),
        lambda c: one / tirx.sqrt(squares[c] / count + tirx.const(epsilon, x.dtype)),
        name="batch_norm_statistics",
        attrs={"epsilon": epsilon},
    )
    return [mean, inverse]


def running_averages(
    mean: te.Tensor,
    inverse: te.Tensor,
    old_mean: te.Tensor,
    old_variance: te.Tensor,
    momentum: float,
    epsilon: float,
    count: int,
) -> list[te.Tensor]:
    """Running mean and variance after a batch of `count` values a channel: old (1 - momentum) + new momentum.

    The new variance is the unbiased one, found from `inverse` in float64: PyTorch's definitions.
    """

    def exact(value: float) -> tirx.Expr:
        return tirx.const(value, "float64")

    def mixed(old: tirx.Expr, new: tirx.Expr) -> tirx.Expr:
        return (old.astype("float64") * exact(1 - momentum) + new * exact(momentum)).astype(mean.dtype)

    def variance(c: tirx.Var) -> tirx.Expr:
        root = inverse[c].astype("float64")
        return (exact(1.0) / (root * root) - exact(epsilon)) * exact(count / (count - 1))

    return [
        te.compute(mean.shape, lambda c: mixed(old_mean[c], mean[c].astype("float64")), name="running_mean"),
        te.compute(mean.shape, lambda c: mixed(old_variance[c], variance(c)), name="running_variance"),
    ]


def normalise(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, mean: te.Tensor, inverse: te.Tensor) -> te.Tensor:
    """(x - mean) * inverse * gamma + beta."""
    return te.compute(
        x.shape,
        lambda *i: (x(*i) - mean[i[-1]]) * (inverse[i[-1]] * gamma[i[-1]]) + beta[i[-1]],
        name="batch_norm",
    )


def gradient_sums(dy: te.Tensor, x: te.Tensor, mean: te.Tensor, inverse: te.Tensor) -> list[te.Tensor]:
    """Gradients of gamma and beta."""
    *leading, channels = extents(x)
    beta_axes, gamma_axes = _axes(leading), _axes(leading)
    beta = te.compute((channels,), lambda c: te.sum(dy(*beta_axes, c), axis=beta_axes), name="batch_norm_beta")
    products = te.compute(
        (channels,),
        lambda c: te.sum(dy(*gamma_axes, c) * (x(*gamma_axes, c) - mean[c]), axis=gamma_axes),
        name="batch_norm_products",
    )
    gamma = te.compute((channels,), lambda c: products[c] * inverse[c], name="batch_norm_gradient_sums")
    return [gamma, beta]


def data_gradient(
    dy: te.Tensor,
    x: te.Tensor,
    gamma: te.Tensor,
    mean: te.Tensor,
    inverse: te.Tensor,
    dgamma: te.Tensor,
    dbeta: te.Tensor,
) -> te.Tensor:
    """Gradient of x; mean and variance depend on x too."""
    share = tirx.const(1 / math.prod(extents(x)[:-1]), x.dtype)

    def element(*i: tirx.Var) -> tirx.Expr:
        c = i[-1]
        explained = (x(*i) - mean[c]) * (inverse[c] * dgamma[c] * share) + dbeta[c] * share
        return (dy(*i) - explained) * (gamma[c] * inverse[c])

    return te.compute(x.shape, element, name="batch_norm_gradient")


def _axes(extents: list[int]) -> list[tirx.IterVar]:
    return [te.reduce_axis((0, extent)) for extent in extents]
