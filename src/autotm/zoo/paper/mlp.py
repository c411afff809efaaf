"""The artifact's example of one's own network: a multi-layer perceptron."""

from __future__ import annotations

from autotm.model.step import Initial
from autotm.zoo.network import Network, NetworkBuilder


def mlp(batch: int, width: int = 4096, classes: int = 10) -> Network:
    """Three width x width ReLU layers and a width x classes one, loss = softmax cross-entropy, SGD 0.005."""
    net = NetworkBuilder("mlp", batch, learning_rate=0.005)
    x = net.input("data", (batch, width), Initial("normal"))
    for _ in range(3):
        x = net.dense(x, width)
    return net.softmax_cross_entropy(net.dense(x, classes))
