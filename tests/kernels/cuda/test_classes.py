"""Generated CUDA source, run on this CPU, computes what the CPU's kernels do: every op class, threads in any order."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from compiled_kernels import call, kernel_of
from cuda_contractions import SMALL, random
from emulated_cuda import EmulatedDevice
from memory_bound_cases import CONCATS, POOLS, SUMS, summed
from tvm import te, tirx, topi

from autotm.kernels import along_axis, normalization, windowed
from autotm.kernels.along_axis import running_sum
from autotm.kernels.cuda.dispatch import cuda_kernel
from autotm.kernels.tables import Scatter, Use, embedding, embedding_concat, embedding_update, scatter_sum
from autotm.model.graph import ScheduleKind

Tensors = list[te.Tensor]


@dataclass(frozen=True)
class Case:
    """A function, its inputs, and outputs that lie in the memory of inputs."""

    tensors: Tensors
    inputs: list[np.ndarray]
    shared: dict[int, int] = field(default_factory=dict)


def case(function: Callable[..., te.Tensor | Tensors], *inputs: np.ndarray) -> Case:
    """`function` of tensors like the inputs."""
    operands = [te.placeholder(array.shape, str(array.dtype), f"p{slot}") for slot, array in enumerate(inputs)]
    results = function(*operands)
    return Case([*operands, *(results if isinstance(results, list) else [results])], list(inputs))


def _chain(x: te.Tensor, y: te.Tensor) -> Tensors:
    """Two results in one pass, of which the second reads the first at its own element."""
    state = te.compute(x.shape, lambda *i: x(*i) * 0.5 + y(*i), name="state")
    return [state, te.compute(x.shape, lambda *i: tirx.exp(-state(*i)) + x(*i), name="value")]


def _lookups(count: int) -> Case:
    generator = np.random.default_rng(5)
    tables = [random((rows, width), rows) for rows, width in ((9, 16), (3, 33))]
    indices = [generator.integers(len(table), size=count, dtype="int32") for table in tables]
    return case(
        lambda first, at, matrix, second, there: embedding_concat([(first, at), (matrix,), (second, there)]),
        tables[0], indices[0], random((count, 20)), tables[1], indices[1],
    )  # fmt: skip


def _update() -> Case:
    tables, uses = [random((11, 16), 1), random((5, 33), 2)], [Use(0, 0, 1, 0), Use(1, 2, 1, 16), Use(0, 2, 1, 3)]
    generator = np.random.default_rng(6)
    others = [generator.integers(5, size=30, dtype="int32"), random((30, 60), 3),
              generator.integers(5, size=30, dtype="int64")]  # fmt: skip
    update = case(lambda *slots: embedding_update(slots[:2], slots[2:], uses, 0.25), *tables, *others)
    return replace(update, shared={5: 0, 6: 1})


def _scattered(shape: tuple[int, ...], axis: int, count: int) -> Case:
    indices = np.random.default_rng(0).integers(-shape[axis], shape[axis], count, dtype="int32")
    dy = random((*shape[:axis], count, *shape[axis + 1 :]))
    scatter = Scatter.of_axis(dy.shape, shape, axis, indices.shape)
    return case(lambda slope, places: scatter_sum(slope, [places], shape, scatter), dy, indices)


def _pools(shape: tuple[int, ...], *geometry: tuple[int, ...]) -> dict[str, Case]:
    highest = case(lambda x: windowed.max_pool2d(x, *geometry), random(shape))
    pooled = tuple(int(extent) for extent in highest.tensors[-1].shape)
    return {
        "max pool": highest,
        "average pool": case(lambda x: windowed.avg_pool2d(x, *geometry), random(shape)),
        "average pool gradient": case(lambda dy: windowed.avg_pool2d_gradient(dy, shape, *geometry), random(pooled, 1)),
    }


ROWS = (7, 150)
CASES: dict[str, Case] = {
    "elementwise": case(lambda x: te.compute(x.shape, lambda *i: tirx.tanh(x(*i)) * 2.0, name="e"), random((5, 7, 33))),
    "chain": case(_chain, random((3, 1001)), random((3, 1001), 1)),
    "turned": case(topi.transpose, random((5, 7, 33))),
    **{f"sum {shape} {axes}": Case(summed(shape, axes), [random(shape)]) for shape, axes in SUMS},
    "largest": case(lambda x: topi.max(x, 1), random((5, 300))),
    "softmax": case(normalization.softmax, random(ROWS)),
    "softmax gradient": case(normalization.softmax_gradient, random(ROWS), random(ROWS, 1)),
    "log softmax": case(normalization.log_softmax, random(ROWS)),
    "log softmax gradient": case(normalization.log_softmax_gradient, -np.abs(random(ROWS)), random(ROWS, 1)),
    "layer norm": case(lambda *p: normalization.layer_norm(*p, 1e-5), random((33, 70)), *random((2, 70), 1)),
    "layer norm gradient": case(
        lambda *p: normalization.layer_norm_gradient(*p, 1e-5), random((33, 70)), random((70,), 1), random((33, 70), 2)
    ),
    "batch norm statistics": case(lambda x: normalization.statistics(x, 1e-5), random((4, 5, 7, 33))),
    "batch norm sums": case(
        normalization.gradient_sums, random((4, 5, 7, 33)), random((4, 5, 7, 33), 1), random((33,), 2), random((33,), 3)
    ),
    "depthwise": case(
        lambda x, w: windowed.depthwise_conv2d(x, w, (2, 1), (1,) * 4), random((2, 9, 8, 24)), random((3, 3, 1, 24))
    ),
    "concat channels": case(
        lambda *p: along_axis.concat(list(p), CONCATS[0][1]), *(random(shape) for shape in CONCATS[0][0])
    ),
    "concat rows": case(
        lambda *p: along_axis.concat(list(p), CONCATS[2][1]), *(random(shape) for shape in CONCATS[2][0])
    ),
    "embedding": case(embedding, random((9, 16)), np.array([[3, 8], [0, 3]], "int32")),
    "lookups": _lookups(21),
    "lookups of a single row": _lookups(1),
    "embedding update": _update(),
    "scatter": _scattered((4, 50, 33), 1, 70),
    "scatter few": _scattered((9, 16), 0, 5),
    "running sum": case(lambda x: running_sum(x, 1, "float32", reverse=True), random((3, 20, 5))),
    "running sum of lines": case(lambda x: running_sum(x, 1, "float32", exclusive=True), random((30, 20))),
    **{f"{kind} {n}": pool for n, geometry in enumerate(POOLS[:6]) for kind, pool in _pools(*geometry).items()},
}  # fmt: skip
SLOW = frozenset(name for name in CASES if "pool" in name and name[-1] not in "01")
"""More geometries of what others have shown already."""


@pytest.fixture(scope="module")
def kernels():
    return {name: cuda_kernel(te.create_prim_func(case.tensors), SMALL) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def device_of(kernels, tmp_path_factory):
    @functools.cache
    def device(is_slow):
        chosen = [kernel for name, kernel in kernels.items() if (name in SLOW) == is_slow]
        return EmulatedDevice(chosen, tmp_path_factory.mktemp("cuda"))

    return device


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in CASES])
def test_same_numbers_as_the_cpu(name, kernels, device_of):
    case, kernel, device = CASES[name], kernels[name], device_of(name in SLOW)
    assert kernel.kind != ScheduleKind.AS_WRITTEN
    expected = call(kernel_of(case.tensors), case.inputs, shared=case.shared)
    results = [device.run(kernel, case.inputs, case.shared, order) for order in (0, 1, 5)]
    for arrays in results:
        for array, exact in zip(arrays[len(case.inputs) :], expected, strict=False):
            np.testing.assert_allclose(array, exact, rtol=2e-5, atol=2e-5)
    first, *others = (outputs[len(case.inputs) : len(case.tensors)] for outputs in results)
    assert all(np.array_equal(a, b) for outputs in others for a, b in zip(first, outputs, strict=True))


def test_long_sums_are_split_with_exactly_stated_workspace(kernels):
    kernel = kernels["sum (100003,) (0,)"]
    assert len(kernel.launches) == 2
    ((shape, dtype),) = kernel.workspaces
    assert dtype == "float32"
    assert shape == (kernel.launches[0].grid[1], 1)


@pytest.mark.parametrize("name", ["softmax", "softmax gradient", "log softmax gradient", "layer norm"])
def test_rows_take_one_launch_and_no_workspace(name, kernels):
    assert (len(kernels[name].launches), kernels[name].workspaces) == (1, ())


def test_a_missing_barrier_is_found(kernels, tmp_path):
    kernel, case = kernels["largest"], CASES["largest"]
    broken = replace(kernel, source=kernel.source.replace("__syncthreads();", ";"))
    wrong = EmulatedDevice([broken], tmp_path)
    results = [wrong.run(broken, case.inputs, order=order)[1] for order in (0, 1, 5)]
    exact = case.inputs[0].max(1)
    assert not all(np.array_equal(array, exact) for array in results)


def test_what_no_rule_knows_runs_on_one_thread_and_says_so(tmp_path, caplog):
    x = te.placeholder((5, 7), name="x")
    double = te.compute(x.shape, lambda i, j: x[i, j] * 2.0, name="double")

    def strange(ins, outs):
        i = tirx.Var("strange", "int64")
        store = tirx.BufferStore(outs[0], tirx.BufferLoad(ins[0], [i, 0]) + tirx.BufferLoad(ins[0], [i, 6]), [i])
        return tirx.For(i, tirx.IntImm("int64", 0), tirx.IntImm("int64", 5), tirx.ForKind.PARALLEL, store)

    y = te.extern([(5,)], [double], strange, dtype=["float32"], name="strange")
    kernel = cuda_kernel(te.create_prim_func([x, y]), SMALL)
    assert kernel.kind == ScheduleKind.AS_WRITTEN
    assert "strange" in caplog.text
    values = random((5, 7))
    output = EmulatedDevice([kernel], tmp_path).run(kernel, [values])[1]
    np.testing.assert_allclose(output, 2 * (values[:, 0] + values[:, 6]))


def test_reductions_of_several_results_run_on_one_thread(tmp_path):
    x = te.placeholder((3, 50), name="x")
    kernel = cuda_kernel(te.create_prim_func([x, topi.argmax(x, axis=1)]), SMALL)
    values = random((3, 50))
    output = EmulatedDevice([kernel], tmp_path).run(kernel, [values])[1]
    assert output.tolist() == values.argmax(axis=1).tolist()


def test_terms_that_no_rule_combines_are_taken_in_order_a_result_by_each_thread(tmp_path):
    less = te.comm_reducer(lambda x, y: x - y, lambda dtype: tirx.const(0, dtype), name="less")
    x = te.placeholder((5, 300), dtype="int32", name="x")
    along = te.reduce_axis((0, 300))
    kernel = cuda_kernel(te.create_prim_func([x, te.compute((5,), lambda i: less(x[i, along], axis=along))]), SMALL)
    assert kernel.kind != ScheduleKind.AS_WRITTEN
    values = np.random.default_rng(0).integers(1 << 20, size=(5, 300), dtype=np.int32)
    assert np.array_equal(EmulatedDevice([kernel], tmp_path).run(kernel, [values])[1], -values.sum(axis=1))


def test_positions_beyond_32_bits_are_computed_in_64():
    x = te.placeholder((70_000, 70_000), name="x")
    y = te.compute(x.shape, lambda i, j: x[i, j] * 2.0, name="y")
    source = cuda_kernel(te.create_prim_func([x, y]), SMALL).source
    assert "* (int64_t)70000" in source
    assert "* 70000" not in source
