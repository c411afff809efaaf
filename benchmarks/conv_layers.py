"""The distinct convolutions of the networks, written down without building the networks."""

from __future__ import annotations

import collections
from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """One distinct convolution: NHWC input, HWIO weights."""

    batch: int
    height: int
    width: int
    channels: int
    features: int
    window: tuple[int, int]
    stride: int
    padding: tuple[int, int]
    """(vertical, horizontal), the same on both sides."""

    @property
    def output(self) -> tuple[int, int, int, int]:
        """Shape of the result, NHWC."""
        rows = (self.height + 2 * self.padding[0] - self.window[0]) // self.stride + 1
        columns = (self.width + 2 * self.padding[1] - self.window[1]) // self.stride + 1
        return self.batch, rows, columns, self.features

    @property
    def flops(self) -> int:
        """Multiplications and additions of one pass."""
        batch, rows, columns, features = self.output
        return 2 * batch * rows * columns * features * self.channels * self.window[0] * self.window[1]

    def __str__(self) -> str:
        """Map, channels, window and stride on one line."""
        window = f"{self.window[0]}x{self.window[1]}/{self.stride}"
        return f"{self.height:3d}² {self.channels:4d}->{self.features:4d} {window}"


class _Network:
    """Collects the convolutions of Inception v4 with their number of occurrences."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.layers: collections.Counter[Layer] = collections.Counter()

    def conv(self, side: int, *chain: tuple[int, ...]) -> int:
        """Chain of (channels, features, rows, columns[, stride, valid]) convolutions; returns the last map's side."""
        for channels, features, rows, columns, *rest in chain:
            stride, valid = (*rest, 0)[:2] if rest else (1, 0)
            padding = (0, 0) if valid or stride > 1 else (rows // 2, columns // 2)
            layer = Layer(self.batch, side, side, channels, features, (rows, columns), stride, padding)
            self.layers[layer] += 1
            side = layer.output[1]
        return side


def inception_v4(batch: int, image: int) -> collections.Counter[Layer]:
    """Distinct convolutions of Inception v4 and how often each occurs."""
    net = _Network(batch)
    side = net.conv(image, (3, 32, 3, 3, 2, 1), (32, 32, 3, 3, 1, 1), (32, 64, 3, 3))
    side = net.conv(side, (64, 96, 3, 3, 2, 1))
    net.conv(side, (160, 64, 1, 1), (64, 96, 3, 3, 1, 1))
    side = net.conv(side, (160, 64, 1, 1), (64, 64, 7, 1), (64, 64, 1, 7), (64, 96, 3, 3, 1, 1))
    side = net.conv(side, (192, 192, 3, 3, 2, 1))
    for _ in range(4):
        net.conv(side, (384, 96, 1, 1))
        net.conv(side, (384, 96, 1, 1))
        net.conv(side, (384, 64, 1, 1), (64, 96, 3, 3))
        net.conv(side, (384, 64, 1, 1), (64, 96, 3, 3), (96, 96, 3, 3))
    net.conv(side, (384, 384, 3, 3, 2, 1))
    side = net.conv(side, (384, 192, 1, 1), (192, 224, 3, 3), (224, 256, 3, 3, 2, 1))
    for _ in range(7):
        net.conv(side, (1024, 128, 1, 1))
        net.conv(side, (1024, 384, 1, 1))
        net.conv(side, (1024, 192, 1, 1), (192, 224, 1, 7), (224, 256, 7, 1))
        net.conv(side, (1024, 192, 1, 1), (192, 192, 1, 7), (192, 224, 7, 1), (224, 224, 1, 7), (224, 256, 7, 1))
    net.conv(side, (1024, 192, 1, 1), (192, 192, 3, 3, 2, 1))
    side = net.conv(side, (1024, 256, 1, 1), (256, 256, 1, 7), (256, 320, 7, 1), (320, 320, 3, 3, 2, 1))
    for _ in range(3):
        net.conv(side, (1536, 256, 1, 1))
        net.conv(side, (1536, 256, 1, 1))
        net.conv(side, (1536, 384, 1, 1))
        net.conv(side, (384, 256, 1, 3))
        net.conv(side, (384, 256, 3, 1))
        net.conv(side, (1536, 384, 1, 1), (384, 448, 1, 3), (448, 512, 3, 1))
        net.conv(side, (512, 256, 1, 3))
        net.conv(side, (512, 256, 3, 1))
    return net.layers


def vgg19(batch: int, image: int) -> collections.Counter[Layer]:
    """Distinct convolutions of VGG19 and how often each occurs."""
    net = _Network(batch)
    channels = 3
    for features, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(count):
            net.conv(image, (channels, features, 3, 3))
            channels = features
        image //= 2
    return net.layers
