"""A module of PyTorch in the config: found by its address, seeded, lowered, and its file watched."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the modules are PyTorch's: make test-torch installs it")

from autotm import zoo  # noqa: E402
from autotm.model.errors import BadInputError  # noqa: E402
from autotm.model.network_source import NetworkSource  # noqa: E402
from autotm.model.training import Sgd, Training  # noqa: E402

NETS = """
import torch


def pair(batch):
    return torch.nn.Sequential(torch.nn.Linear(6, 1), torch.nn.Flatten(0), Mean()), torch.randn(batch, 6)


def options(batch):
    import autotm

    labels = torch.randint(0, 3, (batch,))
    return {
        "module": torch.nn.Linear(6, 3), "inputs": torch.randn(batch, 6), "targets": (labels,),
        "loss": torch.nn.functional.cross_entropy, "training": autotm.Sgd(0.5),
    }


def neither(batch):
    return torch.nn.Linear(6, 3)


class Mean(torch.nn.Module):
    def forward(self, x):
        return x.mean()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "nets_of_mine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "nets.py").write_text(NETS)
    return tmp_path


def source(folder: Path, function: str) -> NetworkSource:
    found = NetworkSource.imported("mine", {"batch": 4}, f"nets_of_mine.nets:{function}", folder)
    found.require()
    return found


def test_weights_and_data_come_from_the_seed(folder: Path) -> None:
    first, same, other = (zoo.build_from(source(folder, "pair"), seed) for seed in (1, 1, 2))
    assert (first.name, first.batch) == ("mine", 4)
    for name in ("0.weight", "0.bias"):
        np.testing.assert_array_equal(first.parameters[name], same.parameters[name])
        assert not np.array_equal(first.parameters[name], other.parameters[name])
    assert not np.array_equal(first.inputs["input"], other.inputs["input"])


def test_arguments_of_from_torch_by_name(folder: Path) -> None:
    network = zoo.build_from(source(folder, "options"))
    assert network.training == Training(Sgd(0.5))
    assert set(network.inputs) == {"input", "target"}


def test_its_file_is_part_of_where_it_came_from(folder: Path) -> None:
    found = source(folder, "pair")
    assert found.file == str(folder / "nets_of_mine" / "nets.py")
    assert {"network_file", "network_file_hash"} <= set(found.provenance)


def test_faults_are_named(folder: Path) -> None:
    with pytest.raises(BadInputError, match=r"returned a Linear, not a network; .*module of PyTorch and its inputs"):
        zoo.build_from(source(folder, "neither"))
