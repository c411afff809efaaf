"""cuBLAS's algorithms of products of matrices, each with its workspace: to be timed beside our own.

Needs `nvmath-python`, cuBLAS and a GPU. **Never run on a GPU**: written against cuBLASLt's documented calls.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotm.model.files import AutotmError

_TRANSPOSED = {"matmul": (False, False), "matmul_nt": (False, True), "matmul_tn": (True, False)}
"""Whether the first and the second operand lie transposed."""
MOST_ALGORITHMS = 16
MOST_WORKSPACE_BYTES = 1 << 30


@dataclass(frozen=True)
class ProductAlgorithm:
    """One of cuBLAS's algorithms for a product.

    Attributes:
        name: its place in cuBLAS's own order.
        workspace_bytes: exactly what it needs.
    """

    name: str
    workspace_bytes: int
    _library: Any
    _handle: int
    _description: int
    _layouts: tuple[int, int, int]
    _algorithm: np.ndarray

    def run(self, pointers: Sequence[int], workspace: int, stream: int) -> None:
        """Launch on a stream; `pointers` are device addresses of both operands and the result."""
        left, right, result = pointers
        one, none = np.ones(1, np.float32), np.zeros(1, np.float32)
        first, second, third = self._layouts
        self._library.matmul(
            self._handle, self._description,
            one.ctypes.data, right, first, left, second, none.ctypes.data, result, third, result, third,
            self._algorithm.ctypes.data, workspace, self.workspace_bytes, stream,
        )  # fmt: skip


def product_layouts(kind: str, rows: int, columns: int, steps: int) -> tuple[tuple[int, int, bool], ...]:
    """(rows, columns, transposed) of cuBLAS's first and second factor and of its result, columns first in memory.

    What lies row by row is its own transpose to cuBLAS, so it computes Cᵀ = Bᵀ Aᵀ.
    """
    left_turned, right_turned = _TRANSPOSED[kind]
    right = (steps, columns, True) if right_turned else (columns, steps, False)
    left = (rows, steps, True) if left_turned else (steps, rows, False)
    return right, left, (columns, rows, False)


def product_algorithms(kind: str, rows: int, columns: int, steps: int, *, exact: bool = True) -> list[ProductAlgorithm]:
    """The algorithms that cuBLAS offers for C[m, n] = sum of A[m, k] B[k, n], float32, its favourite first.

    Args:
        kind: `matmul`, `matmul_nt` (B lies as (n, k)) or `matmul_tn` (A lies as (k, m)).
        rows: extent of m.
        columns: extent of n.
        steps: extent of k.
        exact: float32 throughout; otherwise tensor cores may round factors to tf32.

    Raises:
        AutotmError: the library is missing, or finds no GPU.
    """
    lt, cublas, types = (_module(name) for name in ("nvmath.bindings.cublasLt", "nvmath.bindings.cublas", "nvmath"))
    compute = cublas.ComputeType.COMPUTE_32F if exact else cublas.ComputeType.COMPUTE_32F_FAST_TF32
    real = types.CudaDataType.CUDA_R_32F
    try:
        handle = lt.create()
    except Exception as error:  # noqa: BLE001  (the library raises its own, the loader's and the driver's)
        raise AutotmError(f"cuBLAS found no GPU to work on ({error}); run where NVIDIA's driver is") from None
    description = lt.matmul_desc_create(compute, real)
    shapes = product_layouts(kind, rows, columns, steps)
    for attribute, (_, _, turned) in zip(
        (lt.MatmulDescAttribute.TRANSA, lt.MatmulDescAttribute.TRANSB), shapes, strict=False
    ):
        value = np.array([cublas.Operation.T if turned else cublas.Operation.N], np.int32)
        lt.matmul_desc_set_attribute(description, attribute, value.ctypes.data, value.nbytes)
    first, second, third = (lt.matrix_layout_create(real, down, across, down) for down, across, _ in shapes)
    preference = lt.matmul_preference_create()
    most = np.array([MOST_WORKSPACE_BYTES], np.uint64)
    limit = lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES
    lt.matmul_preference_set_attribute(preference, limit, most.ctypes.data, most.nbytes)
    found, count = np.zeros(MOST_ALGORITHMS, lt.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
    lt.matmul_algo_get_heuristic(
        handle, description, first, second, third, third, preference,
        MOST_ALGORITHMS, found.ctypes.data, count.ctypes.data,
    )  # fmt: skip
    lt.matmul_preference_destroy(preference)
    return [
        ProductAlgorithm(
            name=f"cublas {index}",
            workspace_bytes=int(found["workspace_size"][index]),
            _library=lt,
            _handle=handle,
            _description=description,
            _layouts=(first, second, third),
            # The algorithm is the first field of what the heuristic answers.
            _algorithm=found[index : index + 1].copy(),
        )
        for index in range(int(count[0]))
        if int(found["state"][index]) == 0
    ]


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise AutotmError(
            "cuBLAS's algorithms need its Python bindings and library, which are not installed here; "
            "pip install nvmath-python nvidia-cublas, or leave them out: autotm's own kernels need neither"
        ) from None
