"""No kernel writes anywhere but into its outputs and workspaces: every family, compiled and run between canaries.

A new family of kernels (a name in `dispatch._NAMED`) needs cases here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from compiled_kernels import call, kernel_of, placeholders
from contraction_cases import DEPTHWISE, GROUPED, WINDOWS, Window, host, random_windows
from guarded_memory import GUARD_BYTES
from memory_bound_cases import CONCATS, POOLS, SHAPES, SUMS, added_up, run_up, summed
from tvm import te, tirx, topi

from autotm.kernels import contractions, normalization, windowed
from autotm.kernels.along_axis import concat
from autotm.kernels.contractions import batched_matmul
from autotm.kernels.schedules import channel_sums, dispatch
from autotm.kernels.schedules.contraction import others
from autotm.kernels.tables import Use, embedding, embedding_concat, embedding_update, taken
from autotm.lower import indexing
from autotm.lower.update_formulas import count, formula_of
from autotm.lower.updates import add_squares
from autotm.model.graph import DEFAULT_IMPLEMENTATION
from autotm.model.training import AdamW, Sgd, UpdateRule

RuleKernel = tuple[list[te.Tensor], dict[int, int]]
"""Operands, then results; slot of a result -> slot of the operand whose memory it takes."""


def rule_update(rule: UpdateRule, shape: tuple[int, ...]) -> RuleKernel:
    """One parameter's update, clipped."""
    formula = formula_of(rule)
    old, slope, *states = (te.placeholder(shape, "float32") for _ in range(2 + len(formula.states)))
    numbers = [te.placeholder((), "float32") for _ in range(1 + formula.factor_count)]
    clip, *factors = (number() for number in numbers)
    operands = [old, slope, *states, *numbers]
    replaced = [*range(2, 2 + len(states)), 0]
    results = formula.update(old, lambda at: slope(*at) * clip, states, factors)
    return [*operands, *results], {len(operands) + place: slot for place, slot in enumerate(replaced)}


def rule_counter() -> RuleKernel:
    """The counter of two rules."""
    before = te.placeholder((), "int64")
    rules = [AdamW(1e-3), Sgd(0.1, momentum=0.9, dampening=0.5)]
    results = count(before, [formula_of(rule) for rule in rules])
    return [before, *results], {1: 0}


def rule_squares(*shapes: tuple[int, int]) -> RuleKernel:
    """The squares of some matrices, added to a sum."""
    gradients, before = [te.placeholder(shape, "float32") for shape in shapes], te.placeholder((), "float64")
    return [*gradients, before, add_squares(gradients, [before])], {}


SETTINGS = [(1, None), (2, None), (3, "core-avx2")]
"""Threads, and CPU whose instructions to use (None: all that this one has)."""


@dataclass(frozen=True)
class Case:
    """A kernel: its inputs and outputs, the name it must get, exclusive bounds of integer inputs, shared memory.

    Indices are drawn from beyond their bounds too, where kernels must not follow them; counts are not.
    """

    family: str
    tensors: list[te.Tensor]
    bounds: dict[int, int] = field(default_factory=dict)
    shared: dict[int, int] = field(default_factory=dict)
    """Output slot -> input slot whose memory it takes."""

    def drawn_from(self, slot: int) -> tuple[int, int]:
        bound = self.bounds[slot]
        return (0, bound) if self.family == "step_factor" else (-5 * bound, 5 * bound)

    def __str__(self) -> str:
        inputs = (str(tuple(int(e) for e in t.shape)) for t in self.tensors if isinstance(t.op, te.PlaceholderOp))
        return f"{self.family} {' '.join(inputs)}"


def elementwise(x: te.Tensor, value: Callable[..., tirx.Expr], name: str) -> te.Tensor:
    return te.compute(x.shape, value, name=name)


