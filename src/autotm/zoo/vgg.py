"""VGG19 as AutoTM trained it: ReLU on the last layer too, log before softmax."""

from __future__ import annotations

from autotm.model.graph import Initial
from autotm.zoo.builder import NetworkBuilder
from autotm.zoo.network import Network

CLASSES = 1000
_GROUPS = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))


def vgg19(batch: int, image: int = 224) -> Network:
    """VGG19 for square images (at least 32 pixels wide), loss = softmax cross-entropy, SGD 0.05.

    Layers: Simonyan and Zisserman, arXiv:1409.1556, with the changes of the AutoTM artifact.
    """
    net = NetworkBuilder("vgg19", batch, learning_rate=0.05)
    x = net.input("image", (batch, image, image, 3), Initial("normal"))
    for filters, layers in _GROUPS:
        for _ in range(layers):
            x = net.conv(x, filters, 3, padding=1)
        x = net.max_pool(x, 2, 2)
    x = net.dense(net.dense(net.flatten(x), 4096), 4096)
    return net.softmax_cross_entropy(net.log_floored(net.dense(x, CLASSES), 1e-7))
