"""Why a plan is as it is: limits, tensors, proven losses, and two plans or records compared."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import random_graphs
from checked_plans import forced
from random_graphs import Case
from synthetic_figures import QUICK, SOURCE
from synthetic_plans import solved
from synthetic_records import record

from autotm.cli.main import main
from autotm.layout.compile import compile_program
from autotm.model.errors import BadInputError, InfeasibleLimitError
from autotm.model.files import save
from autotm.model.graph import Tensor, Tier
from autotm.model.limit import Limit
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve_and_pack
from autotm.study.explain import compare, explain_limit, explain_tensor, fast_bytes, tensor_text
from autotm.study.placed import MemoryPrices, Placed
from modelled_profile import modelled_links, modelled_profile
from zoo_graphs import zoo_graph


@pytest.mark.parametrize("optimizer", ["static", "synchronous", "asynchronous"])
def test_where_memory_has_a_price_it_is_nearly_full(optimizer: str) -> None:
    placed = solved(optimizer)
    explanation = explain_limit(placed)
    assert explanation.binding
    assert explanation.saved_us_per_mb == pytest.approx(sum(one.price_us_per_mb for one in explanation.binding))
    assert list(explanation.binding) == sorted(explanation.binding, key=lambda one: -one.price_us_per_mb)
    for one in explanation.binding:
        assert one.live_bytes >= one.fast_bytes
        assert one.live_bytes > explanation.limit_bytes, "without a shortage a byte is worth nothing"
    assert max(fast_bytes(placed)) <= explanation.limit_bytes


def test_more_memory_saves_at_most_what_prices_say() -> None:
    placed = solved("static")
    explanation = explain_limit(placed)
    more = explanation.limit_bytes + max(explanation.limit_bytes // 50, 64)
    better, _ = solve_and_pack(placed.graph, placed.profile, placed.links, "static", Limit(size_bytes=more), QUICK)
    assert explanation.saved_us_per_mb is not None
    saved = explanation.saved_us_per_mb * (more - explanation.limit_bytes) / 1e6
    assert better.objective_us >= explanation.bound_us - saved - 1e-6 * explanation.bound_us


def test_what_a_planned_tensor_costs_adds_up() -> None:
    placed = solved("synchronous")
    prices = MemoryPrices(placed.plan, len(placed.step.kernels))
    moves_us = uses_us = 0.0
    for tensor in placed.step.movable:
        explanation = explain_tensor(placed, tensor.name)
        planned, for_life, slow = explanation.residencies
        assert [use.kernel for use in explanation.uses] == list(tensor.users)
        assert for_life.held_us == pytest.approx(
            prices.held_us(tensor.allocated_bytes, tensor.live.start, tensor.live.stop)
        )
        assert slow.uses_us == pytest.approx(sum(use.slower_us for use in explanation.uses))
        moves_us, uses_us = moves_us + planned.moves_us, uses_us + planned.uses_us
        assert len(explanation.gaps) == len(explanation.uses) - 1
        assert tensor.name in tensor_text(explanation)
    assert moves_us == pytest.approx(sum(placed.moves_us))
    assert placed.all_fast_us + uses_us + moves_us == pytest.approx(placed.plan.objective_us)


def test_a_gap_counts_each_tensor_between_once() -> None:
    placed = solved("synchronous")
    tensor = max(placed.step.movable, key=lambda one: max((b - a for a, b in pairwise(one.users)), default=0))
    gap = max(explain_tensor(placed, tensor.name).gaps, key=lambda one: one.before - one.after)
    assert gap.before - gap.after > 2
    between = placed.step.kernels[gap.after + 1 : gap.before]
    names = {operand.tensor for kernel in between for operand in kernel.operands}
    assert gap.reuse_bytes == sum(one.size_bytes for one in placed.step.movable if one.name in names)


def test_a_plan_without_prices_says_so_and_one_with_memory_enough() -> None:
    placed = solved("all-slow", "1:0")
    assert "nothing says what more memory would save" in explain_limit(placed).text()
    explanation = explain_tensor(placed, placed.step.movable[0].name)
    assert {use.tier for use in explanation.uses} == {Tier.SLOW}
    assert "The plan has no prices" in tensor_text(explanation)
    assert "No kernel binds the limit" in explain_limit(solved("static", "0:1")).text()


def test_tensors_that_are_not_placed_are_named() -> None:
    placed = solved("static")
    fixed = next(tensor for tensor in placed.step.tensors if not tensor.is_movable and tensor.alias_of is None)
    with pytest.raises(BadInputError, match=r"in fast memory for good: the limit does not count it\. With --counts"):
        explain_tensor(placed, fixed.name)
    name = placed.step.movable[0].name
    with pytest.raises(BadInputError, match=f"unknown tensor '{name}x'; did you mean .*{name}"):
        explain_tensor(placed, f"{name}x")
    alias = next(tensor for tensor in placed.step.tensors if tensor.alias_of is not None)
    with pytest.raises(BadInputError, match="in fast memory for good"):
        explain_tensor(placed, alias.name)


COUNT, LOOKED_AT = 10, 40
"""Tensors whose claims are checked: those with the highest ones, of these that cost most where they are slow."""


def check_claims(case: Case, optimizer: str, limit: str, *, least_share: float) -> None:
    """No plan with a tensor forced loses less than is said; the tightest claim is `least_share` of what one loses."""
    graph, profile, links, options = case.graph, case.profile, case.links, SolveOptions(gap=1e-4)
    plan, layout = solve_and_pack(graph, profile, links, optimizer, Limit.parse(limit), options)
    placed = Placed(graph, profile, links, plan, compile_program(graph, plan, layout), SOURCE)
    step = placed.step

    def slower_us(tensor: Tensor) -> float:
        return sum(profile.extra_us(step, step.kernels[user], tensor.name) for user in tensor.users)

    def losses_us(tensor: Tensor) -> dict[Tier, float]:
        _, *others = explain_tensor(placed, tensor.name).residencies
        tiers = {"fast for life": Tier.FAST, "slow for life": Tier.SLOW}
        return {tiers[one.name]: one.loss_us for one in others if one.loss_us is not None}

    fitting = [tensor for tensor in step.movable if tensor.allocated_bytes <= plan.dram_limit_bytes]
    dearest = sorted(fitting, key=slower_us, reverse=True)[:LOOKED_AT]
    claims = {tensor.name: losses_us(tensor) for tensor in dearest}
    shares = []
    for name in sorted(claims, key=lambda name: -max(claims[name].values(), default=0.0))[:COUNT]:
        assert max(claims[name].values(), default=0.0) > 0, "ten whose other home costs something"
        for tier, loss_us in claims[name].items():
            try:
                other = forced(case, optimizer, Limit.parse(limit), options, {name: tier})
            except InfeasibleLimitError:
                continue
            loses_us = other.objective_us - plan.objective_us
            assert loses_us >= loss_us - 1e-6 * plan.objective_us, (name, tier)
            shares.append(loss_us / loses_us if loses_us > 0 else 0.0)
    assert max(shares) >= least_share


@pytest.mark.parametrize("optimizer", ["static", "synchronous", pytest.param("asynchronous", marks=pytest.mark.slow)])
def test_no_plan_with_the_tensor_forced_loses_less(optimizer: str) -> None:
    """Most claims about a small step are exact, so one that is too high by a millionth of the step shows."""
    case = random_graphs.with_engines(random_graphs.training_step_case(2, branches=2), slower=3.0)
    check_claims(case, optimizer, "4:1", least_share=0.999)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nor_does_one_of_inception(tmp_path: Path) -> None:
    """A step of the zoo, whose kernels have workspaces."""
    graph = zoo_graph("inception_v4", "tiny", tmp_path)
    case = Case(graph, modelled_profile(graph, noise=0.3, seed=3), modelled_links())
    check_claims(case, "synchronous", "8:1", least_share=0.0)


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("plans")
    for name, optimizer in (("a", "static"), ("b", "synchronous")):
        save(folder / f"{name}.json", "plan", solved(optimizer, layers=3).plan, SOURCE)
    return folder / "a.json", folder / "b.json"


def test_two_plans_differ_in_where_tensors_live(plans: tuple[Path, Path]) -> None:
    comparison, both = compare(*plans), (solved("static", layers=3).plan, solved("synchronous", layers=3).plan)
    assert comparison.fields["objective_us"] == tuple(plan.objective_us for plan in both)
    assert comparison.fields["moves"] == (0, len(both[1].moves))
    assert comparison.differing
    for name, values in comparison.differing.items():
        for plan, value in zip(both, values, strict=True):
            fast = [stay.end - stay.start for stay in plan.stays if stay.tensor == name and stay.tier is Tier.FAST]
            assert value == sum(fast)
    assert "B/A" in comparison.text()
    assert "No difference" in compare(plans[0], plans[0]).text()


def test_two_records_differ_in_what_kernels_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name, slower in (("a", 1.0), ("b", 3.0)):
        measured = replace(record("static", "4:1"), kernel_times_us={"same": 5.0, "slower": 7.0 * slower})
        files.append(tmp_path / f"{name}.json")
        save(files[-1], "record", measured, SOURCE)
    assert compare(*files).differing == {"slower": (7.0, 21.0)}
    assert main(["compare", *map(str, files), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differing"] == {"slower": [7.0, 21.0]}


def test_what_cannot_be_compared_is_named(
    plans: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ran = tmp_path / "record.json"
    save(ran, "record", record("static", "4:1"), SOURCE)
    (tmp_path / "text").write_text("no JSON", encoding="utf-8")
    for other, message in (
        (ran, "is a plan, "),
        (tmp_path / "text", "neither a plan nor a record"),
        (tmp_path / "away.json", "no such file; give two plan.json or two record.json"),
    ):
        assert main(["compare", str(plans[0]), str(other)]) == 1
        assert message in caplog.text
        caplog.clear()
