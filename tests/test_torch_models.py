"""Ten models as people train them: as exact as PyTorch's float32, and planned at 4:1 bit for bit."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch", reason="the models are PyTorch's: make test-torch installs it")
pytest.importorskip("transformers")

import small_step

COVERAGE = Path(__file__).parents[1] / "benchmarks" / "coverage.py"
MODELS = (
    "resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1", "gpt2", "bert", "llama", "t5", "swin",
    "whisper",
)  # fmt: skip
QUICK = {"shufflenet_v2_x0_5", "llama", "whisper"}
"""Depthwise convolutions, batch norm and shuffles; rotated positions and grouped heads; an encoder and a decoder."""


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
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MODELS]
)
def test_it_trains(name: str, coverage: ModuleType, results: Path) -> None:
    row = coverage.measure(name, "4:1", results, times=False, machine=small_step.machine())
    assert row.is_good, row
