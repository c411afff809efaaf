"""A kernel on a GPU as data: functions launched with threads and operands, or a call of NVIDIA's libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

Extents = tuple[int, int, int]
"""(x, y, z)."""


@dataclass(frozen=True)
class Launch:
    """One launch of a device function. Shapes are known, so grids are numbers.

    Attributes:
        function: its name in the fatbin (`extern "C"`); its parameters are pointers to device memory.
        arguments: which operand each parameter is: positions among the kernel's inputs, outputs, then workspaces.
        grid: thread blocks.
        block: threads of a block.
        shared_bytes: dynamic shared memory of a block. Above 48 KiB a driver wants
            `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES` set to it first.
    """

    function: str
    arguments: tuple[int, ...]
    grid: Extents
    block: Extents
    shared_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """As what JSON can say."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Launch:
        """What `to_json` said."""
        arguments, grid, block = (tuple(found[key]) for key in ("arguments", "grid", "block"))
        return cls(found["function"], arguments, grid, block, found["shared_bytes"])


# A call of NVIDIA's libraries as data: what is computed, by which of their algorithms, on which operands.

Shape = tuple[int, int, int, int]


@dataclass(frozen=True)
class Convolution:
    """One pass of a convolution; float32, activations (N, H, W, C).

    Attributes:
        kind: `conv2d`, `conv2d_data_gradient` or `conv2d_weight_gradient`.
        x, y: shapes of input and output.
        w: (R, S, C/G, K), as our kernels have them; the library has them as (K, R, S, C/G).
        stride: (vertical, horizontal).
        padding: (top, left, bottom, right).
    """

    kind: str
    x: Shape
    w: Shape
    y: Shape
    stride: tuple[int, int]
    padding: Shape


@dataclass(frozen=True)
class Product:
    """C[m, n] = sum over k of A[m, k] B[k, n], float32, row by row.

    Attributes:
        kind: `matmul`, `matmul_nt` (B lies as (n, k)) or `matmul_tn` (A lies as (k, m)).
        rows, columns, steps: extents of m, n and k.
    """

    kind: str
    rows: int
    columns: int
    steps: int


@dataclass(frozen=True)
class VendorAlgorithm:
    """One of a library's algorithms for a problem, by what finds it again in another process.

    Attributes:
        vendor: of the library: `cudnn` or `cublas`.
        version: of the library; another one numbers its algorithms otherwise.
        key: the library's own numbers: which algorithm, and what it is set to.
        workspace_bytes: exactly what it needs.
    """

    vendor: str
    version: str
    key: str
    workspace_bytes: int

    @property
    def name(self) -> str:
        """As an implementation, such as `cudnn eng12_k2=3`."""
        return f"{self.vendor} {self.key}"


@dataclass(frozen=True)
class VendorCall:
    """One call of a library, as `Launch` is one of a device function.

    Attributes:
        problem: what it computes.
        algorithm: how.
        arguments: the two factors and the result, as positions among the kernel's inputs, outputs, then workspaces.
        workspace: likewise, of the algorithm's workspace; None where it needs none.
    """

    problem: Convolution | Product
    algorithm: VendorAlgorithm
    arguments: tuple[int, int, int]
    workspace: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As what JSON can say."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> VendorCall:
        """What `to_json` said."""
        of: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in found["problem"].items()
        }
        left, right, result = found["arguments"]
        problem = Convolution(**of) if "stride" in of else Product(**of)
        return cls(problem, VendorAlgorithm(**found["algorithm"]), (left, right, result), found["workspace"])
