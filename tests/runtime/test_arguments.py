"""What parameters and inputs are filled with, as seed and name say, over several cores, and where they lie."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import small_step

from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.kernels.library import KernelLibrary
from autotm.layout.compile import compile_program
from autotm.layout.packing import layout_of
from autotm.memory.opening import open_tiers
from autotm.model.errors import AutotmError
from autotm.model.graph import Graph, Initial, Role, Tensor, Tier
from autotm.model.limit import Counts, Limit, counting
from autotm.model.profile import Profile
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.profiler import profile_kernels
from autotm.profile.store import KernelStore
from autotm.runtime.arguments import Arguments, initial_value, io_bytes, spread
from autotm.runtime.run import run
from autotm.runtime.step_times import RunOptions
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve, solve_and_pack


def tensor(kind: str, shape: tuple[int, ...] = (200, 100), scale: float = 1.0, name: str = "t") -> Tensor:
    return Tensor(name, Role.INPUT, shape, "float32", 4 * int(np.prod(shape)), None, (), None, Initial(kind, scale))


def test_values_follow_seed_and_name_alone() -> None:
    first = initial_value(tensor("normal"), 1)
    assert (first == initial_value(tensor("normal"), 1)).all()
    assert (first != initial_value(tensor("normal"), 2)).mean() > 0.99
    assert (first != initial_value(tensor("normal", name="u"), 1)).mean() > 0.99


def test_distributions() -> None:
    normal, uniform = initial_value(tensor("normal", scale=0.1), 0), initial_value(tensor("uniform", scale=3.0), 0)
    assert normal.std() == pytest.approx(0.1, rel=0.03)
    assert abs(normal.mean()) < 0.003
    assert 0 <= uniform.min() < uniform.max() < 3
    assert uniform.mean() == pytest.approx(1.5, rel=0.03)
    assert (initial_value(tensor("zeros"), 0) == 0).all()
    assert (initial_value(tensor("ones"), 0) == 1).all()
    one_hot = initial_value(tensor("one_hot"), 0)
    assert (one_hot.sum(axis=1) == 1).all()
    assert set(np.unique(one_hot)) == {0, 1}
    assert len(set(one_hot.argmax(axis=1))) > 50


def test_integers_fill_their_range_and_fit_any_type() -> None:
    indices = initial_value(replace(tensor("integers", scale=7), dtype="int32"), 0)
    assert indices.dtype == np.int32
    assert set(np.unique(indices)) == set(range(7))
    assert set(np.unique(initial_value(tensor("integers", scale=2), 0))) == {0.0, 1.0}


def test_sinusoids_are_the_published_positions_and_the_future_is_above_the_diagonal() -> None:
    value, late = initial_value(tensor("sinusoids", (50, 8)), 0), 10 / 10000 ** (6 / 8)
    assert value[10, [0, 1, 6, 7]].tolist() == pytest.approx([np.sin(10), np.cos(10), np.sin(late), np.cos(late)])
    assert initial_value(tensor("future", (3, 3), scale=-5.0), 0).tolist() == [[0, -5, -5], [0, 0, -5], [0, 0, 0]]


def test_values_are_the_same_on_every_machine() -> None:
    """Known numbers: results of other machines can be verified only by arguments that are alike."""
    for kind, known in (
        ("normal", [-0.1873281, 0.21452047, 0.42639473]),
        ("uniform", [0.98550737, 0.55235958, 0.23936182]),
    ):
        assert initial_value(tensor(kind, (3,)), 20).tolist() == pytest.approx(known, rel=1e-6)


def test_other_precisions_start_from_the_same_numbers() -> None:
    drawn = initial_value(tensor("normal", scale=0.1), 0)
    exact = initial_value(replace(tensor("normal", scale=0.1), dtype="float64"), 0)
    assert exact.dtype == np.float64
    assert (exact.astype(np.float32) == drawn).all()
    half = initial_value(replace(tensor("normal", scale=0.1), dtype="float16"), 0)
    assert (half == drawn.astype(np.float16)).all()


def test_an_updated_parameter_shares_memory_and_counts_once() -> None:
    graph = small_step.graph()
    arguments = Arguments.allocate(graph)
    arguments.fill(0)
    arguments.value("w_new")[...] = 7
    assert (arguments.value("w") == 7).all()
    assert (arguments.value("v") != 7).all()
    assert io_bytes(graph) == 4 * (2 * 32 * 64 + 2 * 64 * 64 + 1)


def test_a_parameter_without_initial_value_is_named() -> None:
    graph = small_step.graph()
    bare = tuple(replace(t, initial=None) if t.name == "w" else t for t in graph.tensors)
    with pytest.raises(AutotmError, match="'w'"):
        Arguments.allocate(Graph(graph.network, graph.scale, graph.batch, graph.kernels, bare)).fill(0)


def test_filled_anew_from_copies_or_drawn_again_all_is_as_before_the_first_step() -> None:
    graph = small_step.graph()
    drawn = Arguments.allocate(graph)
    drawn.fill(1)
    copied = Arguments(graph, drawn.places, drawn.copied())
    names = [tensor.name for tensor in graph.tensors if not tensor.role.is_movable and tensor.alias_of is None]
    first = {name: drawn.value(name).copy() for name in names}
    for arguments in (drawn, copied):
        for name in names:
            arguments.value(name)[...] = 7
        arguments.fill(1)
        for name in names:
            assert (arguments.value(name) == first[name]).all(), name
    results = [tensor.name for tensor in graph.tensors if tensor.role is Role.RESULT and tensor.alias_of is None]
    assert results
    assert all((first[name] == 0).all() for name in results)
    assert set(copied.initial) == set(names) - set(results)


def test_nothing_is_copied_where_memory_would_be_short(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Arguments.allocate(small_step.graph())
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=io_bytes(drawn.graph)))
    assert drawn.copied() == {}


def test_threads_use_the_cores_they_are_given_though_their_maker_is_held_on_one() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[0]})
    try:
        results = spread(lambda item: (item, os.sched_getaffinity(0)), range(50), cpus)
        assert os.sched_getaffinity(0) == {cpus[0]}
        with pytest.raises(ZeroDivisionError):
            spread(lambda item: 1 // item, [1, 0, 2], cpus)
    finally:
        os.sched_setaffinity(0, set(cpus))
    assert results == [(item, set(cpus)) for item in range(50)], "in the order of the items"
    assert set(spread(lambda _: threading.get_ident(), range(3), ())) == {threading.get_ident()}, "without cores: here"


GRAPH = small_step.graph()
COUNTED = counting(GRAPH, Counts.ALL)
QUICK = ProfileOptions(patience_s=0.05, min_repeats=3, max_repeats=3, kernel_s=0.0, rotation_bytes=1_000)


@pytest.fixture(scope="module")
def profile(library: KernelLibrary, tmp_path_factory: pytest.TempPathFactory) -> Profile:
    machine, links = small_step.machine(), small_step.links()
    with KernelStore(tmp_path_factory.mktemp("store") / "kernels.sqlite") as store:
        return profile_kernels(COUNTED, library, machine, links, store, QUICK, small_step.DEVICES)


@pytest.mark.parametrize("optimizer", ["static", "synchronous"])
@pytest.mark.parametrize("limit", [Limit(1, 0), Limit(2, 1), Limit(0, 1)], ids=str)
def test_a_run_equals_the_plain_step(library: KernelLibrary, profile: Profile, optimizer: str, limit: Limit) -> None:
    machine, links = small_step.machine(), small_step.links()
    plan, layout = solve_and_pack(COUNTED, profile, links, optimizer, limit, SolveOptions())
    check_plan(COUNTED, profile, links, plan)
    program = compile_program(COUNTED, plan, layout)
    check_program(COUNTED, plan, program)
    options = RunOptions(min_seconds=0.01, poison=True, patience_s=0.05)
    record = run(GRAPH, library, program, plan, machine, links, profile, options, small_step.DEVICES)
    assert record.verified_steps == 2
    assert record.counts == "all"
    assert record.default_alloc_size == COUNTED.peak_live_bytes > GRAPH.peak_live_bytes
    if limit == Limit(1, 0):
        assert record.dram_alloc_size == 0, "even the parameters are in slow memory"


def test_arguments_lie_where_the_program_has_them(profile: Profile) -> None:
    machine, links = small_step.machine(), small_step.links()
    plan = solve(COUNTED, profile, links, "all-slow", Limit(1, 1))
    stays = (replace(stay, tier=Tier.FAST) if stay.tensor == "v" else stay for stay in plan.stays)
    plan = replace(plan, stays=tuple(stays))
    layout = layout_of(COUNTED, plan)
    program = compile_program(COUNTED, plan, layout)
    with open_tiers(machine, links, program.fast_bytes, program.slow_bytes, small_step.DEVICES) as tiers:
        arguments = Arguments.in_pools(GRAPH, COUNTED, program, tiers)
        arguments.fill(1)
        offsets = {stay.tensor: offset for stay, offset in zip(layout.stays, layout.offsets, strict=True)}
        for name, pool in (("w", tiers.slow), ("v", tiers.fast)):
            value = arguments.value(name)
            assert (pool.view(offsets[name], value.shape, value.dtype) == value).all()
            assert (arguments.value(f"{name}_new") == value).all(), "an update shares its parameter's memory"
