"""No kernel writes anywhere but into its outputs and workspaces: families compiled and run between canaries.

A new family of kernels (a name in `dispatch._NAMED`) needs cases here, or tests of its numbers that use `call`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from compiled_kernels import GUARD_BYTES, call, host, kernel_of, placeholders
from memory_bound_cases import CONCATS, POOLS, SHAPES, SUMS, summed
from tvm import te, tirx, topi

from autotm.kernels import windowed
from autotm.kernels.along_axis import concat, running_sum
from autotm.kernels.schedules import channel_sums, dispatch
from autotm.kernels.tables import Scatter, Use, embedding, embedding_concat, embedding_update, scatter_sum, taken
from autotm.lower import indexing
from autotm.lower.update_formulas import count, formula_of
from autotm.lower.updates import add_squares
from autotm.model.training import AdamW, Sgd

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


def plain(shape: tuple[int, ...]) -> list[Case]:
    """Elementwise work with a broadcast, a turned read, and a slice."""
    x, b = placeholders(shape, shape[-1:])
    biased = te.compute(shape, lambda *i: x(*i) + b(i[-1]), name="biased")
    masked = te.compute(shape, lambda *i: tirx.Select(biased(*i) > 0.5, te.exp(biased(*i)), x(*i)), name="masked")
    turned = te.compute(shape[::-1], lambda *i: x(*i[::-1]) * 2.0, name="turned")
    part = topi.strided_slice(x, [shape[-1] // 3], [shape[-1]], [1], [len(shape) - 1])
    cases = [Case("elementwise", [x, b, masked]), Case("elementwise", [x, turned]), Case("copy", [x, part])]
    return cases if shape[-1] > 1 else cases[:2]


def tables(rows: int, width: int, count: int) -> list[Case]:
    table, slope, added, matrix = placeholders((rows, width), (count, width + 3), (count, width), (count, 5))
    (cube,), indices = placeholders((3, rows, width)), te.placeholder((count,), "int32", "indices")
    each = te.placeholder((count, width), "int64", "each")
    update = embedding_update([table], [indices, slope], [Use(0, 0, 1, column=0), Use(0, 0, 1, column=3)], 0.1)
    scatter = Scatter.of_axis((count, width), (rows, width), 0, (count,))
    joined = embedding_concat([(matrix,), (table, indices)])
    return [
        Case("embedding", [table, indices, embedding(table, indices)], {1: rows}),
        Case("embedding_update", [table, indices, slope, update], bounds={1: rows}, shared={3: 0}),
        Case("embedding_concat", [matrix, table, indices, joined], {2: rows}),
        Case("taken", [cube, indices, taken(cube, indices, 1)], {1: rows}),
        Case("scatter_sum", [added, indices, scatter_sum(added, [indices], (rows, width), scatter)], {1: rows}),
        Case("running_sum", [table, running_sum(table, 0, "float32")]),
        Case("copy", [table, each, indexing._gathered(table, each, 0)], {1: rows}),
        Case("copy", [table, indices, indexing._indexed(table, [indices], (count, width))], {1: rows}),
    ]


def bias_kernels(shape: tuple[int, ...]) -> list[Case]:
    """A bias's gradient, and the update of two vectors."""
    (dy,) = placeholders(shape)
    old, slope, other, its_slope = placeholders(*[shape[-1:]] * 4)

    def update(vector: te.Tensor, gradient: te.Tensor) -> te.Tensor:
        return te.compute(vector.shape, lambda i: vector[i] - gradient[i] * 0.1, name="sgd_update")

    new = [update(old, slope), update(other, its_slope)]
    updates = Case("sgd_update", [old, slope, other, its_slope, *new], shared={4: 0, 5: 2})
    return [Case("bias_gradient", [dy, channel_sums.bias_gradient(dy)]), updates]


RULES = {"adam_update": AdamW(1e-3), "sgd_update": Sgd(0.1, momentum=0.9, dampening=0.5)}


def rule_update(family: str, shape: tuple[int, ...]) -> Case:
    """One parameter's update, clipped."""
    formula = formula_of(RULES[family])
    old, slope, *states = placeholders(*[shape] * (2 + len(formula.states)))
    numbers = placeholders(*[()] * (1 + formula.factor_count))
    clip, *factors = (number() for number in numbers)
    operands = [old, slope, *states, *numbers]
    results = formula.update(old, lambda at: slope(*at) * clip, states, factors)
    replaced = enumerate([*range(2, 2 + len(states)), 0], len(operands))
    return Case(family, [*operands, *results], shared=dict(replaced))


