"""Fused contractions: their operands, their window, and the elementwise epilogue behind them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from tvm import s_tir, tirx
from tvm.ir.expr import TensorLoad

from autotm.kernels import tir
from autotm.kernels.tir import Index, elements, extents, is_own, loads_of, parameters, rewrite, top_blocks, variables_of

KINDS = (
    "conv2d_data_gradient", "conv2d_weight_gradient", "conv2d", "matmul_nt", "matmul_tn", "matmul", "batched_matmul",
)  # fmt: skip
_PROLOGUES = ("padded", "spread", "turned_weights")


@dataclass(frozen=True)
class Output:
    """One result of the epilogue: `buffer[indices] = value`, a function of `axes` and of the contraction's element."""

    buffer: tirx.Buffer
    axes: tuple[tirx.Var, ...]
    indices: tuple[tirx.Expr, ...]
    value: tirx.Expr

    @classmethod
    def plain(cls, product: tirx.Buffer) -> Output:
        """Return the contraction's elements themselves."""
        axes = tuple(tirx.Var(f"x{i}", "int64") for i in range(len(product.shape)))
        return cls(product, axes, axes, tirx.BufferLoad(product, list(axes)))

    @cached_property
    def loads(self) -> tuple[TensorLoad, ...]:
        """Every load in the value."""
        return tuple(loads_of(self.value))

    @cached_property
    def whole(self) -> tuple[tirx.Buffer, ...]:
        """Operands of the output's shape that are only read at the element itself."""
        elsewhere = {load.source for load in self.loads if not is_own(load.indices, self.axes)}
        sources = (load.source for load in self.loads if load.source not in elsewhere)
        return tuple(source for source in sources if extents(source) == extents(self.buffer))


@dataclass(frozen=True)
class Problem:
    """A contraction of two parameters with its window and epilogue."""

    kind: str
    left: tirx.Buffer
    """First operand as the function receives it: neither padded nor spread."""
    right: tirx.Buffer
    """Second operand as the function receives it: not turned."""
    shape: tuple[int, ...]
    """Extents of the contraction's result."""
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    groups: int
    product: tirx.Buffer
    """The buffer that the main block writes."""
    outputs: tuple[Output, ...]
    factors: tuple[TensorLoad, TensorLoad]
    """How the main block reads the two operands."""
    axes: tuple[tirx.Var, ...]
    """The main block's variables: one for each axis of the result, then those of the sums."""
    steps: int
    """Products in each sum."""

    @property
    def plain(self) -> bool:
        """Whether the product itself is the only output, so that partial sums may be kept in it."""
        return len(self.outputs) == 1 and self.outputs[0].buffer.same_as(self.product)

    @property
    def flattens(self) -> bool:
        """Whether the epilogue sees the leading axes only as one: operands have the full shape or the last axis."""
        for output in self.outputs:
            leading = set(output.axes[:-1])
            for load in output.loads:
                named = any(axis in leading for index in load.indices for axis in variables_of(index))
                if named and not (extents(load.source) == self.shape and is_own(load.indices, output.axes)):
                    return False
        return True

    @property
    def repeats(self) -> bool:
        """Whether an element may be finished twice: no operand can be the memory that an output takes over."""
        size = math.prod(self.shape)
        loads = [load.source for output in self.outputs for load in output.loads]
        return all(source.same_as(self.product) or elements(source) < size for source in loads)

    def position(self, coordinates: Sequence[Index]) -> Index:
        """Return the row-major position of an element of the result."""
        position: Index = 0
        for extent, coordinate in zip(self.shape, coordinates, strict=True):
            position = position * extent + coordinate
        return position

    def finish(
        self, coordinates: Sequence[Index], element: Callable[[], tirx.Expr], position: Index | None = None
    ) -> tirx.Stmt:
        """Store every output at `coordinates`, given the contraction's element there.

        Where the caller knows the row-major `position`, outputs and operands of the full shape are addressed by it:
        less for TVM to simplify at every access of an unrolled tile.
        """
        stores = []
        for output in self.outputs:
            axes = dict(zip(output.axes, (tirx.convert(c) for c in coordinates), strict=True))
            loads = {self.product: element}
            if position is None:
                indices = [rewrite(index, axes, {}) for index in output.indices]
            else:
                indices = tir.flat(output.buffer, position)
                loads |= {source: partial(tir.load, source, position) for source in output.whole if source not in loads}
            stores.append(tirx.BufferStore(output.buffer, rewrite(output.value, axes, loads), indices))
        return tir.sequence(stores)


