"""A program in PyTorch: with Python's control flow, its pieces through `torch.compile`, and as TorchScript."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from autotm.control.program import Array, Program
from autotm.model.errors import BadInputError
from autotm.systems.source import (
    SHARED,
    Expression,
    Piece,
    Prepared,
    Ready,
    Results,
    Table,
    as_array,
    called,
    numbers,
    piece_source,
    python_source,
    without_checks,
)


def _reduced(method: str) -> Expression:
    def write(x: str, *, attrs: Any, **_: Any) -> str:
        axes = [] if attrs.axis is None else numbers(attrs.axis)
        return f"{x}.{method}({axes}, {bool(attrs.keepdims)})"

    return write


def _taken(x: str, index: str, *, attrs: Any, **_: Any) -> str:
    if int(attrs.axis) != 0:
        raise BadInputError("take along another axis than the first is not known here")
    return f"{x}[{index}]"


def _padded(x: str, *_: str, attrs: Any, **__: Any) -> str:
    widths = numbers(attrs.pad_width)
    pairs = [widths[index : index + 2] for index in range(0, len(widths), 2)]
    return f"functional.pad({x}, {[width for pair in reversed(pairs) for width in pair]})"


def _convolved(x: str, weights: str, *, attrs: Any, **_: Any) -> str:
    sizes = f"None, {numbers(attrs.strides)}, {numbers(attrs.padding)[:2]}"
    if attrs.data_layout == "NHWC":
        first = f"{x}.permute(0, 3, 1, 2), {weights}.permute(3, 2, 0, 1)"
        return f"torch.conv2d({first}, {sizes}).permute(0, 2, 3, 1)"
    return f"torch.conv2d({x}, {weights}, {sizes})"


def _pooled(kind: str) -> Expression:
    def write(x: str, *, attrs: Any, **_: Any) -> str:
        sizes = (numbers(attrs.pool_size), numbers(attrs.strides), numbers(attrs.padding)[:2])
        text = ", ".join(map(str, sizes))
        if attrs.layout == "NHWC":
            return f"functional.{kind}({x}.permute(0, 3, 1, 2), {text}).permute(0, 2, 3, 1)"
        return f"functional.{kind}({x}, {text})"

    return write


TORCH: Table = {
    **SHARED,
    "relax.sigmoid": called("torch.sigmoid"),
    "relax.tanh": called("torch.tanh"),
    "relax.nn.relu": called("torch.relu"),
    "relax.where": called("torch.where"),
    "relax.nn.softmax": lambda x, *, attrs, **_: f"torch.softmax({x}, {int(attrs.axis)})",
    "relax.argmax": lambda x, *, attrs, **_: f"{x}.argmax({int(attrs.axis)})",
    "relax.astype": lambda x, *, attrs, **_: f"{x}.to(torch.{attrs.dtype})",
    "relax.concat": lambda items, *, attrs, **_: f"torch.cat({items}, {int(attrs.axis)})",
    "relax.split": lambda x, *_, attrs, operator, **__: f"{x}.chunk({len(operator.results)}, {int(attrs.axis)})",
    "relax.permute_dims": lambda x, *, attrs, **_: f"{x}.permute({numbers(attrs.axes)})",
    "relax.sum": _reduced("sum"),
    "relax.mean": _reduced("mean"),
    "relax.max": _reduced("amax"),
    "relax.take": _taken,
    "relax.nn.pad": _padded,
    "relax.nn.conv2d": _convolved,
    "relax.nn.avg_pool2d": _pooled("avg_pool2d"),
    "relax.nn.max_pool2d": _pooled("max_pool2d"),
}
"""Operators of Relax as expressions of PyTorch."""


def reference(program: Program, arguments: Sequence[Array]) -> Results:
    """Return what a program computes for some arguments, in float64 with PyTorch."""
    main = _python_main(without_checks(program))
    values = [torch.from_numpy(_writable(each)) for each in (*arguments, *program.constants.values())]
    results = main(*(each.double() if each.is_floating_point() else each for each in values))
    return tuple(map(as_array, results if isinstance(results, tuple) else (results,)))


def _writable(array: Array) -> Array:
    """Return an array that PyTorch takes without a warning."""
    return array if array.flags.writeable else array.copy()


def _python_main(program: Program) -> Callable[..., Any]:
    source, _ = python_source(program, TORCH)
    return _defined(source, "main")


def _defined(source: str, name: str, **scope: object) -> Callable[..., Any]:
    """Return a function of PyTorch's from its source, which stays readable for compilers that ask for it."""
    file = f"<autotm {name} {id(source)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope.update(torch=torch, functional=functional, __name__=__name__)
    exec(compile(source, file, "exec"), scope)  # noqa: S102 - The source is ours.
    return scope[name]  # type: ignore[return-value]


def _ready(program: Program, main: Callable[..., Any], threads: int) -> Ready:
    def on(arguments: Sequence[Array]) -> Prepared:
        torch.set_num_threads(threads)
        values = [torch.from_numpy(_writable(each)) for each in (*arguments, *program.constants.values())]
        return Prepared(lambda: main(*values))

    return on


def eager(program: Program, threads: int) -> Ready:
    """Write a program in Python."""
    return _ready(program, _python_main(program), threads)


def compiled_pieces(program: Program, threads: int) -> Ready:
    """Compile the pieces of a program with `torch.compile`; Python calls them. A loop as a whole would be unrolled."""
    source, pieces = python_source(program, None)
    # Each piece has one shape: what was seen before must not make another compile for any.
    compiled = {piece.name: torch.compile(_piece_of_torch(piece), dynamic=False, fullgraph=True) for piece in pieces}
    torch._dynamo.config.recompile_limit = max(8, 2 * len(pieces))  # noqa: SLF001 - It has no public name.
    return _ready(program, _defined(source, "main", holds=bool, **compiled), threads)


def _piece_of_torch(piece: Piece) -> Callable[..., Any]:
    # `torch.compile` takes a row by the number in a tensor for one of unknown shape.
    def taken(x: str, index: str, **_: Any) -> str:
        return f"torch.index_select({x}, 0, {index}.reshape(-1)).reshape([*{index}.shape, *{x}.shape[1:]])"

    return _defined(piece_source(piece, {**TORCH, "relax.take": taken}), piece.name)


def scripted(program: Program, threads: int) -> Ready:
    """Compile a program as TorchScript."""
    return _ready(program, torch.jit.script(_python_main(program)), threads)
