"""cuDNN and cuBLASLt: their algorithms for a contraction, and calls of these; needs no compiler."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from autotm.model.errors import AutotmError
from autotm.model.graph import ALIGNMENT_BYTES
from autotm.model.launch import Convolution, Product, VendorAlgorithm, VendorCall

# Python packages of NVIDIA's libraries: loaded, or an error that says what is missing.

EXTRA = "pip install 'autotm[nvidia]'"
MOST_WORKSPACE_BYTES = 4 << 30
"""An algorithm that needs more is not offered: the profile would have to find room for it."""


class VendorMissingError(AutotmError):
    """A library is not installed."""


class VendorError(AutotmError):
    """A library is there, and is not what a kernel was made for."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}: its times are of another GPU or version; profile again here (autotm profile), then solve and "
            "compile"
        )


def loaded(what: str, packages: str, module: str) -> Any:
    """A module of a library's package.

    Raises:
        VendorMissingError: it is not installed.
        AutotmError: it is, and does not load.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise VendorMissingError(
            f"{what} and its Python package are not installed here ({error}): {EXTRA} (which brings {packages})"
        ) from None
    except Exception as error:  # noqa: BLE001  (a library that is half there raises anything)
        raise AutotmError(
            f"{what}'s package is installed and does not load ({error}): {EXTRA}, or uninstall it"
        ) from None


# cuBLAS's algorithms of products of matrices, each with its workspace: their numbers, and what they are set to.
#
# Needs `nvmath-python`, cuBLAS and a GPU. **Never run on a GPU**: written against cuBLASLt's documented calls.

CUBLAS = "cublas"
_CUBLAS_PACKAGES = "nvmath-python nvidia-cublas"
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
        self._lt = loaded("cuBLAS", _CUBLAS_PACKAGES, "nvmath.bindings.cublasLt")
        compute = loaded("cuBLAS", _CUBLAS_PACKAGES, "nvmath.bindings.cublas")
        self._turns = compute.Operation
        # Float32 throughout: no emulation by tensor cores, whatever the environment asks of cuBLAS.
        self._precision = compute.ComputeType.COMPUTE_32F_PEDANTIC
        self._real = loaded("cuBLAS", _CUBLAS_PACKAGES, "nvmath").CudaDataType.CUDA_R_32F
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
                found.setdefault(key, VendorAlgorithm(CUBLAS, self.version, key, int(result["workspace_size"])))
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


# cuDNN's algorithms of convolutions, each with its workspace: its engines, and what their knobs are set to.
#
# Needs `nvidia-cudnn-frontend`, cuDNN and a GPU. **Never run on a GPU**: cuDNN 9.28.1 was seen to plan these graphs for
# the facts of an H100 (`tests/kernels/vendor/test_real_planner.py`), and computed nothing.

CUDNN = "cudnn"
_CUDNN_PACKAGES = "nvidia-cudnn-frontend nvidia-cudnn-cu13"
_NODES = {
    "conv2d": ("conv_fprop", {"image": "x", "weight": "w"}, "y"),
    "conv2d_data_gradient": ("conv_dgrad", {"loss": "y", "filter": "w"}, "x"),
    "conv2d_weight_gradient": ("conv_wgrad", {"image": "x", "loss": "y"}, "w"),
}
"""The frontend's node of each pass, what it calls the two operands and which they are, and which the result is."""
_INEXACT = ("TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "NONDETERMINISTIC")
"""Notes of algorithms that are not float32 throughout, or not the same every time."""
_OWN_ENGINES = 10_000
"""Numbers from here on are engines that the frontend compiles itself (its `engines/engine_ids.py`), not cuDNN's."""
Operands = dict[str, tuple[list[int], list[int]]]


def operands_of(problem: Convolution) -> Operands:
    """CuDNN's (extents, strides) of x, y and w, channels second in the order of extents whatever lies where."""
    rows, columns, channels, features = problem.w
    return {
        "x": _channels_last(*problem.x),
        "y": _channels_last(*problem.y),
        "w": _channels_last(features, rows, columns, channels),
    }


def _channels_last(count: int, rows: int, columns: int, channels: int) -> tuple[list[int], list[int]]:
    return [count, channels, rows, columns], [rows * columns * channels, 1, columns * channels, channels]


class Cudnn:
    """The library on the GPU that is current.

    Attributes:
        version: of cuDNN, such as `9.28.1`.

    Raises:
        AutotmError: it is not installed, does not load, or finds no GPU.
    """

    def __init__(self) -> None:
        self._library = loaded("cuDNN", _CUDNN_PACKAGES, "cudnn")
        self.version = str(self._library.backend_version_string())
        try:
            self._handle = self._library.create_handle()
        except Exception as error:  # noqa: BLE001  (the library raises its own and the driver's)
            raise AutotmError(f"cuDNN found no GPU to work on ({error}); run where NVIDIA's driver is") from None

    def algorithms(self, problem: Convolution | Product) -> list[VendorAlgorithm]:
        """What it offers for a convolution, its favourite first: deterministic, float32 throughout.

        None where it has no engine for these extents, and for products, which are not its own.
        """
        if not isinstance(problem, Convolution):
            return []
        library, (graph, _) = self._library, self._graph(problem)
        try:
            self._plan(graph)
            graph.deselect_numeric_notes([getattr(library.numerical_note, note) for note in _INEXACT])
            graph.check_support()
        except library.cudnnGraphNotSupportedError:
            return []
        found: dict[str, VendorAlgorithm] = {}
        for index in range(graph.get_execution_plan_count()):
            engine, _ = graph.get_engine_and_knobs_at_index(index)
            key = str(graph.get_plan_name_at_index(index))
            if engine < _OWN_ENGINES and key not in found and self._builds(graph, index):
                size_bytes = int(graph.get_workspace_size_plan_at_index(index))
                if size_bytes <= MOST_WORKSPACE_BYTES:
                    found[key] = VendorAlgorithm(CUDNN, self.version, key, size_bytes)
        return list(found.values())

    def bound(
        self,
        problem: Convolution | Product,
        algorithm: VendorAlgorithm,
        pointers: Sequence[int],
        workspace: int,
        stream: int,
    ) -> Callable[[], None]:
        """A call that launches the algorithm on a stream.

        Args:
            problem: a convolution.
            algorithm: one of `algorithms`, of this version.
            pointers: device addresses of the two operands and the result.
            workspace: of its workspace; 0 where it needs none.
            stream: a `cudaStream_t` as a number.

        Raises:
            AutotmError: this GPU has no such algorithm.
        """
        assert isinstance(problem, Convolution)
        library, handle = self._library, self._handle
        graph, tensors = self._graph(problem)
        try:
            self._plan(graph)
            # By its name: of some knobs the frontend does not tell what they are, and cannot be asked for them.
            names = [str(graph.get_plan_name_at_index(index)) for index in range(graph.get_execution_plan_count())]
            index = names.index(algorithm.key)
            graph.build_plan_at_index(index)
            size_bytes = int(graph.get_workspace_size_plan_at_index(index))
        except (library.cudnnGraphNotSupportedError, RuntimeError, ValueError) as error:
            raise VendorError(f"cuDNN {self.version} does not have '{algorithm.name}' on this GPU ({error})") from None
        if size_bytes != algorithm.workspace_bytes:
            raise VendorError(
                f"cuDNN {self.version} asks {size_bytes} bytes of workspace for '{algorithm.name}' on this GPU, "
                f"{algorithm.workspace_bytes} where it was profiled"
            )
        operands = dict(zip(tensors, pointers, strict=True))

        def call() -> None:
            library.set_stream(handle=handle, stream=stream)
            graph.execute_plan_at_index(operands, workspace, index=index, handle=handle)

        return call

    def _graph(self, problem: Convolution) -> tuple[Any, tuple[Any, Any, Any]]:
        """One node, and its operands and result."""
        real = self._library.data_type.FLOAT
        graph = self._library.pygraph(
            io_data_type=real, intermediate_data_type=real, compute_data_type=real, handle=self._handle
        )
        node, named, target = _NODES[problem.kind]
        shapes = operands_of(problem)
        given = {
            name: graph.tensor(name=role, dim=shapes[role][0], stride=shapes[role][1]) for name, role in named.items()
        }
        result = getattr(graph, node)(
            **given,
            pre_padding=list(problem.padding[:2]),
            post_padding=list(problem.padding[2:]),
            stride=list(problem.stride),
            dilation=[1, 1],
        )
        result.set_output(True).set_dim(shapes[target][0]).set_stride(shapes[target][1])
        left, right = given.values()
        return graph, (left, right, result)

    def _plan(self, graph: Any) -> None:
        """Have the library list its algorithms: the same for the same version and GPU."""
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([self._library.heur_mode.A, self._library.heur_mode.FALLBACK])

    def _builds(self, graph: Any, index: int) -> bool:
        """Whether a plan may be used and can be built: the list keeps those that were deselected."""
        try:
            graph.build_plan_at_index(index)
        except (self._library.cudnnGraphNotSupportedError, RuntimeError, ValueError):
            return False
        return True


# NVIDIA's libraries beside each other: what they offer for a problem, and their calls, ready to be launched.

_LOG = logging.getLogger(__name__)
_WORKSPACE_ALIGNMENT_BYTES = 256
"""As memory has it that CUDA allocates, which is what the libraries are tried with; operands need less."""
Problem = Convolution | Product


class Vendor(Protocol):
    """A library on the GPU that is current.

    Attributes:
        version: of the library.
    """

    version: str

    def algorithms(self, problem: Problem) -> list[VendorAlgorithm]:
        """What it offers, its favourite first; nothing for what is not its own."""

    def bound(
        self, problem: Problem, algorithm: VendorAlgorithm, pointers: Sequence[int], workspace: int, stream: int
    ) -> Callable[[], None]:
        """A call that launches an algorithm on a stream."""


VENDORS: Mapping[str, Callable[[], Vendor]] = {CUDNN: Cudnn, CUBLAS: Cublas}
"""By name, what opens a library."""


@dataclass
class Vendors:
    """The libraries, each opened when it is first needed, on the GPU that is current then."""

    _opened: dict[str, Vendor] = field(default_factory=dict)
    _known: dict[Problem, tuple[VendorAlgorithm, ...]] = field(default_factory=dict)

    def installed(self) -> dict[str, str]:
        """Versions of those that are installed; of a missing one a message tells.

        Raises:
            AutotmError: one is installed and does not load, or finds no GPU.
        """
        found = {}
        for name in VENDORS:
            try:
                found[name] = self._vendor(name).version
            except VendorMissingError as error:
                _LOG.info("%s; its algorithms are left out", error)
        return found

    def offers(self, problem: Problem) -> tuple[VendorAlgorithm, ...]:
        """What those offer for a problem that `installed` found."""
        if problem not in self._known:
            self._known[problem] = tuple(
                algorithm for vendor in self._opened.values() for algorithm in vendor.algorithms(problem)
            )
        return self._known[problem]

    def bound(self, call: VendorCall, addresses: Sequence[int], stream: int) -> Callable[[], None]:
        """A call that returns when the algorithm is launched.

        Args:
            call: one of a kernel's.
            addresses: of its inputs, outputs, then workspaces.
            stream: a `cudaStream_t` as a number.

        Raises:
            AutotmError: the library is missing, is of another version, or lacks the algorithm on this GPU.
        """
        algorithm = call.algorithm
        try:
            vendor = self._vendor(algorithm.vendor)
        except VendorMissingError as error:
            raise VendorMissingError(f"a kernel needs {algorithm.vendor} {algorithm.version}: {error}") from None
        if vendor.version != algorithm.version:
            raise VendorError(f"a kernel needs {algorithm.vendor} {algorithm.version}, here is {vendor.version}")
        workspace = 0 if call.workspace is None else _aligned(addresses[call.workspace])
        pointers = [addresses[place] for place in call.arguments]
        return vendor.bound(call.problem, algorithm, pointers, workspace, stream)

    def _vendor(self, name: str) -> Vendor:
        if name not in self._opened:
            self._opened[name] = VENDORS[name]()
        return self._opened[name]


def operand_bytes(workspace_bytes: int) -> int:
    """What a workspace takes as an operand, which starts at a multiple of 64 only."""
    return workspace_bytes + _WORKSPACE_ALIGNMENT_BYTES - ALIGNMENT_BYTES


def _aligned(address: int) -> int:
    return -(-address // _WORKSPACE_ALIGNMENT_BYTES) * _WORKSPACE_ALIGNMENT_BYTES
