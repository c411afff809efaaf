"""Programs in the systems that are compared: what is called, and what its results are as arrays."""

from __future__ import annotations

import contextlib
import linecache
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotm.control.program import Array, Program
from autotm.model.errors import BadInputError
from autotm.systems.source import Piece, operator_source, python_source, without_checks

Results = tuple[Array, ...]


@dataclass(frozen=True)
class Prepared:
    """A program that can be called in one system, on arguments that it has already.

    Attributes:
        call: computes the results, in the system's own types.
        kernel_ms: milliseconds of a call within kernels, from a run of its own; None if the system does not tell.
    """

    call: Callable[[], Any]
    kernel_ms: Callable[[], float] | None = None

    def results(self) -> Results:
        """Compute the results, as arrays."""
        results = self.call()
        several = isinstance(results, tuple | list) or type(results).__name__ == "Array"
        return tuple(_as_array(each) for each in (results if several else (results,)))


def reference(program: Program, arguments: Sequence[Array]) -> Results:
    """Return what a program computes for some arguments, in float64 with PyTorch."""
    import torch

    main = _python_main(without_checks(program))
    values = [torch.from_numpy(_writable(each)) for each in (*arguments, *program.constants.values())]
    results = main(*(each.double() if each.is_floating_point() else each for each in values))
    return tuple(map(_as_array, results if isinstance(results, tuple) else (results,)))


def prepare(system: str, program: Program, arguments: Sequence[Array], threads: int) -> Prepared:
    """Prepare a program in a system, on so many threads.

    Raises:
        BadInputError: the system has nothing for something in the program.
        ImportError: its package is not installed.
    """
    if system == "tvm-fused":
        return _fused(program, arguments, threads)
    return _SYSTEMS[system](without_checks(program), arguments, threads)


def _as_array(value: Any) -> Array:
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def _writable(array: Array) -> Array:
    """Return an array that PyTorch takes without a warning."""
    return array if array.flags.writeable else array.copy()


# PyTorch.


def _python_main(program: Program, **scope: object) -> Callable[..., Any]:
    source, _ = python_source(program, in_pieces=False)
    return _defined(source, "main", **scope)


def _defined(source: str, name: str, **scope: object) -> Callable[..., Any]:
    """Return a function of PyTorch's from its source, which stays readable for compilers that ask for it."""
    import torch
    from torch.nn import functional

    file = f"<autotm {name} {id(source)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope.update(torch=torch, functional=functional, __name__=__name__)
    exec(compile(source, file, "exec"), scope)  # noqa: S102 - The source is ours.
    return scope[name]  # type: ignore[return-value]


def _torch_values(program: Program, arguments: Sequence[Array], threads: int) -> list[Any]:
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return [torch.from_numpy(_writable(each)) for each in (*arguments, *program.constants.values())]


def _torch(program: Program, arguments: Sequence[Array], threads: int) -> Prepared:
    values = _torch_values(program, arguments, threads)
    main = _python_main(program)
    return Prepared(lambda: main(*values))


def _torch_compile(program: Program, arguments: Sequence[Array], threads: int) -> Prepared:
    import torch

    values = _torch_values(program, arguments, threads)
    source, pieces = python_source(program, in_pieces=True)
    # Each piece has one shape: what was seen before must not make another compile for any.
    compiled = {piece.name: torch.compile(_piece_of_torch(piece), dynamic=False, fullgraph=True) for piece in pieces}
    torch._dynamo.config.recompile_limit = max(8, 2 * len(pieces))
    main = _defined(source, "main", holds=bool, **compiled)
    return Prepared(lambda: main(*values))


def _piece_of_torch(piece: Piece) -> Callable[..., Any]:
    from autotm.systems.source import TORCH

    # `torch.compile` takes a row by the number in a tensor for one of unknown shape.
    def taken(x: str, index: str, **_: Any) -> str:
        return f"torch.index_select({x}, 0, {index}.reshape(-1)).reshape([*{index}.shape, *{x}.shape[1:]])"

    return _defined(_piece_source(piece, {**TORCH, "relax.take": taken}), piece.name)


def _piece_source(piece: Piece, table: Mapping[str, Any]) -> str:
    """Return a piece as a function."""
    names: dict[object, str] = {}
    name = lambda value: names.setdefault(value, f"v{len(names)}")  # noqa: E731
    head = f"def {piece.name}({', '.join(map(name, piece.inputs))}):"
    body = operator_source(piece.operators, name, table)
    return "\n    ".join([head, *body, f"return {', '.join(map(name, piece.outputs))}"]) + "\n"


