"""Pools over windows of lines and images, in any layout; the kernels' own is NHWC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import relax, te

from autotm.kernels.operators import pooling
from autotm.lower.operators.layouts import arranged, restored
from autotm.lower.operators.rules import Ints, Legalize, differentiates, ints, legalizes, shape_of

_OWN = "NHWC"


@dataclass(frozen=True)
class _Windows:
    """Windows over (rows, columns); `rest` are dilation or counted padding, if they are not the usual ones."""

    layout: str
    out_layout: str
    pool: Ints
    strides: Ints
    padding: Ints
    rest: tuple[Ints, ...]

    @classmethod
    def of(cls, call: relax.Call) -> _Windows:
        """Of a pool of images; of lines, as images of one row.

        Raises:
            NotImplementedError: a mean over elements that are not neighbours.
        """
        attrs, layout = call.attrs, str(call.attrs.layout)
        names = ("pool_size", "strides", "dilation", "padding")
        pool, strides, dilation, padding = (ints(getattr(attrs, name)) for name in names)
        if len(pool) == 1:
            pool, strides, dilation = ((1, *values) for values in (pool, strides, dilation))
            padding = (0, padding[0], 0, padding[1])
        own, made = (dict(zip(layout, shape_of(item), strict=True)) for item in (call.args[0], call))
        is_mean = "avg" in call.op.name
        if is_mean and dilation != (1, 1):
            raise NotImplementedError(f"{call.op.name} of dilation {dilation}: a mean of elements that are apart")
        spans = [(taps - 1) * apart + 1 for taps, apart in zip(pool, dilation, strict=True)]
        # With ceil_mode, the last windows reach beyond the padding.
        ends = [
            max((made.get(axis, 1) - 1) * step + span - own.get(axis, 1) - before, after)
            for axis, step, span, before, after in zip("HW", strides, spans, padding[:2], padding[2:], strict=True)
        ]
        rest = ()
        if dilation != (1, 1):
            rest = (dilation,)
        elif is_mean and attrs.count_include_pad and any(padding):
            rest = (padding,)
        return cls(layout, str(attrs.out_layout), pool, strides, (*padding[:2], *ends), rest)

    @property
    def geometry(self) -> tuple[Ints, ...]:
        """What the kernels take."""
        return self.pool, self.strides, self.padding, *self.rest


def _legalized(kernel: Callable[..., te.Tensor]) -> Legalize:
    """The form of a pool: images with channels last, which the kernel takes, and back."""

    def rule(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        windows = _Windows.of(call)
        made = builder.call_te(kernel, arranged(builder, call.args[0], windows.layout, _OWN), *windows.geometry)
        return restored(builder, made, _OWN, windows.out_layout)

    return rule


for _rank in (1, 2):
    legalizes(f"relax.nn.max_pool{_rank}d")(_legalized(pooling.max_pool2d))
    legalizes(f"relax.nn.avg_pool{_rank}d")(_legalized(pooling.avg_pool2d))


@differentiates("relax.nn.max_pool1d")
@differentiates("relax.nn.max_pool2d")
def _max_gradient(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    windows = _Windows.of(call)
    x = arranged(builder, call.args[0], windows.layout, _OWN)
    y, dy = (arranged(builder, item, windows.out_layout, _OWN) for item in (y, dy))
    made = builder.call_te(pooling.max_pool2d_gradient, x, y, dy, *windows.geometry)
    return [restored(builder, made, _OWN, windows.layout)]


@differentiates("relax.nn.avg_pool1d")
@differentiates("relax.nn.avg_pool2d")
def _mean_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    windows = _Windows.of(call)
    extents = dict(zip(windows.layout, shape_of(call.args[0]), strict=True))
    shape = tuple(extents.get(axis, 1) for axis in _OWN)
    dy = arranged(builder, dy, windows.out_layout, _OWN)
    made = builder.call_te(pooling.avg_pool2d_gradient, dy, shape, *windows.geometry)
    return [restored(builder, made, _OWN, windows.layout)]
