"""A machine file of kind cuda to a record, with NVIDIA's modules played: profiled, planned, verified, timed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import random_graphs
import small_step
from planned_streams import ONLY_FAST, Planned, functions_of, launches_of
from played_cudart import PlayedRuntime
from played_gpu import plug_in
from thread_device import Delays

from autotm.kernels.library import FatbinLibrary
from autotm.layout.compile import compile_program
from autotm.memory.gpu.opening import GpuRefusedError
from autotm.model.limit import Limit
from autotm.model.machine import CudaTier
from autotm.runtime.step_times import RunOptions
from autotm.runtime.streams.run import profile_on_gpu, run_on_gpu
from autotm.solve.placing import solve_and_pack

MACHINE = replace(small_step.machine(), slow_tier=CudaTier(kind="cuda"))
LINKS = random_graphs.make_links(5.0, 5.0, tiny=True)
QUICK = RunOptions(min_seconds=0.01, patience_s=0.05)


@pytest.fixture
def library(planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FatbinLibrary:
    """The network's kernels as a fatbin for sm_90, on a computer with a played H100."""
    played = PlayedRuntime(order=Delays(2, 1e-5))
    plug_in(monkeypatch, played, functions_of(planned, played))
    return FatbinLibrary.save(tmp_path / "kernels.zip", b"fatbin", ("sm_90",), launches_of(planned))


def test_a_run_on_a_gpu(planned: Planned, library: FatbinLibrary) -> None:
    profile = profile_on_gpu(planned.graph, library, MACHINE, 2, {})
    limit = Limit.parse(f"{planned.programs['synchronous'].fast_bytes}B")
    plan, layout = solve_and_pack(planned.graph, profile, LINKS, "synchronous", limit, ONLY_FAST)
    program = compile_program(planned.graph, plan, layout)
    record, timeline = run_on_gpu(planned.graph, library, program, plan, MACHINE, LINKS, profile, QUICK)
    assert record.verified_steps == 2
    assert record.num_move_nodes > 0
    assert timeline.device == "a played GPU"


def test_kernels_for_another_gpu_are_refused_before_anything_is_taken(planned: Planned, library: FatbinLibrary) -> None:
    with pytest.raises(GpuRefusedError, match="is sm_90, the kernels are built for sm_80"):
        profile_on_gpu(planned.graph, replace(library, architectures=("sm_80",)), MACHINE, 2, {})