def _torchscript(program: Program, arguments: Sequence[Array], threads: int) -> Prepared:
    import torch

    values = _torch_values(program, arguments, threads)
    main = torch.jit.script(_python_main(program))
    return Prepared(lambda: main(*values))


# JAX and ONNX Runtime.


def _jax(program: Program, arguments: Sequence[Array], threads: int) -> Prepared:
    import os

    os.environ["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
    import jax
    import jax.numpy as jnp

    from autotm.systems.jax_source import JAX, jax_source

    jax.config.update("jax_enable_x64", True)  # Counters are int64; numbers stay float32.
    scope = {"jax": jax, "jnp": jnp, "lax": jax.lax}
    values = [jnp.asarray(each) for each in arguments]
    constants = [jnp.asarray(each) for each in program.constants.values()]
    try:
        source = jax_source(program)
    except BadInputError:  # A recursion: Python's, of pieces.
        source, pieces = python_source(program, in_pieces=True)
        for piece in pieces:
            exec(_piece_source(piece, JAX), scope)  # noqa: S102 - The source is ours.
            scope[piece.name] = jax.jit(scope[piece.name])
        scope["holds"] = bool
        exec(source, scope)  # noqa: S102
        main = scope["main"]
        return Prepared(lambda: jax.block_until_ready(main(*values, *constants)))
    exec(source, scope)  # noqa: S102
    main = jax.jit(lambda *arguments: scope["main"](*arguments, *constants))
    return Prepared(lambda: jax.block_until_ready(main(*values)))


def _onnxruntime(program: Program, arguments: Sequence[Array], threads: int) -> Prepared:
    import onnxruntime

    from autotm.systems.onnx_graph import onnx_model

    model = onnx_model(program).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    fed = {item.name: array for item, array in zip(session.get_inputs(), arguments, strict=True)}
    return Prepared(lambda: session.run(None, fed))


# TVM.


def _tensors(program: Program, arguments: Sequence[Array]) -> list[Any]:
    import tvm

    return [tvm.runtime.tensor(np.array(each, order="C")) for each in (*arguments, *program.constants.values())]


def _tvm_vm(program: Program, arguments: Sequence[Array], threads: int) -> Prepared:
    from autotm.kernels.target import host_target
    from autotm.systems.relax_vm import compiled, with_conditions

    program = with_conditions(program)
    machine, kernels = compiled(program, host_target(threads), threads)
    values, main = _tensors(program, arguments), machine["main"]
    return Prepared(lambda: main(*values), lambda: _vm_kernel_ms(machine, kernels, lambda: main(*values)))


def _tvm_py(program: Program, arguments: Sequence[Array], threads: int) -> Prepared:
    from autotm.kernels.target import host_target
    from autotm.systems.relax_vm import compiled_pieces

    source, pieces = python_source(program, in_pieces=True)
    machine, kernels = compiled_pieces(pieces, host_target(threads), threads)
    scope = {piece.name: machine[piece.name] for piece in pieces}
    exec(source, {"holds": lambda flag: bool(flag.numpy()), **scope}, scope)  # noqa: S102 - The source is ours.
    values, main = _tensors(program, arguments), scope["main"]
    return Prepared(lambda: main(*values), lambda: _vm_kernel_ms(machine, kernels, lambda: main(*values)))


def _vm_kernel_ms(machine: Any, kernels: Collection[str], call: Callable[[], object]) -> float:
    """Return the time within kernels, as TVM tells an instrument; it has what the telling takes in it."""
    spent, begun = [0.0], [0.0]

    def told(_function: object, name: str, is_before: bool, *_: object) -> None:
        if name not in kernels:
            return
        if is_before:
            begun[0] = time.perf_counter()
        else:
            spent[0] += time.perf_counter() - begun[0]

    machine.set_instrument(told)
    call()
    spent[0] = 0.0
    call()
    return spent[0] * 1e3


def _fused(program: Program, arguments: Sequence[Array], threads: int) -> Prepared:
    from autotm.control.function import compile_program

    function = compile_program(program, threads=threads)
    placed = [_aligned(each) for each in arguments]
    return Prepared(lambda: function(*placed))


def _aligned(array: Array) -> Array:
    from autotm.kernels.library import aligned_empty

    own = aligned_empty(array.shape, str(array.dtype))
    own[...] = array
    return own


_SYSTEMS: Mapping[str, Callable[[Program, Sequence[Array], int], Prepared]] = {
    "torch": _torch,
    "torch.compile": _torch_compile,
    "torchscript": _torchscript,
    "onnxruntime": _onnxruntime,
    "jax": _jax,
    "tvm-py": _tvm_py,
    "tvm-vm": _tvm_vm,
}
