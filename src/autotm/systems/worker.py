"""A process that prepares systems, computes what is right, and calls them whenever it is asked to."""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing.connection as mpc
import os
import pickle
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib import import_module
from itertools import product
from multiprocessing.reduction import recv_handle
from typing import Any

import numpy as np
import torch

from autotm.control.function import compile_program
from autotm.control.program import Array, Program
from autotm.control.reader import read_program
from autotm.control.rewrites import NO_REWRITES, SMALL_ELEMENTS, Rewrites
from autotm.kernels.library import aligned_empty
from autotm.model.control_study import ALL_BLOCKS, BRANCHING, RESOLVED, WITH_CONTROL_FLOW
from autotm.model.errors import AutotmError, BadInputError
from autotm.systems.measure import RATIO, Task
from autotm.systems.resolved import resolved, with_weights
from autotm.systems.source import EVERY_OPERATOR, Prepared, Ready, Results, python_source, without_checks
from autotm.systems.torch_systems import reference
from autotm.zoo.control_flow import ControlModel, control_model


def main() -> None:
    """Fork a process whenever one is asked for, and tell how one ended.

    Everything comes by the connection whose number is given, the tasks first.
    """
    torch.set_grad_enabled(False)
    # A second thread of OpenMP would be waited for in every fork, which has none. The environment may ask for it by
    # other names than `OMP_NUM_THREADS`, as Snakemake's does.
    torch.set_num_threads(1)
    control = mpc.Connection(int(sys.argv[1]))
    for task in pickle.loads(control.recv_bytes()):  # noqa: S301 - Our own parent wrote it.
        with contextlib.suppress(Exception):  # The process that is asked meets the error again, and tells it.
            _expected(task)
            _given(task)
    gc.freeze()  # Forks need not look through millions of objects that stay.
    with contextlib.suppress(EOFError):
        while True:
            if (process := control.recv()) is not None:
                _, status = os.waitpid(process, 0)
                control.send(os.waitstatus_to_exitcode(status))
                continue
            number = recv_handle(control)
            if not (process := os.fork()):
                control.close()
                _answer(mpc.Connection(number))
                os._exit(0)
            os.close(number)
            control.send(process)


def _answer(connection: mpc.Connection) -> None:
    """Answer questions until the one who asks is gone."""
    compiled: dict[Task, tuple[Ready, float]] = {}
    prepared: dict[Task, Prepared] = {}
    while True:
        try:
            question, pickled, details = connection.recv()
        except EOFError:
            return
        task: Task = pickle.loads(pickled)  # noqa: S301 - Our own parent wrote it.
        try:
            match question:
                case "prepare":
                    prepared[task], answer = _prepared(task, compiled)
                case "rewrites":
                    answer = {"sets": different_rewrites(task)}
                case "call":
                    answer = {"ms": _timed(prepared[task].call, details["calls"])}
                case _:
                    ask = prepared[task].kernel_ms
                    answer = {"ms": ask() if ask else None}
        except Exception as error:  # noqa: BLE001 - Whatever a compiler says is why it has no times.
            answer = {"failure": _one_line(error)}
        connection.send(answer)


def _prepared(task: Task, compiled: dict[Task, tuple[Ready, float]]) -> tuple[Prepared, dict[str, Any]]:
    """Return the system, and how long that took, how wrong it is, and after which rewrites.

    Args:
        task: of the system.
        compiled: programs that do not depend on the ratio of blocks, and the seconds that they took; it is added to.
    """
    os.environ["OMP_NUM_THREADS"] = str(task.threads)  # What TVM reads at its first kernel.
    program, arguments = _given(task)
    count = len(program.body.statements)
    if task.variant == RESOLVED and task.system not in _INTERPRETERS and count > _MOST_COMPILED:
        raise BadInputError(f"{count} operators in a row: compilers are given {_MOST_COMPILED} at most")
    key = replace(task, sizes=_without_ratio(task)) if task.variant == WITH_CONTROL_FLOW else task
    if key not in compiled:
        start = time.perf_counter()
        if task.system == "tvm-fused":
            program = Rewrites(**dict(task.rewrites)).apply(program)
        compiled[key] = prepare(task.system, program, task.threads), time.perf_counter() - start
    ready, build_s = compiled[key]
    start = time.perf_counter()
    prepared = ready(arguments)
    before = time.perf_counter()
    results = prepared.results()
    end = time.perf_counter()
    answer = {
        "build_s": build_s + end - start,
        "error": _error(results, _expected(task)),
        "first_ms": (end - before) * 1e3,
    }
    if task.system == "tvm-fused":
        answer["rewrites"] = asdict(Rewrites(**dict(task.rewrites)))
    return prepared, answer


def different_rewrites(task: Task) -> list[tuple[tuple[str, Any], ...]]:
    """Return the sets of rewrites that make different programs of a task: none first."""
    program, _, _ = _read(task)
    by_source: dict[str, Rewrites] = {}
    sets = [Rewrites(small, small, unroll=unroll) for small, unroll in product((0, SMALL_ELEMENTS), (1, 2, 4, 8))]
    sets += [replace(Rewrites(), **{left_out: 0}) for left_out in ("predicate", "by_levels", "split_loops")]
    for rewrites in sets:
        source, _ = python_source(rewrites.apply(program), EVERY_OPERATOR)
        by_source.setdefault(source, rewrites)
    return [tuple(asdict(rewrites).items()) for rewrites in (NO_REWRITES, *by_source.values())]


