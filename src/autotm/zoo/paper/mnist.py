"""A small convolutional network for handwritten digits, the one of the original's timing study."""

from __future__ import annotations

from autotm.model.step import Initial
from autotm.zoo.network import Network, NetworkBuilder

CLASSES = 10


def mnist(batch: int, image: int = 28) -> Network:
    """Three convolutions of 16, 32 and 32 filters with a pool behind each, and a dense layer; SGD 0.05.

    Layers: those of the example in Flux's model zoo, which leave 288 features of 28 x 28 pixels before the dense layer,
    as the shapes in the notebook of AutoTM's prototype say. Loss = softmax cross-entropy of random digits.
    """
    net = NetworkBuilder("mnist", batch, learning_rate=0.05)
    x = net.input("image", (batch, image, image, 1), Initial("normal"))
    for filters in (16, 32, 32):
        x = net.max_pool(net.conv(x, filters, 3, padding=1), 2, 2)
    return net.softmax_cross_entropy(net.dense(net.flatten(x), CLASSES, relu=False))
