"""What holds for every plan: bounds, baselines, statuses, refusals, names and units that do not matter, scale."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from checked_plans import claimed_gap, solved
from counted_calls import calls_of
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import Case, random_case, training_step_case, with_engines

from autotm.check.plan import check_plan
from autotm.model.errors import BadInputError, InfeasibleLimitError
from autotm.model.files import hash_of
from autotm.model.graph import Kernel, Operand, Role, Tensor, Tier
from autotm.model.limit import Limit
from autotm.model.links import Link, Links
from autotm.model.plan import Plan, Status
from autotm.model.profile import Timing
from autotm.solve import highs
from autotm.solve.choices import Choices
from autotm.solve.highs import Session, Solved
from autotm.solve.optimizer import Placement
from autotm.solve.optimizers import Static
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve
from autotm.solve.problem import Problem
from autotm.solve.recheck import SolverDefectError
from deep_graphs import deepened
from modelled_profile import modelled_links, modelled_profile

LIMITS = [Limit(1, 0), Limit(19, 1), Limit(4, 1), Limit(1, 1), Limit(1, 3), Limit(0, 1)]


@pytest.fixture(scope="module")
def step() -> Case:
    return training_step_case(layers=4, branches=3)


def test_unknown_optimizer_names_the_nearest(step: Case) -> None:
    with pytest.raises(BadInputError, match=r"'synchronos'; did you mean 'synchronous'\?"):
        solve(*step, "synchronos", Limit(1, 1))


@pytest.fixture(scope="module")
def plans(step: Case) -> dict[str, list[Plan]]:
    """Plans of both optimizers at every limit, tightest first; no clock decides how near to the best."""
    unhurried = SolveOptions(time_limit_s=1000.0)
    return {name: [solved(step, name, limit, unhurried) for limit in LIMITS] for name in ("static", "synchronous")}


@pytest.mark.parametrize("optimizer", ["static", "synchronous"])
def test_bounds_baselines_and_monotony(step: Case, plans: dict[str, list[Plan]], optimizer: str) -> None:
    fastest = solved(step, "all-fast", Limit(0, 1)).objective_us
    slowest = solved(step, "all-slow", Limit(1, 0)).objective_us
    by_limit = plans[optimizer]
    assert by_limit[0].objective_us == pytest.approx(slowest)
    assert by_limit[-1].objective_us == pytest.approx(fastest)
    assert all(claimed_gap(plan) <= 1e-3 for plan in by_limit)
    assert all(plan.gap <= 4e-3 for plan in by_limit), "certificates prove 0.37 % at worst, of `static` at 1:1"
    assert all((plan.gap <= 1e-3) == (plan.status in {Status.OPTIMAL, Status.WITHIN_GAP}) for plan in by_limit)
    for tighter, looser in pairwise(by_limit):
        assert fastest * (1 - 1e-9) <= looser.objective_us <= slowest
        assert looser.bound_us <= tighter.objective_us
        assert looser.objective_us <= tighter.objective_us * 1.001


def test_synchronous_never_loses_to_static(plans: dict[str, list[Plan]]) -> None:
    for static, synchronous in zip(plans["static"], plans["synchronous"], strict=True):
        assert synchronous.bound_us <= static.objective_us
        assert synchronous.objective_us <= static.objective_us * 1.001


def test_equal_calls_give_equal_plans(step: Case) -> None:
    # Within a gap that no clock decides.
    first, second = (solved(step, "synchronous", Limit(1, 1), SolveOptions(gap=0.1)) for _ in range(2))
    assert (first.stays, first.moves, first.bound_us) == (second.stays, second.moves, second.bound_us)


@given(seed=st.integers(0, 2**31 - 1), unused=st.booleans())
def test_kernels_that_need_fast_operands(seed: int, *, unused: bool) -> None:
    """A parameter that nothing uses takes its memory, too."""
    case = random_case(seed, kernels=7)
    if unused:
        parameter = Tensor("unused", Role.PARAMETER, (100,), "float32", 400, None, (), held=(0, 7))
        graph = replace(case.graph, tensors=(*case.graph.tensors, parameter))
        case = replace(case, graph=graph, profile=replace(case.profile, graph_hash=hash_of(graph)))
    options = SolveOptions(gap=0.0, fast_operands_only=True)
    with pytest.raises(InfeasibleLimitError) as caught:
        solve(*case, "synchronous", Limit(size_bytes=64), options)
    smallest = int(str(caught.value).split("smallest feasible limit is ")[1].split()[0])
    assert f"{smallest - 64} bytes short" in str(caught.value)
    with pytest.raises(InfeasibleLimitError, match=r"64 bytes short; the smallest feasible limit"):
        solve(*case, "synchronous", Limit(size_bytes=smallest - 64), options)
    plan = solved(case, "synchronous", Limit(size_bytes=smallest), options)
    assert not any("P" in configuration for configuration in plan.configurations)
    assert solved(case, "synchronous", Limit(0, 1), options).moves == ()


def test_infeasible_limit_names_kernel_shortage_and_remedy() -> None:
    case = random_case(3, kernels=7)
    peak = case.graph.peak_live_bytes
    kernel = case.graph.live_bytes.index(peak)
    with pytest.raises(InfeasibleLimitError) as caught:
        solve(*case, "all-fast", Limit(size_bytes=peak - 100))
    text = str(caught.value)
    assert f"kernel {kernel} '{case.graph.kernels[kernel].name}'" in text
    assert "100 bytes short" in text
    assert f"smallest feasible limit is {peak} bytes" in text
    solved(case, "all-fast", Limit(size_bytes=peak))


@pytest.mark.parametrize("optimizer", ["all-slow", "numa", "memory-mode", "linux-preferred", "linux-balancing"])
def test_kernels_that_need_fast_operands_cannot_be_left_slow_ones(optimizer: str) -> None:
    with pytest.raises(BadInputError, match=f"'{optimizer}': kernels here need fast operands"):
        solve(*random_case(3, kernels=5), optimizer, Limit(1, 1), SolveOptions(fast_operands_only=True))


@pytest.mark.parametrize(
    "bad",
    [
        *({"gap": -0.1}, {"gap": 1.0}, {"time_limit_s": 0.0}, {"sweep_s": 0.0}),
        *({"seed": -1}, {"additive_tolerance": -0.1}),
    ],
)
def test_bad_options(bad: dict[str, float]) -> None:
    with pytest.raises(BadInputError, match=next(iter(bad))):
        SolveOptions(**bad)


def test_steps_without_choices() -> None:
    case = random_case(5, kernels=4)
    plan = solve(replace(case.graph, kernels=(), tensors=()), case.profile, case.links, "synchronous", Limit(1, 1))
    assert (plan.stays, plan.objective_us, plan.gap) == ((), 0.0, 0.0)


class _Broken(Static):
    """A static optimizer whose search returns half of its stays, or all of them fast."""

    def __init__(self, defect: str) -> None:
        self.defect = defect

    def place_all(self, problems: Sequence[Problem], choices: Choices) -> Iterator[Placement]:
        for placement in super().place_all(problems, choices):
            changes = {
                "lost": {"stays": placement.stays[::2]},
                "greedy": {"stays": [replace(stay, tier=Tier.FAST) for stay in placement.stays]},
                "optimist": {"bound_us": placement.bound_us * 2},
            }
            yield replace(placement, **changes[self.defect])


@pytest.mark.parametrize(("defect", "message"), [("lost", "in no memory"), ("greedy", "the limit is")])
def test_a_broken_search_never_returns_a_plan(step: Case, defect: str, message: str) -> None:
    problem = Problem(*step, Limit(4, 1), SolveOptions())
    with pytest.raises(SolverDefectError, match=message):
        _Broken(defect).solve(problem)


def test_a_bound_never_exceeds_the_objective(step: Case) -> None:
    plan = _Broken("optimist").solve(Problem(*step, Limit(4, 1), SolveOptions()))
    assert plan.bound_us == plan.objective_us


OPTIMIZERS = ("static", "synchronous", "asynchronous")
TIGHT, HARD = Limit(39, 1), Limit(2, 1)
"""Where the relaxation's repaired plan is some way from its bound, and where only branch and bound closes the gap."""


