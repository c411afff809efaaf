"""Ten models as people train them: as exact as PyTorch's float32, and planned at 4:1 bit for bit."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch", reason="the models are PyTorch's: make test-torch installs it")
pytest.importorskip("transformers")

import small_step

import imported_models

COVERAGE = Path(__file__).parents[1] / "benchmarks" / "coverage.py"
MODELS = (
    "resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1", "gpt2", "bert", "llama", "t5", "swin",
    "whisper",
)  # fmt: skip
QUICK = pytest.param("llama", 2, id="llama of two layers")
"""A whole model, with rotated positions and grouped heads; the layers of the others are quick in test_torch_steps."""


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    """The benchmark: its name is also that of a package."""
    spec = importlib.util.spec_from_file_location("coverage_of_models", COVERAGE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "layers"), [QUICK, *(pytest.param(name, None, id=name, marks=pytest.mark.slow) for name in MODELS)]
)
def test_it_trains(
    name: str, layers: int | None, coverage: ModuleType, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if layers:
        monkeypatch.setitem(imported_models._DEEP, "num_hidden_layers", layers)
    row = coverage.measure(name, "4:1", results, times=False, machine=small_step.machine())
    assert row.is_good, row
