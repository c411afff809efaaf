"""Modules of PyTorch that cannot be taken end before anything is compiled, with what and where."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the modules are PyTorch's: make test-torch installs it")

from autotm.model.files.errors import AutotmError, BadInputError  # noqa: E402
from autotm.zoo.frontend import from_torch  # noqa: E402

nn = torch.nn
X = torch.randn(4, 6)


class Function(nn.Module):
    """A layer and a function of its output."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(6, 6), function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.layer(x))


def decided(y: torch.Tensor) -> torch.Tensor:
    return y.sum() if y.sum() > 0 else y.mean()


def total(y: torch.Tensor) -> torch.Tensor:
    return y.sum()


FAULTS: dict[str, tuple[Callable[[], object], str]] = {
    "no module": (lambda: from_torch(total, X), "function is no torch.nn.Module"),
    "float64": (lambda: from_torch(nn.Linear(6, 6).double(), X), r"Linear: weight is float64; .*call .float\(\)"),
    "bfloat16": (lambda: from_torch(nn.Linear(6, 6).bfloat16(), X), "weight is bfloat16"),
    "half inputs": (lambda: from_torch(nn.Linear(6, 6), X.half()), "input 0 is float16"),
    "control flow": (lambda: from_torch(Function(decided), X), "control flow depends on values of tensors"),
    "wrong shape": (lambda: from_torch(nn.Linear(5, 6), X), "Linear: torch.export cannot export it: RuntimeError"),
    "no loss": (lambda: from_torch(nn.Linear(6, 6), X), r"its step returns \(4, 6\); give a loss"),
    "two losses": (lambda: from_torch(Function(lambda y: (y.sum(), y.mean())), X), r"returns \(\), \(\)"),
    "no tensor": (lambda: from_torch(Function(lambda _: 3.0), X), "returns"),
    "unknown mode": (lambda: from_torch(Function(total), X, mode="eval"), "mode: 'eval' is neither"),
    "an operator": (
        lambda: from_torch(Function(lambda y: torch.linalg.svdvals(y).sum()), X),
        r"test_torch_bad_input.py.*linalg_svd.* cannot be imported",
    ),
    "an optimizer": (
        lambda: from_torch((module := Function(total)), X, training=torch.optim.Adagrad(module.parameters())),
        "Adagrad has no rule here; SGD, Adam and AdamW have",
    ),
    "an option": (
        lambda: from_torch(
            (module := Function(total)), X, training=torch.optim.SGD(module.parameters(), maximize=True)
        ),
        "SGD: maximize=True has no rule here",
    ),
    "not all parameters": (
        lambda: from_torch((module := Function(total)), X, training=torch.optim.SGD([module.layer.bias])),
        "SGD: does not train layer.weight",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_it_is_named(name: str) -> None:
    fault, message = FAULTS[name]
    with pytest.raises(BadInputError, match=message):
        fault()


def test_an_operator_without_a_gradient_is_named_with_its_line() -> None:
    from autotm.lower.step import whole_step

    network = from_torch(Function(lambda y: y.cumprod(0).sum()), X)
    with pytest.raises(AutotmError, match=r"cumprod has no gradient.*test_torch_bad_input.py"):
        whole_step(network)