_INTERPRETERS = ("torch", "torchscript", "onnxruntime")
"""Systems that do not compile what they run."""
_MOST_COMPILED = 20_000
"""Operators, one after the other. Of 9 000, compilers took 25 s or more; of 28 000, each more than 45 s."""


def _given(task: Task) -> tuple[Program, list[Array]]:
    """Return what a system gets of a task: a program and its arguments."""
    channels_last = task.model in BRANCHING and task.system.startswith(("tvm", "cuda"))
    if task.variant == WITH_CONTROL_FLOW:
        program, arguments, _ = _read(task, channels_last)
        return program, arguments
    return _resolved(_of_any_system(task), channels_last)


def _of_any_system(task: Task) -> Task:
    """Return what the same tasks of all systems have in common: what is known of one holds for each."""
    return replace(task, system="", threads=1, rewrites=())


@functools.cache
def _resolved(task: Task, channels_last: bool) -> tuple[Program, list[Array]]:
    program, arguments, deciding = _read(task, channels_last)
    program = resolved(without_checks(program), arguments, deciding)
    return program, [array for position, array in enumerate(arguments) if position not in deciding]


_MODULES = {
    "torch": ("torch_systems", "eager"),
    "torch.compile": ("torch_systems", "compiled_pieces"),
    "torchscript": ("torch_systems", "scripted"),
    "onnxruntime": ("onnx_system", "interpreted"),
    "jax": ("jax_system", "compiled"),
    "tvm-py": ("relax_vm", "in_pieces"),
    "tvm-vm": ("relax_vm", "whole"),
    "cuda-host": ("cuda_system", "on_host"),
    "cuda-persistent": ("cuda_system", "within_kernel"),
    "cuda-graph": ("cuda_system", "as_graph"),
}
"""Where each system is: a process imports its own only."""


def prepare(system: str, program: Program, threads: int) -> Ready:
    """Prepare a program in a system, on so many threads.

    Raises:
        BadInputError: the system has nothing for something in the program.
        ImportError: its package is not installed.
    """
    if system == "tvm-fused":
        return _fused(program, threads)
    module, function = _MODULES[system]
    prepare_program = getattr(import_module(f"autotm.systems.{module}"), function)
    ready: Ready = prepare_program(without_checks(program), threads)
    return ready


def _fused(program: Program, threads: int) -> Ready:
    function = compile_program(program, threads=threads)

    def on(arguments: Sequence[Array]) -> Prepared:
        placed = [_aligned(each) for each in arguments]
        return Prepared(lambda: function(*placed))

    return on


def _aligned(array: Array) -> Array:
    own = aligned_empty(array.shape, str(array.dtype))
    own[...] = array
    return own


def _without_ratio(task: Task) -> tuple[tuple[str, Any], ...]:
    return tuple((name, size) for name, size in task.sizes if name != RATIO)


def _read(task: Task, channels_last: bool = False) -> tuple[Program, list[Array], list[int]]:
    """Return a program, the arguments that are not weights, and which of them decide."""
    sizes = (*_without_ratio(task), *((("channels_last", True),) if channels_last else ()))
    model, program = _model(task.model, sizes, task.batch, task.seed)
    ratio = 100 if task.variant == ALL_BLOCKS else dict(task.sizes).get(RATIO)
    arguments = model.arguments if ratio is None else model.at_ratio(ratio)
    kept = [index for index in range(len(arguments)) if index not in model.weights]
    deciding = [kept.index(position) for position in model.deciding]
    return program, [arguments[index] for index in kept], deciding


@functools.cache
def _model(name: str, sizes: tuple[tuple[str, Any], ...], batch: int, seed: int) -> tuple[ControlModel, Program]:
    model = control_model(name, dict(sizes), batch, seed)
    return model, with_weights(read_program(model.module), {index: model.arguments[index] for index in model.weights})


def _expected(task: Task) -> Results:
    """Return the results in float64."""
    variant = ALL_BLOCKS if task.variant == ALL_BLOCKS else WITH_CONTROL_FLOW
    return _reference(replace(_of_any_system(task), variant=variant))


@functools.cache
def _reference(task: Task) -> Results:
    program, arguments, _ = _read(task)
    return reference(program, arguments)


def _error(results: Sequence[Array], expected: Sequence[Array]) -> float:
    """Return by how much results are off what is expected at most, over the largest of that."""
    errors = [0.0]
    for result, right in zip(results, expected, strict=True):
        if result.shape != right.shape:
            return float("inf")
        difference = np.abs(result.astype("float64") - right)
        errors.append(float(difference.max() / max(np.abs(right).max(), np.finfo("float32").tiny)))
    return max(errors) if all(error == error for error in errors) else float("nan")  # noqa: PLR0124


def _timed(call: Any, calls: int) -> float:
    """Return milliseconds of a call, the mean of some."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) * 1e3 / calls


def _one_line(error: Exception) -> str:
    """Return the first line of what an error says that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    if isinstance(error, ImportError):
        return f"not installed: {text}"
    return text if isinstance(error, AutotmError) else f"{type(error).__name__}: {text}"[:300]


if __name__ == "__main__":
    main()
