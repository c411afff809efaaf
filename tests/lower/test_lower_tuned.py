"""A step whose kernels come partly from tuned schedules: other code, same results, nothing allocated unseen."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from autotm import zoo
from autotm.kernels.compiler import copy_of, identity, to_json
from autotm.kernels.library import KernelLibrary
from autotm.kernels.target import host_target
from autotm.lower.lowering import distinct_kernels, lower_network, scheduled_step
from autotm.model.graph import ScheduleKind, schedules_in
from autotm.model.kernel_studies import TunedSchedule
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.tuning import TuningBench, agree

SIZES = {"batch": 16, "width": 40}
TARGET = host_target(2)


def network():
    return zoo.build("mlp", SIZES)


def matmul_schedule(item):
    """The product of each row computed where the row is finished; rows in parallel."""
    import tvm
    from tvm.s_tir import Schedule

    schedule = Schedule(tvm.IRModule({"main": copy_of(item.function)}))
    matmul = schedule.get_sblock("matmul")
    (bias,) = schedule.get_consumers(matmul)
    for consumer in schedule.get_consumers(bias):
        schedule.compute_inline(bias)
        bias = consumer
    row = schedule.get_loops(bias)[0]
    schedule.parallel(row)
    schedule.compute_at(matmul, row)
    return to_json(schedule.trace)


@pytest.fixture(scope="module")
def own():
    return scheduled_step(network(), "test", TARGET, 2)


@pytest.fixture(scope="module")
def tuned(own):
    found = {}
    for item in distinct_kernels(own):
        if item.scheduled.op == "matmul":
            trace = matmul_schedule(item)
            found[item.workload] = TunedSchedule(trace, identity(item.scheduled.func, TARGET))
    assert len(found) == 2
    return found


def test_distinct_kernels_count_every_call_once(own):
    kernels = distinct_kernels(own)
    assert sum(item.calls for item in kernels) == len(own.graph.kernels)
    assert len({item.workload for item in kernels}) == len(kernels)
    weights = [item.weight for item in kernels]
    assert weights == sorted(weights, reverse=True)


def test_a_tuned_kernel_has_an_identity_of_its_own(own, tuned):
    step = scheduled_step(network(), "test", TARGET, 2, tuned)
    pairs = list(zip(own.graph.kernels, step.graph.kernels, strict=True))
    assert all((a.identity != b.identity) == (a.op == "matmul") for a, b in pairs)
    assert [a.op for a, _ in pairs] == [b.op for _, b in pairs]


def test_a_tuned_step_computes_the_same_and_says_what_was_taken(own, tuned, tmp_path, objects):
    files = [(tmp_path / f"{name}.json", tmp_path / f"{name}.so") for name in ("own", "tuned")]
    plain = lower_network(network(), "test", TARGET, 2, *files[0], {}, objects)
    other = lower_network(network(), "test", TARGET, 2, *files[1], {}, objects, tuned=tuned)
    step = scheduled_step(network(), "test", TARGET, 2, tuned)
    libraries = [KernelLibrary.load(path) for _, path in files]
    for kernel, twin in zip(plain.kernels, other.kernels, strict=True):
        bench = TuningBench(plain, kernel, ProfileOptions(rotation_bytes=0))
        expected = bench.results(_compiled(own, libraries[0], kernel))
        assert agree(bench.results(_compiled(step, libraries[1], twin)), expected), kernel.name
    kinds = [schedules_in(json.loads(path.read_text(encoding="utf-8"))["provenance"]) for path, _ in files]
    assert [set(found) for found in kinds] == [{kernel.function for kernel in step.kernels} for step in (plain, other)]
    taken = [{name for name, kind in found.items() if kind is ScheduleKind.SEARCHED} for found in kinds]
    assert taken == [set(), {kernel.function for kernel in other.kernels if kernel.op == "matmul"}]


class _Renamed:
    """A library's kernel under the symbol `main`."""

    def __init__(self, library, symbol):
        self._found = library.function(symbol)

    def __getitem__(self, _):
        return self._found


def _compiled(step, library, kernel):
    scheduled = step.kernels[kernel.function]
    return scheduled, _Renamed(library, kernel.function)


def test_what_differs_beyond_rounding_does_not_agree():
    ones = np.ones(100, "float32")
    assert agree([ones * np.float32(1 + 1e-6)], [ones])
    assert not agree([ones * np.float32(1.01)], [ones])
    assert not agree([np.where(np.arange(100) == 7, np.nan, ones)], [ones])
    assert not agree([np.zeros(3, "int32")], [np.ones(3, "int32")])


def test_stale_schedules_are_not_taken(own, tuned):
    stale = {key: TunedSchedule(entry.trace, "older") for key, entry in tuned.items()}
    step = scheduled_step(network(), "test", TARGET, 2, stale)
    assert step.graph == own.graph


def test_files_are_not_needed_for_scheduling(own):
    assert not any(Path.cwd().glob("kernels.so"))
    assert set(own.functions) == {kernel.function for kernel in own.graph.kernels}