def convolutions(case: Window) -> list[Case]:
    """The three passes; the first with bias and ReLU behind it, the last as an update in place."""
    geometry = case.stride, case.padding
    x, w, b = placeholders(case.x, case.w, case.w[-1:])
    y = contractions.conv2d(x, w, *geometry)
    active = elementwise(y, lambda *i: tirx.max(y(*i) + b(i[-1]), tirx.const(0.0, "float32")), "relu")
    dy, v = placeholders(case.y, case.w)
    dx = contractions.conv2d_data_gradient(dy, v, case.x, *geometry)
    u, du, old = placeholders(case.x, case.y, case.w)
    dw = contractions.conv2d_weight_gradient(u, du, case.w, *geometry)
    new = elementwise(dw, lambda *i: old(*i) - dw(*i) * 0.1, "new")
    return [
        Case("conv2d", [x, w, b, active]),
        Case("conv2d_data_gradient", [dy, v, dx]),
        Case("conv2d_weight_gradient", [u, du, old, new], shared={3: 2}),
    ]


def grouped(case: Window, groups: int | None = None) -> list[Case]:
    """The three passes of each group, or of each channel by itself."""
    module, prefix, most = (windowed, "depthwise_", []) if groups is None else (contractions, "", [groups])
    geometry = case.stride, case.padding, *most
    names = [f"{prefix}{name}" for name in ("conv2d", "conv2d_data_gradient", "conv2d_weight_gradient")]
    forward, data, weights = (getattr(module, name) for name in names)
    (x, w), (dy, v), (u, du) = placeholders(case.x, case.w), placeholders(case.y, case.w), placeholders(case.x, case.y)
    dw, (old,) = weights(u, du, case.w, *geometry), placeholders(case.w)
    new = elementwise(dw, lambda *i: old(*i) - dw(*i) * 0.1, "new")
    return [
        Case(names[0], [x, w, forward(x, w, *geometry)]),
        Case(names[1], [dy, v, data(dy, v, case.x, *geometry)]),
        Case(names[2], [u, du, old, new], shared={3: 2}),
    ]


def products(m: int, k: int, n: int) -> list[Case]:
    shapes = {"matmul": ((m, k), (k, n)), "matmul_nt": ((m, k), (n, k)), "matmul_tn": ((k, m), (k, n))}
    operands = {name: placeholders(*pair) for name, pair in shapes.items()}
    return [Case(name, [*pair, getattr(contractions, name)(*pair)]) for name, pair in operands.items()]


def pools(shape: tuple[int, ...], pool: tuple, stride: tuple, padding: tuple) -> list[Case]:
    geometry = pool, stride, padding
    (x,) = placeholders(shape)
    highest, mean = windowed.max_pool2d(x, *geometry), windowed.avg_pool2d(x, *geometry)
    u, y, dy = placeholders(shape, highest.shape, highest.shape)
    (dm,) = placeholders(mean.shape)
    return [
        Case("max_pool2d", [x, highest]),
        Case("avg_pool2d", [x, mean]),
        Case("max_pool2d_gradient", [u, y, dy, windowed.max_pool2d_gradient(u, y, dy, *geometry)]),
        Case("avg_pool2d_gradient", [dm, windowed.avg_pool2d_gradient(dm, shape, *geometry)]),
    ]


def concatenation(shapes: list[tuple[int, ...]], axis: int) -> Case:
    parts = placeholders(*shapes)
    return Case("concat", [*parts, concat(parts, axis)])


