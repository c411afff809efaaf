"""Modules of PyTorch made at random: operators, views, changes in place, gradients that stop, shared parameters.

A module is drawn from its seed, and always the same. Every operator is chosen by the shapes of the values that there
are, so that each module runs; numbers are kept small, so that three steps of descent stay finite.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

nn, F = torch.nn, torch.nn.functional
ROWS, WIDTH = 4, 6
_LEAST, _MOST = 6, 16
"""Statements of a module."""
Tensor = torch.Tensor
Statement = Callable[["RandomModule", list[Tensor]], Tensor]


class RandomModule(nn.Module):
    """A module whose forward pass is statements that were drawn: each adds a value to those before it."""

    def __init__(self, seed: int) -> None:
        """Draw parameters, buffers and statements."""
        super().__init__()
        self.draw = random.Random(seed)  # noqa: S311 - it draws modules
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator) * 0.5

        self.square, self.rows = nn.Parameter(normal(WIDTH, WIDTH)), nn.Parameter(normal(ROWS, WIDTH))
        self.scale, self.frozen = nn.Parameter(normal(WIDTH)), nn.Parameter(normal(WIDTH), requires_grad=False)
        self.line, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        with torch.no_grad():
            self.line.weight.copy_(normal(WIDTH, WIDTH))
            self.line.bias.copy_(normal(WIDTH))
        self.register_buffer("average", normal(WIDTH))
        self.register_buffer("kept", normal(ROWS, WIDTH))
        if self.draw.random() < 0.3:  # noqa: PLR2004 - three modules of ten
            self.again = self.square  # One parameter under two names.
        self.inputs = (normal(ROWS, WIDTH), normal(ROWS, WIDTH), torch.randint(ROWS, (ROWS,), generator=generator))
        self.statements: list[tuple[str, Statement]] = []
        self._write()

    def _write(self) -> None:
        """Draw statements that work on the values that there are."""
        state = {name: value.clone() for name, value in self.state_dict().items()}
        values, self.places = self._first_values(self.inputs), self.inputs[2]
        wanted = self.draw.randint(_LEAST, _MOST)
        while len(self.statements) < wanted:
            name = self.draw.choice(sorted(STATEMENTS))
            statement = STATEMENTS[name](self.draw, values)
            if statement is None:
                continue
            try:
                with torch.no_grad():
                    value = statement(self, values)
            except (IndexError, RuntimeError):  # It fits no such shape.
                continue
            if value.numel() == 0 or not value.isfinite().all() or value.abs().max() > 50:  # noqa: PLR2004 - small
                continue
            values.append(value)
            self.statements.append((name, statement))
        self.load_state_dict(state)
        del self.places
        self.used = self.draw.sample(range(len(values)), min(3, len(values)))

    def _first_values(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        x, y, _ = inputs
        return [x, y, self.square, self.rows, self.scale, self.frozen, self.average, self.kept]

    def forward(self, x: Tensor, y: Tensor, places: Tensor) -> Tensor:
        """Return a loss."""
        self.places = places
        values = self._first_values((x, y, places))
        try:
            for _, statement in self.statements:
                values.append(statement(self, values))
        finally:
            del self.places
        return sum(values[number].square().mean() + values[number].mean() for number in {len(values) - 1, *self.used})

    def __repr__(self) -> str:
        return " ".join(name for name, _ in self.statements)


def _unary(function: Callable[[Tensor], Tensor], least: int = 0) -> Callable[..., Statement | None]:
    def drawn(draw: random.Random, values: list[Tensor]) -> Statement | None:
        fitting = [number for number, value in enumerate(values) if value.ndim >= least]
        if not fitting:
            return None
        number = draw.choice(fitting)
        return lambda _module, values: function(values[number])

    return drawn


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Statement | None]:
    def drawn(draw: random.Random, values: list[Tensor]) -> Statement | None:
        first = draw.randrange(len(values))
        fitting = [number for number, value in enumerate(values) if _broadcast(values[first], value)]
        second = draw.choice(fitting)
        return lambda _module, values: function(values[first], values[second])

    return drawn


def _broadcast(some: Tensor, other: Tensor) -> bool:
    pairs = zip(reversed(some.shape), reversed(other.shape), strict=False)
    return all(a == b or 1 in (a, b) for a, b in pairs)


def _wide(function: Callable[[Any, Tensor], Tensor]) -> Callable[..., Statement | None]:
    """Return what draws a statement: `function` of the module and of a drawn value of shape (ROWS, WIDTH)."""

    def drawn(draw: random.Random, values: list[Tensor]) -> Statement | None:
        fitting = [n for n, value in enumerate(values) if value.ndim == 2 and value.shape == (ROWS, WIDTH)]  # noqa: PLR2004
        number = draw.choice(fitting)
        return lambda module, values: function(module, values[number])

    return drawn


def _average(module: RandomModule, value: Tensor) -> Tensor:
    module.average.mul_(0.9).add_(value.detach().mean(0), alpha=0.1)
    return module.average * value


def _assigned(module: RandomModule, value: Tensor) -> Tensor:
    module.kept = 0.5 * module.kept + value.detach()
    return module.kept - value


def _frozen(module: RandomModule, value: Tensor) -> Tensor:
    with torch.no_grad():
        hidden = module.line(value)
    return hidden.tanh() + value


def _written(value: Tensor) -> Tensor:
    copied = value.clone()
    copied[..., :2] = value[..., -2:] * 0.3
    copied[0].mul_(2.0)
    return copied


def _added_rows(module: RandomModule, value: Tensor) -> Tensor:
    return torch.zeros_like(value).index_add_(0, module.places, value)


def _view_written(value: Tensor) -> Tensor:
    copied = value * 1.0
    copied.view(-1)[::2].add_(0.25)
    copied.t().relu_() if copied.ndim == 2 else copied.relu_()  # noqa: PLR2004 - a matrix
    return copied


STATEMENTS: dict[str, Callable[..., Statement | None]] = {
    "relu": _unary(torch.relu), "tanh": _unary(torch.tanh), "sigmoid": _unary(torch.sigmoid), "gelu": _unary(F.gelu),
    "exp": _unary(lambda x: x.clamp(-2, 1).exp()), "abs": _unary(torch.abs), "negative": _unary(torch.neg),
    "root": _unary(lambda x: (x.abs() + 1).sqrt()), "sine": _unary(torch.sin), "silu": _unary(F.silu),
    "softmax": _unary(lambda x: x.softmax(-1), 1), "log softmax": _unary(lambda x: x.log_softmax(-1), 1),
    "first softmax": _unary(lambda x: x.softmax(0), 2), "leaky": _unary(lambda x: F.leaky_relu(x, 0.1)),
    "elu": _unary(F.elu), "power": _unary(lambda x: x.abs().clamp(0.1, 2) ** 1.5), "hard": _unary(F.hardswish),
    "add": _binary(torch.add), "add with alpha": _binary(lambda a, b: torch.add(a, b, alpha=0.3)),
    "subtract": _binary(lambda a, b: torch.sub(a, b, alpha=1.5)), "multiply": _binary(torch.mul),
    "divide": _binary(lambda a, b: a / (b.abs() + 1)), "maximum": _binary(torch.maximum),
    "minimum": _binary(torch.minimum), "where": _binary(lambda a, b: torch.where(a > b, a * 0.5, b)),
    "lerp": _binary(lambda a, b: torch.lerp(*torch.broadcast_tensors(a, b), 0.3)), "hypot": _binary(torch.hypot),
    "transpose": _unary(lambda x: x.transpose(0, -1), 2), "flat": _unary(torch.flatten, 1),
    "part": _unary(lambda x: x[..., 1:3], 1), "row": _unary(lambda x: x[1], 2), "last": _unary(lambda x: x[..., -1], 1),
    "expanded": _unary(lambda x: x.unsqueeze(0).expand(2, *x.shape), 1),
    "chunk": _unary(lambda x: x.chunk(2, -1)[0], 1),
    "sum": _unary(lambda x: x.sum(-1, keepdim=True) * 0.3, 1), "mean": _unary(lambda x: x.mean(0), 1),
    "largest": _unary(lambda x: x.amax(-1), 1), "smallest": _unary(lambda x: x.min(-1).values, 1),
    "variance": _unary(lambda x: x.var(-1), 2), "norm": _unary(lambda x: x.norm(dim=-1, keepdim=True), 2),
    "running sum": _unary(lambda x: x.cumsum(-1) * 0.5, 1), "flip": _unary(lambda x: x.flip(0), 1),
    "roll": _unary(lambda x: x.roll(1, -1), 1), "pad": _unary(lambda x: F.pad(x, (1, 1)), 1),
    "sort": _unary(lambda x: x.sort(-1).values, 1), "top": _unary(lambda x: x.topk(2, -1).values, 2),
    "twice": _unary(lambda x: torch.cat([x, x * 0.5], -1), 1), "stack": _unary(lambda x: torch.stack([x, x.tanh()]), 1),
    "layer norm": _unary(lambda x: F.layer_norm(x, x.shape[-1:]), 2), "strided": _unary(lambda x: x[::2, 1::2], 2),
    "detach": _unary(lambda x: x.detach() * 1.5), "straight through": _unary(lambda x: x + (x.round() - x).detach()),
    "written": _unary(_written, 2), "view written": _unary(_view_written, 1),
    "masked": _unary(lambda x: x.masked_fill(x > 0.5, 0.1)),  # noqa: PLR2004 - any
    "lower": _unary(torch.tril, 2),
    "product": _wide(lambda module, x: x @ module.square), "turned": _wide(lambda module, x: x @ module.square.t()),
    "line": _wide(lambda module, x: module.line(x)), "batch norm": _wide(lambda module, x: module.norm(x)),
    "gather": _wide(lambda module, x: x[module.places]), "along": _wide(
        lambda module, x: x.gather(1, module.places[:, None])
    ),
    "average": _wide(_average), "assigned": _wide(_assigned), "frozen": _wide(_frozen),
    "added rows": _wide(_added_rows),
    "outer": _wide(lambda _module, x: x @ x.t() * 0.3), "attention": _wide(
        lambda module, x: F.scaled_dot_product_attention(x[None], module.rows[None], x[None])[0]
    ),
    "einsum": _wide(lambda module, x: torch.einsum("ij,kj->ik", x, module.rows) * 0.5),
    "addmm": _wide(lambda module, x: torch.addmm(module.scale, x, module.square, beta=0.5, alpha=0.3)),
}  # fmt: skip
"""Names of statements, each with what draws one for the values that there are; None where none fits."""
