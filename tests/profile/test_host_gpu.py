"""The commands of a GPU's bundle on threads that play the device: programs compared, kernels and copies timed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from planned_streams import Planned, on_threads, planned_step

from autotm.model.errors import AutotmError
from autotm.model.files import hash_of
from autotm.model.graph import Tier, all_fast
from autotm.model.limit import Counts
from autotm.model.program import KernelStep
from autotm.profile import host_gpu
from autotm.profile.kernel_timing import ProfileOptions
from autotm.runtime.streams.schedule import device_bytes
from autotm.runtime.verify import VerificationError, plain_program

COUNTS = Counts.INTERMEDIATES


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory, objects: Path) -> Planned:
    return planned_step("mlp", tmp_path_factory.mktemp("mlp"), objects)


@pytest.mark.parametrize("optimizer", ["synchronous", "asynchronous"])
def test_a_program_equals_the_plain_step(planned: Planned, optimizer: str) -> None:
    program = planned.programs[optimizer]
    assert host_gpu.compared(planned.graph, program, COUNTS, 1, 2, on_threads(planned.library)) == len(planned.expected)


def test_a_program_is_compared_kernel_by_kernel_where_the_plain_step_does_not_fit(planned: Planned) -> None:
    graph, program = planned.graph, planned.programs["synchronous"]
    needed = device_bytes(graph, graph, program)
    assert needed < device_bytes(graph, graph, plain_program(graph))
    opened = on_threads(planned.library, most_bytes=needed)
    assert host_gpu.compared(graph, program, COUNTS, 1, 2, opened) == len(planned.expected)
    late = replace(program, steps=tuple(step for step in program.steps if getattr(step, "tensor", None) is None))
    with pytest.raises(VerificationError, match="differs from the plain step"):
        host_gpu.compared(graph, late, COUNTS, 1, 2, opened)
    with pytest.raises(AutotmError, match=r"alone take .* 64 bytes are free"):
        host_gpu.compared(graph, program, COUNTS, 1, 2, on_threads(planned.library, most_bytes=64))


def test_a_program_that_reads_elsewhere_is_told(planned: Planned) -> None:
    program = planned.programs["synchronous"]
    first = next(step for step in program.steps if isinstance(step, KernelStep))
    places = [place for place, address in enumerate(first.addresses) if address.offset is not None]
    moved = list(first.addresses)
    moved[places[0]] = replace(moved[places[0]], offset=(moved[places[0]].offset or 0) + 64)
    wrong = replace(
        program,
        fast_bytes=program.fast_bytes + 64,
        steps=tuple(replace(step, addresses=tuple(moved)) if step is first else step for step in program.steps),
    )
    with pytest.raises(VerificationError, match="step 1 differs from the plain step in"):
        host_gpu.compared(planned.graph, wrong, COUNTS, 1, 2, on_threads(planned.library))


def test_every_kernel_and_copy_is_timed(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_gpu, "COPIED_BYTES", host_gpu.COPIED_BYTES[:3])
    options = ProfileOptions(min_repeats=3, max_repeats=6, step_s=0.0)
    profile, links = host_gpu.profiled(
        planned.graph, COUNTS, options, on_threads(planned.library), {"machine": "played"}
    )
    assert profile.graph_hash == hash_of(planned.graph)
    for kernel in planned.graph.kernels:
        timing = profile.timing(kernel, all_fast(kernel))
        assert timing is not None
        assert timing.repeats == options.min_repeats
        assert timing.median_ns >= 0
    assert (profile.provenance["machine"], profile.provenance["gpu"]) == ("played", "threads")
    assert [link.destination for link in (links.to_fast, links.to_slow)] == [Tier.FAST, Tier.SLOW]
    assert [size for size, _ in links.to_slow.points] == list(host_gpu.COPIED_BYTES)
    assert links.asynchronous is None
    assert links.contraction_flop_per_s > 0


def test_whole_steps_are_timed(planned: Planned) -> None:
    program = planned.programs["asynchronous"]
    assert len(host_gpu.step_seconds(planned.graph, program, COUNTS, 1, 3, on_threads(planned.library))) == 3
