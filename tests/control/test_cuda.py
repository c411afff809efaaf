"""Programs with control flow as CUDA C++, run on this CPU: with the driver on the host, and within one kernel."""

import ctypes
from importlib.util import find_spec

import loops_in_numpy
import numpy as np
import pytest
from emulated_cuda import emulated_driver
from tvm import relax

from autotm.control import NO_REWRITES, Limits, Rewrites, compile_function
from autotm.control.cuda import CudaFunction, compiled_library, lower_for_gpu, require_ptx
from autotm.control.reader import read_program
from autotm.control.regions import Area, is_copied
from autotm.kernels.cuda.device import DEVICES
from autotm.model.errors import AutotmError
from autotm.zoo import loop_models as models
from autotm.zoo.functions import FunctionWriter, as_module, integer

FORMS = ["host", "persistent"]
REWRITES = Rewrites(by_levels=1, pack_weights=False)


def emulated(module, form, folder, rewrites=REWRITES, limits=None, order=0):
    """A module as a function of arrays, which returns what the driver does and the results."""
    program = rewrites.apply(read_program(module, limits))
    made = lower_for_gpu(program, DEVICES["h100"], form)
    lowered = made.lowered
    # Memory of a device is not zero.
    workspace = np.full(lowered.workspace_bytes + lowered.scratch_bytes + 128, 0xFF, np.uint8)
    base = workspace[-workspace.ctypes.data % 128 :]
    for value, array in program.constants.items():
        base[lowered.places[value] :][: value.size_bytes] = np.frombuffer(array.tobytes(), np.uint8)
    run = emulated_driver(made, folder, order)

    def call(*arguments):
        for value, array in zip(program.parameters, arguments, strict=True):
            if is_copied(value) and value in lowered.places:
                base[lowered.places[value] :][: value.size_bytes] = np.frombuffer(array.tobytes(), np.uint8)
        starts = {Area.WORKSPACE: 0, Area.SCRATCH: lowered.workspace_bytes}
        addresses = [
            arguments[at].ctypes.data if area is Area.ARGUMENT else base.ctypes.data + starts[area] + at
            for area, at in lowered.slots
        ]
        code = run((ctypes.c_void_p * len(addresses))(*addresses))
        results = (base[lowered.places[value] :][: value.size_bytes] for value in lowered.results)
        return code, *(
            each.view(value.dtype).reshape(value.shape).copy()
            for each, value in zip(results, lowered.results, strict=True)
        )

    return call


def off(result, expected):
    """By how much a result is off at most."""
    return np.abs(result.astype("float64") - expected).max()


@pytest.mark.parametrize("form", FORMS)
def test_a_loop(form, tmp_path):
    arguments = models.nasrnn_arguments(5, 2, 16)
    call = emulated(models.nasrnn(5, 2, 16), form, tmp_path)
    for _ in range(2):
        code, result = call(*arguments)
        assert (code, off(result, loops_in_numpy.nasrnn(*arguments)) < 1e-5) == (0, True)


@pytest.mark.parametrize(("form", "order"), [("host", 0), ("persistent", 0), ("persistent", 1), ("persistent", 5)])
def test_a_loop_that_data_end(form, order, tmp_path):
    call = emulated(models.decoder(12, 2, 16, 40), form, tmp_path, order=order)
    for longest in (1, 5, 20):
        arguments = models.decoder_arguments([1, longest], 12, 16, 40)
        code, steps, token, h = call(*arguments)
        expected = loops_in_numpy.decoder(*arguments)
        assert (code, int(steps), token.tolist()) == (0, int(expected[0]), expected[1].tolist())
        assert off(h, expected[2]) < 1e-5


def counting_rows(steps):
    """Return a module whose loop puts `x` into the row that its counter says, and counts: no more."""
    kinds = {"rows": ((steps, 16), "float32"), "x": ((16,), "float32")}
    loop = FunctionWriter("loop", {"step": ((), "int64"), **kinds}, kinds["rows"])
    step, rows, x = loop.params.values()
    emit, op = loop.emit, relax.op

    def again():
        row = emit(op.reshape(x, (1, 16)))
        filled = emit(op.scatter_nd(rows, emit(op.reshape(step, (1, 1))), row))
        return loop.call(loop, emit(op.add(step, integer(2))), filled, x)

    result = loop.branch(emit(op.less(step, integer(steps))), again, lambda: rows)
    main = FunctionWriter("main", kinds, kinds["rows"])
    return as_module(
        {loop: loop.function(result), main: main.function(main.call(loop, integer(0), *main.params.values()))}
    )


@pytest.mark.parametrize("form", FORMS)
def test_what_the_driver_reads_is_read_before_a_kernel_changes_it(form, tmp_path):
    call = emulated(counting_rows(7), form, tmp_path, NO_REWRITES)
    rows, x = (np.random.default_rng(0).standard_normal(shape).astype("float32") for shape in ((7, 16), (16,)))
    expected = rows.copy()
    expected[::2] = x
    code, result = call(rows, x)
    assert (code, result.tolist()) == (0, expected.tolist())


@pytest.mark.parametrize("rewrites", [REWRITES, Rewrites(by_levels=0, pack_weights=False)])
@pytest.mark.parametrize("form", FORMS)
def test_recursion(form, rewrites, tmp_path):
    call = emulated(models.encoder(17, 9, 16), form, tmp_path, rewrites, Limits(depth=6))
    arguments = models.encoder_arguments(models.tree(9), 16)
    code, result = call(*arguments)
    assert (code, off(result, loops_in_numpy.encoder(*arguments)) < 1e-6) == (0, True)
    code, _ = call(*models.encoder_arguments(loops_in_numpy.chain(9), 16))
    assert code > 0


@pytest.mark.skipif(find_spec("cuda") is None, reason="takes seconds for each: in `make test-cuda`")
@pytest.mark.parametrize(
    ("form", "module", "arguments"),
    [
        ("host", models.decoder(12, 2, 16, 40), models.decoder_arguments([1, 5], 12, 16, 40)),
        ("persistent", models.encoder(17, 9, 16), models.encoder_arguments(models.tree(9), 16)),
        ("graph", models.nasrnn(5, 2, 16), models.nasrnn_arguments(5, 2, 16)),
    ],
)
def test_compiled_by_nvcc_and_run_where_there_is_a_gpu(form, module, arguments, tmp_path):
    program = REWRITES.apply(read_program(module))
    made = lower_for_gpu(program, DEVICES["h100"], "host" if form == "graph" else form)
    require_ptx(made, "sm_90")
    library = compiled_library(made, "sm_90", tmp_path)
    try:
        function = CudaFunction(program, made, library, is_graph=form == "graph")
    except AutotmError as error:
        pytest.skip(f"compiled; not run: {error}")
    function.bind(*arguments)
    function.run()
    expected = compile_function(module)(*arguments)
    for result, right in zip(function.results(), expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert off(result, right) < 1e-5


@pytest.mark.parametrize(("module", "reads"), [(models.decoder(12, 2, 16, 40), True), (models.nasrnn(5, 2, 16), False)])
def test_whether_launches_can_be_a_graph(module, reads):
    """Not those that data decide."""
    assert lower_for_gpu(REWRITES.apply(read_program(module)), DEVICES["h100"], "host").reads_on_host == reads
