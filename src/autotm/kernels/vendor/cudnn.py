"""cuDNN's algorithms of convolutions, each with its workspace: its engines, and what their knobs are set to.

Needs `nvidia-cudnn-frontend`, cuDNN and a GPU. **Never run on a GPU**: cuDNN 9.28.1 was seen to plan these graphs for
the facts of an H100 (`tests/kernels/vendor/test_real_planner.py`), and computed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autotm.kernels.vendor.loading import MOST_WORKSPACE_BYTES, VendorError, loaded
from autotm.model.files import AutotmError
from autotm.model.step import Convolution, Product, VendorAlgorithm

NAME = "cudnn"
PACKAGES = "nvidia-cudnn-frontend nvidia-cudnn-cu13"
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
        self._library = loaded("cuDNN", PACKAGES, "cudnn")
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
                    found[key] = VendorAlgorithm(NAME, self.version, key, size_bytes)
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
