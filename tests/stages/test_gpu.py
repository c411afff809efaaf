"""A study's stages and figure 12 on a machine of kind cuda, with NVIDIA's modules played.

This processor runs the kernels: plans and rivals become records, and pictures name the GPU.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import small_step
from emulated_cuda import emulated_functions
from played_cudart import PlayedRuntime, plug_in
from recorded_nvml import NVMLError_LibraryNotFound, Recorded
from synthetic_records import write_modelled
from thread_device import Delays

import autotm.profile.copies
from autotm.kernels.cuda.device import device_named
from autotm.kernels.cuda.source import Fatbin
from autotm.lower.cuda import co_runners_for_gpu, cuda_step
from autotm.memory.gpu.opening import NoGpuError
from autotm.model.config import ProfileConfig, RunConfig, SolveConfig, StyleConfig
from autotm.model.errors import BadInputError
from autotm.model.files import load, load_with_provenance, save
from autotm.model.graph import Graph, all_fast
from autotm.model.limit import Limit
from autotm.model.links import Links
from autotm.model.machine import CudaTier
from autotm.model.network_source import NetworkSource
from autotm.model.paths import Paths
from autotm.model.plan import SAVE_ON_CPU, Plan, repeats
from autotm.model.profile import read_profile
from autotm.model.program import KernelStep, Program
from autotm.model.record import FrameworkRecord, Record
from autotm.model.timeline import Lane, Timeline
from autotm.stages.bundle import _gpu_step
from autotm.stages.context import Context, PlacementInputs
from autotm.stages.figures import figure_stage, placed_of
from autotm.stages.gpu import save_on_cpu_stage
from autotm.stages.profile import calibrate_stage, kernel_profile_stage
from autotm.stages.run import RunsStage
from autotm.stages.solve import compile_stage, ilp_solve_stage
from autotm.study.view.page import write_page
from autotm.zoo import build

NAMES = ("managed-memory", "asynchronous", "lru-paging", "swap-all", "recompute")
STYLE = StyleConfig(dots_per_inch=50)


# A study's context on a computer with a played H100, whose kernels of a small network this processor runs.

SIZES = {"batch": 16, "width": 64}
"""Sizes of the network `mlp`."""
SOURCE = NetworkSource("mlp", SIZES)
PROFILE = ProfileConfig(implementations="all", min_repeats=2)
SOLVE = SolveConfig(time_limit_s=10.0)
RUN = RunConfig(min_seconds=0.01, patience_s=0.1)
_DEVICE_BYTES = 128 << 20


def played_context(folder: Path, monkeypatch: pytest.MonkeyPatch, tier: CudaTier) -> Context:
    """A context on a played GPU of 128 MiB; kernels that run beside copies do nothing there."""
    monkeypatch.setattr("autotm.lower.cuda.fatbin", _no_image)
    monkeypatch.setattr(
        autotm.profile.copies,
        "measure_gpu_links",
        functools.partial(autotm.profile.copies.measure_gpu_links, sizes_bytes=(1 << 12, 1 << 16)),
    )
    step = cuda_step(build("mlp", SIZES), "tiny", device_named("h100"), "all", tier.products)
    functions = emulated_functions(step.kernels.values(), folder)
    _, co_runners = co_runners_for_gpu(device_named("h100"), folder / "co_runners.zip", products=tier.products)
    for kernel in co_runners.values():
        functions |= {launch.function: lambda *_: None for launch in kernel.launches}
    plug_in(monkeypatch, PlayedRuntime(device_bytes=_DEVICE_BYTES, order=Delays(2, 1e-5)), functions)
    return Context(replace(small_step.machine(), name="gpu", slow_tier=tier), folder, 20)


def profiled(folder: Path, context: Context) -> Paths:
    """The files of the network, after its copies and kernels were timed."""
    paths = Paths(folder / "results", context.machine, "tiny", "mlp")
    calibrate_stage(context, 0.0, links=paths.links)
    kernel_profile_stage(context, SOURCE, PROFILE, paths)
    return paths


def compiled(context: Context, paths: Paths, optimizer: str, limit: Limit) -> None:
    """Make plan and program of a network."""
    inputs, plan = PlacementInputs(paths), paths.plan(optimizer, limit)
    ilp_solve_stage(context, optimizer, limit, SOLVE, inputs, plan=plan)
    compile_stage(context, inputs, plan=plan, program=paths.program(optimizer, limit))


def ran(context: Context, paths: Paths, optimizer: str, limit: Limit) -> Path:
    """The record of a program that is there."""
    return RunsStage(context, RUN, paths).run(optimizer, limit)


def _no_image(*_: object, **__: object) -> Fatbin:
    """What nvcc would make; the played driver has the functions already."""
    return Fatbin(b"fatbin", ())


# Products in tf32; those in float32 follow.


def test_from_a_machine_file_to_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = played_context(tmp_path, monkeypatch, CudaTier(kind="cuda", products="tf32"))
    paths, limit = profiled(tmp_path, context), Limit.parse("12288B")
    links, _ = load_with_provenance(paths.links, "links", Links)
    assert links.asynchronous is not None
    assert read_profile(paths.profile).provenance["gpu"] == "NVIDIA H100 80GB HBM3"
    graph, of_graph = load_with_provenance(paths.graph, "graph", Graph)
    assert of_graph["gpu"] == "NVIDIA H100 80GB HBM3"
    timed = read_profile(paths.profile)
    others = [kernel.computed_by(other.name) for kernel in graph.kernels for other in kernel.alternatives]
    assert len(others) > len(graph.kernels) / 2
    assert {timed.timing(kernel, all_fast(kernel)).repeats for kernel in others} == {2}
    assert any("_tf32_" in kernel.function for kernel in graph.kernels)

    for optimizer in ("synchronous", "asynchronous"):
        compiled(context, paths, optimizer, limit)
        record = ran(context, paths, optimizer, limit)
        measured, came_from = load_with_provenance(record, "record", Record)
        assert (measured.verified_steps, came_from["tier_reality"], came_from["gpu"]) == (2, "real", "a played GPU")
        for source in (of_graph, read_profile(paths.profile).provenance, came_from):
            assert source["products"] == "tf32"
        timeline, _ = load_with_provenance(record.with_name("timeline.json"), "timeline", Timeline)
        assert timeline.of(Lane.INWARD) or timeline.of(Lane.OUTWARD)


def test_without_a_driver_nothing_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(*_: object, **__: object) -> None:
        pytest.fail("kernels were compiled")

    monkeypatch.setattr("autotm.lower.cuda.co_runners_for_gpu", compiled)
    monkeypatch.setitem(sys.modules, "pynvml", Recorded(init=NVMLError_LibraryNotFound()))
    machine = replace(small_step.machine(), slow_tier=CudaTier(kind="cuda"))
    with pytest.raises(NoGpuError, match="driver"):
        calibrate_stage(Context(machine, tmp_path, 20), 0.0, links=tmp_path / "links.json")
    assert not (tmp_path / "links.json").exists()


# Figure 12.

LIMIT, WIDE = Limit.parse("13056B"), Limit.parse("1MB")
"""Recomputation needs 12992 bytes, which fit the first limit; swapping needs more than that limit."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Records by optimizer, from one profile, and of PyTorch's own step; the played GPU is gone when they are drawn."""
    folder = tmp_path_factory.mktemp("gpu")
    with pytest.MonkeyPatch.context() as monkeypatch:
        context = played_context(folder, monkeypatch, CudaTier(kind="cuda", managed_oversubscription=True))
        paths = profiled(folder, context)
        for name in NAMES:
            compiled(context, paths, name, LIMIT)
        own = {str(limit): own_step(context, paths, limit, playing()) for limit in (LIMIT, WIDE)}
        return {name: ran(context, paths, name, LIMIT) for name in NAMES} | own


