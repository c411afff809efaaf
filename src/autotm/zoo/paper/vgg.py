"""VGG19 as AutoTM trained it: ReLU on the last layer too, log before softmax; and VGG416, the same, deeper."""

from __future__ import annotations

from autotm.model.step import Initial
from autotm.zoo.network import Network, NetworkBuilder

CLASSES = 1000
_GROUPS = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
_DEEP_GROUPS = ((64, 81, 128), (128, 81, 256), (256, 82, 512), (512, 83, 512), (512, 83, 512))
"""Filters, convolutions of so many filters, filters behind the group: where these differ, one convolution widens."""


def vgg19(batch: int, image: int = 224) -> Network:
    """VGG19 for square images (at least 32 pixels wide), loss = softmax cross-entropy, SGD 0.05.

    Layers: Simonyan and Zisserman, arXiv:1409.1556, with the changes of the AutoTM artifact.
    """
    return _vgg19("vgg19", batch, image)


def vgg_to_test(batch: int = 16, image: int = 224) -> Network:
    """VGG19 at a batch size for trying things out."""
    return _vgg19("test_vgg", batch, image)


def vgg416(batch: int, image: int = 224) -> Network:
    """VGG416 for square images (at least 32 pixels wide), loss = softmax cross-entropy, SGD 0.05.

    Layers: Rhu et al., arXiv:1602.08124 (vDNN), with the changes of the AutoTM artifact: the convolution that widens
    stands before the pool, and the last layer has no ReLU.
    """
    net = NetworkBuilder("vgg416", batch, learning_rate=0.05)
    x = net.input("image", (batch, image, image, 3), Initial("normal"))
    for filters, layers, next_filters in _DEEP_GROUPS:
        for _ in range(layers):
            x = net.conv(x, filters, 3, padding=1)
        if next_filters != filters:
            x = net.conv(x, next_filters, 3, padding=1)
        x = net.max_pool(x, 2, 2)
    x = net.dense(net.dense(net.flatten(x), 4096), 4096)
    return net.softmax_cross_entropy(net.floored(net.dense(x, CLASSES, relu=False), 1e-7))


def _vgg19(name: str, batch: int, image: int) -> Network:
    net = NetworkBuilder(name, batch, learning_rate=0.05)
    x = net.input("image", (batch, image, image, 3), Initial("normal"))
    for filters, layers in _GROUPS:
        for _ in range(layers):
            x = net.conv(x, filters, 3, padding=1)
        x = net.max_pool(x, 2, 2)
    x = net.dense(net.dense(net.flatten(x), 4096), 4096)
    return net.softmax_cross_entropy(net.log_floored(net.dense(x, CLASSES), 1e-7))
