"""The artifact's example of one's own network: three 4096 -> 4096 ReLU layers and one to 10 classes, SGD 0.005.

In the pipeline, by its name under `own_networks` in config/config.yaml:

    snakemake --cores 24 results/laptop-2t/laptop/my_mlp/synchronous/4to1/record.json

or from Python, here with all of the step's memory counted, parameters too:

    python examples/mlp.py
"""

from __future__ import annotations

import autotm


def mlp(batch: int, width: int = 4096) -> autotm.Network:
    """Build the network for `batch` samples: a forward pass and its loss; gradients and updates are autotm's work."""
    net = autotm.NetworkBuilder("my_mlp", batch, learning_rate=0.005)
    x = net.input("data", (batch, width), autotm.Initial("normal"))
    for _ in range(3):
        x = net.dense(x, width)
    return net.softmax_cross_entropy(net.dense(x, 10))


if __name__ == "__main__":
    placed = autotm.plan(mlp, sizes={"batch": 16}, limit="1:1", optimizer="synchronous")
    record = placed.run()
    print(f"{placed}\n{record.actual_runtime_median_s:.6g} s measured, slow memory {record.tier_reality}")
