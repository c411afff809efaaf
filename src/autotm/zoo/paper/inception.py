"""Inception v4 as AutoTM trained it: no batch norm, biased convolutions, ReLU on all of them but one per B block."""

from __future__ import annotations

from tvm import relax

from autotm.model.step import Initial
from autotm.zoo.network import Network, NetworkBuilder

Block = relax.Var
CLASSES = 1000


def inception_v4(batch: int, image: int = 299) -> Network:
    """Inception v4 for square images (at least 75 pixels wide), loss = softmax cross-entropy, SGD 0.05.

    Layers: Szegedy et al., arXiv:1602.07261, with the changes of the AutoTM artifact.
    """
    net = NetworkBuilder("inception_v4", batch, learning_rate=0.05)
    x = _stem(net, net.input("image", (batch, image, image, 3), Initial("normal")))
    for _ in range(4):
        x = _block_a(net, x)
    x = _reduction_a(net, x)
    for _ in range(7):
        x = _block_b(net, x)
    x = _reduction_b(net, x)
    for _ in range(3):
        x = _block_c(net, x)
    return net.softmax_cross_entropy(net.log_floored(net.dense(net.global_mean(x), CLASSES), 1e-7))


def _stem(net: NetworkBuilder, x: Block) -> Block:
    x = net.conv(x, 32, 3, stride=2)
    x = net.conv(x, 32, 3)
    x = net.conv(x, 64, 3, padding=1)
    x = net.concat([net.max_pool(x, 3, 2), net.conv(x, 96, 3, stride=2)])
    short = net.conv(net.conv(x, 64, 1), 96, 3)
    long = net.conv(net.conv(x, 64, 1), 64, (7, 1), padding=(3, 0))
    long = net.conv(net.conv(long, 64, (1, 7), padding=(0, 3)), 96, 3)
    x = net.concat([short, long])
    return net.concat([net.conv(x, 192, 3, stride=2), net.max_pool(x, 3, 2)])


def _block_a(net: NetworkBuilder, x: Block) -> Block:
    pooled = net.conv(net.avg_pool(x, 3, 1, 1), 96, 1)
    plain = net.conv(x, 96, 1)
    double = net.conv(net.conv(x, 64, 1), 96, 3, padding=1)
    triple = net.conv(net.conv(net.conv(x, 64, 1), 96, 3, padding=1), 96, 3, padding=1)
    return net.concat([pooled, plain, double, triple])


def _reduction_a(net: NetworkBuilder, x: Block) -> Block:
    pooled = net.max_pool(x, 3, 2)
    plain = net.conv(x, 384, 3, stride=2)
    triple = net.conv(net.conv(net.conv(x, 192, 1), 224, 3, padding=1), 256, 3, stride=2)
    return net.concat([pooled, plain, triple])


def _block_b(net: NetworkBuilder, x: Block) -> Block:
    row, column = {"kernel": (1, 7), "padding": (0, 3)}, {"kernel": (7, 1), "padding": (3, 0)}
    pooled = net.conv(net.avg_pool(x, 3, 1, 1), 128, 1, relu=False)
    plain = net.conv(x, 384, 1)
    short = net.conv(net.conv(net.conv(x, 192, 1), 224, **row), 256, **column)
    long = net.conv(net.conv(net.conv(x, 192, 1), 192, **row), 224, **column)
    long = net.conv(net.conv(long, 224, **row), 256, **column)
    return net.concat([pooled, plain, short, long])


def _reduction_b(net: NetworkBuilder, x: Block) -> Block:
    pooled = net.max_pool(x, 3, 2)
    short = net.conv(net.conv(x, 192, 1), 192, 3, stride=2)
    long = net.conv(net.conv(x, 256, 1), 256, (1, 7), padding=(0, 3))
    long = net.conv(net.conv(long, 320, (7, 1), padding=(3, 0)), 320, 3, stride=2)
    return net.concat([pooled, short, long])


def _block_c(net: NetworkBuilder, x: Block) -> Block:
    pooled = net.conv(net.avg_pool(x, 3, 1, 1), 256, 1)
    plain = net.conv(x, 256, 1)
    short = net.conv(x, 384, 1)
    long = net.conv(net.conv(net.conv(x, 384, 1), 448, (1, 3), padding=(0, 1)), 512, (3, 1), padding=(1, 0))
    return net.concat([pooled, plain, *_fork(net, short), *_fork(net, long)])


def _fork(net: NetworkBuilder, x: Block) -> list[Block]:
    return [net.conv(x, 256, (1, 3), padding=(0, 1)), net.conv(x, 256, (3, 1), padding=(1, 0))]
