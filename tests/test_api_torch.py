"""`autotm.plan(module, inputs, limit)`: planned, verified, trained on, and the weights back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the modules are PyTorch's: make test-torch installs it")

import small_step  # noqa: E402
from torch._higher_order_ops.scan import scan  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402

import autotm  # noqa: E402
from autotm.model.errors import BadInputError  # noqa: E402

nn, F = torch.nn, torch.nn.functional
FAST = {"step_s": 0.2, "min_repeats": 2, "patience_s": 0.05, "step_tolerance": 1000.0}
STEPS = 10
ALLOWED = 3.0


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(8 * 25, 32), nn.Tanh(), nn.Linear(32, 5),
    )  # fmt: skip


def data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = np.random.default_rng(seed)
    images = torch.from_numpy(draw.standard_normal((6, 3, 10, 10), dtype=np.float32))
    return images, torch.from_numpy(draw.integers(0, 5, 6))


def adam(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.003, weight_decay=0.05)


@pytest.fixture(scope="module")
def options(results: Path) -> dict[str, object]:
    return {"machine": small_step.machine(), "profile": FAST, "results": results}


def trained(dtype: torch.dtype) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses and state after some steps by PyTorch."""
    model = module().to(dtype).train()
    optimizer, losses = adam(model.parameters()), []
    for seed in range(STEPS):
        images, labels = data(seed)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images.to(dtype)), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.double().numpy().copy() for name, value in model.state_dict().items()}


def error(state: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    return float(np.sqrt(sum(np.sum((state[name] - wanted[name]) ** 2) for name in wanted)))


def test_planned_steps_train_as_pytorch_does(options: dict[str, object]) -> None:
    model = module()
    images, labels = data(99)
    placed = autotm.plan(
        model, images, "2:1", loss=F.cross_entropy, targets=(labels,), training=adam(model.parameters()), **options
    )
    assert placed.run(min_seconds=0.0, patience_s=0.05, verify_steps=2).verified_steps == 2
    losses = [placed.step(*data(seed)) for seed in range(STEPS)]
    exact, wanted = trained(torch.float64)
    single, theirs = trained(torch.float32)
    np.testing.assert_allclose(losses, exact, atol=max(1e-5, ALLOWED * max(map(abs, np.subtract(single, exact)))))
    state = placed.state_dict()
    assert error({name: value.double().numpy() for name, value in state.items()}, wanted) <= ALLOWED * error(
        theirs, wanted
    )
    other = copy.deepcopy(model)
    other.load_state_dict(state)
    assert int(other[1].num_batches_tracked) == STEPS
    placed.close()
    assert placed.step(*data(0)) == losses[0], "after closing, training begins again"
    placed.close()


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_a_step_with_pytorchs_kernels_is_placed_verified_and_compared(kernels: str, options: dict[str, object]) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.other = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.cdist(torch.tanh(self.line(x)), self.other(x))
            return torch.linalg.inv(y + 40 * torch.eye(20)).square().mean()

    torch.manual_seed(0)
    placed = autotm.plan(Mixed(), torch.randn(20, 16), "4:1", kernels=kernels, **options)
    ops = {kernel.op for kernel in placed.training_step.lowered.kernels}
    assert {"torch__cdist_forward", "torch_linalg_inv_ex"} <= ops
    assert ("torch_tanh" in ops) == (kernels == "torch")
    record = placed.run(min_seconds=0.0, patience_s=0.05, verify_steps=2)
    assert record.verified_steps == 2
    assert record.compared_with.startswith(f"PyTorch {torch.__version__}: ")


# Loops and branches, each of which is one kernel.


class Language(nn.Module):
    """Predicts words from those before."""

    def __init__(self, kind: type[nn.RNNBase], **layer: object) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(11, 8), kind(8, 6, **layer)
        self.out = nn.Linear(6 * (2 if self.layer.bidirectional else 1), 11)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(self.table(words))[0]).flatten(0, 1)


