"""The transformer: encoder and decoder of Vaswani et al., arXiv:1706.03762, at AutoTM's depth."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import relax

from autotm.model.step import Initial
from autotm.zoo.network import Network, NetworkBuilder

LAYERS = 8
_WIDTH = 512
_HIDDEN = 2048
_HEADS = 8
_MASKED = 1e9


@dataclass(frozen=True)
class _Blocks:
    """The parts of a layer; activations are (batch * sequence, width), so that dense layers are plain products."""

    net: NetworkBuilder
    batch: int
    sequence: int

    def encoder_layer(self, x: relax.Expr) -> relax.Var:
        """Attention of x to itself, then two dense layers."""
        return self.feed_forward(self.normalized_sum(x, self.attention(x, x)))

    def decoder_layer(self, x: relax.Expr, memory: relax.Expr, mask: relax.Expr) -> relax.Var:
        """Attention of x to its own past, then to the encoder's result, then two dense layers."""
        x = self.normalized_sum(x, self.attention(x, x, mask))
        return self.feed_forward(self.normalized_sum(x, self.attention(x, memory)))

    def feed_forward(self, x: relax.Expr) -> relax.Var:
        """Two dense layers with a ReLU between them."""
        return self.normalized_sum(x, self.net.dense(self.net.dense(x, _HIDDEN), _WIDTH, relu=False))

    def normalized_sum(self, x: relax.Expr, change: relax.Expr) -> relax.Var:
        """The residual connection, normalized after the sum."""
        return self.net.layer_norm(self.net.add(change, x))

    def attention(self, x: relax.Expr, memory: relax.Expr, mask: relax.Expr | None = None) -> relax.Var:
        """softmax(Q Kᵀ / sqrt(width of a head) + mask) V of every head, and a dense layer over all heads."""
        net = self.net
        queries, keys, values = (self._heads(net.dense(y, _WIDTH, relu=False)) for y in (x, memory, memory))
        products = net.product("bihd,bjhd->bhij", queries, keys)
        scores = net.scale(products, 1 / math.sqrt(_WIDTH // _HEADS))
        if mask is not None:
            scores = net.add(scores, mask)
        context = net.product("bhij,bjhd->bihd", net.softmax(scores), values)
        return net.dense(net.reshape(context, (self.batch * self.sequence, _WIDTH)), _WIDTH, relu=False)

    def _heads(self, x: relax.Expr) -> relax.Var:
        return self.net.reshape(x, (self.batch, self.sequence, _HEADS, _WIDTH // _HEADS))


def transformer(batch: int, sequence: int, vocabulary: int = 20000) -> Network:
    """8 encoder and 8 decoder layers of width 512, loss = cross-entropy over all positions, SGD 0.05.

    Encoder and decoder share the table of embeddings. Positions and the mask of future positions are inputs.
    """
    net = NetworkBuilder("transformer", batch, learning_rate=0.05)
    tokens = [
        net.input(name, (batch, sequence), Initial("integers", vocabulary), "int32")
        for name in ("source_tokens", "target_tokens")
    ]
    positions = net.input("positions", (sequence, _WIDTH), Initial("sinusoids"))
    mask = net.input("future_mask", (sequence, sequence), Initial("future", -_MASKED))
    table = net.parameter("embedding_table", (vocabulary, _WIDTH), Initial("normal", 1 / math.sqrt(_WIDTH)))

    def embedded(indices: relax.Expr) -> relax.Var:
        scaled = net.scale(net.embedding(table, indices), math.sqrt(_WIDTH))
        return net.reshape(net.add(scaled, positions), (batch * sequence, _WIDTH))

    blocks = _Blocks(net, batch, sequence)
    memory, x = (embedded(indices) for indices in tokens)
    for _ in range(LAYERS):
        memory = blocks.encoder_layer(memory)
    for _ in range(LAYERS):
        x = blocks.decoder_layer(x, memory, mask)
    return net.softmax_cross_entropy(net.dense(x, vocabulary, relu=False))
