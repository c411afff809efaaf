"""Ten models as people train them: as exact as PyTorch's float32, and planned at 4:1 bit for bit."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch", reason="the models are PyTorch's: make test-torch installs it")
pytest.importorskip("transformers")

COVERAGE = Path(__file__).parents[1] / "benchmarks" / "coverage.py"
MODELS = (
    "resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1", "gpt2", "bert", "llama", "t5", "swin",
    "whisper",
)  # fmt: skip


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    """The benchmark: its name is also that of a package."""
    spec = importlib.util.spec_from_file_location("coverage_of_models", COVERAGE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", MODELS)
def test_it_trains(name: str, coverage: ModuleType, tmp_path: Path) -> None:
    row = coverage.measure(name, "4:1", tmp_path, times=False)
    assert row.is_good, row