def rule_kernels(shape: tuple[int, int]) -> list[Case]:
    """What update rules add to a step: updates, squares of matrices added to a sum, a counter."""
    gradients, total, step = placeholders(shape, (1, 7)), te.placeholder((), "float64"), te.placeholder((), "int64")
    return [
        *(rule_update(family, shape) for family in RULES),
        Case("square_sum", [*gradients, total, add_squares(gradients, [total])]),
        Case("step_factor", [step, *count(step, list(map(formula_of, RULES.values())))], {0: 1000}, {1: 0}),
    ]


def flat(cases: Sequence[Sequence[Case]]) -> list[Case]:
    return list(itertools.chain.from_iterable(cases))


SMALL = 300_000
"""Elements above which a case of the other tests is too slow to be one here."""
CASES = [
    *flat([pools(*case) for case in POOLS]),
    *[Case("concat", [*parts, concat(parts, axis)]) for shapes, axis in CONCATS for parts in [placeholders(*shapes)]],
    *flat([plain(shape) for shape in SHAPES if np.prod(shape) < SMALL]),
    *[Case("sum", summed(*case)) for case in SUMS if np.prod(case[0]) < SMALL],
    *flat([bias_kernels(shape) for shape in [(2, 4, 4, 64), (300, 67), (1, 3)]]),
    *flat([rule_kernels(shape) for shape in [(1, 5), (37, 41), (300, 256)]]),
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


def settings() -> Iterator[Any]:
    """Each case in one setting, each family in all, as three of a kind often follow each other; quick are the first."""
    seen = set()
    for number, case in enumerate(CASES):
        threads, mcpu = SETTINGS[(number + number // 3) % len(SETTINGS)]
        marks = pytest.mark.slow if (case.family, threads) in seen else ()
        seen.add((case.family, threads))
        yield pytest.param(case, threads, mcpu, id=f"{number} {case}", marks=marks)


@pytest.mark.parametrize(("case", "threads", "mcpu"), list(settings()))
def test_nothing_but_the_outputs_is_written_and_they_are_whole(case: Case, threads: int, mcpu: str | None) -> None:
    target = host(threads, mcpu)
    kernel = kernel_of(case.tensors, threads, target)
    assert kernel.op == case.family
    assert not any(np.isnan(output).any() for output in call(kernel, values(case), target, case.shared))


ELSEWHERE = {"matmul", "matmul_nt", "matmul_tn", "batched_matmul"}
ELSEWHERE |= {"batch_norm", "batch_norm_statistics", "batch_norm_gradient", "batch_norm_gradient_sums"}
ELSEWHERE |= {
    f"{kind}conv2d{pass_}" for kind in ("", "depthwise_") for pass_ in ("", "_data_gradient", "_weight_gradient")
}
ELSEWHERE |= {f"{name}{pass_}" for name in ("softmax", "log_softmax", "layer_norm") for pass_ in ("", "_gradient")}
"""Families whose numbers are tested between the canaries, on other threads and vectors too."""


def test_every_family_has_a_case() -> None:
    assert set(dispatch._NAMED) == {case.family for case in CASES if case.family in dispatch._NAMED} | ELSEWHERE


@pytest.mark.parametrize(
    ("operand", "offset", "place"),
    [
        (1, -1, "4 bytes below operand 1"),
        (1, 40, "0 bytes beyond operand 1"),
        (1, 40 + GUARD_BYTES // 4 - 1, f"{GUARD_BYTES - 4} bytes beyond operand 1"),
        (0, 7, "operand 0, byte 28"),
    ],
)
def test_a_kernel_that_writes_beside_its_output_or_an_input_is_caught(operand: int, offset: int, place: str) -> None:
    with pytest.raises(AssertionError, match=place):
        call(wrong_kernel(operand, offset), [np.zeros(40, "float32")])


def wrong_kernel(operand: int, offset: int) -> dispatch.ScheduledKernel:
    """Doubles 40 numbers, and writes one more at `offset` of an operand."""
    x = te.placeholder((40,), name="x")

    def body(ins: list[tirx.Buffer], outs: list[tirx.Buffer]) -> tirx.Stmt:
        i = tirx.Var("i", "int32")
        double = tirx.BufferStore(outs[0], ins[0][i] * 2.0, [i])
        wrong = tirx.BufferStore((ins[0], outs[0])[operand], tirx.const(-12345.678, "float32"), [offset])
        return tirx.SeqStmt([tirx.For(i, 0, 40, tirx.ForKind.SERIAL, double), wrong])

    return kernel_of([x, te.extern([x.shape], [x], body, dtype=["float32"], name="wrong")])
