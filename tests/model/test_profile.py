"""What profiles and links say that slow operands, other implementations, bytes and asynchronous moves cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from random_graphs import Case, StepBuilder, random_case, with_engines

from autotm.model.errors import AutotmError, DamagedFileError
from autotm.model.files import hash_of
from autotm.model.graph import (
    Graph,
    Implementation,
    Kernel,
    OpClass,
    Operand,
    Role,
    Tensor,
    Tier,
    all_fast,
    configuration,
    slow_traffic,
)
from autotm.model.limit import Counts, counting
from autotm.model.links import Contention, OverlapCosts
from autotm.model.plan import Move
from autotm.model.profile import TIE_NS, Profile, SlowRates, Timing, read_profile, slow_rates, write_profile

BASE = Timing(900, 1000, 950, 1100, 9)


def step_with_lean():
    builder = StepBuilder()
    builder.kernel([], {"a": 10, "b": 10})
    graph = builder.graph()
    kernel = replace(graph.kernels[0], alternatives=(Implementation("lean", "f0_lean", "id0_lean"),))
    return replace(graph, kernels=(kernel,)), kernel


GRAPH, KERNEL = step_with_lean()
LEAN = KERNEL.computed_by("lean")


def profile(**changed: Timing) -> Profile:
    """`a` adds 300 ns in the same rounds, though the medians differ by 700; `b` seems to make the kernel faster."""
    timings = {
        ("id0", "default", all_fast(KERNEL)): BASE,
        ("id0", "default", configuration(GRAPH, KERNEL, {"a"})): replace(BASE, median_ns=1700, beyond_ns=300),
        ("id0", "default", configuration(GRAPH, KERNEL, {"b"})): replace(BASE, median_ns=980),
        ("id0_lean", "lean", all_fast(KERNEL)): replace(BASE, default_identity="id0", **changed),
        ("id0_lean", "lean", configuration(GRAPH, KERNEL, {"a"})): replace(BASE, beyond_ns=200),
    }
    return Profile(hash_of(GRAPH), timings, {"seed": 1})


def test_slow_operands_add_what_they_took_in_turn_with_fast_ones_or_the_difference_of_medians() -> None:
    """Noise below zero stays there, so that sums over a step are not too large. What was not measured is a sum."""
    read = profile(beyond_ns=0)
    assert [read.extra_us(GRAPH, KERNEL, name) for name in "ab"] == [0.3, -0.02]
    times_us = [read.time_us(GRAPH, KERNEL, frozenset(slow)) for slow in ("a", "b", "ab")]
    assert times_us == pytest.approx([1.3, 0.98, 1.28])


@pytest.mark.parametrize(
    ("beyond_ns", "error_ns", "read_ns"),
    [(-100, 40, 900), (-100, 51, 1000 + TIE_NS), (100, 40, 1100), (100, 51, 1000 + TIE_NS), (0, 0, 1000 + TIE_NS)],
)
def test_another_implementation_differs_from_the_default_only_beyond_the_noise(
    beyond_ns: int, error_ns: int, read_ns: int
) -> None:
    """Its own median does not count: the two are timed in turn, so only their difference does."""
    measured = profile(median_ns=500, beyond_ns=beyond_ns, beyond_error_ns=error_ns)
    assert measured.base_us(LEAN) == read_ns / 1e3
    assert measured.time_us(GRAPH, LEAN, frozenset({"a"})) == pytest.approx((read_ns + 200) / 1e3)
    assert measured.base_us(KERNEL) == 1.0
    assert measured.least_us(KERNEL) == min(1.0, read_ns / 1e3)


def test_what_is_lacking_is_said() -> None:
    empty = Profile(hash_of(GRAPH), {}, {})
    with pytest.raises(AutotmError, match="no time for kernel 'kernel_0'"):
        empty.base_us(KERNEL)
    with pytest.raises(AutotmError, match="lacks 'a' in slow memory"):
        empty.extra_us(GRAPH, KERNEL, "a")


def test_a_file_holds_all_of_it_but_for_what_older_ones_lack(tmp_path: Path) -> None:
    path, whole = tmp_path / "profile.parquet", profile(beyond_ns=-7, beyond_error_ns=3)
    write_profile(path, whole)
    assert read_profile(path) == whole
    pq.write_table(pq.read_table(path).drop_columns(["beyond_ns", "beyond_error_ns", "default_identity"]), path)
    unpaired = {BASE, replace(BASE, median_ns=1700), replace(BASE, median_ns=980)}
    assert set(read_profile(path).timings.values()) == unpaired
    pq.write_table(pq.read_table(path).drop_columns(["median_ns"]), path)
    with pytest.raises(DamagedFileError, match="median_ns"):
        read_profile(path)


BASE_NS, READ_NS_PER_BYTE, WRITE_NS_PER_BYTE = 1000, 2, 5


def timing(ns: int) -> Timing:
    return Timing(ns, ns, ns, ns, 1)


def profile_with_rates(graph: Graph) -> Profile:
    timings = {}
    for kernel in graph.kernels:
        timings[kernel.identity, kernel.implementation, all_fast(kernel)] = timing(BASE_NS)
        read = {operand.tensor for operand in kernel.inputs}
        for tensor in graph.slots_of(kernel):
            rate = {"space": 100}.get(tensor, READ_NS_PER_BYTE if tensor in read else WRITE_NS_PER_BYTE)
            extra_ns = graph.by_name[tensor].size_bytes * rate * (2 if kernel.op_class is OpClass.MATMUL else 1)
            key = (kernel.identity, kernel.implementation, configuration(graph, kernel, {tensor}))
            timings[key] = timing(BASE_NS + extra_ns)
    return Profile(hash_of(graph), timings, {})


def test_rates_are_those_of_the_class_or_of_all_or_zero() -> None:
    builder = StepBuilder()
    builder.argument("data", 100)
    builder.kernel(["data"], {"a": 1000}, {})
    builder.kernel(["a"], {"b": 500}, {"space": 70})
    graph = builder.graph()
    graph = replace(graph, kernels=(graph.kernels[0], replace(graph.kernels[1], op_class=OpClass.MATMUL)))
    measured = profile_with_rates(graph)
    rates = slow_rates(graph, measured)
    assert rates[OpClass.MATMUL] == SlowRates(pytest.approx(0.004), pytest.approx(0.010)), "not the workspace's rate"
    assert rates[OpClass.ELEMENTWISE].write_us_per_byte == pytest.approx(0.005)
    assert rates[OpClass.ELEMENTWISE].read_us_per_byte == pytest.approx(0.004), "it reads nothing movable: all classes'"
    assert rates[OpClass.WINDOW].write_us_per_byte == pytest.approx(0.005), "two thirds of all written bytes cost that"
    assert rates[OpClass.MATMUL].extra_us(1000, 100) == pytest.approx(5.0)
    fast = {key: value for key, value in measured.timings.items() if "P" not in key[2]}
    assert set(slow_rates(graph, replace(measured, timings=fast)).values()) == {SlowRates(0.0, 0.0)}


def test_noise_makes_no_rate() -> None:
    builder = StepBuilder()
    builder.argument("data", 100)
    for index in range(9):
        builder.kernel(["data"], {f"t{index}": 1000}, {})
    graph = builder.graph()
    noise_ns = [-3000, -2000, -900, -1, 0, 20, 700, 2500, 90_000]
    timings = {}
    for index, (kernel, extra_ns) in enumerate(zip(graph.kernels, noise_ns, strict=True)):
        timings[kernel.identity, kernel.implementation, all_fast(kernel)] = timing(100_000)
        key = (kernel.identity, kernel.implementation, configuration(graph, kernel, {f"t{index}"}))
        timings[key] = timing(100_000 + extra_ns)
    assert slow_rates(graph, Profile(hash_of(graph), timings, {}))[OpClass.ELEMENTWISE] == SlowRates(0.0, 0.0)


ROWS, WIDTH, LOOKED_UP = 1000, 16, 8


def lookup_graph() -> Graph:
    """Rows of a table are looked up, then updated in place."""
    table, table_new = (Operand(name, (ROWS, WIDTH), "float32") for name in ("table", "table_new"))
    indices, rows = Operand("indices", (LOOKED_UP,), "int64"), Operand("rows", (LOOKED_UP, WIDTH), "float32")
    kernels = tuple(
        Kernel(op, op, op, op, OpClass.DATA_MOVEMENT, 0, inputs, outputs)
        for op, inputs, outputs in (
            ("embedding", (table, indices), (rows,)),
            ("embedding_update", (table, indices, rows), (table_new,)),
        )
    )
    tensors = tuple(
        Tensor(one.tensor, role, one.shape, one.dtype, one.size_bytes, producer, readers, alias)
        for one, role, producer, readers, alias in (
            (table, Role.PARAMETER, None, (0, 1), None),
            (indices, Role.INPUT, None, (0, 1), None),
            (rows, Role.INTERMEDIATE, 0, (1,), None),
            (table_new, Role.RESULT, 1, (), "table"),
        )
    )
    return Graph("lookups", "test", LOOKED_UP, kernels, tensors)


def test_of_a_slow_table_only_the_rows_that_are_looked_up_count_of_other_operands_all() -> None:
    graph = counting(lookup_graph(), Counts.ALL)
    touched = LOOKED_UP * WIDTH * 4
    assert slow_traffic(graph, graph.kernels[0], "PDD") == ((touched,), ())
    assert slow_traffic(graph, graph.kernels[1], "PDDP") == ((touched,), (touched,))
    assert slow_traffic(graph, graph.kernels[0], "DPP") == ((LOOKED_UP * 8,), (touched,))


def case_of(to_kernels: float, to_copy: float, **other: Contention) -> Case:
    """Contention to and from all op classes, but for some."""
    case = with_engines(random_case(3, kernels=8))
    contention = dict.fromkeys(OpClass, Contention(to_kernels, to_copy))
    contention |= {OpClass(name): one for name, one in other.items()}
    assert case.links.asynchronous is not None
    measured = replace(case.links.asynchronous, beside_to_fast=contention, beside_to_slow=contention)
    return replace(case, links=replace(case.links, asynchronous=measured))


def test_equal_classes_give_their_share_in_every_window() -> None:
    case = case_of(0.25, 0.5)
    overlap, alone_us = OverlapCosts(*case), case.links.transfer_us(Tier.SLOW, 10**6)
    for span in ((0, 1), (2, 5), (0, 8)):
        assert overlap.added_us(Tier.SLOW, 10**6, *span) == pytest.approx(0.25 * alone_us + case.links.call_us)
        assert overlap.work_ns(Tier.SLOW, 10**6, *span) == pytest.approx(1.5e3 * alone_us, rel=1e-2)
    assert overlap.move_us(Move("any", Tier.FAST, 3), 4096) == case.links.copy_us(Tier.FAST, 4096), "it blocks"
    assert overlap.move_us(Move("any", Tier.FAST, 3, 1), 4096) == overlap.added_us(Tier.FAST, 4096, 1, 3)


def test_a_window_costs_what_its_own_kernels_lose() -> None:
    case = case_of(0.0, 0.0, conv_forward=Contention(1.0, 2.0))
    classes = [kernel.op_class for kernel in case.graph.kernels]
    assert (classes[0], classes[1]) == (OpClass.CONV_FORWARD, OpClass.CONV_DATA_GRADIENT)
    overlap, alone_us = OverlapCosts(*case), case.links.transfer_us(Tier.FAST, 10**6)
    one, other = overlap.kernel_ns[:2]
    share = one / (one + other)
    for span, costly in (((0, 1), 1.0), ((1, 2), 0.0), ((0, 2), share)):
        assert overlap.added_us(Tier.FAST, 10**6, *span) == pytest.approx(costly * alone_us + case.links.call_us)
    assert overlap.work_ns(Tier.FAST, 10**6, 0, 2) == pytest.approx((1 + 2 * share) * 1e3 * alone_us, rel=1e-3)
    assert case.links.least_added_us(Tier.FAST, 10**6) == pytest.approx(case.links.call_us)


def test_contention_is_never_negative_and_of_every_class() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        Contention(-0.1, 0.0)
    links = case_of(0.0, 0.0).links.asynchronous
    assert links is not None
    with pytest.raises(ValueError, match="contention with matmul is missing"):
        replace(links, beside_to_fast={name: each for name, each in links.beside_to_fast.items() if name != "matmul"})
