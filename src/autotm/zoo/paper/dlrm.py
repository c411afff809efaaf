"""DLRM on Criteo's Kaggle data: lookups in 26 tables and a dense part, compared pairwise (arXiv:1906.00091)."""

from __future__ import annotations

import math

from autotm.model.step import Initial
from autotm.zoo.network import Network, NetworkBuilder

CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Distinct values of the 26 categories in the Kaggle data, from the DLRM repository."""
DENSE_FEATURES = 13
WIDTH = 16
_COPIES = 5
"""AutoTM's tables have five rows for each value."""


def dlrm(batch: int, rows: int = _COPIES * max(CARDINALITIES)) -> Network:
    """26 lookups and a dense 13-512-256-64-16 part, all dot products of the 27 vectors, 745-512-256-1, sigmoid.

    Loss = binary cross-entropy of random labels, SGD 0.1 (DLRM's for this data).

    Args:
        batch: samples, each with one index into every table.
        rows: the most rows of a table. The default, 50 656 135, leaves all 26 whole: 169 million rows, 10.8 GB.
    """
    net = NetworkBuilder("dlrm", batch, learning_rate=0.1)
    vectors = []
    for slot, values in enumerate(CARDINALITIES):
        count = min(_COPIES * values, rows)
        indices = net.input(f"indices_{slot}", (batch,), Initial("integers", count), "int32")
        table = net.parameter("table", (count, WIDTH), Initial("normal", 1 / math.sqrt(3 * count)))
        vectors.append(net.embedding(table, indices))
    x = net.input("data", (batch, DENSE_FEATURES), Initial("uniform"))
    for features in (512, 256, 64, WIDTH):
        x = net.dense(x, features)
    together = net.reshape(net.concat([x, *vectors]), (batch, len(vectors) + 1, WIDTH))
    x = net.concat([x, net.flatten(net.product("bid,bjd->bij", together, together))])
    for features in (512, 256):
        x = net.dense(x, features)
    return net.sigmoid_cross_entropy(net.dense(x, 1, relu=False))
