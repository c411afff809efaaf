"""Blocks of known networks: each becomes a training and an inference step (`make test-torch` installs PyTorch)."""

import inspect

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_study import CONFIG  # noqa: E402 - PyTorch first

from autotm.model.config import load_scale  # noqa: E402
from autotm.zoo.registry import call  # noqa: E402
from autotm.zoo.torch import blocks  # noqa: E402

BLOCKS = {name: own for name, own in vars(blocks).items() if name.endswith("_block")}
SIZES = {"batch": 2, "channels": 16, "image": 7, "sequence": 4, "width": 32}


@pytest.mark.parametrize("name", BLOCKS)
def test_each_becomes_a_step_of_training_and_of_inference(name):
    sizes = {key: SIZES[key] for key in inspect.signature(BLOCKS[name]).parameters}
    training = call(BLOCKS[name], sizes, name)
    inference = call(BLOCKS[name], sizes, name, is_inference=True)
    assert (training.training is None, inference.training is None) == (False, True)
    assert training.gradients is not None
    # Both blocks in a row have the same parameters.
    shapes = [parameter.shape for parameter in BLOCKS[name](**sizes)["module"].parameters()]
    if name != "densenet_block":
        assert shapes[: len(shapes) // 2] == shapes[len(shapes) // 2 :]


@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_scales_have_sizes_of_all(scale):
    sizes = load_scale(CONFIG.parent / "scales" / f"{scale}.yaml").blocks
    assert {*sizes} == {*BLOCKS}
    for name, own in sizes.items():
        assert {*own} == {*inspect.signature(BLOCKS[name]).parameters}
