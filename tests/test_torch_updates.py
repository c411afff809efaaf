"""Updates by an optimizer as parts of a step: bit for bit plain PyTorch's, gradients freed, state on the host."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="the steps are PyTorch's: make test-torch installs it")

from offloaded_steps import CASES, DEVICE, ON_A_NODE, QUICK, THREADS, least_of, offloaded, same_bits  # noqa: E402

import autotm  # noqa: E402
from autotm.memory.torch_device import Cpu, ThreadCopies  # noqa: E402
from autotm.model.errors import BadInputError  # noqa: E402
from autotm.optimizer_updates import Update  # noqa: E402

nn, F = torch.nn, torch.nn.functional


UPDATES: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "perceptron": lambda module: torch.optim.AdamW(module.parameters(), 1e-2),
    "block": lambda module: torch.optim.SGD(
        [{"params": module.head.parameters(), "lr": 0.01}, {"params": module.first.parameters()}], 0.1, momentum=0.9
    ),  # and parameters that it has not
    "odd": lambda module: torch.optim.Adam(module.parameters(), 1e-2, fused=True),
    "transformer": lambda module: torch.optim.Adagrad(module.parameters(), 1e-2, foreach=True),
}


def updated(name: str, optimizer: torch.optim.Optimizer, call: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    """Losses of 20 steps under a schedule, and what is in the optimizer after them."""
    schedule, losses = torch.optim.lr_scheduler.StepLR(optimizer, 3), []
    for seed in range(20):
        torch.manual_seed(100 + seed)
        losses.append(call(*CASES[name].batch()).detach().clone())
        schedule.step()
    parameters = [own for group in optimizer.param_groups for own in group["params"]]
    states = [value for own in parameters for _, value in sorted(optimizer.state[own].items())]
    return [*losses, *parameters, *(state for state in states if isinstance(state, torch.Tensor))]


def updated_plainly(name: str) -> list[torch.Tensor]:
    """The same of plain PyTorch."""
    case, plain = CASES[name], CASES[name].module()
    optimizer = UPDATES[name](plain)

    def call(inputs: torch.Tensor, *targets: torch.Tensor) -> torch.Tensor:
        loss = plain(inputs) if case.loss is None else case.loss(plain(inputs), *targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return updated(name, optimizer, call)


@pytest.mark.filterwarnings("error:.*lr_scheduler")
@pytest.mark.parametrize("name", ["perceptron", "block", "odd", pytest.param("transformer", marks=pytest.mark.slow)])
def test_updates_within_a_step_compute_the_same_bits(name: str) -> None:
    case, module, wanted = CASES[name], CASES[name].module(), updated_plainly(name)
    optimizer = UPDATES[name](module)
    options = {"optimizer": optimizer, "recompute": True}
    smallest = least_of(lambda: offloaded(name, 1, module, **options))
    start = copy.deepcopy((module.state_dict(), optimizer.state_dict()))
    for budget in (smallest, "1x"):
        module.load_state_dict(start[0])
        optimizer.load_state_dict(start[1])
        with offloaded(name, budget, module, **options) as step:
            assert (step.summary().host_bytes > 0) == (budget == smallest)
            assert all(same_bits(updated(name, optimizer, step), wanted))
            assert all(own.grad is None for group in optimizer.param_groups for own in group["params"])
            module.zero_grad()
            receipt = step.measure(*case.batch(), verify=True)
            assert receipt.peak_bytes <= receipt.plan.budget_bytes
            kept = copy.deepcopy(optimizer.state_dict())
            optimizer.load_state_dict(kept)  # onto the device; it goes to where the plan wants it, all the same
            assert step.measure(*case.batch(), verify=True).peak_bytes <= receipt.plan.budget_bytes
        states = (value for state in optimizer.state.values() for value in state.values())
        assert not any(value.is_pinned() for value in states if isinstance(value, torch.Tensor))
    with offloaded(name, "1x", module, **options) as step:
        next(iter(optimizer.state)).grad = torch.ones_like(next(iter(optimizer.state)))
        with pytest.raises(BadInputError, match=r"call zero_grad\(\) first"):
            step(*case.batch())


@THREADS
@ON_A_NODE
@pytest.mark.parametrize("name", ["perceptron", "odd"])
def test_state_is_used_on_a_memory_node_where_copies_take_long(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "copies", lambda _: ThreadCopies(lambda: time.sleep(0.005)))
    case, module, wanted = CASES[name], CASES[name].module(), updated_plainly(name)
    optimizer = UPDATES[name](module)
    options = {"optimizer": optimizer, "slow": "node:0", "recompute": True}
    smallest = least_of(lambda: offloaded(name, 1, module, **options))
    with offloaded(name, smallest, module, **options) as step:
        summary = step.summary()
        assert 0 < summary.in_place_bytes <= summary.host_bytes
        assert f"{summary.in_place_bytes / 1e6:.6g} MB of it used there" in str(step)
        assert step.measure(*case.batch(), verify=True).peak_bytes <= summary.budget_bytes
    module.load_state_dict(CASES[name].module().state_dict())
    optimizer.state.clear()
    with offloaded(name, smallest, module, **options) as step:
        assert all(same_bits(updated(name, optimizer, step), wanted))
        pool, states = step._executor.pool, [value for state in optimizer.state.values() for value in state.values()]
        on_node = [value for value in states if 0 <= value.data_ptr() - pool.data_ptr() < pool.numel()]
        assert sum(value.nbytes for value in on_node) <= step.summary().in_place_bytes <= pool.numel()
        assert on_node
        kept = copy.deepcopy(optimizer.state_dict())
        optimizer.load_state_dict(kept)
        assert step.measure(*case.batch(), verify=True).peak_bytes <= summary.budget_bytes
    states = (value for state in optimizer.state.values() for value in state.values())
    assert not any(0 <= value.data_ptr() - pool.data_ptr() < pool.numel() for value in states)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_updates_free_gradients_and_count_what_an_optimizer_keeps(momentum: float) -> None:
    layers = (part for _ in range(12) for part in (nn.Linear(64, 64), nn.Tanh()))
    module, inputs = nn.Sequential(*layers).to(DEVICE), torch.ones(2, 64, device=DEVICE)
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=momentum)
    parameters_bytes = sum(own.nbytes for own in module.parameters())
    with autotm.offload(module, inputs, torch.sum, "1x", **QUICK) as step:
        without_bytes = step.summary().plain_peak_bytes
    with autotm.offload(module, inputs, torch.sum, "1x", optimizer=optimizer, **QUICK) as step:
        assert not optimizer.state  # Nothing that is the caller's changes before the first step.
        summary, first, second = step.summary(), step.measure(inputs), step.measure(inputs)
    kept_bytes = parameters_bytes if momentum else 0
    assert without_bytes + kept_bytes - summary.plain_peak_bytes > 0.7 * parameters_bytes
    assert first.peak_bytes <= second.peak_bytes <= summary.planned_peak_bytes
    assert second.peak_bytes > 0.9 * summary.planned_peak_bytes


def test_groups_of_an_optimizer_may_keep_different_states() -> None:
    layers = [nn.Linear(64, 64) for _ in range(8)]
    module, inputs = nn.Sequential(*layers).to(DEVICE), torch.ones(2, 64, device=DEVICE)
    with_momentum = {"params": [own for layer in layers[4:] for own in layer.parameters()], "momentum": 0.9}
    optimizer = torch.optim.SGD(
        [{"params": [own for layer in layers[:4] for own in layer.parameters()]}, with_momentum]
    )
    with autotm.offload(module, inputs, torch.sum, "1x", optimizer=optimizer, **QUICK) as step:
        peaks = [step.measure(inputs).peak_bytes for _ in range(2)]
        assert 0.95 * step.summary().planned_peak_bytes < peaks[1] <= step.summary().planned_peak_bytes


def test_state_survives_a_step_that_failed_before_its_update() -> None:
    parameter = nn.Parameter(torch.ones(64, device=DEVICE))
    optimizer = torch.optim.Adam([parameter])
    update = Update(optimizer, (parameter,))
    update([parameter], [torch.ones_like(parameter)])
    wanted = optimizer.state[parameter]["exp_avg"].clone()
    update.keep_on_host(torch.empty(update.state_bytes, dtype=torch.uint8))
    update.store()
    here, kept = update.fetch()
    here.fill_(255)  # The copy failed, and so did the step.
    update.store()
    assert torch.equal(optimizer.state[parameter]["exp_avg"].to(DEVICE), wanted)
    here, kept = update.fetch()
    here.copy_(kept)
    update([parameter], [torch.ones_like(parameter)])
    wanted = optimizer.state[parameter]["exp_avg"].clone()
    update.store()  # The step failed after the update.
    assert torch.equal(optimizer.state[parameter]["exp_avg"].to(DEVICE), wanted)


def test_no_more_of_the_state_waits_on_the_host_than_the_budget_asks_for() -> None:
    layers = (part for _ in range(12) for part in (nn.Linear(64, 64), nn.Tanh()))
    module, inputs = nn.Sequential(*layers).to(DEVICE), torch.ones(2, 64, device=DEVICE)
    optimizer = torch.optim.AdamW(module.parameters())
    with autotm.offload(module, inputs, torch.sum, "0.9x", optimizer=optimizer, **QUICK) as step:
        step.measure(inputs, verify=True)
        assert 0 < step.measure(inputs).moved_out_bytes < 0.8 * 2 * sum(own.nbytes for own in module.parameters())
