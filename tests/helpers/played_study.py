"""A study's context on a computer with a played H100, whose kernels of a small network this processor runs."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import small_step
from emulated_cuda import emulated_functions
from played_cudart import PlayedRuntime, plug_in
from thread_device import Delays

import autotm.profile.copies
from autotm.kernels.cuda.device import device_named
from autotm.kernels.cuda.source import Fatbin
from autotm.lower.cuda import co_runners_for_gpu, cuda_step
from autotm.model.config import ProfileConfig, RunConfig, SolveConfig
from autotm.model.limit import Limit
from autotm.model.machine import CudaTier
from autotm.model.network_source import NetworkSource
from autotm.model.paths import Paths
from autotm.stages.context import Context, PlacementInputs
from autotm.stages.profile import calibrate_stage, kernel_profile_stage
from autotm.stages.run import RunsStage
from autotm.stages.solve import compile_stage, ilp_solve_stage
from autotm.zoo import build

SIZES = {"batch": 16, "width": 64}
"""Of the network, `mlp`."""
SOURCE = NetworkSource("mlp", SIZES)
PROFILE = ProfileConfig(implementations="all", min_repeats=2)
SOLVE = SolveConfig(time_limit_s=10.0)
RUN = RunConfig(min_seconds=0.01, patience_s=0.1)
_DEVICE_BYTES = 128 << 20


def played_context(folder: Path, monkeypatch: pytest.MonkeyPatch, tier: CudaTier) -> Context:
    """On a GPU of 128 MiB; kernels that run beside copies do nothing there."""
    monkeypatch.setattr("autotm.lower.cuda.fatbin", _no_image)
    monkeypatch.setattr(
        autotm.profile.copies,
        "measure_gpu_links",
        functools.partial(autotm.profile.copies.measure_gpu_links, sizes_bytes=(1 << 12, 1 << 16)),
    )
    step = cuda_step(build("mlp", SIZES), "tiny", device_named("h100"), "all", tier.products)
    functions = emulated_functions(step.kernels.values(), folder)
    _, beside = co_runners_for_gpu(device_named("h100"), folder / "co_runners.zip", products=tier.products)
    for kernel in beside.values():
        functions |= {launch.function: lambda *_: None for launch in kernel.launches}
    played = PlayedRuntime(device_bytes=_DEVICE_BYTES, order=Delays(2, 1e-5))
    plug_in(monkeypatch, played, functions)
    machine = replace(small_step.machine(), name="gpu", slow_tier=tier)
    return Context(machine, folder, 20)


def profiled(folder: Path, context: Context) -> Paths:
    """The files of the network, after its copies and kernels were timed."""
    paths = Paths(folder / "results", context.machine, "tiny", "mlp")
    calibrate_stage(context, 0.0, links=paths.links)
    kernel_profile_stage(context, SOURCE, PROFILE, paths)
    return paths


def compiled(context: Context, paths: Paths, optimizer: str, limit: Limit) -> None:
    """Make plan and program of a network."""
    given, plan = PlacementInputs(paths), paths.plan(optimizer, limit)
    ilp_solve_stage(context, optimizer, limit, SOLVE, given, plan=plan)
    compile_stage(context, given, plan=plan, program=paths.program(optimizer, limit))


def ran(context: Context, paths: Paths, optimizer: str, limit: Limit) -> Path:
    """The record of a program that is there."""
    return RunsStage(context, RUN, paths).run(optimizer, limit)


def _no_image(*_: object, **__: object) -> Fatbin:
    """What nvcc would make; the played driver has the functions already."""
    return Fatbin(b"fatbin", ())
