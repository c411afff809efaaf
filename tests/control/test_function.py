"""Loops, branches and recursion in one compiled function: its results, and what it refuses."""

import itertools
from dataclasses import replace

import loops_in_numpy
import numpy as np
import pytest
import random_cells
import tvm
from hypothesis import example, given
from hypothesis import strategies as st
from random_control import ROWS, WIDTH, Compute, Module, Recurse, Repeat, blocks, interpreted
from tvm import relax, tirx

from autotm.control import NO_REWRITES, Limits, Rewrites, compile_function
from autotm.control import function as control_function
from autotm.kernels.passes import machine_code
from autotm.model.errors import AutotmError, BadInputError
from autotm.zoo import branch_models
from autotm.zoo import loop_models as models
from autotm.zoo.functions import FunctionWriter, as_module, integer

REWRITES = [NO_REWRITES, Rewrites(), Rewrites(by_levels=1), Rewrites(unroll=4)]
EXACT = 1e-5
"""How far float32 may be off what float64 computes: the results are of the order of 1."""
ROW = ((1, WIDTH), "float32")


def largest_error(results, expected):
    """Return by how much results are off at most."""
    pairs = zip(*(each if isinstance(each, tuple) else (each,) for each in (results, expected)), strict=True)
    return max(np.abs(np.asarray(result, "float64") - right).max() for result, right in pairs)


# Models.


@pytest.mark.parametrize(("rewrites", "batch"), [(NO_REWRITES, 1), (Rewrites(), 64), (Rewrites(unroll=4), 1)])
def test_nasrnn(rewrites, batch):
    arguments = models.nasrnn_arguments(7, batch, 16)
    function = compile_function(models.nasrnn(7, batch, 16), rewrites=rewrites)
    for _ in range(2):  # Nothing of a call is left to the next one.
        assert largest_error(function(*arguments), loops_in_numpy.nasrnn(*arguments)) < EXACT


@pytest.mark.parametrize("batch", [1, 64])
def test_lstm(batch):
    arguments = models.lstm_arguments(5, 2, batch, 16)
    function = compile_function(models.lstm(5, 2, batch, 16))
    assert largest_error(function(*arguments), loops_in_numpy.lstm(*arguments)) < EXACT


def test_long_rows_of_kernels_are_functions_of_their_own(monkeypatch):
    compiled = []

    def recorded(functions, target):
        compiled.extend(functions)
        return machine_code(functions, target)

    monkeypatch.setattr(control_function, "machine_code", recorded)
    monkeypatch.setattr(control_function, "_MOST_CALLS", 3)
    arguments = models.nasrnn_arguments(7, 2, 16)
    function = compile_function(models.nasrnn(7, 2, 16), rewrites=Rewrites(unroll=4))
    assert {"driver", "driver_0", "driver_1"} <= {*compiled}
    assert largest_error(function(*arguments), loops_in_numpy.nasrnn(*arguments)) < EXACT


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("first", [3, 8])
def test_attention_also_without_a_step(batch, first):
    arguments = models.attention_arguments(first, 8, batch, 2, 16)
    function = compile_function(models.attention(first, 8, batch, 2, 16))
    assert largest_error(function(*arguments), loops_in_numpy.attention(first, *arguments)) < EXACT


@pytest.mark.parametrize("batch", [1, 64])
def test_a_while_loop_ends_as_its_data_say(batch):
    function = compile_function(models.decoder(12, batch, 16, 40))
    for longest in (1, 5, 20):
        arguments = models.decoder_arguments([*range(1, batch), longest], 12, 16, 40)
        results, expected = function(*arguments), loops_in_numpy.decoder(*arguments)
        assert results[0] == expected[0]
        assert (results[1] == expected[1]).all()
        assert largest_error(results[2], expected[2]) < EXACT
    arguments[0][:] = 0  # The token that ends a sentence.
    assert function(*arguments)[0] == 0


@pytest.mark.parametrize("rewrites", REWRITES)
def test_recursion(rewrites):
    function = compile_function(models.encoder(39, 20, 16), rewrites=rewrites)
    for children in (models.tree(20), loops_in_numpy.chain(20)):
        arguments = models.encoder_arguments(children, 16)
        assert largest_error(function(*arguments), loops_in_numpy.encoder(*arguments)) < 1e-6


@pytest.mark.parametrize("rewrites", REWRITES)
def test_a_recursion_that_ends_at_once(rewrites):
    arguments = models.encoder_arguments(models.tree(1), 16)
    result = compile_function(models.encoder(1, 1, 16), rewrites=rewrites)(*arguments)
    assert (result == arguments[2]).all()


