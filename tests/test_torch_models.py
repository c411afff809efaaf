"""Ten models as people train them: as exact as PyTorch's float32, and planned at 4:1 bit for bit."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import small_step

from autotm.model.files import save
from autotm.model.machine import load_machine, provenance
from autotm.model.study import MachinePaths

pytest.importorskip("torch", reason="the models are PyTorch's: make test-torch installs it")
pytest.importorskip("transformers")

ROOT = Path(__file__).parents[1]
COVERAGE = ROOT / "benchmarks" / "coverage.py"
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


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With copies that nobody timed: no bit depends on what they take."""
    folder = tmp_path_factory.mktemp("results")
    machine = load_machine(ROOT / "config" / "machines" / "laptop.yaml").to_measure_on()
    save(MachinePaths(folder, machine).links, "links", small_step.links(), provenance(machine, 0))
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_it_trains(name: str, coverage: ModuleType, results: Path) -> None:
    row = coverage.measure(name, "4:1", results, times=False)
    assert row.is_good, row
