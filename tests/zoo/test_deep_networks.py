"""ResNet, DenseNet and VGG416 are the artifact's: layers, parameters and shapes."""

from __future__ import annotations

import math

import pytest
import tvm

from autotm import zoo
from autotm.model.training import Sgd, Training


def values(network: zoo.Network) -> list[tvm.ir.Call]:
    blocks = network.module["main"].body.blocks
    found = [binding.value for block in blocks for binding in block.bindings]
    return [value for value in found if isinstance(value, tvm.ir.Call)]


def calls(network: zoo.Network, operator: str) -> list[tvm.ir.Call]:
    """All calls of one Relax operator, in order."""
    return [value for value in values(network) if value.op.name == operator]


def shape(expression: tvm.ir.Call) -> tuple[int, ...]:
    return tuple(int(extent) for extent in expression.ty.shape)


def parameter_count(network: zoo.Network) -> int:
    sizes = {var.name: math.prod(shape(var)) for var in network.module["main"].params}
    return sum(sizes[name] for name in network.parameters)


def counts(network: zoo.Network) -> dict[str, int]:
    names = {"conv": "nn.conv2d", "norm": "nn.batch_norm", "relu": "nn.relu", "concat": "concat", "dense": "matmul"}
    names |= {"max_pool": "nn.max_pool2d", "avg_pool": "nn.avg_pool2d"}
    return {word: len(calls(network, f"relax.{name}")) for word, name in names.items()}


def layer(window: int, channels: int, features: int) -> int:
    """Weights and biases of a convolution or, with a window of one, of a dense layer."""
    return window * channels * features + features


def resnet_parameters(blocks: tuple[int, ...]) -> int:
    total, channels = layer(49, 3, 64), 64
    for stage, count in enumerate(blocks):
        f = 64 << stage
        for block in range(count):
            total += layer(1, channels, f) + layer(9, f, f) + layer(1, f, 4 * f) + 2 * (f + f + 4 * f)
            total += layer(1, channels, 4 * f) + 2 * 4 * f if block == 0 else 0
            channels = 4 * f
    return total + layer(1, channels, 1000)


def densenet_parameters(layers: tuple[int, ...]) -> int:
    total, channels = layer(49, 3, 64), 64
    for block, count in enumerate(layers):
        if block:
            total += 2 * channels + layer(1, channels, 64)
            channels = 64
        for _ in range(count):
            total += 2 * channels + layer(1, channels, 128) + 2 * 128 + layer(9, 128, 32)
            channels += 32
    return total + layer(1, channels, 1000)


@pytest.mark.parametrize(("name", "blocks"), [("resnet50", (3, 4, 6, 3)), ("resnet200", (3, 24, 36, 3))])
def test_resnet(name, blocks):
    network = zoo.build(name, {"batch": 2, "image": 224})
    total = sum(blocks)
    layers = {"conv": 1 + 3 * total + 4, "norm": 3 * total + 4, "relu": 3 * total, "concat": 0, "dense": 1}
    assert counts(network) == layers | {"max_pool": 1, "avg_pool": 0}
    assert parameter_count(network) == resnet_parameters(blocks)
    assert network.training == Training(Sgd(0.001))
    first, second, third, fourth, shortcut = (shape(call)[1:] for call in calls(network, "relax.nn.conv2d")[:5])
    assert first == (112, 112, 64)
    assert (second, third, fourth, shortcut) == ((56, 56, 64), (56, 56, 64), (56, 56, 256), (56, 56, 256))
    # The stride of a stage is on the last convolution of its first block.
    strided = [i for i, call in enumerate(calls(network, "relax.nn.conv2d")) if int(call.attrs.strides[0]) == 2]
    starts = [1 + 3 * sum(blocks[:stage]) + stage for stage in range(1, 4)]
    assert strided == [0] + [start + place for start in starts for place in (2, 3)]
    assert shape(calls(network, "relax.nn.batch_norm")[-1].args[0]) == (2, 7, 7, 2048)
    assert shape(calls(network, "relax.mean")[0]) == (2, 2048)
    assert shape(calls(network, "relax.matmul")[0]) == (2, 1000)
    assert not any(
        call.args[0].same_as(calls(network, "relax.nn.conv2d")[0]) for call in calls(network, "relax.nn.relu")
    )


def test_resnet50_has_the_published_parameters():
    # torchvision's: 25 557 032, with batch norm behind the first convolution, and without the 26 560 biases.
    network = zoo.build("resnet50", {"batch": 1, "image": 32})
    assert parameter_count(network) == 25_557_032 - 2 * 64 + 26_560


def test_densenet264():
    network = zoo.build("densenet264", {"batch": 2, "image": 224})
    layers = {"conv": 1 + 2 * 130 + 3, "norm": 2 * 130 + 3, "relu": 1 + 2 * 130 + 3, "concat": 130, "dense": 1}
    assert counts(network) == layers | {"max_pool": 1, "avg_pool": 3}
    assert parameter_count(network) == densenet_parameters((6, 12, 64, 48))
    assert network.training == Training(Sgd(0.001))
    ends = [shape(calls(network, "relax.concat")[index - 1])[1:] for index in (6, 18, 82, 130)]
    assert ends == [(56, 56, 256), (28, 28, 448), (14, 14, 2112), (7, 7, 1600)]
    assert [shape(call)[1:] for call in calls(network, "relax.nn.avg_pool2d")] == [
        (28, 28, 64), (14, 14, 64), (7, 7, 64)
    ]  # fmt: skip
    assert shape(calls(network, "relax.matmul")[0]) == (2, 1000)


def test_vgg416():
    network = zoo.build("vgg416", {"batch": 2, "image": 224})
    layers = {"conv": 413, "norm": 0, "relu": 413 + 2, "concat": 0, "dense": 3}
    assert counts(network) == layers | {"max_pool": 5, "avg_pool": 0}
    assert network.training == Training(Sgd(0.05))
    # Each convolution that widens is the last before its pool.
    pools = calls(network, "relax.nn.max_pool2d")
    assert [shape(pool)[1:] for pool in pools] == [
        (112, 112, 128), (56, 56, 256), (28, 28, 512), (14, 14, 512), (7, 7, 512)
    ]  # fmt: skip
    widths = [shape(call)[1:] for call in calls(network, "relax.nn.conv2d")]
    assert [widths.count(width) for width in ((224, 224, 64), (112, 112, 128), (56, 56, 256))] == [81, 81, 82]
    assert [widths.count(width) for width in ((28, 28, 512), (14, 14, 512))] == [83, 83]
    assert shape(calls(network, "relax.reshape")[0]) == (2, 25088)
    assert not calls(network, "relax.log")


def test_test_vgg_is_vgg19():
    small, large = (zoo.build(name, {"batch": 16, "image": 224}) for name in ("test_vgg", "vgg19"))
    tvm.ir.assert_structural_equal(small.module, large.module)
    assert zoo.build("test_vgg", {}).batch == 16
