"""`autotm.plan` on one's own network and the zoo's: the documented example, at a small size, to a measured record."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import small_step
from tvm import relax

import autotm
from autotm import zoo
from autotm.memory.calibration import Effort, calibrate_links
from autotm.model.errors import BadInputError, InfeasibleLimitError
from autotm.model.limit import fixed_bytes

ROOT = Path(__file__).parents[1]
SIZES = {"batch": 8, "width": 64}
FAST = {"step_s": 0.2, "min_repeats": 2, "patience_s": 0.05, "step_tolerance": 1000.0}


@pytest.fixture(scope="module", autouse=True)
def links_in_a_second() -> Iterator[None]:
    """Measure links as always, but with copies of two sizes and each copy once."""
    with pytest.MonkeyPatch.context() as patch:
        once = partial(calibrate_links, sizes_bytes=(4096, 65536), effort=Effort(1, 1))
        patch.setattr("autotm.profile.copies.calibrate_links", once)
        patch.setattr("autotm.kernels.compute_rates._SECONDS_EACH", 0.01)
        yield


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_mlp", ROOT / "examples" / "mlp.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def options(results: Path) -> dict[str, Any]:
    return {"machine": small_step.machine(), "profile": FAST, "results": results}


@pytest.fixture(scope="module")
def step(example: ModuleType, options: dict[str, Any]) -> autotm.TrainingStep:
    return autotm.prepare(example.mlp, sizes=SIZES, **options)


def test_the_example_is_the_artifacts(example: ModuleType) -> None:
    network = example.mlp(16)
    shapes = [tuple(int(extent) for extent in var.ty.shape) for var in network.module["main"].params]
    assert shapes.count((4096, 4096)) == 3
    assert (4096, 10) in shapes
    assert (network.batch, network.training) == (16, autotm.Training(autotm.Sgd(0.005)))


def test_a_plan_runs_and_equals_the_plain_step(step: autotm.TrainingStep, tmp_path: Path) -> None:
    placed = step.plan("1:1", "synchronous", gap=0.02)
    record = placed.run(min_seconds=0.0, patience_s=0.05, verify_steps=2)
    assert record.verified_steps == 2
    assert (record.network, record.scale, record.counts) == ("my_mlp", "own", "all")
    assert record.predicted_runtime_s == placed.predicted_s
    assert 0 <= placed.gap <= 0.02
    assert 0 < record.dram_alloc_size <= step.peak_bytes / 2
    assert record.pmem_alloc_size > 0
    assert re.fullmatch(
        r"my_mlp, synchronous, limit 1:1: \S+ s a step predicted, \S+ s measured \(median of \d+\), \S+ times the "
        r"all-fast step in turn(, while others held the cores)?; 2 steps equal the plain step bit for bit "
        r"\(emulated slow memory, machine \w+, threads 1, seed 20\)",
        str(record),
    )
    assert "my_mlp, synchronous, limit 1:1" in str(placed)
    assert f"proven within {placed.gap:.2%} of the best" in str(placed)
    placed.view(tmp_path / "plan.html", record)
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert "<title>my_mlp, synchronous, 1:1</title>" in page
    assert "times all fast; slow memory emulated" in page


def test_limits_count_parameters_unless_told_otherwise(
    step: autotm.TrainingStep, example: ModuleType, options: dict[str, Any]
) -> None:
    inner = autotm.prepare(example.mlp, sizes=SIZES, counts="intermediates", **options)
    parameters = 4 * (3 * 64 * 64 + 64 * 10)
    assert step.peak_bytes - inner.peak_bytes >= parameters
    assert inner.plan("4:1").run(min_seconds=0.0, patience_s=0.05, verify_steps=1).counts == "intermediates"
    half, arguments = inner.peak_bytes // 2, fixed_bytes(inner.graph)
    assert arguments >= parameters
    assert fixed_bytes(step.graph) == 0
    beside_arguments = inner.plan(f"{half + arguments + 5000}B-5kB-io", "static").plan
    assert beside_arguments.dram_limit_bytes == half
    assert beside_arguments.objective_us == inner.plan(half, "static").plan.objective_us
    with pytest.raises(InfeasibleLimitError, match=f"alone take {arguments} bytes"):
        inner.plan(f"{arguments - 1}B-io")


def test_a_sweep_is_a_table_a_picture_and_placements(step: autotm.TrainingStep, tmp_path: Path) -> None:
    swept = step.sweep(["1:1", "0:1", "1:1"], "synchronous", run={"min_seconds": 0.0, "patience_s": 0.05}, gap=0.05)
    assert [str(placed.plan.limit) for placed in swept] == ["1:1", "0:1"]
    assert list(swept.table["limit"]) == ["0:1", "1:1"]
    assert (swept.table["measured_slowdown"] > 0).all()
    assert list(swept.table["predicted_runtime_s"]) == [placed.predicted_s for placed in reversed(swept.placements)]
    swept.plot(tmp_path / "sweep.png")
    assert {path.name for path in tmp_path.iterdir()} == {"sweep.pdf", "sweep.png"}
    with pytest.raises(BadInputError, match=r"a picture is a \.pdf or a \.png"):
        swept.plot(tmp_path / "sweep.svg")


def test_a_limit_that_cannot_be_kept_is_a_row(example: ModuleType, options: dict[str, Any]) -> None:
    swept = autotm.sweep(example.mlp, limits=["0:1", "4:1"], optimizer="all-fast", sizes=SIZES, **options)
    assert len(swept) == 1
    assert swept.table["refused"].str.contains("smallest feasible limit").tolist() == [False, True]


def test_bytes_of_every_form_are_the_same_limit(step: autotm.TrainingStep) -> None:
    half = step.peak_bytes // 2 // 1024 * 1024
    plans = [step.plan(limit, "static").plan for limit in (half, f"{half}B", f"{half // 1024}KiB", f"{half / 1e6}MB")]
    assert {plan.dram_limit_bytes for plan in plans} == {half}
    assert len({plan.objective_us for plan in plans}) == 1


def test_plan_does_all_at_once_and_timings_are_kept_between_calls(
    step: autotm.TrainingStep, example: ModuleType, options: dict[str, Any]
) -> None:
    placed = autotm.plan(example.mlp(**SIZES), limit="1:1", optimizer="numa", gap=0.1, **options)
    assert "numa" in str(placed)
    assert "proven" not in str(placed), "first touch has one plan, and no bound to be near"
    assert placed.training_step.profile.timings == step.profile.timings


@pytest.mark.parametrize("optimizer", [pytest.param("asynchronous", marks=pytest.mark.slow), "memory-mode"])
def test_operators_beyond_the_builder(optimizer: str, options: dict[str, Any]) -> None:
    def curved(batch: int) -> autotm.Network:
        net = autotm.NetworkBuilder("curved", batch, learning_rate=0.01)
        x = net.conv(net.input("image", (batch, 8, 8, 3), autotm.Initial("normal")), 16, 3, padding=1, relu=False)
        return net.softmax_cross_entropy(net.dense(net.flatten(net.emit(relax.op.tanh(x))), 10))

    placed = autotm.plan(curved, limit="2:1", optimizer=optimizer, sizes={"batch": 2}, **options)
    assert placed.run(min_seconds=0.0, patience_s=0.05, verify_steps=2).verified_steps == 2


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("mlp", {"batch": 16, "width": 64}),
        pytest.param("transformer", {"batch": 1, "sequence": 8, "vocabulary": 500}, marks=pytest.mark.slow),
    ],
)
def test_adamw_with_clipping_at_a_fifth_of_the_memory(
    name: str, sizes: dict[str, int], options: dict[str, Any]
) -> None:
    """Planned steps with states and clipped gradients compute what the plain step does, bit for bit."""
    training = autotm.Training(autotm.AdamW(1e-3), clip_norm=1.0)
    network = dataclasses.replace(zoo.build(name, sizes), training=training)
    step = autotm.prepare(network, **options)
    placed = step.plan("4:1", "synchronous", gap=0.1, time_limit_s=60)
    assert placed.program.fast_bytes <= step.peak_bytes / 5
    states = {"step", *(f"{each}.{moment}_moment" for each in network.parameters for moment in ("first", "second"))}
    assert states <= {stay.tensor for stay in placed.plan.stays}
    assert placed.run(min_seconds=0.0, patience_s=0.05, verify_steps=3, poison=True).verified_steps == 3


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (lambda step: step.plan("4:1", "statik"), "unknown optimizer 'statik'; did you mean 'static'"),
        (lambda step: step.plan("4:1", None), "unknown optimizer 'None'"),
        (lambda step: step.sweep([]), r"limits: .*: give a list of at least one, or None"),
        (lambda step: step.sweep("4:1"), r"limits: .*: give a list of at least one, or None"),
        (lambda step: step.plan("4:1", gapp=0.1), "unknown key 'gapp'; did you mean 'gap'"),
        (lambda step: step.plan("1:1", "numa").run(min_second=1), "'min_second'; did you mean 'min_seconds'"),
        (lambda step: step.plan("four"), "'four' is not a limit"),
        (lambda step: step.plan("4:1", "all-fast"), "smallest feasible limit"),
    ],
)
def test_faults_of_plans_are_named(step: autotm.TrainingStep, asked: Callable[..., object], message: str) -> None:
    with pytest.raises(autotm.AutotmError, match=message):
        asked(step)


@pytest.mark.parametrize(
    ("network", "changes", "message"),
    [
        ("mlp", {"counts": "al"}, "unknown value of counts 'al'"),
        (3, {}, "a int is no network"),
        (None, {"sizes": SIZES}, "has its sizes"),
        ("mlp", {"machine": "laptob"}, r"laptob\.yaml: no such machine file"),
    ],
)
def test_faults_of_steps_are_named(
    example: ModuleType, options: dict[str, Any], network: object, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(BadInputError, match=message):
        autotm.prepare(example.mlp(**SIZES) if network is None else network, **{**options, **changes})


def test_the_package_itself_imports_nothing_heavy() -> None:
    code = "import sys, autotm; sys.exit('tvm' in sys.modules or 'pyomo' in sys.modules or 'plan' not in dir(autotm))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'plam'"):
        _ = autotm.plam


# `autotm.offload` where PyTorch is missing or too old.


def test_pytorch_is_missing(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(autotm.AutotmError, match=r"PyTorch is not installed; pip install 'autotm\[torch\]'"):
        autotm.offload(None, None)


def test_pytorch_is_too_old(monkeypatch) -> None:
    old = ModuleType("torch")
    old.__version__ = "2.0.1"
    monkeypatch.setitem(sys.modules, "torch", old)
    monkeypatch.setitem(sys.modules, "torch._functorch.aot_autograd", None)
    with pytest.raises(autotm.AutotmError, match=r"PyTorch 2\.0\.1 has no aot_export_joint.*torch>=2\.13"):
        autotm.offload(None, None)
