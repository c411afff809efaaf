"""A study's stages on a machine of kind cuda, with NVIDIA's modules played and its kernels run by this processor.

Of products in tf32; those in float32 go the same way in `test_gpu_figure.py`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import small_step
from played_study import SIZES, played_context
from recorded_nvml import NVMLError_LibraryNotFound, Recorded

from autotm import stages
from autotm.memory.gpu.opening import NoGpuError
from autotm.model.config import ProfileConfig, RunConfig, SolveConfig
from autotm.model.files import load_with_provenance
from autotm.model.graph import Graph, all_fast
from autotm.model.limit import Limit
from autotm.model.links import Links
from autotm.model.machine import CudaTier
from autotm.model.network_source import NetworkSource
from autotm.model.paths import Paths
from autotm.model.profile import read_profile
from autotm.model.record import Record
from autotm.model.timeline import Lane, Timeline
from autotm.stages import Context, PlacementInputs

LIMIT = Limit.parse("12288B")


def test_from_a_machine_file_to_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = played_context(tmp_path, monkeypatch, CudaTier(kind="cuda", products="tf32"))
    paths = Paths(tmp_path / "results", context.machine, "tiny", "mlp")
    network = NetworkSource("mlp", SIZES)
    paths.graph.parent.mkdir(parents=True)
    stages.calibrate_stage(context, 0.0, links=paths.links)
    links, _ = load_with_provenance(paths.links, "links", Links)
    assert links.asynchronous is not None

    places = {name: getattr(paths, name) for name in ("links", "store", "objects", "values", "graph", "library")}
    config = ProfileConfig(implementations="all", min_repeats=2)
    stages.kernel_profile_stage(context, network, "tiny", config, **places, profile=paths.profile)
    assert read_profile(paths.profile).provenance["gpu"] == "NVIDIA H100 80GB HBM3"
    graph, of_graph = load_with_provenance(paths.graph, "graph", Graph)
    timed = read_profile(paths.profile)
    others = [kernel.computed_by(other.name) for kernel in graph.kernels for other in kernel.alternatives]
    assert len(others) > len(graph.kernels) / 2
    assert {timed.timing(kernel, all_fast(kernel)).repeats for kernel in others} == {2}
    assert any("_tf32_" in kernel.function for kernel in graph.kernels)

    for optimizer in ("synchronous", "asynchronous"):
        plan, program, record = (make(optimizer, LIMIT) for make in (paths.plan, paths.program, paths.record))
        plan.parent.mkdir(parents=True)
        stages.ilp_solve_stage(
            context, optimizer, LIMIT, SolveConfig(time_limit_s=10.0), PlacementInputs.of(paths), plan=plan
        )
        given = {"graph": paths.graph, "profile": paths.profile, "links": paths.links, "plan": plan, "program": program}
        stages.compile_stage(context, PlacementInputs.of(paths), plan=plan, program=program)
        stages.run_stage(
            context,
            RunConfig(min_seconds=0.01, patience_s=0.1),
            **given,
            library=paths.library,
            reference=paths.reference,
            record=record,
        )
        measured, came_from = load_with_provenance(record, "record", Record)
        assert (measured.verified_steps, came_from["tier_reality"], came_from["gpu"]) == (2, "real", "a played GPU")
        for told in (of_graph, read_profile(paths.profile).provenance, came_from):
            assert told["products"] == "tf32"
        timeline, _ = load_with_provenance(record.with_name("timeline.json"), "timeline", Timeline)
        assert timeline.of(Lane.INWARD) or timeline.of(Lane.OUTWARD)


def test_without_a_driver_nothing_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(*_: object, **__: object) -> None:
        pytest.fail("kernels were compiled")

    monkeypatch.setattr("autotm.lower.cuda.co_runners_for_gpu", compiled)
    monkeypatch.setitem(sys.modules, "pynvml", Recorded(init=NVMLError_LibraryNotFound()))
    machine = replace(small_step.machine(), slow_tier=CudaTier(kind="cuda"))
    with pytest.raises(NoGpuError, match="driver"):
        stages.calibrate_stage(Context(machine, tmp_path, 20), 0.0, links=tmp_path / "links.json")
    assert not (tmp_path / "links.json").exists()
