"""A modelled GPU through all stages: nothing is compiled or run, and every file and figure says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from autotm.model.config import SolveConfig, StyleConfig
from autotm.model.errors import BadInputError
from autotm.model.files import load, load_with_provenance
from autotm.model.limit import Limit
from autotm.model.machine import CudaTier, load_machine
from autotm.model.network_source import NetworkSource
from autotm.model.paths import Paths
from autotm.model.plan import GPU_RIVALS, Plan
from autotm.model.profile import read_profile
from autotm.model.timeline import ModelledStep
from autotm.stages.context import Context, PlacementInputs
from autotm.stages.figures import figure_stage
from autotm.stages.modelled import model_kernels_stage, modelled_step_stage
from autotm.stages.profile import calibrate_stage
from autotm.stages.solve import ilp_solve_stage

CONFIG = Path(__file__).parents[2] / "config"
LIMIT = Limit(2, 3)
SOLVE = SolveConfig(gap=0.05, time_limit_s=5.0)


@pytest.fixture(scope="module")
def context() -> Context:
    return Context(load_machine(CONFIG / "machines" / "modelled-rtx-2080-ti.yaml"), CONFIG / "devices", 20)


@pytest.fixture(scope="module")
def steps(context: Context, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small network's modelled steps, by optimizer."""
    paths = Paths(tmp_path_factory.mktemp("results"), context.machine, "tiny", "test_vgg")
    calibrate_stage(context, 0.0, links=paths.links)
    model_kernels_stage(context, NetworkSource("test_vgg", {"batch": 4, "image": 64}), paths)
    plan, optimizers = paths.plan("asynchronous", LIMIT), ("asynchronous", *GPU_RIVALS)
    ilp_solve_stage(context, "asynchronous", LIMIT, SOLVE, PlacementInputs(paths), plan=plan)
    for optimizer in optimizers:
        modelled_step_stage(context, optimizer, LIMIT, SOLVE, paths)
    return {optimizer: paths.modelled(optimizer, LIMIT) for optimizer in optimizers}


def test_every_file_says_that_it_is_modelled(steps: dict[str, Path]) -> None:
    for path in steps.values():
        step, source = load_with_provenance(path, "modelled_step", ModelledStep)
        assert step.tier_reality == source["tier_reality"] == "modelled"
        assert "modelled-rtx-2080-ti" in str(path)
    profile = read_profile(next(iter(steps.values())).parents[2] / "profile.parquet")
    assert profile.provenance["tier_reality"] == "modelled"
    assert {timing.repeats for timing in profile.timings.values()} == {0}


def test_plans_use_fast_operands_only_and_their_steps_keep_their_bounds(steps: dict[str, Path]) -> None:
    plan = load(steps["asynchronous"].with_name("plan.json"), "plan", Plan)
    assert {letter for config in plan.configurations for letter in config} == {"D"}
    step = load(steps["asynchronous"], "modelled_step", ModelledStep)
    assert step.fits
    assert step.oracle_us <= (step.bound_us or 0.0) * (1 + 1e-9) <= step.step_us * (1 + 1e-6)


def test_figures_say_on_their_face_that_nothing_ran(steps: dict[str, Path], tmp_path: Path) -> None:
    style = StyleConfig(dots_per_inch=50)
    for name in ("fig12", "fig12_timeline"):
        csv = tmp_path / f"{name}.csv"
        figure_stage(style, {"steps": list(steps.values())}, csv=csv)
        table = pd.read_csv(csv)
        assert set(table["tier_reality"]) == {"modelled"}
        assert b"MODELLED" in csv.with_suffix(".png").read_bytes()
        assert csv.with_suffix(".pdf").stat().st_size > 0
    table = pd.read_csv(tmp_path / "fig12.csv").set_index("optimizer")
    assert table.loc["managed-memory", "speedup"] == 1.0
    assert table.loc["asynchronous", "speedup"] > 1.0
    with pytest.raises(BadInputError, match="no step of 'managed-memory'"):
        figure_stage(style, {"steps": [steps["asynchronous"]]}, csv=tmp_path / "fig12.csv")


def test_nothing_is_measured_on_a_model(context: Context) -> None:
    with pytest.raises(BadInputError, match="nothing runs"):
        context.to_measure()


def test_steps_are_modelled_on_models_only(context: Context, tmp_path: Path) -> None:
    real = replace(context, machine=replace(context.machine, slow_tier=CudaTier(kind="cuda")))
    with pytest.raises(BadInputError, match="no machine of kind modelled"):
        model_kernels_stage(real, NetworkSource("mnist", {}), Paths(tmp_path, real.machine, "tiny", "mnist"))