@pytest.mark.parametrize("batch", [1, 64])
def test_networks_whose_blocks_are_skipped(batch):
    torch = pytest.importorskip("torch", reason="it is compared with PyTorch: make test-torch installs it")
    import branches_in_torch

    random = np.random.default_rng(0)
    drop = branch_models.BlockDrop(size=8, blocks=(1, 2), channels=4)
    skip = branch_models.SkipNet(size=32, blocks=(1, 2), channels=4, classes=10)
    of_torch = {drop: branches_in_torch.block_drop, skip: branches_in_torch.skip_net}
    cases = {
        drop: [(random.integers(0, 2, (batch, 3)),), (np.zeros((batch, 3)),)],
        skip: [(batch, np.zeros(3)), (batch, np.array([0, 5e5, -5e5]))],
    }
    for net, is_last in itertools.product(cases, (False, True)):
        laid = replace(net, channels_last=is_last)
        function = compile_function(laid.module(batch))
        for decisions in cases[net]:
            expected = of_torch[net](net, *map(torch.from_numpy, net.arguments(*decisions))).numpy()
            assert largest_error(function(*laid.arguments(*decisions)), expected) < EXACT


JOINED_BY_A_PRODUCT = Recurse(4, 0, (Compute("add", 0, 1),), (Compute("multiply", 0, 1),), (Compute("product", 0, 2),))


@example((JOINED_BY_A_PRODUCT,), Rewrites(by_levels=1), 0)
@example((Repeat(3, 0, 1, (JOINED_BY_A_PRODUCT, Compute("add", 0, 1))),), Rewrites(by_levels=1), 1)
@given(blocks(2), st.sampled_from(REWRITES), st.integers(0, 100))
def test_random_programs(block, rewrites, seed):
    random = np.random.default_rng(seed)
    values = [random.standard_normal((ROWS, WIDTH)).astype("float32") for _ in range(2)]
    weights = (random.standard_normal((WIDTH, WIDTH)) / 3).astype("float32")
    function = compile_function(Module(block, 2).module, rewrites=rewrites)
    expected = interpreted(block, [each.astype("float64") for each in values], weights.astype("float64"))
    for _ in range(2):
        assert largest_error(function(*values, weights), expected) < 1e-4


FED = random_cells.Cells(4, (("add", 0, 2), ("product", 4, 3), ("scaled", 5, 1)), (4, 6), 5)
"""One cell is fed by another, and what is written by a counter."""


@example(FED, 2)
@given(random_cells.cells(), st.sampled_from([1, 2]))
def test_random_cells(loop, unroll):
    random, shapes = np.random.default_rng(0), ((loop.steps, *ROW[0]), ROW[0], (WIDTH, WIDTH))
    arguments = [random.standard_normal(shape).astype("float32") for shape in shapes]
    module = random_cells.module_of(loop)
    function = compile_function(module, rewrites=Rewrites(split_loops=1, unroll=unroll))
    expected = tuple(random_cells.interpreted(loop, *(each.astype("float64") for each in arguments)))
    for _ in range(2):
        assert largest_error(function(*arguments), expected) < 1e-4


# Rows that a loop writes.


def filling(steps, reads_result):
    """Return a module whose loop makes row i of `rows` from row i - 1; the result may be read in the same step.

    A second tensor gets the state `largest` that each step begins with.
    """
    kinds = {"rows": ((steps, WIDTH), "float32"), "largest": ((), "float32"), "before": ((steps,), "float32")}
    loop = FunctionWriter("filling", {"step": ((), "int64"), **kinds, "x": kinds["rows"]}, list(kinds.values()))
    step, rows, largest, begun, x = loop.params.values()
    emit, op = loop.emit, relax.op

    def again():
        before = emit(op.maximum(emit(op.subtract(step, integer(1))), integer(0)))
        row = emit(op.multiply(emit(op.take(rows, before, axis=0)), relax.const(0.5, "float32")))
        row = emit(op.add(row, emit(op.take(x, step, axis=0))))
        place = emit(op.reshape(step, (1, 1)))
        filled = emit(op.scatter_nd(rows, place, emit(op.expand_dims(row, 0))))
        seen = emit(op.maximum(largest, emit(op.max(filled if reads_result else row))))
        noted = emit(op.scatter_nd(begun, place, emit(op.reshape(largest, (1,)))))
        return loop.call(loop, emit(op.add(step, integer(1))), filled, seen, noted, x)

    result = loop.branch(emit(op.less(step, integer(steps))), again, lambda: relax.Tuple([rows, largest, begun]))
    main = FunctionWriter("main", {"rows": kinds["rows"], "x": kinds["rows"]}, list(kinds.values()))
    rows, x = main.params.values()
    zeros = main.emit(relax.op.zeros((steps,), "float32"))
    last = main.call(loop, integer(0), rows, relax.const(-1e9, "float32"), zeros, x)
    return as_module({loop: loop.function(result), main: main.function(last)})


