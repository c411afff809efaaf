"""Learning rates that vary from step to step, and training that goes on elsewhere, against PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the modules are PyTorch's: make test-torch installs it")

import small_step  # noqa: E402

import autotm  # noqa: E402
from autotm.model.errors import BadInputError  # noqa: E402

nn, F = torch.nn, torch.nn.functional
FAST = {"step_s": 0.2, "min_repeats": 2, "patience_s": 0.05, "step_tolerance": 1000.0}
STEPS, ALLOWED = 10, 3.0
OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.05),
    "nesterov": lambda groups: torch.optim.SGD(groups, lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.01),
    "damped": lambda groups: torch.optim.SGD(groups, lr=0.02, momentum=0.9, dampening=0.3),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.003),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.003, weight_decay=0.05),
}


def scale(step: int) -> float:
    """Two steps of warm-up, then a cosine."""
    return (step + 1) / 2 if step < 2 else 0.5 * (1 + np.cos(np.pi * (step - 2) / STEPS))


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(20, 12), nn.Flatten(), nn.Linear(60, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 5),
    )  # fmt: skip


def groups(model: nn.Module) -> list[dict[str, object]]:
    """Two, of which the second learns a tenth as fast, without decay."""
    vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    return [{"params": matrices}, {"params": vectors, "lr": 0.002, "weight_decay": 0.0}]


def data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = np.random.default_rng(seed)
    return torch.from_numpy(draw.integers(0, 20, (6, 5))), torch.from_numpy(draw.integers(0, 5, 6))


@pytest.fixture(scope="module")
def options(results: Path) -> dict[str, object]:
    return {"machine": small_step.machine(), "profile": FAST, "results": results}


def planned(
    kind: str, options: dict[str, object], limit: str = "2:1", model: nn.Module | None = None
) -> autotm.Placement:
    model, (words, labels) = model or module(), data(99)
    training = OPTIMIZERS[kind](groups(model))
    options = options | {"loss": F.cross_entropy, "targets": (labels,), "training": training, "scheduled": True}
    return autotm.plan(model, words, limit, **options)


def trained(kind: str, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """Weights after some steps by PyTorch, its rates scheduled by PyTorch."""
    model = module().to(dtype).train()
    optimizer = OPTIMIZERS[kind](groups(model))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, scale)
    for seed in range(STEPS):
        words, labels = data(seed)
        optimizer.zero_grad()
        F.cross_entropy(model(words), labels).backward()
        optimizer.step()
        schedule.step()
    return {name: value.double().numpy().copy() for name, value in model.state_dict().items()}


def error(state: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    return float(np.sqrt(sum(np.sum((np.asarray(state[name]) - wanted[name]) ** 2) for name in wanted)))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_scheduled_steps_train_as_pytorch_does(kind: str, options: dict[str, object]) -> None:
    placed = planned(kind, options)
    assert placed.run(min_seconds=0.0, patience_s=0.05, verify_steps=2).verified_steps == 2
    for step in range(STEPS):
        placed.step(*data(step), rate_scale=scale(step))
    exact = trained(kind, torch.float64)
    assert error(placed.state_dict(), exact) <= ALLOWED * error(trained(kind, torch.float32), exact)
    placed.close()


def test_a_scale_stays_until_another_is_given(options: dict[str, object]) -> None:
    placed = planned("sgd", options)
    placed.step(*data(0), rate_scale=0.0)
    placed.step(*data(1))
    after = placed.state_dict()
    assert all(torch.equal(after[name], value) for name, value in module().state_dict().items())
    placed.close()


@pytest.mark.parametrize("kind", ["nesterov", "adamw"])
def test_training_goes_on_elsewhere(kind: str, options: dict[str, object], tmp_path: Path) -> None:
    first = planned(kind, options)
    for step in range(3):
        first.step(*data(step), rate_scale=scale(step))
    torch.save({"weights": first.state_dict(), "kept": first.optimizer_state()}, tmp_path / "checkpoint.pt")
    on = [first.step(*data(step), rate_scale=scale(step)) for step in range(3, STEPS)]
    saved = torch.load(tmp_path / "checkpoint.pt")
    model = module()
    model.load_state_dict(saved["weights"])
    second = planned(kind, options, "1:1", model)
    second.load_optimizer_state(saved["kept"])
    assert [second.step(*data(step), rate_scale=scale(step)) for step in range(3, STEPS)] == on
    for placed in (first, second):
        placed.close()


@pytest.mark.parametrize("kind", ["nesterov", "adamw"])
def test_training_goes_on_from_what_an_optimizer_of_pytorchs_keeps(kind: str, options: dict[str, object]) -> None:
    model, (words, labels) = module(), data(99)
    optimizer = OPTIMIZERS[kind](groups(model))

    def train(step: int) -> float:
        words, labels = data(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(words), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    for step in range(3):
        train(step)
    placed = autotm.plan(model, words, "1:1", loss=F.cross_entropy, targets=(labels,), training=optimizer, **options)
    losses = [placed.step(*data(step)) for step in range(3, STEPS)]
    assert losses == pytest.approx([train(step) for step in range(3, STEPS)], rel=1e-5)
    placed.close()


def test_what_rules_keep_is_what_pytorchs_keep(options: dict[str, object]) -> None:
    placed, model = planned("adam", options), module()
    optimizer = OPTIMIZERS["adam"](groups(model))
    words, labels = data(0)
    F.cross_entropy(model(words), labels).backward()
    optimizer.step()
    placed.step(words, labels)
    kept = placed.optimizer_state()
    assert kept.pop("step") == 1
    theirs = {name: optimizer.state[parameter] for name, parameter in model.named_parameters()}
    assert kept.keys() == theirs.keys()
    for name, states in kept.items():
        torch.testing.assert_close(states["first_moment"], theirs[name]["exp_avg"], rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(states["second_moment"], theirs[name]["exp_avg_sq"], rtol=1e-4, atol=1e-10)
    placed.close()


def test_faults_are_named(options: dict[str, object]) -> None:
    model, (words, labels) = module(), data(99)
    fixed = autotm.plan(model, words, "2:1", loss=F.cross_entropy, targets=(labels,), **options)
    with pytest.raises(BadInputError, match="are compiled in; prepare it with scheduled=True"):
        fixed.step(words, labels, rate_scale=0.5)
    with pytest.raises(BadInputError, match="'step' is nothing that this step keeps"):
        fixed.load_optimizer_state({"step": 3})
    fixed.close()
    with pytest.raises(BadInputError, match="it is not trained: there is no learning rate"):
        autotm.plan(model, words, "2:1", mode="inference", scheduled=True, **options)
    placed = planned("adamw", options)
    with pytest.raises(BadInputError, match="rate_scale: -1 is not a number of at least 0"):
        placed.step(words, labels, rate_scale=-1)
    kept = placed.optimizer_state()
    with pytest.raises(BadInputError, match=r"'second_moment' of '2\.weight' is missing: it is of another training"):
        placed.load_optimizer_state(kept | {"2.weight": {"first_moment": kept["2.weight"]["first_moment"]}})
    turned = {state: value[:1] for state, value in kept["2.weight"].items()}
    with pytest.raises(BadInputError, match=r"of '2.weight' is \[1, 60\], not \[16, 60\]"):
        placed.load_optimizer_state(kept | {"2.weight": turned})
    with pytest.raises(BadInputError, match=r"optimizer state: '2\.weight' is a Tensor, not a mapping of first_moment"):
        placed.load_optimizer_state(kept | {"2.weight": kept["2.weight"]["first_moment"]})
    placed.close()
