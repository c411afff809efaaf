"""The networks of the paper and its artifact, as AutoTM trained them."""

from __future__ import annotations

import math
from dataclasses import replace

from tvm import relax

from autotm.model.graph import Initial
from autotm.zoo.builder import NetworkBuilder
from autotm.zoo.network import Network

# The artifact's example of a user's own network: a multi-layer perceptron.


def mlp(batch: int, width: int = 4096, classes: int = 10) -> Network:
    """Build three width x width ReLU layers and a width x classes one, loss = softmax cross-entropy, SGD 0.005."""
    net = NetworkBuilder("mlp", batch, learning_rate=0.005)
    x = net.input("data", (batch, width), Initial("normal"))
    for _ in range(3):
        x = net.dense(x, width)
    return net.softmax_cross_entropy(net.dense(x, classes))


# A small convolutional network for handwritten digits, the one of the original's timing study.

MNIST_CLASSES = 10


def mnist(batch: int, image: int = 28) -> Network:
    """Build three convolutions of 16, 32 and 32 filters with a pool behind each, and a dense layer; SGD 0.05.

    Layers: those of the example in Flux's model zoo, which leave 288 features of 28 x 28 pixels before the dense layer,
    as the shapes in the notebook of AutoTM's prototype say. Loss = softmax cross-entropy of random digits.
    """
    net = NetworkBuilder("mnist", batch, learning_rate=0.05)
    x = net.input("image", (batch, image, image, 1), Initial("normal"))
    for filters in (16, 32, 32):
        x = net.max_pool(net.conv(x, filters, 3, padding=1), 2, 2)
    return net.softmax_cross_entropy(net.dense(net.flatten(x), MNIST_CLASSES, relu=False))


# VGG19 as AutoTM trained it: ReLU on the last layer too, log before softmax; and VGG416, the same, deeper.

IMAGENET_CLASSES = 1000
_VGG19_GROUPS = ((64, 2, 64), (128, 2, 128), (256, 4, 256), (512, 4, 512), (512, 4, 512))
_VGG416_GROUPS = ((64, 81, 128), (128, 81, 256), (256, 82, 512), (512, 83, 512), (512, 83, 512))
"""Filters, convolutions of so many filters, filters behind the group: where these differ, one convolution widens."""


def vgg19(batch: int, image: int = 224) -> Network:
    """Build VGG19 for square images (at least 32 pixels wide), loss = softmax cross-entropy, SGD 0.05.

    Layers: Simonyan and Zisserman, arXiv:1409.1556, with the changes of the AutoTM artifact.
    """
    net, x = _vgg("vgg19", batch, image, _VGG19_GROUPS)
    return net.softmax_cross_entropy(net.log_floored(net.dense(x, IMAGENET_CLASSES), 1e-7))


def vgg_to_test(batch: int = 16, image: int = 224) -> Network:
    """Build VGG19 at a batch size for trying things out."""
    return replace(vgg19(batch, image), name="test_vgg")


def vgg416(batch: int, image: int = 224) -> Network:
    """Build VGG416 for square images (at least 32 pixels wide), loss = softmax cross-entropy, SGD 0.05.

    Layers: Rhu et al., arXiv:1602.08124 (vDNN), with the changes of the AutoTM artifact: the convolution that widens
    stands before the pool, and the last layer has no ReLU.
    """
    net, x = _vgg("vgg416", batch, image, _VGG416_GROUPS)
    return net.softmax_cross_entropy(net.floored(net.dense(x, IMAGENET_CLASSES, relu=False), 1e-7))


def _vgg(
    name: str, batch: int, image: int, groups: tuple[tuple[int, int, int], ...]
) -> tuple[NetworkBuilder, relax.Var]:
    """Build all layers but the last."""
    net = NetworkBuilder(name, batch, learning_rate=0.05)
    x = net.input("image", (batch, image, image, 3), Initial("normal"))
    for filters, layers, next_filters in groups:
        for _ in range(layers):
            x = net.conv(x, filters, 3, padding=1)
        if next_filters != filters:
            x = net.conv(x, next_filters, 3, padding=1)
        x = net.max_pool(x, 2, 2)
    return net, net.dense(net.dense(net.flatten(x), 4096), 4096)


# ResNet as AutoTM trained it: stride on the last convolution of a bottleneck, no batch norm behind the first one.

_RESNET_FILTERS = 64


def resnet50(batch: int, image: int = 224) -> Network:
    """Build ResNet-50 for square images (at least 32 pixels wide), loss = softmax cross-entropy, SGD 0.001.

    Layers: He et al., arXiv:1512.03385, with the changes of the AutoTM artifact.
    """
    return resnet("resnet50", batch, image, (3, 4, 6, 3))