class Scanned(nn.Module):
    """A recurrence that the module writes as a scan; of its states a branch is taken."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.line, self.out = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        def step(h: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            h = torch.tanh(self.line(h) + x)
            return h, h.clone()

        rows = self.table(words)
        states = scan(step, torch.zeros_like(rows[0]), rows)[1]
        return self.out(states).flatten(0, 1)


def words(seed: int, steps: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    draw = np.random.default_rng(seed)
    return tuple(torch.from_numpy(draw.integers(0, 11, shape)) for shape in ((steps, 3), (steps * 3,)))  # type: ignore[return-value]


def fitted(build: Callable[[], nn.Module], dtype: torch.dtype) -> tuple[list[float], dict[str, np.ndarray]]:
    torch.manual_seed(0)
    model, losses = build().to(dtype), []
    optimizer = adam(model.parameters())
    for seed in range(STEPS):
        x, y = words(seed)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.double().numpy().copy() for name, value in model.state_dict().items()}


LAYERS = {
    "LSTM": lambda: Language(nn.LSTM, num_layers=2),
    "GRU": lambda: Language(nn.GRU, bidirectional=True),
    "RNN": lambda: Language(nn.RNN, nonlinearity="relu"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers_are_kernels_of_a_plan(name: str, options: dict[str, object]) -> None:
    torch.manual_seed(0)
    model, (x, y) = LAYERS[name](), words(0)
    placed = autotm.plan(
        model, x, "4:1", loss=F.cross_entropy, targets=(y,), training=adam(model.parameters()), **options
    )
    ops = [kernel.op for kernel in placed.training_step.lowered.kernels]
    assert ops.count("loop_scan") == 2 * (1 if name == "RNN" else 2)  # Forward and backward.
    record = placed.run(min_seconds=0.0, patience_s=0.05, verify_steps=2)
    assert record.verified_steps == 2
    assert record.compared_with.startswith(f"PyTorch {torch.__version__}: ")
    losses = [placed.step(*words(seed)) for seed in range(STEPS)]
    exact, wanted = fitted(LAYERS[name], torch.float64)
    single, theirs = fitted(LAYERS[name], torch.float32)
    np.testing.assert_allclose(losses, exact, atol=max(1e-5, ALLOWED * max(map(abs, np.subtract(single, exact)))))
    state = {name: value.double().numpy() for name, value in placed.state_dict().items()}
    assert error(state, wanted) <= ALLOWED * error(theirs, wanted)
    placed.close()


def test_loops_of_the_modules_own_are_kernels_too(options: dict[str, object]) -> None:
    torch.manual_seed(0)
    model, (x, y) = Scanned(), words(0)
    placed = autotm.plan(model, x, "4:1", loss=F.cross_entropy, targets=(y,), **options)
    assert placed.run(min_seconds=0.0, patience_s=0.05, verify_steps=2).verified_steps == 2
    loss = placed.step(*words(1))
    torch.testing.assert_close(torch.tensor(loss), F.cross_entropy(model(words(1)[0]), words(1)[1]).detach())
    placed.close()


def test_a_loop_that_data_end_and_a_branch_in_inference(options: dict[str, object]) -> None:
    class Halved(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            (x, _) = while_loop(
                lambda x, step: (x.abs().sum() > 1) & (step < 50), lambda x, step: (x / 2, step + 1),
                (x, torch.tensor(0)),
            )  # fmt: skip
            return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    model = Halved()
    placed = autotm.plan(model, torch.ones(8), "0:1", mode="inference", **options)
    for factor in (-7.0, 0.01, 3.0):
        x = factor * torch.linspace(0.1, 1, 8)
        torch.testing.assert_close(torch.as_tensor(placed.step(x)), model(x))
    placed.close()


def test_a_step_is_as_large_for_ten_thousand_steps_of_a_loop() -> None:
    kernels = [
        len(autotm.from_torch(nn.GRU(8, 6), torch.zeros(steps, 8), loss=lambda out: out[0].sum()).module.functions)
        for steps in (10, 10_000)
    ]
    assert kernels[0] == kernels[1]


def test_inference_gives_the_modules_output(options: dict[str, object]) -> None:
    model, (images, _) = module(), data(1)
    placed = autotm.plan(model, images, limit="2:1", mode="inference", **options)
    other, _ = data(2)
    with torch.no_grad():
        torch.testing.assert_close(placed.step(other), model.eval()(other), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(placed.state_dict(), dict(model.state_dict()))
    placed.close()


class Nested(torch.nn.Module):
    """Returns its outputs in another order than it computes them, among what is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        y = self.dense(x)
        return {"last": y.sum(), "first": (y, None, {"twice": [y, y]}), "kind": "nested", "count": 3}


def test_outputs_are_nested_as_the_modules_are(options: dict[str, object]) -> None:
    model, x = Nested(), torch.randn(5, 6)
    placed = autotm.plan(model, x, limit="1:1", mode="inference", **options)
    other = torch.randn(5, 6)
    output = placed.step(other)
    assert output.pop("kind") == "nested"
    with torch.no_grad():
        wanted = {name: value for name, value in model(other).items() if name != "kind"}
    torch.testing.assert_close(output, wanted, rtol=1e-5, atol=1e-5)
    placed.close()


def test_a_sweep_of_a_module(options: dict[str, object]) -> None:
    images, labels = data(1)
    swept = autotm.sweep(module(), images, ["0:1", "2:1"], loss=F.cross_entropy, targets=(labels,), **options)
    assert len(swept.table) == 2


def test_faults_are_named(options: dict[str, object]) -> None:
    model, (images, labels) = module(), data(1)
    with pytest.raises(BadInputError, match="Sequential: a module of PyTorch has no shapes without inputs"):
        autotm.plan(model, **options)
    placed = autotm.plan(model, images, "2:1", loss=F.cross_entropy, targets=(labels,), **options)
    with pytest.raises(BadInputError, match="3 inputs given, the network has 2: input, target"):
        placed.step(images, labels, labels)
    with pytest.raises(BadInputError, match=r"input input is float32\[2, 10, 10, 3\]; the step was compiled for"):
        placed.step(images[:2])
    with pytest.raises(BadInputError, match="unknown input 'inputs'; did you mean 'input'"):
        placed.step(inputs=images)
    before = placed.state_dict()
    with pytest.raises(BadInputError, match=r"input target: index 50\d is out of range: .* takes 0 to 4"):
        placed.step(images, labels + 500)
    torch.testing.assert_close(placed.state_dict(), before, rtol=0, atol=0)
    assert placed.step(images.requires_grad_(), labels) > 0
    placed.close()


def test_the_example(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    from examples.torch_cnn import main, network

    torch.manual_seed(0)
    losses = main(batch=4, steps=3, **options)
    assert len(losses) == 3
    assert all(1 < loss < 5 for loss in losses)
    assert autotm.from_torch(**network(batch=2)).batch == 2
