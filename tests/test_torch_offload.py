"""`autotm.offload`: steps of PyTorch within a budget, bit for bit those of plain PyTorch, whatever copies are late."""

from __future__ import annotations

import copy
import itertools
import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the steps are PyTorch's: make test-torch installs it")

from offloaded_steps import (  # noqa: E402
    CASES,
    DEVICE,
    ON_A_NODE,
    QUICK,
    THREADS,
    least,
    least_of,
    offloaded,
    plainly,
    same_bits,
    trained,
)

import autotm  # noqa: E402
from autotm.api.offload.measuring import Measured, measure  # noqa: E402
from autotm.api.offload.step import arguments  # noqa: E402
from autotm.joint_graph import Step, capture, tensors_of  # noqa: E402
from autotm.memory.linux.pools import NodePool  # noqa: E402
from autotm.memory.torch_device import Cpu, ThreadCopies  # noqa: E402
from autotm.model.errors import BadInputError, InfeasibleLimitError  # noqa: E402
from autotm.model.graph import Tier  # noqa: E402
from autotm.model.system import MemoryLimit, SystemMemory  # noqa: E402

nn, F = torch.nn, torch.nn.functional
MORE = {"convolutions", "deep", "transformer"}
"""Beside dropout; convolutions and batch norm in place, with branches; views, and gradients of all kinds."""
NAMES = [pytest.param(name, marks=pytest.mark.slow if name in MORE else ()) for name in CASES]


@pytest.mark.parametrize("name", NAMES)
def test_steps_in_the_least_memory_compute_the_same_bits(name: str) -> None:
    module, smallest = CASES[name].module(), least(name)
    with offloaded(name, smallest, module) as step:
        summary = step.summary()
        assert summary.planned_peak_bytes <= smallest == summary.budget_bytes < summary.plain_peak_bytes
        assert summary.moved_out_bytes > 0
        assert summary.bound_s <= summary.predicted_s
        assert all(same_bits(trained(module, name, step), plainly(name)))
        measured = step.measure(*CASES[name].batch(), verify=True)  # Gradients are added to those that are there.
    assert measured.peak_bytes <= smallest
    assert measured.moved_out_bytes > 0
    assert re.match(r".* measured \(.* planned, .* allowed\); .* moved out .*predicted, bound", str(measured))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_counted_is_what_is_planned(name: str) -> None:
    with offloaded(name, "1x") as step:
        summary, measured = step.summary(), step.measure(*CASES[name].batch())
    assert summary.moved_out_bytes == summary.moved_in_bytes == 0
    assert 0.9 * summary.planned_peak_bytes <= measured.peak_bytes <= summary.planned_peak_bytes


def test_a_page_shows_where_each_tensor_is(tmp_path: Path) -> None:
    with offloaded("perceptron", "0.6x", **QUICK) as step:
        step.view(tmp_path / "plan.html")
        summary = step.summary()
    page = (tmp_path / "plan.html").read_text()
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    shown = json.loads(data)
    assert shown["limit_bytes"] == summary.budget_bytes
    assert summary.planned_peak_bytes <= shown["pool_bytes"][0] <= summary.budget_bytes
    assert len(shown["moves"]["tensor"]) >= 2
    assert shown["heading"]["network"] == "Sequential"


