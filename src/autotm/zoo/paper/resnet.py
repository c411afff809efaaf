"""ResNet as AutoTM trained it: stride on the last convolution of a bottleneck, no batch norm behind the first one."""

from __future__ import annotations

from tvm import relax

from autotm.model.step import Initial
from autotm.zoo.network import Network, NetworkBuilder

CLASSES = 1000
_FILTERS = 64


def resnet50(batch: int, image: int = 224) -> Network:
    """ResNet-50 for square images (at least 32 pixels wide), loss = softmax cross-entropy, SGD 0.001.

    Layers: He et al., arXiv:1512.03385, with the changes of the AutoTM artifact.
    """
    return resnet("resnet50", batch, image, (3, 4, 6, 3))


def resnet200(batch: int, image: int = 224) -> Network:
    """ResNet-200 for square images (at least 32 pixels wide), loss = softmax cross-entropy, SGD 0.001.

    Layers: He et al., arXiv:1603.05027, table 5, but with the blocks of ResNet-50, as in the AutoTM artifact.
    """
    return resnet("resnet200", batch, image, (3, 24, 36, 3))


def resnet(name: str, batch: int, image: int, blocks: tuple[int, ...]) -> Network:
    """A ResNet of so many bottlenecks in each stage."""
    net = NetworkBuilder(name, batch, learning_rate=0.001)
    x = net.conv(net.input("image", (batch, image, image, 3), Initial("normal")), _FILTERS, 7, 2, 3, relu=False)
    x = net.max_pool(x, 3, 2, 1)
    for stage, count in enumerate(blocks):
        filters = _FILTERS << stage
        x = _bottleneck(net, x, filters, stride=1 if stage == 0 else 2, project=True)
        for _ in range(count - 1):
            x = _bottleneck(net, x, filters, stride=1, project=False)
    scores = net.dense(net.global_mean(x), CLASSES, relu=False)
    return net.softmax_cross_entropy(net.log_floored(scores, 1e-9))


def _bottleneck(net: NetworkBuilder, x: relax.Var, filters: int, stride: int, *, project: bool) -> relax.Var:
    y = net.batch_norm(net.conv(x, filters, 1, relu=False), relu=True)
    y = net.batch_norm(net.conv(y, filters, 3, padding=1, relu=False), relu=True)
    y = net.batch_norm(net.conv(y, 4 * filters, 1, stride, relu=False))
    shortcut = net.batch_norm(net.conv(x, 4 * filters, 1, stride, relu=False)) if project else x
    return net.relu(net.add(y, shortcut))
