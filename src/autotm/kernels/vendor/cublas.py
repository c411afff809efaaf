"""cuBLAS's algorithms of products of matrices, each with its workspace: their numbers, and what they are set to.

Needs `nvmath-python`, cuBLAS and a GPU. **Never run on a GPU**: written against cuBLASLt's documented calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autotm.kernels.vendor.loading import MOST_WORKSPACE_BYTES, VendorError, loaded
from autotm.model.files import AutotmError
from autotm.model.step import ALIGNMENT_BYTES, Convolution, Product, VendorAlgorithm

NAME = "cublas"
PACKAGES = "nvmath-python nvidia-cublas"
_TRANSPOSED = {"matmul": (False, False), "matmul_nt": (False, True), "matmul_tn": (True, False)}
"""Whether the first and the second operand lie transposed."""
MOST_ALGORITHMS = 32
_ATTRIBUTES = (
    "ID",
    "TILE_ID",
    "SPLITK_NUM",
    "REDUCTION_SCHEME",
    "CTA_SWIZZLING",
    "CUSTOM_OPTION",
    "STAGES_ID",
    "INNER_SHAPE_ID",
    "CLUSTER_SHAPE_ID",
)
"""All that an algorithm is made of (`cublasLtMatmulAlgoConfigAttributes_t`): its number first, then its settings."""


def product_layouts(problem: Product) -> tuple[tuple[int, int, bool], ...]:
    """(rows, columns, transposed) of cuBLAS's first and second factor and of its result, columns first in memory.

    What lies row by row is its own transpose to cuBLAS, so it computes Cᵀ = Bᵀ Aᵀ.
    """
    rows, columns, steps = problem.rows, problem.columns, problem.steps
    left_turned, right_turned = _TRANSPOSED[problem.kind]
    right = (steps, columns, True) if right_turned else (columns, steps, False)
    left = (rows, steps, True) if left_turned else (steps, rows, False)
    return right, left, (columns, rows, False)


class Cublas:
    """The library on the GPU that is current.

    Attributes:
        version: of cuBLAS, such as `13.10.0`.

    Raises:
        AutotmError: it is not installed, does not load, or finds no GPU.
    """

    def __init__(self) -> None:
        self._lt = loaded("cuBLAS", PACKAGES, "nvmath.bindings.cublasLt")
        compute = loaded("cuBLAS", PACKAGES, "nvmath.bindings.cublas")
        self._turns = compute.Operation
        # Float32 throughout: no emulation by tensor cores, whatever the environment asks of cuBLAS.
        self._precision = compute.ComputeType.COMPUTE_32F_PEDANTIC
        self._real = loaded("cuBLAS", PACKAGES, "nvmath").CudaDataType.CUDA_R_32F
        try:
            self.version = _dotted(int(self._lt.get_version()))
            self._handle = self._lt.create()
        except Exception as error:  # noqa: BLE001  (the library raises its own, the loader's and the driver's)
            raise AutotmError(
                f"cuBLAS does not load, or found no GPU to work on ({error}); run where NVIDIA's driver is"
            ) from None

    def algorithms(self, problem: Convolution | Product) -> list[VendorAlgorithm]:
        """What it offers for a product, its favourite first; none for convolutions, which are not its own."""
        if not isinstance(problem, Product):
            return []
        lt, (description, layouts) = self._lt, self._described(problem)
        preference = lt.matmul_preference_create()
        kinds = lt.MatmulPreferenceAttribute
        self._prefer(preference, kinds.MAX_WORKSPACE_BYTES, MOST_WORKSPACE_BYTES)
        for operand in "ABCD":
            # It would take them to start at multiples of 256.
            self._prefer(preference, getattr(kinds, f"MIN_ALIGNMENT_{operand}_BYTES"), ALIGNMENT_BYTES)
        results, count = np.zeros(MOST_ALGORITHMS, lt.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
        try:
            lt.matmul_algo_get_heuristic(
                self._handle, description, *layouts, layouts[-1], preference,
                MOST_ALGORITHMS, results.ctypes.data, count.ctypes.data,
            )  # fmt: skip
        except lt.cuBLASLtError:  # None for these extents.
            return []
        finally:
            lt.matmul_preference_destroy(preference)
        found: dict[str, VendorAlgorithm] = {}
        for result in results[: int(count[0])]:
            if int(result["state"]) == 0:
                key = self._key(result["algo"])
                found.setdefault(key, VendorAlgorithm(NAME, self.version, key, int(result["workspace_size"])))
        return list(found.values())

    def bound(
        self,
        problem: Convolution | Product,
        algorithm: VendorAlgorithm,
        pointers: Sequence[int],
        workspace: int,
        stream: int,
    ) -> Callable[[], None]:
        """A call that launches the algorithm on a stream; arguments and errors as of `Cudnn.bound`, for a product."""
        assert isinstance(problem, Product)
        lt, handle, (description, layouts) = self._lt, self._handle, self._described(problem)
        chosen, checked = self._algorithm(algorithm), np.zeros(1, lt.matmul_heuristic_result_dtype)
        first, second, third = layouts
        try:
            lt.matmul_algo_check(
                handle, description, first, second, third, third, chosen.ctypes.data, checked.ctypes.data
            )
        except lt.cuBLASLtError as error:
            raise VendorError(f"cuBLAS {self.version} does not have '{algorithm.name}' on this GPU ({error})") from None
        size_bytes = int(checked["workspace_size"][0])
        if size_bytes != algorithm.workspace_bytes:
            raise VendorError(
                f"cuBLAS {self.version} asks {size_bytes} bytes of workspace for '{algorithm.name}' on this GPU, "
                f"{algorithm.workspace_bytes} where it was profiled"
            )
        one, none = np.ones(1, np.float32), np.zeros(1, np.float32)
        left, right, result = pointers

        def call() -> None:
            lt.matmul(
                handle, description, one.ctypes.data, right, first, left, second, none.ctypes.data,
                result, third, result, third, chosen.ctypes.data, workspace, size_bytes, stream,
            )  # fmt: skip

        return call

    def _described(self, problem: Product) -> tuple[int, tuple[int, int, int]]:
        """The operation, and the layouts of its factors and its result; they stay as long as the process."""
        lt = self._lt
        description = lt.matmul_desc_create(self._precision, self._real)
        shapes = product_layouts(problem)
        sides = (lt.MatmulDescAttribute.TRANSA, lt.MatmulDescAttribute.TRANSB)
        for side, (_, _, turned) in zip(sides, shapes, strict=False):
            value = np.array([self._turns.T if turned else self._turns.N], np.int32)
            lt.matmul_desc_set_attribute(description, side, value.ctypes.data, value.nbytes)
        first, second, third = (lt.matrix_layout_create(self._real, down, across, down) for down, across, _ in shapes)
        return description, (first, second, third)

    def _prefer(self, preference: int, kind: Any, number: int) -> None:
        value = np.array([number], self._lt.get_matmul_preference_attribute_dtype(kind))
        self._lt.matmul_preference_set_attribute(preference, kind, value.ctypes.data, value.nbytes)

    def _key(self, found: Any) -> str:
        """What an algorithm is, without those settings that are zero."""
        lt, chosen = self._lt, np.array([found])
        words = []
        for name in _ATTRIBUTES:
            kind = getattr(lt.MatmulAlgoConfigAttribute, name)
            value, written = np.zeros(1, lt.get_matmul_algo_config_attribute_dtype(kind)), np.zeros(1, np.uint64)
            lt.matmul_algo_config_get_attribute(
                chosen.ctypes.data, kind, value.ctypes.data, value.nbytes, written.ctypes.data
            )
            if name == _ATTRIBUTES[0] or value[0]:
                words.append(f"{name}={int(value[0])}")
        return " ".join(words)

    def _algorithm(self, algorithm: VendorAlgorithm) -> np.ndarray:
        """It as cuBLAS has it, made anew from its numbers."""
        lt, real = self._lt, self._real
        numbers = {name: int(number) for name, _, number in (word.partition("=") for word in algorithm.key.split())}
        chosen = np.zeros(1, lt.matmul_heuristic_result_dtype["algo"])
        try:
            lt.matmul_algo_init(
                self._handle, self._precision, real, real, real, real, real, numbers["ID"], chosen.ctypes.data
            )
            for name in _ATTRIBUTES[1:]:
                kind = getattr(lt.MatmulAlgoConfigAttribute, name)
                value = np.array([numbers.get(name, 0)], lt.get_matmul_algo_config_attribute_dtype(kind))
                lt.matmul_algo_config_set_attribute(chosen.ctypes.data, kind, value.ctypes.data, value.nbytes)
        except lt.cuBLASLtError as error:
            raise VendorError(f"cuBLAS {self.version} does not have '{algorithm.name}' on this GPU ({error})") from None
        return chosen


def _dotted(version: int) -> str:
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