@pytest.fixture(scope="module")
def records(files: dict[str, Path]) -> dict[str, Path]:
    """Records of the runs of programs, by optimizer."""
    return {name: files[name] for name in NAMES}


def playing() -> Any:
    """A CPU in the place of the GPU, where PyTorch is installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    from autotm.memory.torch_device import device_of

    return device_of(torch.device("cpu"))


def own_step(context: Context, paths: Paths, limit: Limit, device: Any) -> Path:
    save_on_cpu_stage(context, SOURCE, limit, RUN, paths, device)
    return paths.framework(SAVE_ON_CPU, limit)


def test_rivals_have_records_and_one_that_does_not_fit_says_so(records: dict[str, Path]) -> None:
    graph = load(records["recompute"].parents[2] / "graph.json", "graph", Graph)
    assert not any("_tf32_" in kernel.function for kernel in graph.kernels)
    for name, path in records.items():
        record, source = load_with_provenance(path, "record", Record)
        assert "products" not in source, "they are float32, as usual"
        assert (record.optimizer, source["tier_reality"], source["gpu_driver"]) == (name, "real", "580.65.06")
        assert record.fits == (name != "swap-all")
        assert path.with_name("timeline.json").exists() == record.fits
        assert record.verified_steps == (2 if record.fits else 0)
        assert (record.actual_runtime_median_s is not None) == record.fits
    managed = load(records["managed-memory"], "record", Record)
    assert managed.gpu_managed_runtime_s == managed.actual_runtime_median_s
    assert managed.dram_alloc_size == managed.dram_limit_bytes


def text_of(picture: Path) -> str:
    """Its caption, as the file keeps it, in one line."""
    return " ".join(picture.read_bytes().decode("latin-1").split())


@pytest.fixture(scope="module")
def drawn(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, str]:
    """Table and caption of the figure of all programs, and of PyTorch's step at the wide limit."""
    csv = tmp_path_factory.mktemp("drawn") / "fig12.csv"
    figure_stage(STYLE, {"steps": [path for name, path in files.items() if name != str(LIMIT)]}, csv=csv)
    return pd.read_csv(csv).set_index("optimizer"), text_of(csv.with_suffix(".png"))