@pytest.fixture(scope="module")
def overlapped_step() -> Case:
    return with_engines(training_step_case(layers=4, branches=3))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimal_without_a_gap_and_within_the_gap_that_was_asked(overlapped_step: Case, optimizer: str) -> None:
    plan = solved(overlapped_step, optimizer, Limit(0, 1), SolveOptions(gap=0.0))
    assert (plan.status, plan.gap) == (Status.OPTIMAL, 0.0)
    plan = solved(overlapped_step, optimizer, TIGHT, SolveOptions(gap=0.5))
    assert plan.status is Status.WITHIN_GAP
    assert 0 < plan.gap <= 0.5


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_time_limit_before_the_solver_has_anything(optimizer: str) -> None:
    # HiGHS is done with a small step before it looks at the clock.
    large = with_engines(training_step_case(layers=20))
    plan = solved(large, optimizer, TIGHT, SolveOptions(gap=0.0, time_limit_s=1e-6))
    assert plan.status is Status.TIME_LIMIT
    assert plan.gap > 0


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_time_limit_with_a_plan_in_hand(overlapped_step: Case, optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The relaxation has all the time it wants, branch and bound none."""
    search = Session.search
    ended: list[Solved] = []

    def hurried(self: Session, _: float, gap: float, *, warm: bool, **asked: float) -> Solved:
        ended.append(search(self, 1e-3, gap, warm=warm, **asked))
        return ended[-1]

    monkeypatch.setattr(Session, "search", hurried)
    plan = solved(overlapped_step, optimizer, HARD, SolveOptions(gap=0.0))
    assert ended
    assert plan.status is Status.TIME_LIMIT
    assert 0 < plan.gap < 1


def test_what_only_the_solver_proves_is_claimed_and_above_the_gap(overlapped_step: Case) -> None:
    """Branch and bound is done, but the prices of the relaxation with its rows do not prove as much."""
    plan = solved(overlapped_step, "synchronous", HARD, SolveOptions(gap=0.0))
    assert plan.status is Status.ABOVE_GAP
    assert plan.solver_gap is not None
    assert plan.solver_gap < 1e-6 < plan.gap


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_interrupt_ends_the_search_and_the_next_one_works(
    overlapped_step: Case, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = highs._run_watched

    def interrupted(solver: object, deadline_s: float) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        watched(solver, deadline_s)

    with monkeypatch.context() as patched:
        patched.setattr(highs, "_run_watched", interrupted)
        with pytest.raises(KeyboardInterrupt):
            solved(overlapped_step, optimizer, TIGHT, SolveOptions(gap=0.5))
    assert solved(overlapped_step, optimizer, TIGHT, SolveOptions(gap=0.5)).status is Status.WITHIN_GAP


EXACT = SolveOptions(gap=0.0, time_limit_s=200.0)
FACTOR = 8
"""A power of two: products with it are exact."""


def whole_units_case(seed: int) -> Case:
    """Whole allocation units, so that sizes and what they take scale alike."""
    case = with_engines(random_case(seed, kernels=7))
    tensors = tuple(replace(tensor, size_bytes=tensor.allocated_bytes) for tensor in case.graph.tensors)
    return replace(case, graph=replace(case.graph, tensors=tensors))


def exact_plan(case: Case, optimizer: str, limit_bytes: int) -> Plan:
    return solved(case, optimizer, Limit(size_bytes=limit_bytes), EXACT)


def renamed(case: Case) -> Case:
    """Names in another order than before, tensors listed the other way round."""
    count = len(case.graph.tensors)
    names = {tensor.name: f"x{count - number:03}" for number, tensor in enumerate(case.graph.tensors)}

    def operands(slots: tuple[Operand, ...]) -> tuple[Operand, ...]:
        return tuple(replace(slot, tensor=names[slot.tensor]) for slot in slots)

    def kernel(old: Kernel) -> Kernel:
        inputs, outputs, workspaces = map(operands, (old.inputs, old.outputs, old.workspaces))
        return replace(old, name=f"k {old.name}", inputs=inputs, outputs=outputs, workspaces=workspaces)

    tensors = tuple(
        replace(tensor, name=names[tensor.name], alias_of=tensor.alias_of and names[tensor.alias_of])
        for tensor in reversed(case.graph.tensors)
    )
    return replace(case, graph=replace(case.graph, kernels=tuple(map(kernel, case.graph.kernels)), tensors=tensors))


def _links(links: Links, bytes_factor: int, time_factor: int) -> Links:
    def scaled(link: Link) -> Link:
        return Link(link.destination, tuple((size * bytes_factor, ns * time_factor) for size, ns in link.points))

    engines = links.asynchronous
    to_fast, to_slow = scaled(engines.to_fast), scaled(engines.to_slow)
    engines = replace(engines, to_fast=to_fast, to_slow=to_slow, call_us=engines.call_us * time_factor)
    return replace(links, to_fast=scaled(links.to_fast), to_slow=scaled(links.to_slow), asynchronous=engines)


def larger(case: Case) -> Case:
    """Every size FACTOR times as large; copies of so much take what they took."""
    tensors = tuple(replace(tensor, size_bytes=FACTOR * tensor.size_bytes) for tensor in case.graph.tensors)
    return replace(case, graph=replace(case.graph, tensors=tensors), links=_links(case.links, FACTOR, 1))


def slower(case: Case) -> Case:
    """Every time FACTOR times as long."""

    def timing(old: Timing) -> Timing:
        times = (old.min_ns, old.median_ns, old.lower_quartile_ns, old.upper_quartile_ns)
        return Timing(*(FACTOR * time for time in times), old.repeats)

    timings = {key: timing(old) for key, old in case.profile.timings.items()}
    return replace(case, profile=replace(case.profile, timings=timings), links=_links(case.links, 1, FACTOR))


seeds, optimizers, parts = st.integers(0, 2**31 - 1), st.sampled_from(OPTIMIZERS), st.sampled_from((2, 4))


@given(seeds, optimizers, parts)
def test_neither_names_nor_units_of_memory_matter(seed: int, optimizer: str, parts: int) -> None:
    case = whole_units_case(seed)
    limit_bytes = case.graph.peak_live_bytes // parts
    plan = exact_plan(case, optimizer, limit_bytes)
    assert claimed_gap(plan) < 1e-6
    assert exact_plan(renamed(case), optimizer, limit_bytes).objective_us == pytest.approx(plan.objective_us)
    large = exact_plan(larger(case), optimizer, FACTOR * limit_bytes)
    assert large.objective_us == pytest.approx(plan.objective_us)
    assert claimed_gap(large) < 1e-6


@given(seeds, st.sampled_from(OPTIMIZERS[:2]), parts)
def test_units_of_time_do_not_matter(seed: int, optimizer: str, parts: int) -> None:
    """Windows of asynchronous moves are cut in whole nanoseconds, and so do not quite scale."""
    case = whole_units_case(seed)
    limit_bytes = case.graph.peak_live_bytes // parts
    plan = exact_plan(case, optimizer, limit_bytes)
    long = exact_plan(slower(case), optimizer, limit_bytes)
    assert long.objective_us == pytest.approx(FACTOR * plan.objective_us)
    assert claimed_gap(long) < 1e-6


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_cases_depend_on_the_limit(optimizer: str) -> None:
    """Cases whose plans are equally fast at every limit would test nothing."""
    case = whole_units_case(0)
    loose, tight = (exact_plan(case, optimizer, case.graph.peak_live_bytes // parts) for parts in (2, 4))
    assert loose.objective_us < tight.objective_us
    assert optimizer == "static" or loose.moves or tight.moves


CLOSE = SolveOptions(gap=1e-3)


def deep_case(kernels: int) -> Case:
    graph = deepened(training_step_case(layers=4, branches=3).graph, kernels)
    return Case(graph, modelled_profile(graph, noise=0.3), modelled_links())


def placed(case: Case) -> Plan:
    return solve(*case, "synchronous", Limit(4, 1), CLOSE)


def test_solving_and_checking_grow_with_the_step() -> None:
    small, large = deep_case(80), deep_case(320)
    growth = len(large.graph.kernels) / len(small.graph.kernels)
    assert growth > 3
    plans = [placed(small)]  # once before, for what is only done the first time
    solving, checking = [], []
    for case in (small, large):
        solving.append(calls_of(lambda case=case: plans.append(placed(case))))
        checking.append(calls_of(lambda case=case: check_plan(*case, plans[-1])))
        assert claimed_gap(plans[-1]) <= CLOSE.gap
        assert plans[-1].gap <= 1.1e-2, "the certificate of the smaller step proves 1.09 %"
    assert solving[1] < 1.5 * growth * solving[0]
    assert checking[1] < 1.5 * growth * checking[0]
