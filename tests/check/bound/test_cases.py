"""Trees of cases: whatever they say the bound holds, and what they do not prove is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from exhaustive import exact_optimum_us, optimum_us
from exhaustive_async_moves import optimum_us as flying_optimum_us
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import Case, exact_case, random_case, with_engines

from autotm.check.bound import Engines, certified_bound_us
from autotm.check.fault import Fault, FaultError
from autotm.check.plan import check_plan
from autotm.model.certificate import (
    Branch,
    Certificate,
    Cut,
    CutPrices,
    KernelPrices,
    Leaf,
    Prices,
    SlowPrices,
    SpanPrices,
    Split,
    WindowBranch,
    WorkspaceBranch,
)
from autotm.model.graph import Tier
from autotm.model.limit import Limit
from autotm.model.plan import Plan
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve

Tree = list[Split | Leaf]


def certified_us(case: Case, plan: Plan, certificate: Certificate) -> float:
    engines = Engines.beside(case.graph, case.profile, case.links) if plan.optimizer == "asynchronous" else None
    with_it = replace(plan, certificate=certificate)
    moves = plan.optimizer != "static"
    return certified_bound_us(case.graph, case.profile, case.links, with_it, moves, engines, {}, False)


def random_tree(case: Case, plan: Plan, draw: random.Random, sets: int, depth: int) -> Tree:
    """Any branches that there can be, one below the other."""
    if depth == 0 or draw.random() < 0.2:
        return [Leaf(draw.randrange(sets))]
    split = _split(case, plan, draw)
    first, second = (random_tree(case, plan, draw, sets, depth - 1) for _ in range(2))
    return [split, *first, *second]


def _split(case: Case, plan: Plan, draw: random.Random) -> Split:
    own = {o.tensor for kernel in case.graph.kernels if kernel.alternatives for o in kernel.workspaces}
    tensor = draw.choice([tensor for tensor in case.graph.movable if tensor.name not in own])
    others = [index for index, kernel in enumerate(case.graph.kernels) if kernel.alternatives]
    if others and draw.random() < 0.3:
        return WorkspaceBranch(draw.choice(others), draw.choice((0, 640, 1280)))
    if plan.optimizer == "static":
        return Branch(tensor.name, tensor.live.start)
    kernel = draw.randint(tensor.users[0], tensor.users[-1])
    if plan.optimizer == "asynchronous" and kernel not in tensor.users:
        end = min(user for user in tensor.users if user > kernel)
        return WindowBranch(tensor.name, draw.choice(list(Tier)), kernel, draw.randint(kernel + 1, end))
    return Branch(tensor.name, kernel)


def random_prices(case: Case, plan: Plan, draw: random.Random) -> Prices:
    kernels = tuple(range(len(case.graph.kernels)))

    def prices(scale: float) -> tuple[float, ...]:
        return tuple(scale * draw.expovariate(1.0) if draw.random() < 0.4 else 0.0 for _ in kernels)

    keys = [(index, name) for index in plan.tabled for name in case.graph.slots_of(case.graph.kernels[index])]
    own = {o.tensor for kernel in case.graph.kernels if kernel.alternatives for o in kernel.workspaces}
    told = [(index, name, draw.gauss(0.0, 2.0)) for index, name in keys if name not in own and draw.random() < 0.7]
    slow = SlowPrices(*(tuple(column) for column in zip(*told, strict=True))) if told else SlowPrices()
    flying = plan.optimizer == "asynchronous"
    out, back = (random_spans(len(kernels), draw) if flying else SpanPrices() for _ in range(2))
    cuts = tuple(CutPrices(number, kernels, prices(0.5)) for number in range(2))
    return Prices(KernelPrices(kernels, prices(2e-3)), cuts, slow, out, back)


def random_spans(kernels: int, draw: random.Random) -> SpanPrices:
    spans = [sorted(draw.sample(range(kernels + 1), 2)) for _ in range(draw.randrange(6))]
    return SpanPrices(*map(tuple, zip(*((*span, 1e-3 * draw.expovariate(1.0)) for span in spans), strict=True)))


def random_cut(case: Case, draw: random.Random) -> Cut:
    names = [tensor.name for tensor in case.graph.movable if draw.random() < 0.6]
    return Cut(tuple(names), tuple(draw.randint(1, 5) for _ in names))


@given(seed=st.integers(0, 2**31 - 1), optimizer=st.sampled_from(["static", "synchronous", "asynchronous"]))
def test_whatever_the_tree_the_bound_holds(seed: int, optimizer: str) -> None:
    case, draw = with_engines(random_case(seed, kernels=5), 1.0), random.Random(seed)
    plan = solve(case.graph, case.profile, case.links, optimizer, Limit(2, 1), SolveOptions(gap=0.5))
    if optimizer == "asynchronous":
        optimum, _ = flying_optimum_us(case, plan.dram_limit_bytes)
    else:
        optimum = optimum_us(case, plan.dram_limit_bytes, moves=optimizer == "synchronous")
    assert highest_bound_us(case, plan, draw) <= optimum * (1 + 1e-9)


@given(seed=st.integers(0, 2**31 - 1), optimizer=st.sampled_from(["static", "synchronous"]))
def test_so_it_does_with_tables_and_implementations(seed: int, optimizer: str) -> None:
    case, draw = exact_case(seed, kernels=3), random.Random(seed)
    options = SolveOptions(gap=0.5, additive_tolerance=0.0)
    plan = solve(case.graph, case.profile, case.links, optimizer, Limit(2, 1), options)
    optimum = exact_optimum_us(case, plan.dram_limit_bytes, moves=optimizer == "synchronous")
    assert highest_bound_us(case, plan, draw) <= optimum * (1 + 1e-9)


def highest_bound_us(case: Case, plan: Plan, draw: random.Random) -> float:
    """Of random trees with random prices, and with those that the search found, which are near the truth."""
    assert plan.certificate is not None
    bounds_us = []
    for _ in range(25):
        found = tuple(renumbered(each, 2) for each in plan.certificate.prices)
        sets = (*found, random_prices(case, plan, draw))
        tree = random_tree(case, plan, draw, len(sets), 5)
        cuts = (random_cut(case, draw), random_cut(case, draw), *plan.certificate.cuts)
        bounds_us.append(certified_us(case, plan, Certificate(sets, tuple(tree), cuts)))
    return max(bounds_us)


def renumbered(prices: Prices, first: int) -> Prices:
    """For cuts that begin with number `first`."""
    return replace(prices, cuts=tuple(replace(each, cut=each.cut + first) for each in prices.cuts))


@pytest.fixture(scope="module")
def case() -> Case:
    return random_case(23, kernels=12)


@pytest.fixture(scope="module")
def plan(case: Case) -> Plan:
    """One with a tree."""
    plan = solve(case.graph, case.profile, case.links, "synchronous", Limit(2, 1), SolveOptions(gap=0.0))
    assert plan.certificate is not None
    assert sum(isinstance(node, Leaf) for node in plan.certificate.tree) >= 3
    assert plan.gap < 1e-9
    check_plan(case.graph, case.profile, case.links, plan)
    return plan


def with_tree(plan: Plan, change: Callable[[Tree], object]) -> Plan:
    assert plan.certificate is not None
    tree: Tree = list(plan.certificate.tree)
    change(tree)
    return replace(plan, certificate=replace(plan.certificate, tree=tuple(tree)))


def first(tree: Tree, kind: type) -> int:
    return next(number for number, node in enumerate(tree) if isinstance(node, kind))


def forget_a_leaf(plan: Plan) -> Plan:
    return with_tree(plan, lambda tree: tree.pop())


def one_too_many(plan: Plan) -> Plan:
    return with_tree(plan, lambda tree: tree.append(Leaf(0)))


def unknown_prices(plan: Plan) -> Plan:
    def lose(tree: Tree) -> None:
        tree[first(tree, Leaf)] = Leaf(99)

    return with_tree(plan, lose)


def other_kernel(plan: Plan) -> Plan:
    def move(tree: Tree) -> None:
        branch = tree[first(tree, Branch)]
        assert isinstance(branch, Branch)
        tree[first(tree, Branch)] = replace(branch, kernel=99)

    return with_tree(plan, move)


def cut_at_the_root(plan: Plan) -> Plan:
    """One case alone, as if it were all."""
    return with_tree(plan, lambda tree: tree.__setitem__(slice(None), [Leaf(0)]))


def swapped_cases(plan: Plan) -> Plan:
    """Fast and not fast change places below the root."""

    def swap(tree: Tree) -> None:
        def end_of(start: int) -> int:
            return start + 1 if isinstance(tree[start], Leaf) else end_of(end_of(start + 1))

        middle = end_of(1)
        tree[1:] = tree[middle:] + tree[1:middle]

    return with_tree(plan, swap)


def raised_price(plan: Plan) -> Plan:
    """Of every byte, tenfold."""
    assert plan.certificate is not None
    prices = tuple(
        replace(each, fast=replace(each.fast, prices_us=tuple(10 * us for us in each.fast.prices_us)))
        for each in plan.certificate.prices
    )
    return replace(plan, certificate=replace(plan.certificate, prices=prices))


LIES = [
    (forget_a_leaf, {Fault.CERTIFICATE}),
    (one_too_many, {Fault.CERTIFICATE}),
    (unknown_prices, {Fault.CERTIFICATE}),
    (other_kernel, {Fault.CERTIFICATE}),
    (cut_at_the_root, {Fault.BOUND}),
    (swapped_cases, {Fault.BOUND, Fault.CERTIFICATE}),
    (raised_price, {Fault.BOUND}),
]


@pytest.mark.parametrize(("lie", "faults"), LIES)
def test_what_a_tree_does_not_prove_is_refused(
    case: Case, plan: Plan, lie: Callable[[Plan], Plan], faults: set[Fault]
) -> None:
    with pytest.raises(FaultError) as caught:
        check_plan(case.graph, case.profile, case.links, lie(plan))
    assert caught.value.fault in faults


@pytest.mark.parametrize(
    "split",
    [
        Branch("weight", 0),
        WindowBranch("t0_0", Tier.PMEM, 0, 1),
        WindowBranch("nothing", Tier.PMEM, 0, 1),
        WorkspaceBranch(0, 1),
        WorkspaceBranch(99, 1),
    ],
)
def test_branches_on_what_there_is_not_are_refused(case: Case, plan: Plan, split: Split) -> None:
    with pytest.raises(FaultError) as caught:
        certified_us(case, plan, Certificate((Prices(),), (split, Leaf(0), Leaf(0))))
    assert caught.value.fault is Fault.CERTIFICATE


def test_a_case_that_exceeds_the_limit_counts_for_nothing(case: Case, plan: Plan) -> None:
    """Everything that one kernel uses is fast there, though it does not fit: only the other cases are left."""
    index = case.graph.live_bytes.index(case.graph.peak_live_bytes)
    names = list(case.graph.slots_of(case.graph.kernels[index]))
    sizes = sum(case.graph.by_name[name].allocated_bytes for name in names)
    assert sizes > 64
    tight = replace(plan, dram_limit_bytes=sizes - 64, limit=f"{sizes - 64}B")
    branches = [Branch(name, index) for name in names]
    not_all = certified_us(case, tight, Certificate((Prices(),), (*branches, Leaf(0), *[Leaf(0)] * len(names))))
    assert not_all > certified_us(case, tight, Certificate((Prices(),)))


def test_what_leaves_no_plan_at_all_proves_nothing(case: Case, plan: Plan) -> None:
    """Where kernels need fast operands and the limit has no room, every case is empty."""
    with pytest.raises(FaultError) as caught:
        certified_bound_us(
            case.graph, case.profile, case.links, replace(plan, dram_limit_bytes=0), True, None, {}, True
        )
    assert caught.value.fault is Fault.CERTIFICATE