def resnet200(batch: int, image: int = 224) -> Network:
    """Build ResNet-200 for square images (at least 32 pixels wide), loss = softmax cross-entropy, SGD 0.001.

    Layers: He et al., arXiv:1603.05027, table 5, but with the blocks of ResNet-50, as in the AutoTM artifact.
    """
    return resnet("resnet200", batch, image, (3, 24, 36, 3))


def resnet(name: str, batch: int, image: int, blocks: tuple[int, ...]) -> Network:
    """Build a ResNet of so many bottlenecks in each stage."""
    net = NetworkBuilder(name, batch, learning_rate=0.001)
    x = net.conv(net.input("image", (batch, image, image, 3), Initial("normal")), _RESNET_FILTERS, 7, 2, 3, relu=False)
    x = net.max_pool(x, 3, 2, 1)
    for stage, count in enumerate(blocks):
        filters = _RESNET_FILTERS << stage
        for block in range(count):
            stride = 2 if stage and block == 0 else 1
            y = net.batch_norm(net.conv(x, filters, 1, relu=False), relu=True)
            y = net.batch_norm(net.conv(y, filters, 3, padding=1, relu=False), relu=True)
            y = net.batch_norm(net.conv(y, 4 * filters, 1, stride, relu=False))
            shortcut = x if block else net.batch_norm(net.conv(x, 4 * filters, 1, stride, relu=False))
            x = net.relu(net.add(y, shortcut))
    scores = net.dense(net.global_mean(x), IMAGENET_CLASSES, relu=False)
    return net.softmax_cross_entropy(net.log_floored(scores, 1e-9))


# DenseNet as AutoTM trained it: explicit concatenations, and transitions back to 64 channels instead of to half.

_DENSENET_GROWTH = 32
_DENSENET_FIRST = 2 * _DENSENET_GROWTH


def densenet264(batch: int, image: int = 224) -> Network:
    """Build DenseNet-264 for square images (at least 32 pixels wide), loss = softmax cross-entropy, SGD 0.001.

    Layers: Huang et al., arXiv:1608.06993, with the changes of the AutoTM artifact.
    """
    return densenet("densenet264", batch, image, (6, 12, 64, 48))


def densenet(name: str, batch: int, image: int, layers: tuple[int, ...]) -> Network:
    """Build a DenseNet of so many layers in each dense block."""
    net = NetworkBuilder(name, batch, learning_rate=0.001)
    x = net.conv(net.input("image", (batch, image, image, 3), Initial("normal")), _DENSENET_FIRST, 7, 2, 3)
    x = net.max_pool(x, 3, 2, 1)
    for block, count in enumerate(layers):
        if block > 0:
            x = net.avg_pool(net.conv(net.batch_norm(x, relu=True), _DENSENET_FIRST, 1, relu=False), 2, 2)
        for _ in range(count):
            y = net.conv(net.batch_norm(x, relu=True), 4 * _DENSENET_GROWTH, 1, relu=False)
            y = net.conv(net.batch_norm(y, relu=True), _DENSENET_GROWTH, 3, padding=1, relu=False)
            x = net.concat([x, y])
    scores = net.dense(net.global_mean(x), IMAGENET_CLASSES, relu=False)
    return net.softmax_cross_entropy(net.log_floored(scores, 1e-9))


# Inception v4 as AutoTM trained it: no batch norm, biased convolutions, ReLU on all of them but one per B block.

Block = relax.Var