def test_the_figure_is_of_measured_steps_and_names_the_gpu(
    records: dict[str, Path], drawn: tuple[pd.DataFrame, str]
) -> None:
    table, text = drawn[0].drop(index=SAVE_ON_CPU), drawn[1]
    assert table.loc["managed-memory", "speedup"] == 1.0
    measured = {name: load(path, "record", Record).actual_runtime_median_s for name, path in records.items()}
    for name in ("asynchronous", "lru-paging", "recompute"):
        assert table.loc[name, "speedup"] == pytest.approx(measured["managed-memory"] / measured[name])
    assert table.loc["swap-all", ["step_s", "speedup"]].isna().all()
    assert not table.loc["swap-all", "fits"]
    again = load(records["recompute"], "record", Record)
    kernels_s = sum(again.kernel_times_us.values()) / 1e6
    assert 0 < again.repeated_share < 1
    assert table.loc["recompute", "repeated_s"] == pytest.approx(again.repeated_share * kernels_s)
    assert table.loc["recompute", ["kernels_s", "repeated_s"]].sum() == pytest.approx(kernels_s)
    assert (table["repeated_s"].fillna(0) > 0).to_dict() == {name: name == "recompute" for name in NAMES}
    assert table["oracle_s"].max() == table["oracle_s"].min()
    assert table["gap"].notna().to_dict() == {name: name == "asynchronous" for name in NAMES}
    for part in (
        "REAL device memory of a played GPU",
        "580.65.06",
        "bit for bit",
        "cudaMallocManaged",
        "% of the kernels' time was repeated",
    ):
        assert part in text, part
    assert "MODELLED" not in text


