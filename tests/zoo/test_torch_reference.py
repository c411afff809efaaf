"""Networks of the zoo as modules of PyTorch: no value kept for nothing, refusals; numbers: test_training_numerics."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import pytest

torch = pytest.importorskip("torch", reason="the modules are PyTorch's: make test-torch installs it")

import plain_steps  # noqa: E402
from torch_modules import Made  # noqa: E402
from tvm import relax  # noqa: E402

from autotm import zoo  # noqa: E402
from autotm.model.errors import BadInputError  # noqa: E402
from autotm.model.training import Adam, Sgd, Training  # noqa: E402
from autotm.zoo import from_torch  # noqa: E402
from autotm.zoo.torch_reference import TorchNetwork, optimizer_of, require_pytorch_step  # noqa: E402


def test_a_value_lives_until_its_last_use() -> None:
    network = zoo.build("test_vgg", {"batch": 1, "image": 32})
    module = TorchNetwork(network, start_of(network), torch.float32)
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    class Watching(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            nonlocal most
            made = function(*args, **(kwargs or {}))
            if isinstance(made, torch.Tensor):
                alive.append(weakref.ref(made))
            most = max(most, sum(one() is not None for one in alive))
            return made

    gc.disable()
    try:
        with torch.no_grad(), Watching():
            module()
    finally:
        gc.enable()
    assert len(alive) > 40
    assert most <= 4


def start_of(network: zoo.Network) -> plain_steps.Arrays:
    shapes = {var.name: tuple(int(extent) for extent in var.ty.shape) for var in network.module["main"].params}
    drawn = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=drawn).numpy() for name, shape in shapes.items()}


def test_what_pytorch_cannot_have_is_named() -> None:
    odd = plain_steps.network(
        lambda _, x, w: relax.op.sum(relax.op.erf(relax.op.multiply(x, w))), {"x": (4,)}, {"w": (4,)},
        training=Training(Sgd(0.1)),
    )  # fmt: skip
    with pytest.raises(BadInputError, match=r"network test: relax\.erf has no counterpart in PyTorch here"):
        require_pytorch_step(odd)
    network = zoo.build("mlp", {"batch": 2, "width": 8})
    require_pytorch_step(network)
    first = next(iter(network.parameters))
    mixed = dataclasses.replace(network, training=Training(Sgd(0.1), {first: Adam(0.1)}))
    with pytest.raises(BadInputError, match="rules of several kinds \\(Adam, Sgd\\)"):
        require_pytorch_step(mixed)
    with pytest.raises(BadInputError, match="not trained"):
        require_pytorch_step(dataclasses.replace(network, training=None))


def test_rules_are_groups_of_one_optimizer() -> None:
    network = zoo.build("mlp", {"batch": 2, "width": 8})
    first = next(iter(network.parameters))
    several = dataclasses.replace(network, training=Training(Sgd(0.1), {first: Sgd(0.3, momentum=0.5)}))
    optimizer = optimizer_of(several, TorchNetwork(several, start_of(several), torch.float32))
    found = {(group["lr"], group["momentum"]): len(group["params"]) for group in optimizer.param_groups}
    assert found == {(0.3, 0.5): 1, (0.1, 0.0): len(network.parameters) - 1}


def test_a_module_that_came_with_its_gradients_has_a_loss_and_no_optimizer() -> None:
    module, x = Made(lambda self, x: (x * self.scale).sum()), torch.arange(6.0)
    module.register_parameter("scale", torch.nn.Parameter(torch.linspace(-1, 1, 6)))
    network = from_torch(module, x, name="scaled")
    found = TorchNetwork(network, {**network.inputs, **network.parameters}, torch.float32)()
    torch.testing.assert_close(found, module(x))
    with pytest.raises(BadInputError, match=r"scaled: it comes from PyTorch with its gradients"):
        require_pytorch_step(network)
