"""Random PyTorch modules of nested `cond`, `while_loop` and `scan`, on matrices of (2, SIZE)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

SIZE = 8
_LAYERS = 3
Item = tuple[Any, ...]
"""Kind, operands by number, modulo how many values there are, and details; blocks within are lists of items."""


class RandomLoops(nn.Module):
    """A block of items; each makes values from those before it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.items = _block(random.Random(seed), depth=2, length=6)
        self.layers = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(_LAYERS))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self._computed(self.items, [x, y])

    def _computed(self, items: Sequence[Item], values: Sequence[torch.Tensor]) -> torch.Tensor:
        values = list(values)
        for kind, first, second, *details in items:
            a, b = values[first % len(values)], values[second % len(values)]
            values += getattr(self, f"_{kind}")(a, b, values, *details)
        return torch.tanh(values[-1] + values[-2])

    def _layer(self, a: torch.Tensor, _b: torch.Tensor, _values: object, number: int) -> list[torch.Tensor]:
        return [self.layers[number](a)]

    def _alone(self, a: torch.Tensor, _b: torch.Tensor, _values: object, number: int) -> list[torch.Tensor]:
        functions = (
            torch.tanh, torch.relu, lambda x: -x, lambda x: x.flip(0), lambda x: x + x.mean(1, keepdim=True),
            lambda x: torch.softmax(x, 1),
        )  # fmt: skip
        return [functions[number](a)]

    def _both(self, a: torch.Tensor, b: torch.Tensor, _values: object, number: int) -> list[torch.Tensor]:
        functions = (torch.add, torch.mul, torch.maximum, lambda a, b: torch.where(a > b, a, b / 2))
        return [functions[number](a, b)]

    def _cond(
        self, a: torch.Tensor, b: torch.Tensor, values: list[torch.Tensor], then: list[Item], otherwise: list[Item]
    ) -> list[torch.Tensor]:
        sides = [lambda *values, side=side: self._computed(side, values).clone() for side in (then, otherwise)]
        return [torch.cond(a.sum() > b.mean(), *sides, tuple(values))]

    def _while(
        self, a: torch.Tensor, b: torch.Tensor, _values: object, most: int, by_data: bool, body: list[Item]
    ) -> list[torch.Tensor]:
        def goes_on(step: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return (step < most) & (x.abs().sum() < 6) if by_data else step < most

        def again(step: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return step + 1, self._computed(body, [x, b]).clone()

        return [while_loop(goes_on, again, (torch.tensor(0), a.clone()))[1]]

    def _scan(
        self, a: torch.Tensor, b: torch.Tensor, _values: object, backward: bool, body: list[Item]
    ) -> list[torch.Tensor]:
        def step(state: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            new = self._computed(body, [state, row, b])
            return new.clone(), new + row

        last, rows = scan(step, a.clone(), torch.stack([a, b, a + b]), reverse=backward)
        return [last, rows[0], rows.sum(0)]


def _block(drawn: random.Random, depth: int, length: int) -> list[Item]:
    return [_item(drawn, depth) for _ in range(length)]


def _item(drawn: random.Random, depth: int) -> Item:
    operands = drawn.randrange(100), drawn.randrange(100)

    def block() -> list[Item]:
        return _block(drawn, depth - 1, length=2)

    kinds = ["layer", "alone", "both"] + ["cond", "while", "scan"] * (depth > 0)
    match kind := drawn.choice(kinds):
        case "layer":
            return kind, *operands, drawn.randrange(_LAYERS)
        case "alone":
            return kind, *operands, drawn.randrange(6)
        case "both":
            return kind, *operands, drawn.randrange(4)
        case "cond":
            return kind, *operands, block(), block()
        case "while":
            return kind, *operands, drawn.randint(1, 5), drawn.random() < 0.5, block()
    return kind, *operands, drawn.random() < 0.5, block()
