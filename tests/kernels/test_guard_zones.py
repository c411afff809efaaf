"""No kernel writes anywhere but into its outputs and workspaces: every family, compiled and run between canaries.

A new family of kernels (a name in `dispatch._NAMED`) needs cases here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from autotm.kernels import conv, depthwise, dispatch, matmul, window
from autotm.kernels.data_movement import concat
from autotm.kernels.embedding import embedding, embedding_update
from autotm.kernels.passes import machine_code
from contraction_cases import DEPTHWISE, GROUPED, WINDOWS, Window, host, random_windows
from guarded_memory import GUARD_BYTES, GuardedMemory
from memory_bound_cases import CONCATS, POOLS, SHAPES, SUMS, summed

SETTINGS = [(1, None), (2, None), (3, "core-avx2")]
"""Threads, and CPU whose instructions to use (None: all that this one has)."""


@dataclass(frozen=True)
class Case:
    """A kernel: its inputs and outputs, the name it must get, exclusive bounds of integer inputs, shared memory."""

    family: str
    tensors: list[te.Tensor]
    bounds: dict[int, int] = field(default_factory=dict)
    shared: dict[int, int] = field(default_factory=dict)
    """Output slot -> input slot whose memory it takes."""

    def __str__(self) -> str:
        inputs = (str(tuple(int(e) for e in t.shape)) for t in self.tensors if isinstance(t.op, te.PlaceholderOp))
        return f"{self.family} {' '.join(inputs)}"


def floats(*shapes: Sequence[int]) -> list[te.Tensor]:
    return [te.placeholder(shape, name=f"p{index}") for index, shape in enumerate(shapes)]


def elementwise(x: te.Tensor, value: Callable[..., tirx.Expr], name: str) -> te.Tensor:
    return te.compute(x.shape, value, name=name)


def convolutions(case: Window) -> list[Case]:
    """The three passes; the first with bias and ReLU behind it, the last as an update in place."""
    geometry = case.stride, case.padding
    x, w, b = floats(case.x, case.w, case.w[-1:])
    y = conv.conv2d(x, w, *geometry)
    active = elementwise(y, lambda *i: tirx.max(y(*i) + b(i[-1]), tirx.const(0.0, "float32")), "relu")
    dy, v = floats(case.y, case.w)
    dx = conv.conv2d_data_gradient(dy, v, case.x, *geometry)
    u, du, old = floats(case.x, case.y, case.w)
    dw = conv.conv2d_weight_gradient(u, du, case.w, *geometry)
    new = elementwise(dw, lambda *i: old(*i) - dw(*i) * 0.1, "new")
    return [
        Case("conv2d", [x, w, b, active]),
        Case("conv2d_data_gradient", [dy, v, dx]),
        Case("conv2d_weight_gradient", [u, du, old, new], shared={3: 2}),
    ]


def grouped(case: Window, groups: int | None = None) -> list[Case]:
    """The three passes of each group, or of each channel by itself."""
    module, prefix, most = (depthwise, "depthwise_", []) if groups is None else (conv, "", [groups])
    geometry = case.stride, case.padding, *most
    names = [f"{prefix}{name}" for name in ("conv2d", "conv2d_data_gradient", "conv2d_weight_gradient")]
    forward, data, weights = (getattr(module, name) for name in names)
    (x, w), (dy, v), (u, du) = floats(case.x, case.w), floats(case.y, case.w), floats(case.x, case.y)
    results = forward(x, w, *geometry), data(dy, v, case.x, *geometry), weights(u, du, case.w, *geometry)
    operands = [x, w], [dy, v], [u, du]
    return [Case(name, [*pair, y]) for name, pair, y in zip(names, operands, results, strict=True)]


def products(m: int, k: int, n: int) -> list[Case]:
    shapes = {"matmul": ((m, k), (k, n)), "matmul_nt": ((m, k), (n, k)), "matmul_tn": ((k, m), (k, n))}
    operands = {name: floats(*pair) for name, pair in shapes.items()}
    return [Case(name, [*pair, getattr(matmul, name)(*pair)]) for name, pair in operands.items()]


def pools(shape: tuple[int, ...], pool: tuple, stride: tuple, padding: tuple) -> list[Case]:
    geometry = pool, stride, padding
    (x,) = floats(shape)
    highest, mean = window.max_pool2d(x, *geometry), window.avg_pool2d(x, *geometry)
    u, y, dy = floats(shape, highest.shape, highest.shape)
    (dm,) = floats(mean.shape)
    return [
        Case("max_pool2d", [x, highest]),
        Case("avg_pool2d", [x, mean]),
        Case("max_pool2d_gradient", [u, y, dy, window.max_pool2d_gradient(u, y, dy, *geometry)]),
        Case("avg_pool2d_gradient", [dm, window.avg_pool2d_gradient(dm, shape, *geometry)]),
    ]


def concatenation(shapes: list[tuple[int, ...]], axis: int) -> Case:
    parts = floats(*shapes)
    return Case("concat", [*parts, concat(parts, axis)])


def plain(shape: tuple[int, ...]) -> list[Case]:
    """Elementwise work with a broadcast, a turned read, and a slice."""
    x, b = floats(shape, shape[-1:])
    biased = elementwise(x, lambda *i: x(*i) + b(i[-1]), "biased")
    masked = elementwise(x, lambda *i: tirx.Select(biased(*i) > 0.5, te.exp(biased(*i)), x(*i)), "masked")
    (y,) = floats(shape)
    turned = te.compute(shape[::-1], lambda *i: y(*i[::-1]) * 2.0, name="turned")
    (z,) = floats(shape)
    part = topi.strided_slice(z, [shape[-1] // 3], [shape[-1]], [1], [len(shape) - 1])
    cases = [Case("elementwise", [x, b, masked]), Case("elementwise", [y, turned])]
    return [*cases, Case("copy", [z, part])] if shape[-1] > 1 else cases


def softmax(rows: int, classes: int) -> list[Case]:
    x, y = floats((rows, classes), (rows, classes))
    return [Case("softmax", [x, topi.nn.softmax(x)]), Case("softmax", [y, topi.nn.log_softmax(y)])]


def tables(rows: int, width: int, count: int) -> list[Case]:
    (table, slope), indices = floats((rows, width), (count, width + 3)), te.placeholder((count,), "int32", "indices")
    lookup = Case("embedding", [table, indices, embedding(table, indices)], {1: rows})
    new = embedding_update(table, [indices, slope, indices, slope], [0, 3], 0.1)
    update = Case("embedding_update", [table, indices, slope, new], {1: rows}, {3: 0})
    return [lookup, update]


def flat(cases: Sequence[Sequence[Case]]) -> list[Case]:
    return list(itertools.chain.from_iterable(cases))


SMALL = 300_000
"""Elements above which a case of the other tests is too slow to be one here."""
CASES = [
    *flat([convolutions(case) for case in [*WINDOWS, *random_windows(4)]]),
    *flat([grouped(*case) for case in [*GROUPED, *((case,) for case in DEPTHWISE)]]),
    *flat([products(*extents) for extents in [(16, 100, 37), (130, 70, 129), (1, 5, 3), (7, 500, 64), (5, 1, 1)]]),
    *flat([pools(*case) for case in POOLS]),
    *[concatenation(*case) for case in CONCATS],
    *flat([plain(shape) for shape in SHAPES if np.prod(shape) < SMALL]),
    *[Case("sum", summed(*case)) for case in SUMS if np.prod(case[0]) < SMALL],
    *flat([softmax(*case) for case in [(8, 10), (3, 1000), (1, 1009), (300, 33)]]),
    *flat([tables(*case) for case in [(10, 16, 7), (3, 5, 40), (50, 67, 2000), (7, 512, 90)]]),
]


def run_guarded(
    function: tirx.PrimFunc, target: tvm.target.Target, inputs: int, workspaces: int, case: Case
) -> tuple[list[str], list[np.ndarray]]:
    """Call a kernel between canaries: what it wrote where it must not, and its outputs."""
    operands = [([int(e) for e in operand.shape], str(operand.dtype)) for operand in function.params]
    memory = GuardedMemory(operands, case.shared)
    random = np.random.default_rng(1)
    for slot, array in enumerate(memory.arrays):
        if slot in case.shared:
            continue
        if slot < inputs:
            array[...] = (
                random.integers(case.bounds.get(slot, 2), size=array.shape)
                if array.dtype.kind == "i"
                else (random.random(array.shape, "float32"))
            )
        else:
            array[...] = np.nan if array.dtype.kind == "f" else 0x7F
    memory.remember()
    machine_code({"main": function}, target)["main"](*(tvm.runtime.from_dlpack(array) for array in memory.arrays))
    writable = range(inputs, len(operands))
    return memory.strays(writable), memory.arrays[inputs : len(operands) - workspaces]


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: f"{number} {CASES[number]}")
def test_nothing_but_the_outputs_is_written_and_they_are_whole(number: int) -> None:
    case = CASES[number]
    # Each case in one setting, each family in all: three cases of a kind often follow each other.
    threads, mcpu = SETTINGS[(number + number // 3) % len(SETTINGS)]
    target = host(threads, mcpu)
    kernel = dispatch.schedule(te.create_prim_func(case.tensors), target, threads)
    assert kernel.op == case.family
    inputs = sum(isinstance(tensor.op, te.PlaceholderOp) for tensor in case.tensors)
    strays, outputs = run_guarded(kernel.func, target, inputs, len(kernel.workspaces), case)
    assert strays == []
    assert not any(np.isnan(output).any() for output in outputs)


def test_every_family_has_a_case() -> None:
    assert set(dispatch._NAMED) <= {case.family for case in CASES}


@pytest.mark.parametrize(
    ("offset", "place"),
    [
        (-1, "4 bytes below operand 1"),
        (40, "0 bytes beyond operand 1"),
        (40 + GUARD_BYTES // 4 - 1, f"{GUARD_BYTES - 4} bytes beyond operand 1"),
    ],
)
def test_a_kernel_that_writes_beside_its_output_is_caught(offset: int, place: str) -> None:
    strays, _ = run_guarded(wrong_kernel(1, offset), host(), 1, 0, Case("wrong", []))
    assert place in strays


def test_a_kernel_that_writes_an_input_is_caught() -> None:
    strays, _ = run_guarded(wrong_kernel(0, 7), host(), 1, 0, Case("wrong", []))
    assert strays == [f"operand 0, byte {byte}" for byte in range(28, 32)]


def wrong_kernel(operand: int, offset: int) -> tirx.PrimFunc:
    """Doubles 40 numbers, and writes one more at `offset` of an operand."""
    x = te.placeholder((40,), name="x")

    def body(ins: list[tirx.Buffer], outs: list[tirx.Buffer]) -> tirx.Stmt:
        i = tirx.Var("i", "int32")
        double = tirx.BufferStore(outs[0], ins[0][i] * 2.0, [i])
        wrong = tirx.BufferStore((ins[0], outs[0])[operand], tirx.const(-12345.678, "float32"), [offset])
        return tirx.SeqStmt([tirx.For(i, 0, 40, tirx.ForKind.SERIAL, double), wrong])

    return te.create_prim_func([x, te.extern([x.shape], [x], body, dtype=["float32"], name="wrong")])