def inception_v4(batch: int, image: int = 299) -> Network:
    """Build Inception v4 for square images (at least 75 pixels wide), loss = softmax cross-entropy, SGD 0.05.

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
    return net.softmax_cross_entropy(net.log_floored(net.dense(net.global_mean(x), IMAGENET_CLASSES), 1e-7))


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


# The transformer: encoder and decoder of Vaswani et al., arXiv:1706.03762, at AutoTM's depth.

TRANSFORMER_LAYERS = 8
_TRANSFORMER_WIDTH = 512
_TRANSFORMER_HIDDEN = 2048
_TRANSFORMER_HEADS = 8
_MASKED = 1e9
"""Subtracted from scores of later positions; softmax makes them zero."""


def transformer(batch: int, sequence: int, vocabulary: int = 20000) -> Network:
    """Build 8 encoder and 8 decoder layers of width 512, loss = cross-entropy over all positions, SGD 0.05.

    Encoder and decoder share the table of embeddings. Positions and the mask of future positions are inputs.
    Activations are (batch * sequence, width), so that dense layers are plain products.
    """
    net = NetworkBuilder("transformer", batch, learning_rate=0.05)
    tokens = [
        net.input(name, (batch, sequence), Initial("integers", vocabulary), "int32")
        for name in ("source_tokens", "target_tokens")
    ]
    positions = net.input("positions", (sequence, _TRANSFORMER_WIDTH), Initial("sinusoids"))
    mask = net.input("future_mask", (sequence, sequence), Initial("future", -_MASKED))
    table = net.parameter(
        "embedding_table", (vocabulary, _TRANSFORMER_WIDTH), Initial("normal", 1 / math.sqrt(_TRANSFORMER_WIDTH))
    )

    head_width, rows = _TRANSFORMER_WIDTH // _TRANSFORMER_HEADS, (batch * sequence, _TRANSFORMER_WIDTH)

    def embedded(indices: relax.Expr) -> relax.Var:
        scaled = net.scale(net.embedding(table, indices), math.sqrt(_TRANSFORMER_WIDTH))
        return net.reshape(net.add(scaled, positions), rows)

    def attended(x: relax.Expr, memory: relax.Expr, mask: relax.Expr | None = None) -> relax.Var:
        """Add softmax(Q Kᵀ / sqrt(width of a head) + mask) V of every head, by a dense layer, to x; normalize."""
        projected = (net.dense(y, _TRANSFORMER_WIDTH, relu=False) for y in (x, memory, memory))
        heads = (net.reshape(y, (batch, sequence, _TRANSFORMER_HEADS, head_width)) for y in projected)
        queries, keys, values = heads
        scores = net.scale(net.product("bihd,bjhd->bhij", queries, keys), 1 / math.sqrt(head_width))
        if mask is not None:
            scores = net.add(scores, mask)
        context = net.product("bhij,bjhd->bihd", net.softmax(scores), values)
        return net.layer_norm(net.add(net.dense(net.reshape(context, rows), _TRANSFORMER_WIDTH, relu=False), x))

    def feed_forward(x: relax.Expr) -> relax.Var:
        """Add two dense layers of x with a ReLU between them to x; normalize."""
        hidden = net.dense(x, _TRANSFORMER_HIDDEN)
        return net.layer_norm(net.add(net.dense(hidden, _TRANSFORMER_WIDTH, relu=False), x))

    memory, x = (embedded(indices) for indices in tokens)
    for _ in range(TRANSFORMER_LAYERS):
        memory = feed_forward(attended(memory, memory))
    for _ in range(TRANSFORMER_LAYERS):
        x = feed_forward(attended(attended(x, x, mask), memory))
    return net.softmax_cross_entropy(net.dense(x, vocabulary, relu=False))


# DLRM on Criteo's Kaggle data: lookups in 26 tables and a dense part, compared pairwise (arXiv:1906.00091).

CRITEO_CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Distinct values of the 26 categories in the Kaggle data, from the DLRM repository."""
CRITEO_DENSE_FEATURES = 13
DLRM_WIDTH = 16
_DLRM_COPIES = 5
"""AutoTM's tables have five rows for each value."""


def dlrm(batch: int, rows: int = _DLRM_COPIES * max(CRITEO_CARDINALITIES)) -> Network:
    """Build 26 lookups and a dense 13-512-256-64-16 part, all dot products of the 27 vectors, 745-512-256-1, sigmoid.

    Loss = binary cross-entropy of random labels, SGD 0.1 (DLRM's for this data).

    Args:
        batch: samples, each with one index into every table.
        rows: the most rows of a table. The default, 50 656 135, leaves all 26 whole: 169 million rows, 10.8 GB.
    """
    net = NetworkBuilder("dlrm", batch, learning_rate=0.1)
    vectors = []
    for slot, values in enumerate(CRITEO_CARDINALITIES):
        count = min(_DLRM_COPIES * values, rows)
        indices = net.input(f"indices_{slot}", (batch,), Initial("integers", count), "int32")
        table = net.parameter("table", (count, DLRM_WIDTH), Initial("normal", 1 / math.sqrt(3 * count)))
        vectors.append(net.embedding(table, indices))
    x = net.input("data", (batch, CRITEO_DENSE_FEATURES), Initial("uniform"))
    for features in (512, 256, 64, DLRM_WIDTH):
        x = net.dense(x, features)
    together = net.reshape(net.concat([x, *vectors]), (batch, len(vectors) + 1, DLRM_WIDTH))
    x = net.concat([x, net.flatten(net.product("bid,bjd->bij", together, together))])
    for features in (512, 256):
        x = net.dense(x, features)
    return net.sigmoid_cross_entropy(net.dense(x, 1, relu=False))
