"""`autotm.judge` and `autotm.knapsack`: others' ways to save memory, measured beside plans; what to keep, solved."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the steps are PyTorch's: make test-torch installs it")

from torch._functorch import config as partitioner  # noqa: E402
from torch._inductor.custom_graph_pass import CustomKnapsackSolver  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import autotm  # noqa: E402
from autotm.api import knapsack as knapsacks  # noqa: E402
from autotm.model.errors import BadInputError  # noqa: E402

nn, F = torch.nn, torch.nn.functional
QUICK = {"kernel_s": 1e-4, "time_limit_s": 5.0, "rounds": 1}


def network() -> nn.Module:
    torch.manual_seed(0)
    parts = ((nn.Linear(32, 32), nn.BatchNorm1d(32), nn.GELU()) for _ in range(6))
    return nn.Sequential(*(nn.Sequential(*part) for part in parts), nn.Linear(32, 4))


def batch(rows: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 32), torch.randint(4, (rows,))


def checkpointed(twin: nn.Module) -> Callable[..., torch.Tensor]:
    def call(x: torch.Tensor) -> torch.Tensor:
        for part in twin[:-1]:
            x = checkpoint(part, x, use_reentrant=False)
        return twin[-1](x)

    return call


def test_checkpoints_are_judged_beside_a_plan_with_their_peak():
    module, (x, labels) = network(), batch()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    judged = autotm.judge(module, checkpointed, x, F.cross_entropy, targets=(labels,), move=False, **QUICK)

    assert judged.plan is not None
    assert judged.plan.budget_bytes == judged.peak_bytes < judged.plain_peak_bytes
    assert judged.plan_peak_bytes <= judged.peak_bytes
    assert 0 <= judged.least_added <= judged.plan.predicted_s / judged.plan.plain_s - 1 + 1e-9
    assert judged.added == judged.step_s / judged.plain_s - 1
    assert "every plan within this memory adds" in str(judged)
    # The module itself was not trained.
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(own.grad is None for own in module.parameters())


def test_the_peak_that_is_judged_is_what_the_way_allocates():
    """A way that keeps a tensor for nothing has a peak that is higher by that tensor."""
    module, (x, labels) = network(), batch()
    more = 1 << 20

    def wasteful(twin: nn.Module) -> Callable[..., torch.Tensor]:
        def call(inputs: torch.Tensor) -> torch.Tensor:
            kept = torch.zeros(more // 4)
            output = twin(inputs)
            output.register_hook(lambda gradient: gradient + 0 * kept.sum())
            return output

        return call

    judged = autotm.judge(module, wasteful, x, F.cross_entropy, targets=(labels,), **QUICK)
    assert more <= judged.peak_bytes - judged.plain_peak_bytes < 1.1 * more


def test_what_no_plan_can_keep_is_told_beside_what_was_measured(monkeypatch):
    from autotm.api.offload import entry

    @wraps(entry.offload)
    def refused(*_: object, **__: object) -> None:
        raise autotm.model.errors.InfeasibleLimitError("offload: no plan was found")

    monkeypatch.setattr(entry, "offload", refused)
    module, (x, labels) = network(), batch()
    judged = autotm.judge(module, checkpointed, x, F.cross_entropy, targets=(labels,), **QUICK)
    assert judged.plan is None
    assert judged.plan_added is None
    assert judged.step_s > 0
    assert "no plan was found" in str(judged)


@pytest.mark.parametrize(
    ("way", "options", "message"),
    [
        (lambda _: None, {}, "returned a NoneType"),
        (lambda twin: lambda x: 2 * twin(x), {}, "have to be the same"),
        (checkpointed, {"optimizer": object()}, "without an update"),
        (checkpointed, {"budget": "1GB"}, "leave optimizer and budget out"),
        (checkpointed, {"gapp": 0.1}, "gapp"),
        (checkpointed, {"targets": (3,)}, "is a int; give tensors"),
        (checkpointed, {"rounds": 0}, "rounds is 0"),
    ],
)
def test_what_cannot_be_judged_is_refused(way, options, message):
    module, (x, labels) = network(), batch(8)
    with pytest.raises(BadInputError, match=message):
        autotm.judge(module, way, x, F.cross_entropy, **{"targets": (labels,), **QUICK, **options})


def test_steps_that_draw_in_another_order_are_judged():
    module, (x, labels) = nn.Sequential(network(), nn.Dropout(0.5)), batch(64)

    def another(twin: nn.Module) -> Callable[..., torch.Tensor]:
        def call(inputs: torch.Tensor) -> torch.Tensor:
            torch.rand(1)
            return twin(inputs)

        return call

    assert autotm.judge(module, another, x, F.cross_entropy, targets=(labels,), **QUICK).step_s > 0


class Noted(CustomKnapsackSolver):
    """Asks `autotm.knapsack`, and notes what it was asked."""

    def __call__(self, *asked: Any) -> tuple[list[int], list[int]]:
        self.asked = asked
        self.answer = autotm.knapsack(*asked)
        return self.answer

    def uuid(self) -> None:
        return None  # Nothing is taken from a cache.


class Recurrent(nn.Module):
    """Products of which one reads what another gives, through functions that may be computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(16, width) for width in (16, 16, 48, 16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.tanh(self.parts[0](x))
        second = torch.sigmoid(self.parts[1](first))
        wide = torch.tanh(self.parts[2](first)).unflatten(1, (3, 16)).sum(1)
        third = torch.tanh(self.parts[3](second + wide))
        return torch.sigmoid(self.parts[4](third * first)).sum()


@pytest.mark.parametrize("budget", [0.1, 0.2, 0.3, 0.5])
def test_what_the_knapsack_keeps_is_the_best_of_all_choices(budget, monkeypatch):
    costs_us = dict(zip(("mm", "addmm", "tanh", "sigmoid"), (7.0, 9.0, 2.0, 1.0), strict=True))

    def cost_us(_: object, node: torch.fx.Node) -> float:
        name = getattr(node.target, "__name__", "").partition(".")[0]
        return costs_us.get(name, 0.1 if name == "sum" else 0.0)

    monkeypatch.setattr(knapsacks._Times, "us", cost_us)
    torch.manual_seed(0)
    module, x, solver = Recurrent(), torch.randn(8, 16), Noted()
    torch.compiler.reset()
    compiled = torch.compile(module, backend="aot_eager_decomp_partition", dynamic=False)
    with partitioner.patch(activation_memory_budget=budget, activation_memory_budget_solver=solver):
        compiled(x).backward()
    gradients = [own.grad.clone() for own in module.parameters()]
    module.zero_grad()
    module(x).backward()
    for one, own in zip(gradients, module.parameters(), strict=True):
        torch.testing.assert_close(one, own.grad)

    memory, graph, limit, info, candidates = solver.asked

    def extra_us(kept: set[torch.fx.Node]) -> float:
        """What runs again: all that the backward pass needs, back to what is kept."""
        waiting = [node for node in graph.nodes if not info.is_required_fw(node) and node.op != "output"]
        again = set[torch.fx.Node]()
        while waiting:
            for read in waiting.pop().all_input_nodes:
                if info.is_required_fw(read) and read.op == "call_function" and read not in kept | again:
                    again.add(read)
                    waiting.append(read)
        return math.fsum(cost_us(None, node) for node in again)

    choices = itertools.chain.from_iterable(
        itertools.combinations(range(len(memory)), size) for size in range(len(memory) + 1)
    )
    allowed = [one for one in choices if math.fsum(memory[place] for place in one) <= limit + 1e-12]
    best_us = min(extra_us({candidates[place] for place in one}) for one in allowed)
    kept, dropped = solver.answer
    assert sorted([*kept, *dropped]) == [*range(len(memory))]
    assert 3 <= len(memory) <= 12
    assert dropped
    assert math.fsum(memory[place] for place in kept) <= limit * (1 + 1e-9)
    assert extra_us({candidates[place] for place in kept}) == pytest.approx(best_us, rel=2e-3)


def test_the_knapsack_times_operators_by_themselves():
    torch.manual_seed(0)
    module, x = network(), torch.randn(64, 32)
    torch.compiler.reset()
    compiled = torch.compile(module, backend="aot_eager_decomp_partition", dynamic=False)
    with partitioner.patch(activation_memory_budget=0.3, activation_memory_budget_solver=autotm.knapsack):
        compiled(x).sum().backward()
    assert all(own.grad is not None for own in module.parameters())


def test_an_operator_that_cannot_be_called_by_itself_is_named():
    @torch.library.custom_op("autotm_test::strict", mutates_args=())
    def strict(x: torch.Tensor) -> torch.Tensor:
        if not x.any():
            raise ValueError("zeros are not allowed")
        return x.clone()

    strict.register_fake(torch.empty_like)
    graph = torch.fx.Graph()
    source = graph.placeholder("x")
    source.meta["val"] = torch.empty(3)
    node = graph.call_function(torch.ops.autotm_test.strict.default, (source,))
    node.meta["val"] = torch.empty(3)
    with pytest.raises(autotm.AutotmError, match=r"autotm_test.strict.*zeros are not allowed"):
        knapsacks._Times().us(node)
