"""Layer normalization along the last axis (Ba et al., arXiv:1607.06450) and its gradient, as tensor expressions."""

from __future__ import annotations

from tvm import te, tirx


def layer_norm(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, epsilon: float) -> te.Tensor:
    """Gamma (x - mean) / sqrt(variance + epsilon) + beta; gamma and beta have the last axis."""
    normal, _ = _normalized(x, epsilon)
    return te.compute(
        x.shape, lambda *at: normal(*at) * gamma(at[-1]) + beta(at[-1]), name="layer_norm", attrs={"epsilon": epsilon}
    )


def layer_norm_gradient(x: te.Tensor, gamma: te.Tensor, dy: te.Tensor, epsilon: float) -> list[te.Tensor]:
    """Gradients by x, gamma and beta.

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
    """(x - mean) / sqrt(variance + epsilon), and 1 / sqrt(variance + epsilon) of each row."""
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
    axis = te.reduce_axis((0, width), "k")
    total = te.compute(x.shape[:-1], lambda *at: te.sum(x(*at, axis), axis=axis), name="row_sum")
    return te.compute(x.shape[:-1], lambda *at: total(*at) * tirx.const(1.0 / width, "float32"), name="row_mean")
