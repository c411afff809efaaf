"""Generated CUDA source, run on this CPU, computes what the CPU's kernels do: every op class, threads in any order."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
from compiled_kernels import call, kernel_of
from cuda_cases import CASES, SLOW, SMALL, random
from emulated_cuda import EmulatedDevice
from tvm import te, tirx

from autotm.kernels.cuda.dispatch import cuda_kernel
from autotm.model.graph import ScheduleKind


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
    for found in results:
        for array, exact in zip(found[len(case.inputs) :], expected, strict=False):
            np.testing.assert_allclose(array, exact, rtol=2e-5, atol=2e-5)
    first, *others = (found[len(case.inputs) : len(case.tensors)] for found in results)
    assert all(np.array_equal(a, b) for found in others for a, b in zip(first, found, strict=True))


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
    found = [wrong.run(broken, case.inputs, order=order)[1] for order in (0, 1, 5)]
    exact = case.inputs[0].max(1)
    assert not all(np.array_equal(array, exact) for array in found)


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
    found = EmulatedDevice([kernel], tmp_path).run(kernel, [values])[1]
    np.testing.assert_allclose(found, 2 * (values[:, 0] + values[:, 6]))


def test_terms_that_no_rule_combines_are_taken_in_order_a_result_by_each_thread(tmp_path):
    less = te.comm_reducer(lambda x, y: x - y, lambda dtype: tirx.const(0, dtype), name="less")
    x = te.placeholder((5, 300), dtype="int32", name="x")
    along = te.reduce_axis((0, 300))
    kernel = cuda_kernel(te.create_prim_func([x, te.compute((5,), lambda i: less(x[i, along], axis=along))]), SMALL)
    assert kernel.kind != ScheduleKind.AS_WRITTEN
    values = np.random.default_rng(0).integers(1 << 20, size=(5, 300), dtype=np.int32)
    found = EmulatedDevice([kernel], tmp_path).run(kernel, [values])[1]
    assert np.array_equal(found, -values.sum(axis=1))


def test_positions_beyond_32_bits_are_computed_in_64():
    x = te.placeholder((70_000, 70_000), name="x")
    y = te.compute(x.shape, lambda i, j: x[i, j] * 2.0, name="y")
    source = cuda_kernel(te.create_prim_func([x, y]), SMALL).source
    assert "* (int64_t)70000" in source
    assert "* 70000" not in source
