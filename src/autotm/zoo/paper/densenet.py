"""DenseNet as AutoTM trained it: explicit concatenations, and transitions back to 64 channels instead of to half."""

from __future__ import annotations

from tvm import relax

from autotm.model.step import Initial
from autotm.zoo.network import Network, NetworkBuilder

CLASSES = 1000
_GROWTH = 32
_FIRST = 2 * _GROWTH


def densenet264(batch: int, image: int = 224) -> Network:
    """DenseNet-264 for square images (at least 32 pixels wide), loss = softmax cross-entropy, SGD 0.001.

    Layers: Huang et al., arXiv:1608.06993, with the changes of the AutoTM artifact.
    """
    return densenet("densenet264", batch, image, (6, 12, 64, 48))


def densenet(name: str, batch: int, image: int, layers: tuple[int, ...]) -> Network:
    """A DenseNet of so many layers in each dense block."""
    net = NetworkBuilder(name, batch, learning_rate=0.001)
    x = net.conv(net.input("image", (batch, image, image, 3), Initial("normal")), _FIRST, 7, 2, 3)
    x = net.max_pool(x, 3, 2, 1)
    for block, count in enumerate(layers):
        if block > 0:
            x = net.avg_pool(net.conv(net.batch_norm(x, relu=True), _FIRST, 1, relu=False), 2, 2)
        for _ in range(count):
            x = _layer(net, x)
    scores = net.dense(net.global_mean(x), CLASSES, relu=False)
    return net.softmax_cross_entropy(net.log_floored(scores, 1e-9))


def _layer(net: NetworkBuilder, x: relax.Var) -> relax.Var:
    y = net.conv(net.batch_norm(x, relu=True), 4 * _GROWTH, 1, relu=False)
    y = net.conv(net.batch_norm(y, relu=True), _GROWTH, 3, padding=1, relu=False)
    return net.concat([x, y])
