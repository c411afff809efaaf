"""What `explain` says a tensor's other homes cost at least, against placing Inception v4 anew with it forced there."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_figures import SOURCE

from autotm.layout import compile_program
from autotm.model.files import InfeasibleLimitError
from autotm.model.step import Graph, Limit, Tensor, Tier
from autotm.solve import SolveOptions, solve, solve_and_pack
from autotm.study.explain import TensorExplanation, explain_tensor
from autotm.study.view import Placed
from modelled_profile import modelled_links, modelled_profile
from zoo_graphs import zoo_graph

HOMES = {"fast for life": Tier.DRAM, "slow for life": Tier.PMEM}
COUNT, LOOKED_AT = 10, 40
"""Tensors whose claims are checked: those with the highest ones, of these that cost most where they are slow."""


@pytest.fixture(scope="module")
def inception(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return zoo_graph("inception_v4", "tiny", Path(tmp_path_factory.mktemp("graphs")))


def losses_us(found: TensorExplanation) -> dict[Tier, float]:
    return {HOMES[way.name]: way.loss_us for way in found.residencies[1:] if way.loss_us is not None}


@pytest.mark.parametrize(("optimizer", "limit"), [("static", "4:1"), ("synchronous", "8:1")])
def test_no_plan_with_the_tensor_forced_loses_less(inception: Graph, optimizer: str, limit: str) -> None:
    profile, links, options = modelled_profile(inception, noise=0.3, seed=3), modelled_links(), SolveOptions(gap=1e-4)
    plan, layout = solve_and_pack(inception, profile, links, optimizer, Limit.parse(limit), options)
    placed = Placed(inception, profile, links, plan, compile_program(inception, plan, layout), SOURCE)
    step = placed.step

    def slower_us(tensor: Tensor) -> float:
        return sum(profile.extra_us(step, step.kernels[user], tensor.name) for user in tensor.users)

    fitting = [tensor for tensor in step.movable if tensor.allocated_bytes <= plan.dram_limit_bytes]
    dearest = sorted(fitting, key=slower_us, reverse=True)[:LOOKED_AT]
    said = {tensor.name: losses_us(explain_tensor(placed, tensor.name)) for tensor in dearest}
    told = sorted(said, key=lambda name: -max(said[name].values(), default=0.0))[:COUNT]
    assert min(max(said[name].values(), default=0.0) for name in told) > 0, "ten whose other home costs something"
    for name in told:
        for tier, loss_us in said[name].items():
            forced = SolveOptions(gap=1e-4, fixed={name: tier})
            try:
                other = solve(inception, profile, links, optimizer, Limit.parse(limit), forced)
            except InfeasibleLimitError:
                continue
            assert other.objective_us >= plan.objective_us + loss_us - 1e-6 * plan.objective_us, (name, tier)