def problem_of(sch: s_tir.Schedule, main: s_tir.schedule.SBlockRV) -> Problem:
    """Read the problem from a fused function; inline the epilogue's intermediate blocks in `sch`.

    Raises:
        ValueError: the function holds a block that is neither prologue, contraction nor elementwise epilogue.
    """
    block = sch.get(main)
    name = block.name_hint
    kind = next((kind for kind in KINDS if name.startswith(kind)), None)
    if kind is None:
        raise ValueError(f"block '{name}' is no contraction (known: {', '.join(KINDS)})")
    operands = set(parameters(sch))
    product = block.writes[0].source
    # Padded, spread and turned operands are what these blocks read.
    prologues = [sch.get(rv) for rv in top_blocks(sch) if sch.get(rv).name_hint.startswith(_PROLOGUES)]
    sources = {prologue.writes[0].source: prologue.reads[0].source for prologue in prologues}
    left, right = (sources.get(load.source, load.source) for load in _factors(block))
    computed = {sch.get(rv).writes[0].source for rv in top_blocks(sch)}
    for operand in (left, right):
        if operand not in operands or operand in computed:
            raise ValueError(
                f"operand '{operand.name}' of '{name}' is computed inside the fused function by an unknown block"
            )
    outputs = _epilogue(sch, main, operands)
    if product in operands:
        outputs.insert(0, Output.plain(product))

    def integers(key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(int(value) for value in block.annotations.get(key, default))

    return Problem(
        kind=kind,
        left=left,
        right=right,
        shape=extents(product),
        stride=integers("stride", (1, 1)),
        padding=integers("padding", (0, 0, 0, 0)),
        groups=integers("groups", (1,))[0],
        product=product,
        outputs=tuple(outputs),
        factors=_factors(block),
        axes=tuple(axis.var for axis in block.iter_vars),
        steps=math.prod(int(axis.dom.extent) for axis in block.iter_vars[len(product.shape) :]),
    )


def _factors(block: s_tir.SBlock) -> tuple[TensorLoad, TensorLoad]:
    update = block.body.value
    product = update.b if isinstance(update.b, tirx.Mul) else update.a
    return product.a, product.b


def _epilogue(sch: s_tir.Schedule, main: s_tir.schedule.SBlockRV, operands: set[tirx.Var]) -> list[Output]:
    """Return the results of the blocks after the contraction, into which those that compute no result are inlined."""
    main_hint = sch.get(main).name_hint

    def after() -> list[s_tir.schedule.SBlockRV]:
        hints = [(rv, sch.get(rv).name_hint) for rv in top_blocks(sch)]
        return [rv for rv, hint in hints if hint != main_hint and not hint.startswith(_PROLOGUES)]

    for rv in after():
        if sch.get(rv).writes[0].source not in operands:
            sch.compute_inline(rv)
    blocks = [sch.get(rv) for rv in after()]
    computed = {sch.get(main).writes[0].source, *(block.writes[0].source for block in blocks)}
    return [_output(block, extents(sch.get(main).writes[0].source), computed) for block in blocks]


def _output(block: s_tir.SBlock, shape: tuple[int, ...], computed: set[tirx.Buffer]) -> Output:
    statement = block.body
    axes = tuple(axis.var for axis in block.iter_vars)
    elementwise = (
        tuple(int(axis.dom.extent) for axis in block.iter_vars) == shape
        and isinstance(statement, tirx.BufferStore)
        and is_own(statement.indices, axes)
        and all(is_own(load.indices, axes) for load in loads_of(statement.value) if load.source in computed)
    )
    if not elementwise:
        raise ValueError(f"block '{block.name_hint}' is no elementwise epilogue of the contraction before it")
    return Output(statement.buffer, axes, tuple(statement.indices), statement.value)
