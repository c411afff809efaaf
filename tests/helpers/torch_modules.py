"""Small modules of PyTorch, one for each thing that networks are made of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

nn, F = torch.nn, torch.nn.functional
Module = nn.Module


class Made(Module):
    """A module of some parts whose forward pass is a function of them and the inputs."""

    def __init__(self, forward: Callable[..., object], **parts: Module) -> None:
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: torch.Tensor) -> object:
        return self._forward(self, *inputs)


def images(*shape: int) -> tuple[torch.Tensor, ...]:
    """Normal numbers, always the same: what `torch.randn` draws depends on the processor's vectors."""
    return (torch.from_numpy(np.random.default_rng(1).standard_normal(shape, dtype=np.float32)),)


def words(high: int, *shape: int) -> tuple[torch.Tensor, ...]:
    return (torch.from_numpy(np.random.default_rng(1).integers(0, high, shape)),)


def attended(**options: object) -> Module:
    def forward(self: Made, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        given = dict(options)
        mask = given.get("attn_mask")
        if isinstance(mask, torch.Tensor) and mask.is_floating_point():
            # Beside float64, PyTorch takes a float32 mask and is off by a fifth: seen on an AMD EPYC.
            given["attn_mask"] = mask.to(x.dtype)
        found = F.scaled_dot_product_attention(*parts, **given)
        return self.out(found.transpose(1, 2).reshape(batch, length, width))

    return Made(forward, qkv=nn.Linear(32, 96), out=nn.Linear(32, 32))


def tied() -> Module:
    def forward(self: Made, indices: torch.Tensor) -> torch.Tensor:
        return F.linear(torch.tanh(self.table(indices)), self.table.weight)

    return Made(forward, table=nn.Embedding(20, 24, padding_idx=3))


def lengths() -> Module:
    """Norms of every kind, of rows some of which are zero."""

    def forward(self: Made, x: torch.Tensor) -> object:
        rows = self.dense(x)
        norms = [torch.linalg.vector_norm(rows, order, dim=-1) for order in (1, 2, 3, float("inf"))]
        return [F.normalize(rows, dim=-1), rows.norm(), *norms]

    return Made(forward, dense=nn.Linear(6, 8, bias=False))


def shuffled() -> Module:
    def forward(self: Made, x: torch.Tensor) -> torch.Tensor:
        left, right = self.first(x).chunk(2, 1)
        y = torch.cat([F.hardswish(left), F.leaky_relu(right, 0.2)], 1)
        y = y.view(2, 2, 8, 9, 9).transpose(1, 2).reshape(2, 16, 9, 9)
        return self.second(y.roll((1, -2), (2, 3)))

    return Made(forward, first=nn.Conv2d(4, 16, 3, padding=1), second=nn.Conv2d(16, 8, 3, groups=4, dilation=2))


def upsampled() -> Module:
    def forward(self: Made, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.norm(self.up(x)))
        fine = F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)
        return fine + F.interpolate(y, scale_factor=2, mode="nearest")

    return Made(forward, up=nn.ConvTranspose2d(6, 8, 3, stride=2, output_padding=1), norm=nn.GroupNorm(2, 8))


def positions() -> Module:
    def forward(self: Made, indices: torch.Tensor) -> torch.Tensor:
        length = indices.shape[1]
        places = torch.arange(length).expand_as(indices)
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        y = self.table(indices) + self.places(places)
        scores = (y @ y.transpose(1, 2)).masked_fill(~mask, float("-inf"))
        return scores.softmax(-1) @ y

    return Made(forward, table=nn.Embedding(20, 16), places=nn.Embedding(12, 16))


MASK = torch.from_numpy(np.random.default_rng(1).random((8, 8)) > 0.3)
NO_PLACE = MASK & (torch.arange(8) % 3 != 1)[:, None]
"""Rows that may attend to nothing get nothing."""