@THREADS
@pytest.mark.parametrize("name", ["block", pytest.param("transformer", marks=pytest.mark.slow)])
def test_late_copies_and_poisoned_memory_change_nothing(name: str) -> None:
    drawn, module = random.Random(0), CASES[name].module()
    with offloaded(name, least(name) * 11 // 10, module) as step:
        start, wanted = copy.deepcopy(module.state_dict()), plainly(name)
        step._executor.poison = True
        for longest_s in (0.0, 1e-4, 1e-3, 5e-3):
            step._executor.copies.close()
            step._executor.copies = ThreadCopies(lambda longest_s=longest_s: time.sleep(drawn.random() * longest_s))
            module.load_state_dict(start)
            assert all(same_bits(trained(module, name, step), wanted))


@THREADS
@ON_A_NODE
def test_what_is_copied_is_on_the_memory_node(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    monkeypatch.setattr("autotm.memory.torch_device.NodePool", lambda *how: opened.append(NodePool(*how)) or opened[-1])
    module = CASES["perceptron"].module()
    options = {"optimizer": torch.optim.Adam(module.parameters()), "slow": "node:0"}
    smallest = least_of(lambda: offloaded("perceptron", 1, module, **options))
    with offloaded("perceptron", smallest, module, **options) as step:
        assert "memory node 0 in the place of the host's" in str(step)
        step.measure(*CASES["perceptron"].batch(), verify=True)
        addresses = {pool.view(0, (1,), "uint8").ctypes.data for pool in opened if pool.size_bytes}
        pool = step._executor.pool
        assert pool.data_ptr() in addresses
        assert 0 <= step._updates[0].kept.data_ptr() - pool.data_ptr() < pool.numel()
        for pool in opened:
            pool.check()


@THREADS
def test_a_copy_that_does_not_come_is_seen() -> None:
    class Lost(ThreadCopies):
        def start(self, tier: Tier, destination: torch.Tensor, source: torch.Tensor) -> object:
            return super().start(tier, source.clone() if tier is Tier.FAST else destination, source)

    module = CASES["perceptron"].module()
    start = copy.deepcopy(module.state_dict())
    with offloaded("perceptron", least("perceptron"), module) as step:
        step._executor.copies.close()
        step._executor.copies, step._executor.poison = Lost(), True
        assert not all(same_bits(trained(module, "perceptron", step), plainly("perceptron")))
        module.load_state_dict(start)
        module.zero_grad()
        with pytest.raises(autotm.AutotmError, match=r"differs from that of plain PyTorch .* so the plan is wrong"):
            step.measure(*CASES["perceptron"].batch(), verify=True)


AGAIN = {"block": "0.75x", "deep": "0.6x", "perceptron": "0.85x", "transformer": "0.65x"}
"""What repeats alone can keep, whatever operators take."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in MORE else ()) for name in AGAIN])
def test_operators_that_run_again_compute_the_same_bits(name: str) -> None:
    module = CASES[name].module()
    with offloaded(name, AGAIN[name], module, move=False, recompute=True) as step:
        summary = step.summary()
        assert summary.planned_peak_bytes <= summary.budget_bytes < summary.plain_peak_bytes
        assert (summary.moved_out_bytes, summary.host_bytes) == (0, 0)
        assert summary.recomputed > 0
        assert summary.plain_s <= summary.bound_s <= summary.predicted_s
        assert summary.predicted_s == pytest.approx(summary.plain_s + summary.recomputed_s)
        assert all(same_bits(trained(module, name, step), plainly(name)))
        measured = step.measure(*CASES[name].batch(), verify=True)
    assert measured.peak_bytes <= summary.budget_bytes


@pytest.mark.parametrize("name", ["block", "perceptron"])
def test_moves_and_repeats_together_compute_the_same_bits(name: str) -> None:
    module = CASES[name].module()
    with offloaded(name, least(name), module, recompute=True) as step:
        summary = step.summary()
        assert summary.plain_s <= summary.bound_s <= summary.predicted_s
        assert all(same_bits(trained(module, name, step), plainly(name)))
        assert step.measure(*CASES[name].batch(), verify=True).peak_bytes <= least(name)


def test_random_operators_draw_the_same_numbers_again() -> None:
    layers = [(nn.Linear(64, 64), nn.Dropout(0.5), nn.Tanh()) for _ in range(4)]
    module = nn.Sequential(*itertools.chain.from_iterable(layers)).to(DEVICE)
    batch = torch.ones(512, 64, device=DEVICE)
    with autotm.offload(module, batch, torch.sum, "0.7x", move=False, **{**QUICK, "recompute": True}) as step:
        again = {run.operator for run in step._executor.runs if run.wanted is not None}
        assert any(step._step.operators[index].is_random for index in again)
        step.measure(batch, verify=True)


def test_a_step_that_moves_nothing_or_takes_more_than_its_budget_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    module, batch = CASES["perceptron"].module(), CASES["perceptron"].batch()
    with (
        offloaded("perceptron", least("perceptron"), module) as step,
        offloaded("perceptron", "1x", module) as other,
    ):
        with monkeypatch.context() as patched:
            patched.setattr(other, "_planned", step._planned)
            with pytest.raises(autotm.AutotmError, match=r"moved 0 bytes out and 0 back, and its plan [1-9]"):
                other.measure(*batch)
        peak = other._device.peak
        monkeypatch.setattr(other._device, "peak", lambda call: (peak(call)[0], 10**9))
        with pytest.raises(autotm.AutotmError, match=r"took 1\d{9} bytes of device memory, \d+ more than its budget"):
            other.measure(*batch)


@torch.library.custom_op("test_offload::unsteady", mutates_args=())
def unsteady(like: torch.Tensor) -> torch.Tensor:
    """Return other numbers at each call."""
    return torch.full_like(like, next(CALLS))


@unsteady.register_fake
def _(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(like)


CALLS = itertools.count()


class Unsteady(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (super().forward(x) * unsteady(x.detach())).sum()


def test_an_operator_that_is_not_deterministic_is_named() -> None:
    module = Unsteady(4, 4).to(DEVICE)
    with (
        autotm.offload(module, torch.ones(2, 4, device=DEVICE), budget="1x", **QUICK) as step,
        pytest.raises(autotm.AutotmError, match=r"the loss differs .* operator 'test_offload.unsteady.default"),
    ):
        step.measure(torch.ones(2, 4, device=DEVICE), verify=True)


def test_host_memory_that_a_container_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemMemory, "memory_limit", MemoryLimit(10**6, 100))
    with pytest.raises(InfeasibleLimitError, match=r"need \d+ bytes of host memory and more, 100 may be taken"):
        offloaded("perceptron", least("perceptron"))


def test_plans_keep_the_budget_of_the_host() -> None:
    module = CASES["deep"].module()
    with offloaded("deep", "0.75x", module) as step:
        most = step.summary().host_bytes
    for host_bytes in (most, most // 2, 0):
        with offloaded("deep", "0.75x", module, host_budget=host_bytes, recompute=True) as step:
            assert step.summary().host_bytes <= host_bytes
            assert step.summary().recomputed or host_bytes == most
            assert all(same_bits(trained(module, "deep", step), plainly("deep")))
        module = CASES["deep"].module()


@THREADS
def test_a_copy_that_fails_ends_the_step() -> None:
    def fail() -> None:
        raise OSError("no such memory")

    with offloaded("perceptron", least("perceptron")) as step:
        step._executor.copies.close()
        step._executor.copies = ThreadCopies(fail)
        with pytest.raises(autotm.AutotmError, match=r"a copy of .* bytes failed: no such memory"):
            step(*CASES["perceptron"].batch())


class Seen(Cpu):
    """A CPU that keeps what operators gave, and the most bytes that the step's tensors had while one ran."""

    has_arenas = False

    def __init__(self, is_full: bool) -> None:
        super().__init__()
        self.is_full, self.failed = is_full, None
        self.outputs, self.most_bytes = [], 0
        self.values: dict[object, object] = {}

    def peak(self, call: Callable[[], object]) -> tuple[object, int]:
        if self.is_full and self.failed is not call:
            self.failed = call
            raise torch.OutOfMemoryError("as on a smaller device")
        held = {
            each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors_of(list(self.values.values()))
        }
        self.most_bytes = max(self.most_bytes, sum(storage.nbytes() for storage in held.values()))
        outputs, peak_bytes = super().peak(call)
        self.outputs += [each.clone() for each in tensors_of(outputs)]
        return outputs, peak_bytes


@THREADS
def test_operators_are_timed_where_the_device_has_room_for_one() -> None:
    case = CASES["block"]
    inputs, *targets = batch = case.batch()

    def measured(is_full: bool) -> tuple[Measured, Seen]:
        device, step = Seen(is_full), Step(capture(case.module(), (inputs,), case.loss, targets, DEVICE))
        device.values = arguments(step, batch)
        return measure(step, device.values, device, 1e-5), device

    (wide, roomy), (narrow, full) = measured(False), measured(True)
    assert (narrow.memory, narrow.sizes) == (wide.memory, wide.sizes)
    assert all(same_bits(full.outputs, roomy.outputs))
    assert full.most_bytes < 0.5 * roomy.most_bytes


def test_gradients_add_up() -> None:
    module, batch = CASES["convolutions"].module(), CASES["convolutions"].batch()
    with offloaded("convolutions", "1x", module) as step:
        step(*batch)
        once = [parameter.grad.clone() for parameter in module.parameters()]
        step(*batch)
    assert all(torch.equal(2 * one, each.grad) for one, each in zip(once, module.parameters(), strict=True))


def test_the_derivative_of_the_loss_is_on_the_loss_device() -> None:
    """On a GPU, the gradient of cross entropy takes no operand from the CPU; `meta` is the device that all have."""
    meta = torch.device("meta")
    module, values = nn.Linear(4, 3, device=meta), torch.empty(2, 4, device=meta)
    captured = capture(module, [values], F.cross_entropy, [torch.empty(2, dtype=torch.int64, device=meta)], meta)
    assert captured.values["tangent"].device == meta


def test_a_batch_that_does_not_fit_is_refused() -> None:
    inputs, targets = CASES["perceptron"].batch()
    module = CASES["perceptron"].module()
    with offloaded("perceptron", "1x", module) as step:
        made_for = r"float32 \(127, 16\) on .*; the step was made for float32 \(128, 16\)"
        with pytest.raises(BadInputError, match=made_for):
            step(inputs[1:], targets)
        with pytest.raises(BadInputError, match="takes 2 tensors"):
            step(inputs)
        module.eval()
        with pytest.raises(BadInputError, match="evaluation mode"):
            step(inputs, targets)
    module.train()
    with pytest.raises(BadInputError, match="was closed"):
        step(inputs, targets)


class Branches(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = super().forward(x)
        return (output if output.sum() > 0 else -output).sum()


class Selects(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = super().forward(x)
        return output[output > 0].sum()


def on_meta() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, device="meta"))


def hooked() -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(4))])
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (lambda: Branches(4, 4), {}, r"test_torch_offload.py:\d+: the step depends on the value of a tensor"),
        (
            lambda: Selects(4, 4),
            {},
            r"test_torch_offload.py:\d+: the shape of what .*nonzero.* gives depends on values",
        ),
        (on_meta, {"loss": torch.sum}, "one device; parameter '0.weight' on cpu, parameter '1.weight' on meta"),
        (lambda: nn.Linear(4, 4, device="meta"), {"inputs": torch.ones(2, 4, device="meta")}, "on 'meta'; give one on"),
        (lambda: nn.Linear(4, 4).requires_grad_(False), {}, "no parameter of the module requires a gradient"),
        (lambda: nn.Linear(4, 4), {}, r"the loss is a tensor of shape \(2, 4\)"),
        (lambda: nn.Linear(4, 4), {"loss": lambda output: output.detach().sum()}, "does not depend on a parameter"),
        (lambda: torch.sum, {}, "give a torch.nn.Module"),
        (lambda: nn.Linear(4, 4), {"inputs": [1, 2]}, "input 0 is a int; give tensors"),
        (lambda: nn.Linear(4, 4), {"inputs": torch.ones(2, 4, requires_grad=True)}, "input 0 requires a gradient"),
        (lambda: nn.Linear(4, 4), {"budget": "half"}, "'half' is no budget"),
        (lambda: nn.Linear(4, 4), {"budget": "1:0"}, "'1:0' is no budget"),
        (lambda: nn.Linear(4, 4), {"host_budget": "1:1"}, "'1:1' is no budget of host memory; give bytes"),
        (
            lambda: nn.Linear(4, 4),
            {"budget": 100, "loss": torch.sum, **QUICK},
            r"a budget of 100 bytes is too small: .* needs \d+ bytes; give at least that",
        ),
        (lambda: nn.Linear(4, 4), {"optimizer": "adam"}, "the optimizer is a str; give one of torch.optim"),
        (lambda: nn.Linear(4, 4), {"optimizer": torch.optim.LBFGS([on_meta()[0].weight])}, "LBFGS is not known to"),
        (
            lambda: nn.Linear(4, 4),
            {"optimizer": torch.optim.SGD([on_meta()[0].weight])},
            r"parameter of shape \(4, 4\) that the module has not",
        ),
        (lambda: nn.Linear(4, 4), {"optimizer": hooked()}, "the optimizer has hooks"),
        (lambda: nn.Linear(4, 4), {"slow": "cxl"}, "slow is 'cxl'; give a memory node, as node:2"),
        pytest.param(
            lambda: nn.Linear(4, 4), {"slow": "node:77"}, "slow: node 77 does not exist on this machine", marks=THREADS
        ),
        (lambda: nn.Linear(4, 4), {"gap": 2.0}, "gap"),
        (lambda: nn.Linear(4, 4), {"move": False, "recompute": False}, "no plan saves memory"),
        (lambda: nn.Linear(4, 4), {"kernel_s": 0}, "positive number of seconds"),
    ],
)
def test_what_cannot_be_is_refused(module: Callable[[], nn.Module], options: dict[str, object], message: str) -> None:
    with pytest.raises(autotm.AutotmError, match=message):
        autotm.offload(module(), **{"inputs": torch.ones(2, 4), **options})


def test_gradients_switched_off_are_refused() -> None:
    with torch.no_grad(), pytest.raises(BadInputError, match=r"torch\.no_grad"):
        autotm.offload(nn.Linear(4, 4), torch.ones(2, 4), torch.sum)


def test_times_of_operators_are_nanoseconds_a_call() -> None:
    """Calls that are shorter than what reading the clock costs are timed several at once."""

    class Clock(Cpu):
        def __init__(self) -> None:
            self.asked, self.took_s = [], itertools.cycle([2e-3, 4e-3, 6e-3])

        def seconds(self, _call: Callable[[], object], calls: int) -> float:
            self.asked.append(calls)
            return calls * next(self.took_s) / 1000

    clock = Clock()
    least, median, lower, upper, count = clock.median_ns(lambda: None, 0.0)
    assert (least, median) == (2000, 4000)
    assert least <= lower <= median <= upper <= 6000
    assert count == len(clock.asked) - 1 >= 3
    assert clock.asked[0] == 1 < clock.asked[1]
