"""Matrix products as tensor expressions, float32; the transposed forms copy no operand."""

from __future__ import annotations

from tvm import te


def matmul(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """A B: (M,K) with (K,N) gives (M,N)."""
    k = te.reduce_axis((0, int(a.shape[1])), "k")
    return te.compute((int(a.shape[0]), int(b.shape[1])), lambda m, n: te.sum(a[m, k] * b[k, n], axis=k), name="matmul")


def matmul_nt(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """A Bᵀ: (M,K) with (N,K) gives (M,N)."""
    k = te.reduce_axis((0, int(a.shape[1])), "k")
    return te.compute(
        (int(a.shape[0]), int(b.shape[0])), lambda m, n: te.sum(a[m, k] * b[n, k], axis=k), name="matmul_nt"
    )


def matmul_tn(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """Aᵀ B: (K,M) with (K,N) gives (M,N)."""
    k = te.reduce_axis((0, int(a.shape[0])), "k")
    return te.compute(
        (int(a.shape[1]), int(b.shape[1])), lambda m, n: te.sum(a[k, m] * b[k, n], axis=k), name="matmul_tn"
    )
