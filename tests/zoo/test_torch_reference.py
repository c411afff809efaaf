"""Networks of the zoo as modules of PyTorch (numbers: test_training_numerics), and modules of PyTorch in the config."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the modules are PyTorch's: make test-torch installs it")

import plain_steps  # noqa: E402
from torch_cases import Made  # noqa: E402
from tvm import relax  # noqa: E402

from autotm import zoo  # noqa: E402
from autotm.model.errors import BadInputError  # noqa: E402
from autotm.model.network_source import NetworkSource  # noqa: E402
from autotm.model.training import Adam, Sgd, Training  # noqa: E402
from autotm.zoo import from_torch  # noqa: E402
from autotm.zoo.torch_reference import TorchNetwork, require_pytorch_step  # noqa: E402


def test_a_value_lives_until_its_last_use() -> None:
    network = zoo.build("test_vgg", {"batch": 1, "image": 32})
    module = TorchNetwork(network, start_of(network), torch.float32)
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    class Watching(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            nonlocal most
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                alive.append(weakref.ref(result))
            most = max(most, sum(one() is not None for one in alive))
            return result

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
    mixed = dataclasses.replace(network, training=Training(Sgd(0.1), {next(iter(network.parameters)): Adam(0.1)}))
    with pytest.raises(BadInputError, match="rules of several kinds \\(Adam, Sgd\\)"):
        require_pytorch_step(mixed)
    with pytest.raises(BadInputError, match="not trained"):
        require_pytorch_step(dataclasses.replace(network, training=None))


def test_a_module_that_came_with_its_gradients_has_a_loss_and_no_optimizer() -> None:
    module, x = Made(lambda self, x: (x * self.scale).sum()), torch.arange(6.0)
    module.register_parameter("scale", torch.nn.Parameter(torch.linspace(-1, 1, 6)))
    network = from_torch(module, x, name="scaled")
    loss = TorchNetwork(network, {**network.inputs, **network.parameters}, torch.float32)()
    torch.testing.assert_close(loss, module(x))
    with pytest.raises(BadInputError, match=r"scaled: it comes from PyTorch with its gradients"):
        require_pytorch_step(network)


# A module of PyTorch in the config: found by its address, seeded, and its file watched.

NETS = """
import torch


class Mean(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(6, 1)

    def forward(self, input):
        return self.line(input).mean()


def pair(batch):
    return Mean(), torch.randn(batch, 6)


def options(batch):
    import autotm

    labels = torch.randint(0, 3, (batch,))
    return {
        "module": torch.nn.Linear(6, 3), "inputs": torch.randn(batch, 6), "targets": (labels,),
        "loss": torch.nn.functional.cross_entropy, "training": autotm.Sgd(0.5),
    }


def neither(batch):
    return torch.nn.Linear(6, 3)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "nets_of_mine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "nets.py").write_text(NETS)
    return tmp_path


def source(folder: Path, function: str) -> NetworkSource:
    own = NetworkSource.imported("mine", {"batch": 4}, f"nets_of_mine.nets:{function}", folder)
    own.require()
    return own


def test_weights_and_data_come_from_the_seed(folder: Path) -> None:
    first, same, other = (zoo.build_from(source(folder, "pair"), seed) for seed in (1, 1, 2))
    assert (first.name, first.batch) == ("mine", 4)
    for name in ("line.weight", "line.bias"):
        np.testing.assert_array_equal(first.parameters[name], same.parameters[name])
        assert not np.array_equal(first.parameters[name], other.parameters[name])
    assert not np.array_equal(first.inputs["input"], other.inputs["input"])


def test_arguments_of_from_torch_by_name_and_what_is_neither(folder: Path) -> None:
    own = source(folder, "options")
    assert own.file == str(folder / "nets_of_mine" / "nets.py")
    assert {"network_file", "network_file_hash"} <= set(own.provenance)
    network = zoo.build_from(own)
    assert network.training == Training(Sgd(0.5))
    assert set(network.inputs) == {"input", "target"}
    with pytest.raises(BadInputError, match=r"returned a Linear, not a network; .*module of PyTorch and its inputs"):
        zoo.build_from(source(folder, "neither"))
