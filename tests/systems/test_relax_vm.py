"""Programs in TVM's virtual machine, whole and in pieces that Python calls."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_control import ROWS, WIDTH, Module, blocks, interpreted

from autotm.control.reader import read_program
from autotm.control.rewrites import NO_REWRITES, Rewrites
from autotm.systems import relax_vm
from autotm.systems.source import without_checks
from autotm.zoo import loop_models


@pytest.mark.parametrize("prepare", [relax_vm.whole, relax_vm.in_pieces])
@given(blocks(2), st.sampled_from([NO_REWRITES, Rewrites(unroll=4)]), st.integers(0, 100))
def test_random_programs(prepare, block, rewrites, seed):
    random = np.random.default_rng(seed)
    values = [random.standard_normal((ROWS, WIDTH)).astype("float32") for _ in range(2)]
    weights = (random.standard_normal((WIDTH, WIDTH)) / 3).astype("float32")
    program = without_checks(rewrites.apply(read_program(Module(block, 2).module)))
    prepared = prepare(program, threads=1)([*values, weights])
    expected = interpreted(block, [each.astype("float64") for each in values], weights.astype("float64"))
    for _ in range(2):
        (result,) = prepared.results()
        assert np.abs(result - expected).max() < 1e-4


@pytest.mark.parametrize("prepare", [relax_vm.whole, relax_vm.in_pieces])
def test_an_instrument_sees_the_kernels(prepare):
    arguments = loop_models.nasrnn_arguments(20, 1, 64)
    prepared = prepare(read_program(loop_models.nasrnn(20, 1, 64)), threads=1)(arguments)
    prepared.call()
    assert prepared.kernel_ms() > 0
