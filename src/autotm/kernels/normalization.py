"""Batch norm, layer normalization and softmax with their gradients, as tensor expressions."""

from __future__ import annotations

import math

from tvm import te, tirx

from autotm.kernels.tir import extents

# Batch norm in training mode and its gradient (Ioffe and Szegedy, 2015), over all axes but the last, as TE functions.
#
# Forward: `statistics`, one reduction over the batch, then `normalise`, one elementwise pass that what follows fuses
# with. Backward: `gradient_sums`, one reduction, then `data_gradient`, elementwise. The reductions' code is generated
# (`schedules/channel_sums.py` knows them by the block names given here); the forms below state their meaning.


def statistics(x: te.Tensor, epsilon: float) -> list[te.Tensor]:
    """Compute each channel's mean and 1 / sqrt(variance + epsilon), with the variance of the batch, no estimate."""
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
    """Compute running mean and variance after a batch of `count` values a channel: old (1 - momentum) + new momentum.

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
    """Compute (x - mean) * inverse * gamma + beta."""
    return te.compute(
        x.shape, lambda *i: (x(*i) - mean[i[-1]]) * (inverse[i[-1]] * gamma[i[-1]]) + beta[i[-1]], name="batch_norm"
    )


def gradient_sums(dy: te.Tensor, x: te.Tensor, mean: te.Tensor, inverse: te.Tensor) -> list[te.Tensor]:
    """Compute the gradients of gamma and beta."""
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
    """Compute the gradient of x; mean and variance depend on x too."""
    share = tirx.const(1 / math.prod(extents(x)[:-1]), x.dtype)

    def element(*i: tirx.Var) -> tirx.Expr:
        c = i[-1]
        explained = (x(*i) - mean[c]) * (inverse[c] * dgamma[c] * share) + dbeta[c] * share
        return (dy(*i) - explained) * (gamma[c] * inverse[c])

    return te.compute(x.shape, element, name="batch_norm_gradient")


def _axes(extents: list[int]) -> list[tirx.IterVar]:
    return [te.reduce_axis((0, extent)) for extent in extents]


# Layer normalization along the last axis (Ba et al., arXiv:1607.06450) and its gradient, as tensor expressions.


def layer_norm(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, epsilon: float) -> te.Tensor:
    """Compute gamma (x - mean) / sqrt(variance + epsilon) + beta; gamma and beta have the last axis."""
    normal, _ = _normalized(x, epsilon)
    return te.compute(
        x.shape, lambda *at: normal(*at) * gamma(at[-1]) + beta(at[-1]), name="layer_norm", attrs={"epsilon": epsilon}
    )


def layer_norm_gradient(x: te.Tensor, gamma: te.Tensor, dy: te.Tensor, epsilon: float) -> list[te.Tensor]:
    """Compute the gradients by x, gamma and beta.

    With n the normalized x and g = gamma dy: dx = (g - mean g - n mean(g n)) / sqrt(variance + epsilon); dgamma and
    dbeta are the sums of n dy and of dy over all rows. Mean and variance are computed again: x must be read anyway.
    """
    normal, inverse = _normalized(x, epsilon)
    slope = te.compute(x.shape, lambda *at: gamma(at[-1]) * dy(*at), name="slope")
    mean_slope = _row_mean(slope)
    mean_product = _row_mean(te.compute(x.shape, lambda *at: slope(*at) * normal(*at), name="slope_normal"))
    dx = te.compute(
        x.shape,
        lambda *at: inverse(*at[:-1]) * (slope(*at) - mean_slope(*at[:-1]) - normal(*at) * mean_product(*at[:-1])),
        name="layer_norm_gradient",
        attrs={"epsilon": epsilon},
    )
    products = te.compute(x.shape, lambda *at: normal(*at) * dy(*at), name="normal_dy")
    return [dx, _column_sum(products, "dgamma"), _column_sum(dy, "dbeta")]


def _column_sum(x: te.Tensor, name: str) -> te.Tensor:
    rows = [te.reduce_axis((0, int(extent)), f"r{index}") for index, extent in enumerate(x.shape[:-1])]
    return te.compute(x.shape[-1:], lambda column: te.sum(x(*rows, column), axis=rows), name=name)


def _normalized(x: te.Tensor, epsilon: float) -> tuple[te.Tensor, te.Tensor]:
    """Compute (x - mean) / sqrt(variance + epsilon), and 1 / sqrt(variance + epsilon) of each row."""
    mean = _row_mean(x)
    squares = te.compute(
        x.shape, lambda *at: (x(*at) - mean(*at[:-1])) * (x(*at) - mean(*at[:-1])), name="squared_distance"
    )
    variance = _row_mean(squares)
    inverse = te.compute(
        x.shape[:-1],
        lambda *at: tirx.const(1.0, "float32") / tirx.sqrt(variance(*at) + tirx.const(epsilon, "float32")),
        name="inverse_deviation",
    )
    normal = te.compute(x.shape, lambda *at: (x(*at) - mean(*at[:-1])) * inverse(*at[:-1]), name="normalized")
    return normal, inverse


def _row_mean(x: te.Tensor) -> te.Tensor:
    width = int(x.shape[-1])
    total = _sum(x, "row_sum")
    return te.compute(x.shape[:-1], lambda *at: total(*at) * tirx.const(1.0 / width, "float32"), name="row_mean")


# Softmax along the last axis, its logarithm, and their gradients, as tensor expressions, float32.


def softmax(x: te.Tensor) -> te.Tensor:
    """Compute exp(x - max x) / sum exp(x - max x)."""
    exponential = _exponential(x)
    total = _sum(exponential)
    return te.compute(x.shape, lambda *at: exponential(*at) / total(*at[:-1]), name="softmax")


def softmax_gradient(y: te.Tensor, dy: te.Tensor) -> te.Tensor:
    """Compute y (dy - sum y dy), y being the softmax."""
    products = te.compute(y.shape, lambda *at: y(*at) * dy(*at), name="products")
    total = _sum(products)
    return te.compute(y.shape, lambda *at: y(*at) * (dy(*at) - total(*at[:-1])), name="softmax_gradient")


def log_softmax(x: te.Tensor) -> te.Tensor:
    """Compute (x - max x) - log sum exp(x - max x)."""
    peak = _peak(x)
    total = _sum(_exponential(x))
    return te.compute(x.shape, lambda *at: x(*at) - peak(*at[:-1]) - tirx.log(total(*at[:-1])), name="log_softmax")


def log_softmax_gradient(y: te.Tensor, dy: te.Tensor) -> te.Tensor:
    """Compute dy - exp(y) sum dy, y being the logarithm of the softmax."""
    total = _sum(dy)
    return te.compute(y.shape, lambda *at: dy(*at) - tirx.exp(y(*at)) * total(*at[:-1]), name="log_softmax_gradient")


def _peak(x: te.Tensor) -> te.Tensor:
    axis = te.reduce_axis((0, int(x.shape[-1])), "k")
    return te.compute(x.shape[:-1], lambda *at: te.max(x(*at, axis), axis=axis), name="peak")


def _exponential(x: te.Tensor) -> te.Tensor:
    peak = _peak(x)
    return te.compute(x.shape, lambda *at: tirx.exp(x(*at) - peak(*at[:-1])), name="exponential")


def _sum(x: te.Tensor, name: str = "total") -> te.Tensor:
    axis = te.reduce_axis((0, int(x.shape[-1])), "k")
    return te.compute(x.shape[:-1], lambda *at: te.sum(x(*at, axis), axis=axis), name=name)