@pytest.mark.parametrize("reads_result", [False, True])
@pytest.mark.parametrize("rewrites", REWRITES)
def test_rows_are_written_one_by_one(rewrites, reads_result):
    random, steps = np.random.default_rng(0), 7
    rows, x = (random.standard_normal((steps, WIDTH)).astype("float32") for _ in range(2))
    function = compile_function(filling(steps, reads_result), rewrites=rewrites)
    expected, largest, begun = rows.copy(), -1e9, []
    for step in range(steps):
        begun.append(largest)
        expected[step] = expected[max(step - 1, 0)] / 2 + x[step]
        largest = max(largest, (expected if reads_result else expected[step]).max())
    for _ in range(2):
        assert largest_error(function(rows, x), (expected, largest, np.array(begun, "float32"))) < EXACT


def caching(steps, slots, reads_old):
    """Return a module whose loop puts `x` plus the step into a slot, the step's, and adds up what all slots hold.

    There are more steps than slots. The slots as they were before may be read, too.
    """
    kinds = {"slots": ((2, slots, WIDTH), "float32"), "sums": ((2, 1, WIDTH), "float32")}
    loop = FunctionWriter("caching", {"step": ((), "int64"), **kinds, "x": kinds["sums"]}, list(kinds.values()))
    step, cache, sums, x = loop.params.values()
    emit, op = loop.emit, relax.op

    def again():
        new = emit(op.add(x, emit(op.astype(step, "float32"))))
        is_here = emit(op.equal(relax.const(np.arange(slots).reshape(1, slots, 1), "int64"), step))
        filled = emit(op.where(is_here, new, cache))
        total = emit(op.sum(filled, axis=1, keepdims=True))
        if reads_old:
            total = emit(op.subtract(total, emit(op.max(cache, axis=1, keepdims=True))))
        return loop.call(loop, emit(op.add(step, integer(1))), filled, emit(op.add(sums, total)), x)

    result = loop.branch(emit(op.less(step, integer(steps))), again, lambda: relax.Tuple([cache, sums]))
    main = FunctionWriter("main", {"slots": kinds["slots"], "x": kinds["sums"]}, list(kinds.values()))
    cache, x = main.params.values()
    zeros = main.emit(relax.op.zeros(kinds["sums"][0], "float32"))
    return as_module({loop: loop.function(result), main: main.function(main.call(loop, integer(0), cache, zeros, x))})


@pytest.mark.parametrize("reads_old", [False, True])
@pytest.mark.parametrize("rewrites", REWRITES)
def test_slots_are_written_one_by_one(rewrites, reads_old):
    random, steps, slots = np.random.default_rng(0), 7, 5
    cache, x = (random.standard_normal((2, each, WIDTH)).astype("float32") for each in (slots, 1))
    function = compile_function(caching(steps, slots, reads_old), rewrites=rewrites)
    expected, sums = cache.copy(), np.zeros_like(x)
    for step in range(steps):
        before = expected.max(axis=1, keepdims=True) if reads_old else 0
        if step < slots:
            expected[:, step] = x[:, 0] + step
        sums += expected.sum(axis=1, keepdims=True) - before
    for _ in range(2):
        assert largest_error(function(cache, x), (expected, sums)) < 1e-4


# Bounds that are passed when it runs.


def counting(most):
    """Return a module that adds x to itself as long as the sum is below `most`."""
    loop = FunctionWriter("adding", {"sum": ((), "float32"), "x": ((), "float32")}, ((), "float32"))
    total, x = loop.params.values()
    test = loop.emit(relax.op.less(total, relax.const(most, "float32")))
    result = loop.branch(test, lambda: loop.call(loop, loop.emit(relax.op.add(total, x)), x), lambda: total)
    main = FunctionWriter("main", {"x": ((), "float32")}, ((), "float32"))
    (x,) = main.params.values()
    last = main.call(loop, x, x)
    return as_module({loop: loop.function(result), main: main.function(last)})


def test_a_loop_that_passes_its_bound_is_named():
    function = compile_function(counting(10.0), limits=Limits(steps={"adding": 5}))
    assert function(np.float32(2)) == 10
    with pytest.raises(AutotmError, match="loop 'adding' is not done after 5 steps"):
        function(np.float32(1))
    assert function(np.float32(20)) == 20  # It can be called again.


def test_a_condition_that_compares_nan_is_an_error():
    with pytest.raises(AutotmError, match="function 'adding': a condition compares NaN"):
        compile_function(counting(10.0))(np.float32("nan"))


