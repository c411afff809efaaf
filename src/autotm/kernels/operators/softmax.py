"""Softmax along the last axis, its logarithm, and their gradients, as tensor expressions, float32."""

from __future__ import annotations

from tvm import te, tirx


def softmax(x: te.Tensor) -> te.Tensor:
    """exp(x - max x) / sum exp(x - max x)."""
    exponential = _exponential(x)
    total = _sum(exponential)
    return te.compute(x.shape, lambda *at: exponential(*at) / total(*at[:-1]), name="softmax")


def softmax_gradient(y: te.Tensor, dy: te.Tensor) -> te.Tensor:
    """Y (dy - sum y dy), y being the softmax."""
    products = te.compute(y.shape, lambda *at: y(*at) * dy(*at), name="products")
    total = _sum(products)
    return te.compute(y.shape, lambda *at: y(*at) * (dy(*at) - total(*at[:-1])), name="softmax_gradient")


def log_softmax(x: te.Tensor) -> te.Tensor:
    """(x - max x) - log sum exp(x - max x)."""
    peak = _peak(x)
    total = _sum(_exponential(x))
    return te.compute(x.shape, lambda *at: x(*at) - peak(*at[:-1]) - tirx.log(total(*at[:-1])), name="log_softmax")


def log_softmax_gradient(y: te.Tensor, dy: te.Tensor) -> te.Tensor:
    """Dy - exp(y) sum dy, y being the logarithm of the softmax."""
    total = _sum(dy)
    return te.compute(y.shape, lambda *at: dy(*at) - tirx.exp(y(*at)) * total(*at[:-1]), name="log_softmax_gradient")


def _peak(x: te.Tensor) -> te.Tensor:
    axis = te.reduce_axis((0, int(x.shape[-1])), "k")
    return te.compute(x.shape[:-1], lambda *at: te.max(x(*at, axis), axis=axis), name="peak")


def _exponential(x: te.Tensor) -> te.Tensor:
    peak = _peak(x)
    return te.compute(x.shape, lambda *at: tirx.exp(x(*at) - peak(*at[:-1])), name="exponential")


def _sum(x: te.Tensor) -> te.Tensor:
    axis = te.reduce_axis((0, int(x.shape[-1])), "k")
    return te.compute(x.shape[:-1], lambda *at: te.sum(x(*at, axis), axis=axis), name="total")