def plain(shape: tuple[int, ...]) -> list[Case]:
    """Elementwise work with a broadcast, a turned read, and a slice."""
    x, b = placeholders(shape, shape[-1:])
    biased = elementwise(x, lambda *i: x(*i) + b(i[-1]), "biased")
    masked = elementwise(x, lambda *i: tirx.Select(biased(*i) > 0.5, te.exp(biased(*i)), x(*i)), "masked")
    (y,) = placeholders(shape)
    turned = te.compute(shape[::-1], lambda *i: y(*i[::-1]) * 2.0, name="turned")
    (z,) = placeholders(shape)
    part = topi.strided_slice(z, [shape[-1] // 3], [shape[-1]], [1], [len(shape) - 1])
    cases = [Case("elementwise", [x, b, masked]), Case("elementwise", [y, turned])]
    return [*cases, Case("copy", [z, part])] if shape[-1] > 1 else cases


def rows(*shape: int) -> list[Case]:
    """Kernels that go row by row."""
    pairs = {name: placeholders(shape, shape) for name in ("softmax", "log_softmax")}
    cases = []
    for name, (y, dy) in pairs.items():
        forward, gradient = getattr(normalization, name), getattr(normalization, f"{name}_gradient")
        cases += [Case(name, [y, forward(y)]), Case(f"{name}_gradient", [y, dy, gradient(y, dy)])]
    x, gamma, beta, dy = placeholders(shape, shape[-1:], shape[-1:], shape)
    return [
        *cases,
        Case("layer_norm", [x, gamma, beta, normalization.layer_norm(x, gamma, beta, 1e-5)]),
        Case("layer_norm_gradient", [x, gamma, dy, *normalization.layer_norm_gradient(x, gamma, dy, 1e-5)]),
    ]


def batched(subscripts: str, **extents: int) -> Case:
    words = subscripts.split("->", maxsplit=1)[0].split(",")
    left, right = placeholders(*([extents[letter] for letter in word] for word in words))
    return Case("batched_matmul", [left, right, batched_matmul(left, right, subscripts)])


def norms(shape: tuple[int, ...]) -> list[Case]:
    """Batch norm, forward and backward."""
    channels = shape[-1:]
    (x,), (y, *vectors), (dy, z, mean, inverse) = (
        placeholders(shape),
        placeholders(shape, *[channels] * 4),
        placeholders(shape, shape, channels, channels),
    )
    slopes = placeholders(shape, shape, *[channels] * 5)
    return [
        Case("batch_norm_statistics", [x, *normalization.statistics(x, 1e-5)]),
        Case("batch_norm", [y, *vectors, normalization.normalise(y, *vectors)]),
        Case("batch_norm_gradient_sums", [dy, z, mean, inverse, *normalization.gradient_sums(dy, z, mean, inverse)]),
        Case("batch_norm_gradient", [*slopes, normalization.data_gradient(*slopes)]),
    ]


def tables(rows: int, width: int, count: int) -> list[Case]:
    (table, slope), indices = (
        placeholders((rows, width), (count, width + 3)),
        te.placeholder((count,), "int32", "indices"),
    )
    lookup = Case("embedding", [table, indices, embedding(table, indices)], {1: rows})
    uses = [Use(0, 0, 1, column=0), Use(0, 0, 1, column=3)]
    update = Case(
        "embedding_update",
        [table, indices, slope, embedding_update([table], [indices, slope], uses, 0.1)],
        bounds={1: rows},
        shared={3: 0},
    )
    matrix, other = placeholders((count, 5), (rows, width))
    joined = embedding_concat([(matrix,), (other, indices)])
    scattered, running = (
        Case("scatter_sum", added_up(rows, width, count), {1: rows}),
        Case("running_sum", run_up(table)),
    )
    (cube,) = placeholders((3, rows, width))
    inner = Case("taken", [cube, indices, taken(cube, indices, 1)], {1: rows})
    concat = Case("embedding_concat", [matrix, other, indices, joined], {2: rows})
    each = te.placeholder((count, width), "int64", "indices")
    gathered = Case("copy", [table, each, indexing._gathered(table, each, 0)], {1: rows})
    indexed = Case("copy", [table, indices, indexing._indexed(table, [indices], (count, width))], {1: rows})
    return [lookup, inner, concat, update, scattered, running, gathered, indexed]


def bias_kernels(shape: tuple[int, ...]) -> list[Case]:
    """A bias's gradient, and the update of two vectors."""
    (dy,) = placeholders(shape)
    old, slope, other, its_slope = placeholders(*[shape[-1:]] * 4)

    def update(vector: te.Tensor, gradient: te.Tensor) -> te.Tensor:
        return te.compute(vector.shape, lambda i: vector[i] - gradient[i] * 0.1, name="sgd_update")

    new = [update(old, slope), update(other, its_slope)]
    return [
        Case("bias_gradient", [dy, channel_sums.bias_gradient(dy)]),
        Case("sgd_update", [old, slope, other, its_slope, *new], shared={4: 0, 5: 2}),
    ]


def rule_kernels(shape: tuple[int, int]) -> list[Case]:
    """What update rules add to a step."""
    kernels = {
        "adam_update": rule_update(AdamW(1e-3), shape),
        "sgd_update": rule_update(Sgd(0.1, momentum=0.9, dampening=0.5), shape),
        "square_sum": rule_squares(shape, (1, 7)),
    }
    return [Case(family, tensors, shared=shared) for family, (tensors, shared) in kernels.items()]


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
    *flat([rows(*shape) for shape in [(8, 10), (3, 1000), (1, 1009), (300, 33), (2, 3, 17)]]),
    *[batched(subscripts, a=3, i=7, j=18, k=33) for subscripts in ("aij,ajk->aik", "aij,akj->aik", "aji,ajk->aik")],
    *[batched(subscripts, b=2, h=3, i=21, j=20, d=16) for subscripts in ("bihd,bjhd->bhij", "bhij,bjhd->bihd")],
    *flat([norms(shape) for shape in [(2, 5, 7, 33), (4, 21, 23, 40), (3, 1, 1, 16), (2, 9, 11, 1), (1, 2, 2, 700)]]),
    *flat([bias_kernels(shape) for shape in [(2, 4, 4, 64), (300, 67), (1, 3)]]),
    *flat([rule_kernels(shape) for shape in [(1, 5), (37, 41), (300, 256)]]),
    Case("step_factor", rule_counter()[0], {0: 1000}, rule_counter()[1]),
    *flat([tables(*case) for case in [(10, 16, 7), (3, 5, 40), (50, 67, 2000), (7, 512, 90)]]),
]


def values(case: Case) -> list[np.ndarray]:
    """Random inputs."""
    random = np.random.default_rng(1)
    inputs = [tensor for tensor in case.tensors if isinstance(tensor.op, te.PlaceholderOp)]
    return [
        random.integers(*case.drawn_from(slot), size=tuple(map(int, tensor.shape)))
        if slot in case.bounds
        else random.random(tuple(map(int, tensor.shape)), "float32")
        for slot, tensor in enumerate(inputs)
    ]


SAME = {"conv2d", "conv2d_data_gradient"}


def ways() -> Iterator[Any]:
    """Each case in every way to compute it and in one setting; quick are the first of a family in each setting.

    Each family is in all settings: three cases of a kind often follow each other. Where the lean way differs
    in Winograd's form alone, which is for larger windows than these, it would be the default's code again.
    """
    seen = set()
    for number, case in enumerate(CASES):
        threads, mcpu = SETTINGS[(number + number // 3) % len(SETTINGS)]
        for way in (DEFAULT_IMPLEMENTATION, *others(case.family)):
            again = (case.family, way, threads) in seen or (way != DEFAULT_IMPLEMENTATION and case.family in SAME)
            marks = pytest.mark.slow if again else ()
            seen.add((case.family, way, threads))
            yield pytest.param(case, way, threads, mcpu, id=f"{number} {way} {case}", marks=marks)


@pytest.mark.parametrize(("case", "way", "threads", "mcpu"), list(ways()))
def test_nothing_but_the_outputs_is_written_and_they_are_whole(
    case: Case, way: str, threads: int, mcpu: str | None
) -> None:
    target = host(threads, mcpu)
    kernel = kernel_of(case.tensors, threads, target, way)
    assert kernel.op == case.family
    outputs = call(kernel, values(case), target, case.shared)
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
    with pytest.raises(AssertionError, match=place):
        call(wrong_kernel(1, offset), [np.zeros(40, "float32")])


def test_a_kernel_that_writes_an_input_is_caught() -> None:
    with pytest.raises(AssertionError, match="operand 0, byte 28"):
        call(wrong_kernel(0, 7), [np.zeros(40, "float32")])


def wrong_kernel(operand: int, offset: int) -> dispatch.ScheduledKernel:
    """Doubles 40 numbers, and writes one more at `offset` of an operand."""
    x = te.placeholder((40,), name="x")

    def body(ins: list[tirx.Buffer], outs: list[tirx.Buffer]) -> tirx.Stmt:
        i = tirx.Var("i", "int32")
        double = tirx.BufferStore(outs[0], ins[0][i] * 2.0, [i])
        wrong = tirx.BufferStore((ins[0], outs[0])[operand], tirx.const(-12345.678, "float32"), [offset])
        return tirx.SeqStmt([tirx.For(i, 0, 40, tirx.ForKind.SERIAL, double), wrong])

    return kernel_of([x, te.extern([x.shape], [x], body, dtype=["float32"], name="wrong")])
