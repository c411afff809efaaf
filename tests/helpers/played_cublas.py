"""The calls of cuBLASLt that `kernels/vendor.py` makes, played: products by NumPy, on a played stream.

As NVIDIA documents them: values go by their addresses, matrices lie column by column, an algorithm is 64 bytes that
only its attributes tell of, and the heuristic answers for the alignment that it was told, or for 256 bytes.
"""

# ruff: noqa: ARG002 - arguments are NVIDIA's

from __future__ import annotations

import ctypes
import enum
import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from played_cudart import PlayedRuntime


class Config(enum.IntEnum):
    ID = 0
    TILE_ID = 1
    SPLITK_NUM = 2
    REDUCTION_SCHEME = 3
    CTA_SWIZZLING = 4
    CUSTOM_OPTION = 5
    STAGES_ID = 6
    INNER_SHAPE_ID = 7
    CLUSTER_SHAPE_ID = 8


class Preference(enum.IntEnum):
    MAX_WORKSPACE_BYTES = 1
    MIN_ALIGNMENT_A_BYTES = 5
    MIN_ALIGNMENT_B_BYTES = 6
    MIN_ALIGNMENT_C_BYTES = 7
    MIN_ALIGNMENT_D_BYTES = 8


class Description(enum.IntEnum):
    TRANSA = 3
    TRANSB = 4


class CublasError(Exception):
    """`cuBLASLtError`."""


@dataclass(frozen=True)
class Known:
    """An algorithm: its attributes, what it needs, and how operands must lie for it."""

    numbers: dict[Config, int]
    workspace_bytes: int = 0
    alignment_bytes: int = 16


ALGORITHMS = (
    Known({Config.ID: 6, Config.TILE_ID: 20, Config.STAGES_ID: 8}, alignment_bytes=256),
    Known({Config.ID: 6, Config.TILE_ID: 15, Config.STAGES_ID: 8}),
    Known({Config.ID: 13, Config.TILE_ID: 15, Config.SPLITK_NUM: 3, Config.REDUCTION_SCHEME: 2}, 4000),
)
RESULT = np.dtype(
    [("algo", [("data_", "<u8", (8,))]), ("workspace_size", "<u8"), ("state", "<i4"), ("waves_count", "<f4"),
     ("reserved", "<i4", (4,))]
)  # fmt: skip
_DTYPES = {Config.ID: np.int32, Config.SPLITK_NUM: np.int32, Config.INNER_SHAPE_ID: np.uint16,
           Config.CLUSTER_SHAPE_ID: np.uint16}  # fmt: skip


def at(address: int, dtype: Any, count: int = 1) -> np.ndarray:
    """What lies at an address of this process."""
    kind = np.dtype(dtype)
    return np.frombuffer((ctypes.c_char * (kind.itemsize * count)).from_address(address), kind)