class Rounded(torch.autograd.Function):
    """Rounding with a gradient of one's own."""

    @staticmethod
    def forward(context: object, x: torch.Tensor) -> torch.Tensor:
        del context
        return x.round()

    @staticmethod
    def backward(context: object, slope: torch.Tensor) -> torch.Tensor:
        del context
        return 2 * slope


def stopped() -> Module:
    """Gradients that end, pass where the formula has none, or are changed on their way."""

    def forward(self: Made, x: torch.Tensor) -> object:
        y, z = self.first(x), self.second(x)
        with torch.no_grad():
            target = self.second(x).square()
        y.register_hook(lambda slope: 3 * slope)
        straight = y + (y.round() - y).detach()
        return y * z.detach(), straight * target, Rounded.apply(4 * z) + self.first.weight.data.sum(), z - z.detach()

    return Made(forward, first=nn.Linear(6, 5), second=nn.Linear(6, 5))


def in_place() -> Module:
    """A buffer that follows averages, and tensors that are changed after they were read."""

    def forward(self: Made, x: torch.Tensor) -> torch.Tensor:
        y = self.dense(x)
        self.average.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        early = y.sin()
        y = y * 2
        y[:, 0] = 1.0
        y[1:3] += early[:2]
        y[:, ::2].mul_(3)
        y[[0, 2]] = early[[3, 1]]
        y[y > 1] = 0.5
        y.t()[1].copy_(early[:, 2])
        return y + self.average

    module = Made(forward, dense=nn.Linear(6, 6))
    module.register_buffer("average", torch.zeros(6))
    return module


def remembered() -> Module:
    """State that is assigned, or written, or a parameter that nothing trains."""

    def forward(self: Made, x: torch.Tensor) -> torch.Tensor:
        y = self.dense(x)
        with torch.no_grad():
            for old, new in zip(self.teacher.parameters(), self.dense.parameters(), strict=True):
                old.mul_(0.9).add_(new, alpha=0.1)
            target = self.teacher(x)
        self.mean = 0.5 * self.mean + y.detach().mean(0)
        self.total.add_(y.detach().sum(0))
        self.num_batches_tracked += 1
        return y * self.mean / self.num_batches_tracked - target + self.other(self.total)

    other = torch.nn.utils.parametrizations.weight_norm(nn.Linear(5, 5))
    module = Made(forward, dense=nn.Linear(6, 5), teacher=nn.Linear(6, 5).requires_grad_(False), other=other)
    module.register_buffer("mean", torch.ones(5))
    module.register_buffer("total", torch.zeros(5))
    module.register_buffer("num_batches_tracked", torch.tensor(1))
    return module


def places() -> Module:
    """Entries read and written along axes, windows, strides, orders."""

    def forward(self: Made, x: torch.Tensor) -> object:
        y, at = self.dense(x), torch.tensor([[0, 1, 2], [2, 2, 0], [3, 1, 1], [5, 5, 4]])
        return (
            y.gather(1, at),
            torch.zeros_like(y).scatter_add(1, at, y[:, :3]) + y.scatter_add(1, at, y[:, 3:]),
            y.topk(2)[0] + y.sort(0)[0][:, :2] + y.min(1, keepdim=True)[0],
            y.scatter(1, at[:, :1], 0.0) + y.index_add(0, at[:2, 0], y[:2]),
            y.unfold(1, 3, 2).sin() * y.contiguous().as_strided((4, 2, 3), (6, 2, 1), 1),
            y.cumprod(1) + y.flip(1),
        )

    return Made(forward, dense=nn.Linear(6, 6))


def recurrent() -> Module:
    def forward(self: Made, x: torch.Tensor) -> torch.Tensor:
        return self.gated(self.long(x)[0])[0]

    return Made(forward, long=nn.LSTM(6, 5, batch_first=True), gated=nn.GRU(5, 4, batch_first=True))


