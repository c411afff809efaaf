"""`save_on_cpu` of PyTorch, simulated on steps to follow by hand: what is saved, how often, for how long."""

from __future__ import annotations

from itertools import pairwise

import pytest
from modelled_problems import COPY_US, FAULTS, KERNEL_US, MAP_BYTES, problem_of
from random_graphs import StepBuilder

from autotm.model.graph import Graph, Role
from autotm.model.limit import Counts, counting
from autotm.model.timeline import Engine
from autotm.solve.gpu_rivals import run_rival, saved
from autotm.solve.gpu_simulation import last_forward_kernel

VALUES = MAP_BYTES // 4


def branched() -> Graph:
    """A map `x` that three operations save: two products, and the kernel that gives its gradient.

    Kernels: 0 makes x, 1 and 2 are products of it with a weight each, 3 gives the loss; 4 and 5 are the gradients of
    both products; 6 and 7 those of the first product's factors, which share a gradient, 8 and 9 of the other's; 10 adds
    them up where x lets them through.
    """
    builder = StepBuilder()
    builder.argument("data", VALUES, Role.INPUT)
    for weight in ("w1", "w2"):
        builder.argument(weight, VALUES)
    builder.kernel(["data"], {"x": VALUES})
    builder.kernel(["x", "w1"], {"y1": 16})
    builder.kernel(["x", "w2"], {"y2": 16})
    builder.kernel(["y1", "y2"], {"loss": 1}, role=Role.RESULT)
    builder.kernel(["y1"], {"g1": 16})
    builder.kernel(["y2"], {"g2": 16})
    for number in (1, 2):
        builder.kernel([f"g{number}", f"w{number}"], {f"dx{number}": VALUES})
        builder.kernel([f"g{number}", "x", f"w{number}"], {f"w{number}_new": VALUES}, role=Role.RESULT)
        builder.aliases[f"w{number}_new"] = f"w{number}"
    builder.kernel(["dx1", "dx2", "x"], {"dx": VALUES})
    builder.kernel(["dx", "data"], {"out": 16})
    return builder.graph("branched")


def test_every_saved_tensor_goes_out_and_comes_back_and_no_copy_is_beside_a_kernel() -> None:
    builder = StepBuilder()
    builder.argument("data", 16, Role.INPUT)
    builder.kernel(["data"], {"t0": VALUES})
    builder.kernel(["t0"], {"t1": VALUES})
    builder.kernel(["t1"], {"t2": VALUES})
    builder.kernel(["t2"], {"loss": 1}, role=Role.RESULT)
    builder.kernel(["t2"], {"g2": VALUES})
    builder.kernel(["t1", "g2"], {"g1": VALUES})
    builder.kernel(["t0", "g1"], {"g0": VALUES})
    found = run_rival("save-on-cpu", problem_of(3, builder.graph("chain")), FAULTS)
    assert found.step_us == 7 * KERNEL_US + 6 * COPY_US
    assert (found.in_bytes, found.out_bytes) == (3 * MAP_BYTES, 3 * MAP_BYTES)
    # Kernel 5 has t1, g2 and g1.
    assert (found.most_bytes, found.fits) == (3 * MAP_BYTES, True)
    ends = sorted((event.start_us, event.end_us) for event in found.events)
    assert all(before[1] <= after[0] for before, after in pairwise(ends))
    assert [event.name for event in found.events if event.engine is Engine.IN] == ["t2", "t1", "t0"]


@pytest.mark.parametrize("counts", Counts)
def test_parameters_and_inputs_are_saved_and_each_operation_saves_for_itself(counts: Counts) -> None:
    graph = counting(branched(), counts)
    assert last_forward_kernel(branched()) == 3
    wanted = saved(graph)
    # w1 is wanted by kernel 6 only: 7 writes it anew.
    assert wanted["w1"] == [range(6, 7)]
    assert wanted["w2"] == [range(8, 9)]
    assert wanted["data"] == [range(11, 12)]
    assert wanted["x"] == [range(7, 8), range(9, 10), range(10, 11)]
    assert set(wanted) == {"w1", "w2", "data", "x", "y1", "y2"}


def test_kernels_of_one_operation_share_its_copy() -> None:
    builder = StepBuilder()
    builder.argument("weight", VALUES)
    builder.kernel(["weight"], {"x": VALUES})
    builder.kernel(["x"], {"loss": 1}, role=Role.RESULT)
    builder.kernel(["x"], {"g": VALUES})
    builder.kernel(["g", "x"], {"sums": 16})
    builder.kernel(["g"], {"bias": 16})
    builder.kernel(["g", "x", "sums"], {"dx": VALUES})
    builder.kernel(["dx", "weight"], {"weight_new": VALUES}, role=Role.RESULT)
    builder.aliases["weight_new"] = "weight"
    wanted = saved(builder.graph("normalization"))
    assert wanted == {"x": [range(2, 3), range(3, 6)]}


def test_copies_of_arguments_take_device_memory_while_they_are_wanted() -> None:
    # Kernel 10 has dx1, dx2, x and dx; kernel 6 the copy of w1, and dx1.
    graph = branched()
    found = run_rival("save-on-cpu", problem_of(5, graph), FAULTS)
    assert found.most_bytes == 4 * MAP_BYTES
    all_counted = problem_of(8, counting(graph, Counts.ALL))
    with_arguments = run_rival("save-on-cpu", all_counted, FAULTS)
    # Then data and both weights are there, too, for good.
    assert with_arguments.most_bytes >= 7 * MAP_BYTES
    assert with_arguments.step_us == found.step_us


def test_without_a_backward_pass_nothing_is_saved() -> None:
    builder = StepBuilder()
    builder.argument("data", VALUES, Role.INPUT)
    builder.kernel(["data"], {"t0": VALUES})
    builder.kernel(["t0"], {"out": 1}, role=Role.RESULT)
    assert saved(builder.graph("inference")) == {}