@dataclass
class PlayedCublasLt:
    """The module `nvmath.bindings.cublasLt`."""

    runtime: PlayedRuntime
    version: int = 131000
    known: tuple[Known, ...] = ALGORITHMS
    ran: list[int] = field(default_factory=list)
    things: dict[int, Any] = field(default_factory=dict)
    handles: Any = field(default_factory=lambda: itertools.count(1000))

    MatmulAlgoConfigAttribute = Config
    MatmulPreferenceAttribute = Preference
    MatmulDescAttribute = Description
    matmul_heuristic_result_dtype = RESULT
    cuBLASLtError = CublasError  # noqa: N815 - NVIDIA's

    def get_version(self) -> int:
        return self.version

    def create(self) -> int:
        return self._new("handle")

    def matmul_desc_create(self, compute: str, scale: str) -> int:
        assert (compute, scale) == ("pedantic", "real")
        return self._new({Description.TRANSA: 0, Description.TRANSB: 0})

    def matmul_desc_set_attribute(self, description: int, kind: Description, value: int, size_bytes: int) -> None:
        assert size_bytes == 4
        self.things[description][kind] = int(at(value, np.int32)[0])

    def matrix_layout_create(self, kind: str, rows: int, columns: int, leading: int) -> int:
        assert leading == rows
        return self._new((rows, columns))

    def matmul_preference_create(self) -> int:
        return self._new(dict.fromkeys(Preference, 256))

    def matmul_preference_set_attribute(self, preference: int, kind: Preference, value: int, size_bytes: int) -> None:
        dtype = self.get_matmul_preference_attribute_dtype(kind)
        assert size_bytes == np.dtype(dtype).itemsize
        self.things[preference][kind] = int(at(value, dtype)[0])

    def matmul_preference_destroy(self, preference: int) -> None:
        del self.things[preference]

    def get_matmul_preference_attribute_dtype(self, kind: Preference) -> Any:
        return np.uint64 if kind is Preference.MAX_WORKSPACE_BYTES else np.uint32

    def get_matmul_algo_config_attribute_dtype(self, kind: Config) -> Any:
        return _DTYPES.get(kind, np.uint32)

    def matmul_algo_get_heuristic(
        self, handle: int, description: int, first: int, second: int, third: int, fourth: int, preference: int,
        most: int, results: int, count: int,
    ) -> None:  # fmt: skip
        told = dict(self.things[preference])
        room = told.pop(Preference.MAX_WORKSPACE_BYTES)
        found = [one for one in self.known if one.workspace_bytes <= room and one.alignment_bytes <= min(told.values())]
        answers = at(results, RESULT, most)
        for answer, one in zip(answers, found, strict=False):
            answer["algo"]["data_"] = _packed(one.numbers)
            answer["workspace_size"] = one.workspace_bytes
        at(count, np.int32)[0] = len(found)

    def matmul_algo_init(self, handle: int, *given: Any) -> None:
        *types, number, algorithm = given
        assert types == ["pedantic", *["real"] * 5]
        if number not in {one.numbers[Config.ID] for one in self.known}:
            raise CublasError("CUBLAS_STATUS_NOT_SUPPORTED")
        at(algorithm, np.uint64, 8)[:] = _packed({Config.ID: number, Config.SPLITK_NUM: 1})

    def matmul_algo_config_get_attribute(
        self, algorithm: int, kind: Config, value: int, size_bytes: int, written: int
    ) -> None:
        dtype = np.dtype(self.get_matmul_algo_config_attribute_dtype(kind))
        assert size_bytes == dtype.itemsize
        at(value, dtype)[0] = _unpacked(at(algorithm, np.uint64, 8))[kind]
        at(written, np.uint64)[0] = size_bytes

    def matmul_algo_config_set_attribute(self, algorithm: int, kind: Config, value: int, size_bytes: int) -> None:
        dtype = np.dtype(self.get_matmul_algo_config_attribute_dtype(kind))
        assert size_bytes == dtype.itemsize
        words = at(algorithm, np.uint64, 8)
        words[:] = _packed({**_unpacked(words), kind: int(at(value, dtype)[0])})

    def matmul_algo_check(
        self, handle: int, description: int, first: int, second: int, third: int, fourth: int, algorithm: int,
        result: int,
    ) -> None:  # fmt: skip
        at(result, RESULT)["workspace_size"] = self._known(algorithm).workspace_bytes

    def matmul(
        self, handle: int, description: int, alpha: int, left: int, first: int, right: int, second: int, beta: int,
        added: int, third: int, result: int, fourth: int, algorithm: int, workspace: int, size_bytes: int, stream: int,
    ) -> None:  # fmt: skip
        one = self._known(algorithm)
        assert (float(at(alpha, np.float32)[0]), float(at(beta, np.float32)[0])) == (1.0, 0.0)
        assert size_bytes == one.workspace_bytes
        assert not workspace % 256
        turns = self.things[description]
        factors = [self._matrix(address, layout) for address, layout in ((left, first), (right, second))]
        a, b = (
            matrix.T if turns[side] else matrix
            for matrix, side in zip(factors, (Description.TRANSA, Description.TRANSB), strict=True)
        )
        target = self._matrix(result, fourth)

        def work() -> None:
            if workspace:
                self.runtime.bytes_at(workspace, size_bytes).fill(0xAB)
            target[...] = a @ b
            self.ran.append(one.numbers[Config.ID])

        self.runtime.streams[stream].launch(work)

    def _matrix(self, address: int, layout: int) -> np.ndarray:
        rows, columns = self.things[layout]
        whole = self.runtime.bytes_at(address, 4 * rows * columns).view(np.float32)
        return whole.reshape((rows, columns), order="F")

    def _known(self, algorithm: int) -> Known:
        found = _unpacked(at(algorithm, np.uint64, 8))
        for one in self.known:
            if {kind: one.numbers.get(kind, 0) for kind in Config} == found:
                return one
        raise CublasError("CUBLAS_STATUS_INVALID_VALUE")

    def _new(self, thing: Any) -> int:
        handle = next(self.handles)
        self.things[handle] = thing
        return handle


def _packed(numbers: dict[Config, int]) -> list[int]:
    words = [numbers.get(kind, 0) for kind in Config]
    return [words[0] | words[8] << 32, *words[1:8]]


def _unpacked(words: np.ndarray) -> dict[Config, int]:
    found = [int(words[0]) & 0xFFFFFFFF, *(int(word) for word in words[1:]), int(words[0]) >> 32]
    return dict(zip(Config, found, strict=True))


def modules(lt: PlayedCublasLt) -> dict[str, Any]:
    """What to put among the modules of Python."""
    compute = SimpleNamespace(
        ComputeType=SimpleNamespace(COMPUTE_32F_PEDANTIC="pedantic"), Operation=SimpleNamespace(N=0, T=1)
    )
    return {
        "nvmath": SimpleNamespace(CudaDataType=SimpleNamespace(CUDA_R_32F="real")),
        "nvmath.bindings": SimpleNamespace(),
        "nvmath.bindings.cublas": compute,
        "nvmath.bindings.cublasLt": lt,
    }