def options() -> Module:
    """Operators with the options and cases that an importer may lose."""

    def forward(self: Made, x: torch.Tensor) -> torch.Tensor:
        y = self.line(x)
        summed = torch.add(y, y.sin(), alpha=0.1) + torch.sub(y, y.cos(), alpha=3) + torch.rsub(y, y.tanh(), alpha=2)
        summed = summed + torch.add(y, 2, alpha=3) + torch.addmm(y, y, y.t(), beta=0.5, alpha=2)
        counts = torch.arange(36).view(6, 6)
        bounded = y * torch.clamp(counts, max=9) + y * torch.clamp(counts, min=4) + y * counts.clamp(3, 20)
        curved = (
            torch.lerp(y, y.sin(), 0.3) + torch.cosh(y) + torch.sinh(0.3 * y) + torch.sinh(3 * y) + torch.hypot(y, x)
        )
        blocks = torch.block_diag(y, y[:2])[:6, :6] + (y / 0).isinf().to(x.dtype)
        picked = y[:, [1, -1, 0, 2, 2, -6]] + y[[0, -1, 2, 3, 3, 1]] + y[[0, 1], :][:, [3, 2]].sum()
        return summed + bounded + curved + blocks + picked

    return Made(forward, line=nn.Linear(6, 6))