def test_the_timeline_is_what_streams_did(records: dict[str, Path], tmp_path: Path) -> None:
    csv = tmp_path / "fig12_timeline.csv"
    figure_stage(STYLE, {"steps": list(records.values())}, csv=csv)
    table = pd.read_csv(csv)
    lanes = {name: set(step["engine"].dropna()) for name, step in table.groupby("optimizer")}
    assert lanes["managed-memory"] == lanes["recompute"] == {"compute"}
    again = table[(table["optimizer"] == "recompute") & table["name"].str.endswith(" again")]
    assert len(again) == len(repeats(load(records["recompute"].with_name("plan.json"), "plan", Plan).calls))
    assert lanes["lru-paging"] == {"compute", "in", "out"}
    assert lanes["swap-all"] == set()
    assert (table["end_us"] >= table["start_us"]).all()
    assert "MODELLED" not in text_of(csv.with_suffix(".png"))


def test_measured_and_modelled_steps_never_share_a_figure(records: dict[str, Path], tmp_path: Path) -> None:
    source = load_with_provenance(records["managed-memory"], "record", Record)[1]
    modelled = write_modelled(tmp_path / "modelled", source | {"tier_reality": "modelled"}, {"mlp": (16,)})
    for name in ("fig12", "fig12_timeline"):
        with pytest.raises(BadInputError, match=r"is modelled, .*record.json is measured: these do not compare"):
            figure_stage(STYLE, {"steps": [*records.values(), *modelled]}, csv=tmp_path / f"{name}.csv")


def test_records_without_a_gpu_or_of_two_are_refused(records: dict[str, Path], tmp_path: Path) -> None:
    copied = []
    for name, path in records.items():
        copied.append(tmp_path / name / "record.json")
        shutil.copytree(path.parent, copied[-1].parent)
    record, source = load_with_provenance(copied[1], "record", Record)
    save(copied[1], "record", record, source | {"gpu": "another"})
    with pytest.raises(BadInputError, match="records of one gpu make a figure; got a played GPU, another"):
        figure_stage(STYLE, {"steps": copied}, csv=tmp_path / "fig12.csv")
    del source["gpu"]
    save(copied[1], "record", replace(record, tier_reality="emulated"), source)
    with pytest.raises(BadInputError, match="names no GPU"):
        figure_stage(STYLE, {"steps": copied}, csv=tmp_path / "fig12.csv")
    with pytest.raises(BadInputError, match="no step of 'managed-memory'"):
        figure_stage(STYLE, {"steps": copied[2:3]}, csv=tmp_path / "fig12.csv")


def test_pages_and_heaps_show_a_kernel_for_each_call(records: dict[str, Path], tmp_path: Path) -> None:
    record = records["recompute"]
    paths = Paths(record.parents[5], replace(small_step.machine(), name="gpu"), "tiny", "mlp")
    write_page(placed_of(paths, "recompute", LIMIT, with_record=True), tmp_path / "plan.html")
    inputs = {"graph": paths.graph, "profile": paths.profile}
    inputs |= {name: record.with_name(f"{name}.json") for name in ("plan", "program")}
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    figure_stage(STYLE, inputs, csv=tmp_path / "heap.csv")
    heap, plan = pd.read_csv(tmp_path / "heap.csv"), load(inputs["plan"], "plan", Plan)
    again = heap[heap["tensor"].str.endswith(" again")]
    assert len(again) >= len(repeats(plan.calls)) > 0
    assert all(name in page for name in again["tensor"])
    assert heap["end"].max() == len(plan.calls)