@pytest.mark.parametrize("rewrites", [Rewrites(by_levels=0), Rewrites(by_levels=1)])
def test_recursion_deeper_than_its_limit_is_an_error(rewrites):
    function = compile_function(models.encoder(39, 20, 16), limits=Limits(depth=12), rewrites=rewrites)
    arguments = models.encoder_arguments(models.tree(20), 16)
    assert largest_error(function(*arguments), loops_in_numpy.encoder(*arguments)) < 1e-6
    with pytest.raises(AutotmError, match="'encode' calls itself more than 12 levels deep"):
        function(*models.encoder_arguments(loops_in_numpy.chain(20), 16))
    assert largest_error(function(*arguments), loops_in_numpy.encoder(*arguments)) < 1e-6


def test_ten_thousand_steps():
    function = compile_function(counting(1e4))
    assert function(np.float32(1)) == 1e4


@pytest.mark.parametrize(
    ("levels", "rewrites"),
    [(2001, Rewrites(by_levels=0)), (2001, Rewrites(by_levels=1)), (2500, Rewrites(by_levels=1))],
)
def test_thousands_of_levels(levels, rewrites):
    """By levels, there is room for the calls of the first tree, and not for those of the second."""
    function = compile_function(
        models.encoder(2 * levels - 1, levels, 8), limits=Limits(depth=levels), rewrites=rewrites
    )
    arguments = models.encoder_arguments(loops_in_numpy.chain(levels), 8)
    assert largest_error(function(*arguments), loops_in_numpy.encoder(*arguments)) < 1e-6


def test_ten_thousand_tokens_one_after_the_other():
    function = compile_function(models.attention(1, 10_001, 1, 1, 4))
    arguments = models.attention_arguments(1, 10_001, 1, 1, 4)
    assert largest_error(function(*arguments), loops_in_numpy.attention(1, *arguments)) < EXACT
    function = compile_function(models.decoder(10_000, 1, 8, 6))
    arguments = models.decoder_arguments([10_000], 10_000, 8, 6)
    results, expected = function(*arguments), loops_in_numpy.decoder(*arguments)
    assert results[0] == expected[0] == 10_000
    assert largest_error(results[2], expected[2]) < EXACT


# What is refused before.


def test_wrong_arguments_are_named():
    function = compile_function(models.encoder(3, 2, 8))
    left, right, rows, weights, bias = models.encoder_arguments(models.tree(2), 8)
    with pytest.raises(BadInputError, match="4 arguments given, the function takes 5"):
        function(left, right, rows, weights)
    with pytest.raises(BadInputError, match=r"argument 2 \('rows'\) is \(1, 8\) float32, not \(2, 8\) float32"):
        function(left, right, rows[:1], weights, bias)


def test_sides_of_different_shape_are_refused():
    main = FunctionWriter("main", {"c": ((), "bool"), "x": ROW}, ROW)
    condition, x = main.params.values()
    both = main.branch(condition, lambda: x, lambda: main.emit(relax.op.concat([x, x], axis=1)))
    with pytest.raises(AutotmError, match=r"'main': one side of a branch returns \(1, 16\) float32, the other"):
        compile_function(as_module({main: main.function(both)}))


def test_a_state_that_changes_its_shape_is_refused():
    loop = FunctionWriter("main", {"step": ((), "int64"), "x": ROW}, ROW)
    step, x = loop.params.values()

    def again():
        more = loop.emit(relax.op.concat([x, x], axis=1))
        return loop.call(loop, loop.emit(relax.op.add(step, integer(1))), more)

    result = loop.branch(loop.emit(relax.op.less(step, integer(3))), again, lambda: x)
    module = tvm.IRModule({loop.own: loop.function(result).with_attr("global_symbol", "main")})
    with pytest.raises(AutotmError, match=r"no consistent types(?s:.*)\(1, 16\)(?s:.*)def main(?s:.*)\^\^"):
        compile_function(module)


def test_functions_that_call_each_other_are_refused():
    writers = [FunctionWriter(name, {"c": ((), "bool"), "x": ROW}, ROW) for name in ("even", "odd")]
    functions = {}
    for own, other in (writers, writers[::-1]):
        functions[own] = own.function(own.call(other, *own.params.values()))
    main = FunctionWriter("main", {"c": ((), "bool"), "x": ROW}, ROW)
    functions[main] = main.function(main.call(writers[0], *main.params.values()))
    with pytest.raises(AutotmError, match="calls 'even', which is being called"):
        compile_function(as_module(functions))


def test_an_unknown_shape_is_refused():
    main = FunctionWriter("main", {"x": ROW}, ROW)
    x = relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), 8), "float32"))
    main.params["x"] = x
    with pytest.raises(AutotmError, match="argument 'x' of main has no static shape"):
        compile_function(as_module({main: main.function(main.emit(relax.op.negative(x)))}))
