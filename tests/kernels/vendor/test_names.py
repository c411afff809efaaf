"""The libraries' Python packages have what is called of them, and what is played; skipped where they are missing."""

from __future__ import annotations

import inspect

import numpy as np
import played_cublas
import played_cudnn
import pytest

from autotm.kernels import vendor


def public(played: type) -> set[str]:
    return {name for name in vars(played) if not name.startswith("_")}


def test_cudnn_has_the_names() -> None:
    library = pytest.importorskip("cudnn")
    given = {"runtime", "version", "engines", "ran"}
    assert {name for name in public(played_cudnn.PlayedCudnn) - given if not hasattr(library, name)} == set()
    fields = set(played_cudnn.PlayedGraph.__dataclass_fields__)
    assert {name for name in public(played_cudnn.PlayedGraph) - fields if not hasattr(library.pygraph, name)} == set()
    assert hasattr(library.data_type, "FLOAT")
    for played, real in ((played_cudnn.Notes, library.numerical_note), (played_cudnn.Knobs, library.knob_type)):
        assert {one.name for one in played} <= set(real.__members__)
    assert set(vendor._INEXACT) <= set(library.numerical_note.__members__)
    assert {"A", "FALLBACK"} <= set(library.heur_mode.__members__)
    assert issubclass(library.cudnnGraphNotSupportedError, Exception)
    assert list(inspect.signature(library.set_stream).parameters) == ["handle", "stream"]
    called = inspect.signature(library.pygraph.execute_plan_at_index).parameters
    assert {"workspace", "index", "handle"} <= set(called)
    asked = inspect.signature(library.pygraph.__init__).parameters
    assert {"io_data_type", "intermediate_data_type", "compute_data_type", "handle"} <= set(asked)
    assert {"name", "dim", "stride"} <= set(inspect.signature(library.pygraph.tensor).parameters)


def test_cudnn_tells_its_version() -> None:
    library = pytest.importorskip("cudnn")
    major, minor, patch = (int(part) for part in library.backend_version_string().split("."))
    assert library.backend_version() == major * 10000 + minor * 100 + patch


def test_cublas_has_the_names() -> None:
    lt = pytest.importorskip("nvmath.bindings.cublasLt")
    compute, types = pytest.importorskip("nvmath.bindings.cublas"), pytest.importorskip("nvmath")
    fields = set(played_cublas.PlayedCublasLt.__dataclass_fields__)
    assert {name for name in public(played_cublas.PlayedCublasLt) - fields if not hasattr(lt, name)} == set()
    for played, real in (
        (played_cublas.Config, lt.MatmulAlgoConfigAttribute),
        (played_cublas.Preference, lt.MatmulPreferenceAttribute),
        (played_cublas.Description, lt.MatmulDescAttribute),
    ):
        assert {one.name: int(one) for one in played}.items() <= {one.name: int(one) for one in real}.items()
    assert set(vendor._ATTRIBUTES) == set(lt.MatmulAlgoConfigAttribute.__members__), "all that an algorithm is made of"
    assert lt.matmul_heuristic_result_dtype == played_cublas.RESULT
    lib = played_cublas.PlayedCublasLt.__new__(played_cublas.PlayedCublasLt)
    for kind in played_cublas.Config:
        assert lt.get_matmul_algo_config_attribute_dtype(kind) is lib.get_matmul_algo_config_attribute_dtype(kind)
    for kind in played_cublas.Preference:
        assert lt.get_matmul_preference_attribute_dtype(kind) is lib.get_matmul_preference_attribute_dtype(kind)
    assert [int(compute.Operation.N), int(compute.Operation.T)] == [0, 1]
    assert hasattr(compute.ComputeType, "COMPUTE_32F_PEDANTIC")
    assert hasattr(types.CudaDataType, "CUDA_R_32F")
    assert np.zeros(1, lt.matmul_heuristic_result_dtype["algo"]).nbytes == 64


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("matmul", 16),
        ("matmul_algo_get_heuristic", 10),
        ("matmul_algo_init", 9),
        ("matmul_algo_check", 8),
        ("matmul_algo_config_get_attribute", 5),
        ("matmul_algo_config_set_attribute", 4),
        ("matrix_layout_create", 4),
        ("matmul_preference_set_attribute", 4),
        ("matmul_desc_set_attribute", 4),
        ("matmul_desc_create", 2),
    ],
)
def test_cublas_takes_as_many_arguments(name: str, parameters: int) -> None:
    lt = pytest.importorskip("nvmath.bindings.cublasLt")
    told = getattr(lt, name).__doc__.splitlines()[0]
    assert told.count(",") + 1 == parameters
