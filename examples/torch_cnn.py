"""A module of PyTorch, planned and trained: `pip install 'autotm[torch]'`, then `python examples/torch_cnn.py`.

In the pipeline, by an address under `own_networks` in config/config.yaml:

    my_cnn: {torch: "examples.torch_cnn:network", sizes: {batch: 8}}
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import autotm

CLASSES = 10


def cnn() -> nn.Module:
    """Return a convolutional network for 32 x 32 images, with batch norm and dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, CLASSES),
    )  # fmt: skip


def network(batch: int) -> dict[str, Any]:
    """Return what `autotm.from_torch` takes: the pipeline calls this with the sizes in the config."""
    return {
        "module": cnn(),
        "inputs": torch.randn(batch, 3, 32, 32),
        "loss": nn.functional.cross_entropy,
        "targets": (torch.randint(0, CLASSES, (batch,)),),
        "training": autotm.AdamW(1e-3),
    }


def main(batch: int = 8, steps: int = 5, **prepared: Any) -> list[float]:
    """Plan a quarter of the memory as fast, train a few steps on made-up data, and give the weights back."""
    model, data = cnn(), network(batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    options = {"loss": data["loss"], "targets": data["targets"], "training": optimizer}
    placed = autotm.plan(model, data["inputs"], limit="3:1", **options, **prepared)
    print(placed)
    losses = [placed.step(torch.randn(batch, 3, 32, 32), torch.randint(0, CLASSES, (batch,))) for _ in range(steps)]
    model.load_state_dict(placed.state_dict())
    placed.close()
    return losses


if __name__ == "__main__":
    print(main())
