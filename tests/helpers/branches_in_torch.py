"""Networks whose blocks are computed or not, with branches of Python, in PyTorch."""

from __future__ import annotations

import torch
from torch.nn import functional

from autotm.zoo.branch_models import BlockDrop, SkipNet


def block_drop(net: BlockDrop, x: torch.Tensor, kept: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
    """Compute it with branches of Python."""
    weights = iter(given)
    x = functional.relu(functional.conv2d(x, next(weights), padding=1) + next(weights))
    for index, (before, after) in enumerate(net.widths):
        first, first_bias, second, second_bias = (next(weights) for _ in range(4))
        shortcut, stride = x, 1 if before == after else 2
        if before != after:
            shortcut = functional.pad(functional.avg_pool2d(x, 2), (0, 0, 0, 0, 0, after - before))
        if kept[:, index].max() > 0:
            y = functional.relu(functional.conv2d(x, first, stride=stride, padding=1) + first_bias)
            y = functional.conv2d(y, second, padding=1) + second_bias
            shortcut = shortcut + y * kept[:, index].reshape(-1, 1, 1, 1)
        x = functional.relu(shortcut)
    return x.mean(dim=(2, 3)) @ next(weights)


def skip_net(net: SkipNet, x: torch.Tensor, forced: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
    """Compute it with branches of Python."""
    weights = iter(given)
    x = functional.relu(functional.conv2d(x, next(weights), stride=2, padding=3) + next(weights))
    x = functional.max_pool2d(x, 3, 2, 1)
    cell, cell_bias, projection = (next(weights) for _ in range(3))
    c = h = torch.zeros(len(x), 10)
    for index, (before, within, stride) in enumerate(net.layers):
        own, shortcut = [next(weights) for _ in range(6)], x
        if before != 4 * within or stride > 1:
            shortcut = functional.conv2d(x, next(weights), stride=stride) + next(weights)
        is_kept = True
        if index:
            word = x.mean(dim=(2, 3)) @ next(weights)
            enter, keep, new, leave = (torch.cat([word, h], dim=1) @ cell + cell_bias).chunk(4, dim=1)
            c = keep.sigmoid() * c + enter.sigmoid() * new.tanh()
            h = leave.sigmoid() * c.tanh()
            is_kept = (h @ projection + forced[index]).sigmoid().mean() > 0.5
        if is_kept:
            y = functional.relu(functional.conv2d(x, own[0]) + own[1])
            y = functional.relu(functional.conv2d(y, own[2], stride=stride, padding=1) + own[3])
            shortcut = shortcut + functional.conv2d(y, own[4]) + own[5]
        x = functional.relu(shortcut)
    return x.mean(dim=(2, 3)) @ next(weights)