def resized() -> Module:
    """By scales that are not those of the sizes; means by a divisor of one's own; padding that cuts; windows."""

    def forward(self: Made, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.line(x)
        return (
            F.interpolate(y, scale_factor=1.3, mode="bilinear"),
            F.interpolate(y, scale_factor=0.75, mode="bilinear"),
            F.interpolate(y, scale_factor=(1.3, 0.6), mode="nearest"),
            F.avg_pool2d(y, 2, divisor_override=3),
            F.pad(y, (-1, 1, 2, -2)),
            F.unfold(y, 3, stride=2),
            y[:, :, [[0], [1]], [2, -1, 3]],
        )

    return Made(forward, line=nn.Conv2d(3, 4, 1))


def volumes() -> Module:
    """Resized volumes, and norms of groups of their channels, with scale and without."""
    return nn.Sequential(
        nn.Conv3d(3, 4, 1), nn.GroupNorm(2, 4, affine=False), nn.Upsample(scale_factor=2, mode="trilinear"),
        nn.GroupNorm(2, 4), nn.Upsample(scale_factor=2),
    )  # fmt: skip


MODULES: dict[str, tuple[Callable[[], Module], tuple[torch.Tensor, ...]]] = {
    "batch norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)),
        images(4, 3, 12, 12),
    ),
    "batch norm of vectors": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=0.3), nn.Linear(8, 3)),
        images(16, 6),
    ),
    "batch norm without averages": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, track_running_stats=False)),
        images(4, 3, 9, 9),
    ),
    "batch norm without scale": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False)),
        images(4, 3, 9, 9),
    ),
    "instance norm": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True)), images(2, 3, 9, 9)),
    "layer norm without scale": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8, elementwise_affine=False), nn.Linear(8, 3)),
        images(4, 6),
    ),
    "rms norm": (lambda: nn.Sequential(nn.Linear(6, 8), nn.RMSNorm(8), nn.Linear(8, 3)), images(4, 5, 6)),
    "gelus": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU("tanh")), images(4, 6)),
    "activations": (
        lambda: nn.Sequential(
            nn.Linear(6, 8), nn.SiLU(), nn.Hardsigmoid(), nn.ELU(), nn.Mish(), nn.PReLU(), nn.Softplus(), nn.ReLU6()
        ),
        images(4, 6),
    ),
    "pools": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.MaxPool2d(3, 2, 1, ceil_mode=True),
            nn.AvgPool2d(2, 1),
            nn.AdaptiveAvgPool2d((2, 3)),
            nn.Flatten(),
            nn.Linear(48, 5),
        ),
        images(2, 3, 14, 14),
    ),
    "lines": (
        lambda: nn.Sequential(nn.Conv1d(4, 8, 3, stride=2, padding=1), nn.GELU(), nn.Conv1d(8, 6, 3, groups=2)),
        images(2, 4, 21),
    ),
    "volumes": (
        lambda: nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv3d(4, 2, 2, stride=2)),
        images(2, 2, 6, 6, 6),
    ),
    "depthwise": (
        lambda: nn.Sequential(nn.Conv2d(6, 12, 1), nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.Conv2d(12, 4, 1)),
        images(2, 6, 9, 9),
    ),
    "shuffled, dilated, rolled": (shuffled, images(2, 4, 9, 9)),
    "upsampled, transposed": (upsampled, images(2, 6, 5, 5)),
    "tied table with padding": (tied, words(20, 3, 7)),
    "positions and masks": (positions, words(20, 3, 8)),
    "attention": (attended, images(2, 8, 32)),
    "causal attention": (lambda: attended(is_causal=True), images(2, 8, 32)),
    "attention to nothing": (lambda: attended(attn_mask=NO_PLACE), images(2, 8, 32)),
    "options": (options, images(6, 6)),
    "images resized by scales": (resized, images(2, 3, 9, 10)),
    "resized volumes": (volumes, images(2, 3, 4, 5, 3)),
    "masked attention": (lambda: attended(attn_mask=MASK, scale=0.2), images(2, 8, 32)),
    "biased attention": (lambda: attended(attn_mask=torch.linspace(-1, 1, 64).view(8, 8)), images(2, 8, 32)),
    "multi-head attention": (
        lambda: Made(
            lambda self, x: self.heads(x, x, x, need_weights=False)[0],
            heads=nn.MultiheadAttention(32, 4, batch_first=True),
        ),
        images(2, 8, 32),
    ),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True),
        images(2, 8, 32),
    ),
    "a table of odd width": (
        lambda: Made(lambda self, i: F.gelu(self.table(i)) * 2, table=nn.Embedding(20, 24)),
        words(20, 3, 7),
    ),
    "products": (
        lambda: Made(
            lambda self, x: torch.einsum("bij,bkj->bik", self.l(x), x).pow(2).mean(-1).sqrt(), l=nn.Linear(6, 6)
        ),
        images(3, 5, 6),
    ),
    "elus": (lambda: nn.Sequential(nn.Linear(6, 8), nn.CELU(2.0), nn.SELU(), nn.ELU(0.5)), images(4, 6)),
    "nearest": (
        lambda: Made(
            lambda self, x: F.interpolate(F.interpolate(self.conv(x), (13, 7)), scale_factor=0.5),
            conv=nn.Conv2d(2, 4, 1),
        ),
        images(2, 2, 9, 9),
    ),
    "stopped gradients": (stopped, images(4, 6)),
    "changes in place": (in_place, images(4, 6)),
    "state of its own": (remembered, images(4, 6)),
    "places": (places, images(4, 6)),
    "recurrent": (recurrent, images(2, 3, 6)),
    "counted": (
        lambda: Made(lambda self, x: self.dense(x) * (x > 0).cumsum(1)[:, -1:], dense=nn.Linear(6, 8)),
        images(4, 6),
    ),
    "extremes": (
        lambda: Made(
            lambda self, x: self.dense(x).logsumexp(1) + self.dense(x).prod(1) + self.dense(x).amin(1),
            dense=nn.Linear(6, 4),
        ),
        images(4, 6),
    ),
    "smoothed labels": (
        lambda: Made(
            lambda self, x: F.cross_entropy(self.dense(x), torch.arange(4), label_smoothing=0.1), dense=nn.Linear(6, 6)
        ),
        images(4, 6),
    ),
    "norms": (lengths, (images(4, 6)[0] * torch.tensor([[1.0], [0.0], [2.0], [0.0]]),)),
    "maxima of images": (lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.AdaptiveMaxPool2d(2)), images(2, 2, 6, 6)),
}
