"""Modules of PyTorch that cannot be taken end before anything is compiled, with what and where."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the modules are PyTorch's: make test-torch installs it")

from torch_cases import Made  # noqa: E402

from autotm.model.errors import BadInputError  # noqa: E402
from autotm.zoo import from_torch  # noqa: E402

nn, F = torch.nn, torch.nn.functional
X = torch.randn(4, 6)


def applied(function: Callable[..., Any]) -> nn.Module:
    return Made(lambda self, x: function(self.layer(x)), layer=nn.Linear(6, 6))


def total(y: torch.Tensor) -> torch.Tensor:
    return y.sum()


class Assigning(nn.Module):
    """Keeps what it computed last, as no buffer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x * 2
        return self.last.sum()


def hooked() -> nn.Module:
    module = applied(total)
    module.layer.weight.register_hook(lambda slope: 2 * slope)
    return module


class Picked(nn.Module):
    """Entries of a layer's output, by the indices of some operator."""

    def __init__(self, pick: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.pick = nn.Linear(6, 6), pick

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return self.pick(self.layer(x), places).sum()


PICKS = {
    "lookup": (lambda y, i: F.embedding(i, y), 4, r"takes 0 to 3"),
    "lookup before the first": (lambda y, i: F.embedding(i, y), -1, r"takes 0 to 3"),
    "past what 32 bits hold": (lambda y, i: F.embedding(i, y), 2**32 + 1, r"takes 0 to 3"),
    "gathered": (lambda y, i: y.gather(1, i[:, None]), 6, r"takes 0 to 5"),
    "selected": (lambda y, i: y.index_select(1, i), 6, r"takes 0 to 5"),
    "indexed": (lambda y, i: y[i], 4, r"takes -4 to 3"),
    "indexed from the end": (lambda y, i: y[:, i], -7, r"takes -6 to 5"),
    "computed": (lambda y, i: y[2 * i + 1], 2, r"index 5 is out of range: .*takes -4 to 3"),
    "scattered": (lambda y, i: torch.zeros(4, 6).scatter_add(1, i[:, None], y[:, :1]), 6, r"takes 0 to 5"),
    "labels": (F.cross_entropy, 6, r"takes 0 to 5"),
    "one hot": (lambda y, i: y * F.one_hot(i, 6), 6, "Class values must be smaller than num_classes"),
}


@pytest.mark.parametrize("name", PICKS)
def test_an_index_out_of_range_is_named_with_its_input_and_range(name: str) -> None:
    pick, wrong, message = PICKS[name]
    places = torch.tensor([0, 1, 1, 0])
    network = from_torch(Picked(pick), (X, places))
    network.origin.check({"places": places.numpy()})
    places[2] = wrong
    with pytest.raises(BadInputError, match=rf"^input places: .*{message}"):
        network.origin.check({"places": places.numpy()})
    with pytest.raises(BadInputError, match=message):
        from_torch(Picked(pick), (X, places))


def test_the_last_indices_and_those_that_count_for_nothing_are_taken() -> None:
    places = torch.tensor([0, 5, -100, -100])
    from_torch(Picked(F.cross_entropy), (X, places))
    from_torch(Picked(lambda y, i: y[i % 4]), (X, places))
    from_torch(Picked(lambda y, i: y[i]), (X, torch.tensor([-4, 3])))


TVM = {"kernels": "tvm"}
HERE = "test_torch_bad_input.py.*"
FUNCTIONS: dict[str, tuple[Callable[..., object], dict[str, Any], str]] = {
    "unknown kernels": (total, {"kernels": "oneDNN"}, "unknown value of kernels 'oneDNN'"),
    "nothing to compute": (lambda y: y[:, 6:], {"mode": "inference"}, "no tensor that holds anything"),
    "half precision": (
        lambda y: y.half().float().sum(), TVM, f"{HERE}of a type that no kernel here computes with"
    ),
    "indices that a step computes": (
        lambda y: y[y[0].long().abs()].sum(), TVM,
        f"{HERE}its indices, .*, are computed in the step, where nothing checks them",
    ),
    "control flow": (lambda y: y.sum() if y.sum() > 0 else y.mean(), {}, "control flow depends on values of tensors"),
    "two losses": (lambda y: (y.sum(), y.mean()), {}, r"returns \(\), \(\)"),
    "no tensor": (lambda _: 3.0, {}, "returns"),
    "unknown mode": (total, {"mode": "eval"}, "mode: 'eval' is neither"),
    "an operator": (lambda y: torch.linalg.svdvals(y).sum(), TVM, f"{HERE}linalg_svd.* cannot be imported"),
    "places of maxima": (
        lambda y: (F.max_pool1d(y, 2, return_indices=True)[1] * y[:, :3]).sum(), TVM,
        f"{HERE}return_indices=True has no kernel here",
    ),
    "averages of pixels": (
        lambda y: F.interpolate(y[None, None], size=(2, 3), mode="bilinear", antialias=True).sum(), TVM,
        f"{HERE}_upsample_bilinear2d_aa.* cannot be imported",
    ),
    "an operator without a gradient": (
        lambda y: F.adaptive_avg_pool3d(y[None, None, None], (1, 2, 3)).sum(), TVM,
        f"{HERE}avg_pool3d_backward.* it has no kernel here",
    ),
}  # fmt: skip
"""Functions of a layer's output, and options of from_torch."""
OPTIMIZERS: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], str]] = {
    "an optimizer": (
        lambda module: torch.optim.Adagrad(module.parameters()),
        "Adagrad has no rule here; SGD, Adam and AdamW have",
    ),
    "an option": (
        lambda module: torch.optim.SGD(module.parameters(), maximize=True),
        "SGD: maximize=True has no rule here",
    ),
    "not all parameters": (lambda module: torch.optim.SGD([module.layer.bias]), "SGD: does not train layer.weight"),
}
MODULES: dict[str, tuple[Any, torch.Tensor, dict[str, Any], str]] = {
    "no module": (total, X, {}, "function is no torch.nn.Module"),
    "float64": (nn.Linear(6, 6).double(), X, {}, r"Linear: weight is float64; .*call .float\(\)"),
    "bfloat16": (nn.Linear(6, 6).bfloat16(), X, {}, "weight is bfloat16"),
    "bfloat16 inputs": (nn.Linear(6, 6), X.bfloat16(), {}, "input 0 is bfloat16"),
    "complex inputs": (nn.Linear(6, 6), X + 1j, {}, "input 0 is complex"),
    "a lazy module": (nn.LazyLinear(5), X, {}, "LazyLinear: weight has no shape yet; call the module"),
    "wrong shape": (nn.Linear(5, 6), X, {}, "Linear: PyTorch cannot trace it: RuntimeError"),
    "no loss": (nn.Linear(6, 6), X, {}, r"its step returns \(4, 6\); give a loss"),
    "a hook on a parameter": (hooked(), X, {}, "layer.weight has a hook on its gradient"),
    "an attribute that forward assigns": (
        Assigning(), X, {}, "forward assigns the tensor last, which a step would lose; make it a buffer"
    ),
    "an input that forward writes": (
        Made(lambda _, x: x.mul_(2).sum()), X, {"mode": "inference"}, "the step overwrites its input input_0"
    ),
    "an option of an operator": (
        nn.Embedding(6, 3, scale_grad_by_freq=True), torch.tensor([1, 2]), TVM | {"loss": total},
        r"aten.embedding.default cannot be imported here: scale_grad_by_freq=True has no kernel here",
    ),
    **{name: (applied(function), X, options, message) for name, (function, options, message) in FUNCTIONS.items()},
    **{
        name: (module := applied(total), X, {"training": optimizer(module)}, message)
        for name, (optimizer, message) in OPTIMIZERS.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_it_is_named(name: str) -> None:
    module, x, options, message = MODULES[name]
    with pytest.raises(BadInputError, match=message):
        from_torch(module, x, **options)


def test_a_refusal_says_nothing_beside_its_message(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadInputError):
        from_torch(applied(lambda y: torch.linalg.svdvals(y).sum()), X, kernels="tvm")
    assert capfd.readouterr().err == ""