def test_a_bundle_for_gpus_has_the_plan_of_its_step_or_else_nothing_leaves_the_device(
    records: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(records["recompute"].parents[5], tmp_path / "results")
    monkeypatch.setattr("autotm.kernels.cuda.source.fatbin", _no_image)
    context = Context(replace(small_step.machine(), name="gpu", slow_tier=CudaTier(kind="cuda")), tmp_path, 20)
    study: Any = SimpleNamespace(network=lambda _: SOURCE, config=SimpleNamespace(profile=PROFILE))
    paths = Paths(tmp_path / "results", context.machine, "tiny", "mlp")
    planned, plain = (
        _gpu_step(study, context, paths, "asynchronous", limit, "h100", tmp_path) for limit in (LIMIT, WIDE)
    )
    for_home = {"plan.json", "profile.json", "links.json"}
    assert {"graph.json", "program.json", "kernels.fatbin.zip"} == planned.files.keys() - for_home == {*plain.files}
    assert (planned.optimizer, planned.limit) == ("asynchronous", str(LIMIT))
    assert (plain.optimizer, plain.limit) == ("all-fast", "0:1")
    program = load(plain.files["program.json"], "program", Program)
    assert not [step for step in program.steps if not isinstance(step, KernelStep)]


def test_pytorch_trains_the_same_network_and_one_that_takes_more_than_the_limit_is_not_timed(
    files: dict[str, Path],
) -> None:
    pytest.importorskip("torch", reason="the step is PyTorch's: make test-torch installs it")
    tight, wide = (load(files[str(limit)], "framework_record", FrameworkRecord) for limit in (LIMIT, WIDE))
    for record in (tight, wide):
        assert record.tier_reality == "stand-in"
        assert "CPU" in record.device
        assert len(record.losses) == len(record.plain_losses) == 2
        assert record.loss_margin is not None
        assert abs(record.losses[0] - record.plain_losses[0]) <= record.loss_margin <= 1e-3 * record.losses[0]
        # The update rule is the same, too.
        assert record.losses[1] == pytest.approx(record.plain_losses[1], rel=1e-4)
        assert record.losses[1] < record.losses[0]
    assert (wide.fits, tight.fits) == (True, False)
    assert wide.most_bytes == tight.most_bytes
    assert tight.dram_limit_bytes < (tight.most_bytes or 0) <= wide.dram_limit_bytes
    assert tight.samples_s == ()
    assert wide.step_s is not None
    assert 0 < (wide.between_events_s or 0.0) <= 1.5 * wide.step_s
    source = load_with_provenance(files[str(WIDE)], "framework_record", FrameworkRecord)[1]
    assert (source["gpu_driver"], source["tier_reality"]) == ("580.65.06", "stand-in")


def test_pytorchs_step_has_a_bar_or_a_cross_or_the_caption_says_why_not(
    files: dict[str, Path], drawn: tuple[pd.DataFrame, str], tmp_path: Path
) -> None:
    table, text = drawn
    own = load(files[str(WIDE)], "framework_record", FrameworkRecord)
    assert table.loc[SAVE_ON_CPU, "oracle_s"] == table["oracle_s"].max()
    if own.left_out:
        assert own.left_out == "PyTorch is not installed here"
        assert "save_on_cpu is left out: PyTorch is not installed here." in text
        assert pd.isna(table.loc[SAVE_ON_CPU, "speedup"])
    else:
        base_s = load(files["managed-memory"], "record", Record).actual_runtime_median_s
        assert table.loc[SAVE_ON_CPU, "speedup"] == pytest.approx(base_s / own.step_s)
        for part in ("PyTorch's own step of the same network (mlp: PyTorch", "It ran on NO GPU"):
            assert part in text, part
        csv = tmp_path / "fig12.csv"
        figure_stage(STYLE, {"steps": [path for name, path in files.items() if name != str(WIDE)]}, csv=csv)
        over = pd.read_csv(csv).set_index("optimizer").loc[SAVE_ON_CPU]
        assert not over["fits"], "a cross"
        assert pd.isna(over["step_s"])
        assert "left out" not in text_of(csv.with_suffix(".png"))
