"""Kernels that are operators of PyTorch: compiled code calls them by name, on the memory that a plan gives.

Such a kernel is a function of TVM whose body is one call of `FRAMEWORK_CALL`, with a description of the operator as
text and the addresses of its operands. This file makes the call; only processes that run such kernels import PyTorch.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import tvm_ffi

from autotm.kernels.library import FRAMEWORK_CALL, ON_LEAVING, pinned_machine
from autotm.model.errors import BadInputError

_KINDS = {"dtype": torch.dtype, "memory_format": torch.memory_format, "layout": torch.layout}
_BOUND = 16384
"""Calls whose views and arguments are kept: more than a step has kernels."""
_STARTING_ITEMS = 1 << 18
"""Elements of a sum that PyTorch shares among all its threads (32 768 each, at least), which starts them."""
_PLACES = 1 << 20
"""More than a step has places that draw random numbers: seeds of different steps do not meet."""
_ON = threading.local()


@dataclass(frozen=True)
class Operation:
    """An operator of PyTorch with its arguments, as text that compiled code holds.

    Attributes:
        operator: such as `aten::linalg_inv_ex.default`.
        arguments, named: of JSON's values, and mappings of one key for what JSON lacks: `{"tensor": number}` for an
            operand, `{"strided": [number, strides]}` for a copy of one that lies otherwise, `{"operation": [operator,
            arguments, named]}` for a view of one, `{"item": [value, number]}` for a part of a tuple, `{"constant":
            [values, shape, type]}`, `{"dtype": name}` and so on.
        operands: shape and type of PyTorch of each input.
        results: of each result that is kept: its number, shape and type.
        place: where the operator draws random numbers, its number among such operators; its first input is then the
            step's counter.
    """

    operator: str
    arguments: list[Any]
    named: dict[str, Any]
    operands: list[tuple[list[int], str]]
    results: list[tuple[int, list[int], str]]
    place: int | None = None

    def text(self) -> str:
        """Return the operation as JSON."""
        return json.dumps([self.operator, self.arguments, self.named, self.operands, self.results, self.place])

    @classmethod
    def read(cls, text: str) -> Operation:
        """Read what `text` gave."""
        return cls(*json.loads(text))


def encoded(value: Any) -> Any:
    """Return an argument of an operator as JSON has it; tensors are encoded by the caller, who numbers them.

    Raises:
        TypeError: it is of a kind that has no code.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, torch.device):
        return {"device": value.type}
    for name, kind in _KINDS.items():
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    raise TypeError(f"a {type(value).__name__} among its arguments")


def constant_as_text(value: torch.Tensor) -> dict[str, Any]:
    """Return a tensor known before the step as JSON has it."""
    plain = torch.view_as_real(value.detach()) if value.is_complex() else value.detach()
    wide = plain.to(torch.float64) if plain.is_floating_point() else plain
    return {"constant": [wide.flatten().tolist(), list(value.shape), str(value.dtype).removeprefix("torch.")]}


def operator_of(name: str) -> Any:
    """Return the operator of that name; a library that registers operators is imported for its own.

    Raises:
        RuntimeError: there is none.
    """
    space, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    try:
        if not hasattr(torch.ops, space) or not hasattr(getattr(torch.ops, space), packet):
            importlib.import_module(space)
        return getattr(getattr(getattr(torch.ops, space), packet), overload)
    except (AttributeError, ImportError) as error:
        raise RuntimeError(
            f"operator {name} is not known to PyTorch here; import the library that registers it first"
        ) from error


def _start_threads() -> None:
    """Give PyTorch's operators the threads of `pinned`, until that is left.

    They keep the cores that this thread may use when they start; `pinned` holds this thread on one of them.
    """
    machine = pinned_machine()
    if machine is None or getattr(_ON, "threads_before", 0):
        return
    _ON.threads_before = torch.get_num_threads()
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, machine.cpus)
    try:
        torch.set_num_threads(machine.threads)
        torch.ones(_STARTING_ITEMS).sum()
    finally:
        os.sched_setaffinity(0, before)


def _give_back_threads() -> None:
    """Give PyTorch the number of threads that it had before the first operator in `pinned`."""
    if before := getattr(_ON, "threads_before", 0):
        torch.set_num_threads(before)
        _ON.threads_before = 0


def _run(text: str, *addresses: Any) -> None:
    _start_threads()
    try:
        _bound(text, tuple(address.value for address in addresses))()
    except Exception as error:
        raise BadInputError(
            f"{Operation.read(text).operator}: PyTorch refuses what the step computed for it: {error}"
        ) from error


@functools.lru_cache(maxsize=_BOUND)
def _bound(text: str, addresses: tuple[int, ...]) -> Callable[[], None]:
    """Return the operator as a call without arguments on the memory at these addresses."""
    operation = Operation.read(text)
    operands = [_view(at, shape, kind) for at, (shape, kind) in zip(addresses, operation.operands, strict=False)]
    behind = addresses[len(operands) :]
    kept = [_view(at, shape, kind) for at, (_, shape, kind) in zip(behind, operation.results, strict=False)]
    return bound(operation, operands, kept)


def bound(operation: Operation, operands: Sequence[torch.Tensor], kept: Sequence[torch.Tensor]) -> Callable[[], None]:
    """Return an operation as a call without arguments, which reads its operands and writes what is kept of its results.

    An operator that has an `out` form writes its results in place; those of others are copied.
    """
    operator = operator_of(operation.operator)
    drawing = contextlib.nullcontext
    if operation.place is not None:
        counter, *operands = operands
        drawing = functools.partial(seeded, counter, operation.place)
    numbers = [number for number, *_ in operation.results]
    writing = _writing(operator, numbers)
    outputs = {} if writing is None else dict(zip(writing[1], kept, strict=True))

    def call() -> None:
        with torch.no_grad(), drawing():
            # Views of operands are made anew: an operator may change how a view lies, though never what it holds.
            arguments = _decoded(operation.arguments, operands)
            named = {key: _decoded(value, operands) for key, value in operation.named.items()}
            if writing is not None:
                writing[0](*arguments, **named, **outputs)
                return
            returned = operator(*arguments, **named)
            several = returned if isinstance(returned, tuple | list) else (returned,)
            for number, result in zip(numbers, kept, strict=True):
                result.copy_(several[number])

    return call


def _writing(operator: Any, numbers: Sequence[int]) -> tuple[Any, list[str]] | None:
    """Return the `out` form of an operator and the names of its outputs; None if it has none."""
    own = operator._schema  # noqa: SLF001 - as PyTorch's own tools read it
    if len(numbers) != len(own.returns) or torch.Tag.nondeterministic_seeded in operator.tags:
        return None
    for name in operator.overloadpacket.overloads():
        schema = getattr(operator.overloadpacket, name)._schema  # noqa: SLF001
        written = [item.name for item in schema.arguments if item.is_out]
        read = [(item.name, str(item.type)) for item in schema.arguments if not item.is_out]
        if len(written) == len(numbers) and read == [(item.name, str(item.type)) for item in own.arguments]:
            return getattr(operator.overloadpacket, name), written
    return None


def _decoded(value: Any, operands: Sequence[torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_decoded(item, operands) for item in value]
    if not isinstance(value, Mapping):
        return value
    ((kind, held),) = value.items()
    return _DECODERS[kind](held, operands) if kind in _DECODERS else getattr(torch, held)


def _constant(values: list[Any], shape: Sequence[int], kind: str) -> torch.Tensor:
    dtype = getattr(torch, kind)
    if dtype.is_complex:
        return torch.view_as_complex(torch.tensor(values, dtype=dtype.to_real()).reshape(*shape, 2))
    return torch.tensor(values, dtype=dtype).reshape(shape)


_DECODERS: dict[str, Callable[[Any, Sequence[torch.Tensor]], Any]] = {
    "tensor": lambda held, operands: operands[held],
    "strided": lambda held, operands: torch.empty_strided(
        operands[held[0]].shape, held[1], dtype=operands[held[0]].dtype
    ).copy_(operands[held[0]]),
    "operation": lambda held, operands: operator_of(held[0])(
        *_decoded(held[1], operands), **{key: _decoded(value, operands) for key, value in held[2].items()}
    ),
    "item": lambda held, operands: _decoded(held[0], operands)[held[1]],
    "constant": lambda held, _: _constant(*held),
    "complex": lambda held, _: complex(*held),
    "device": lambda held, _: torch.device(held),
}
"""Decoders of values that `Operation` writes as a mapping, by the mapping's key; other keys hold names in PyTorch."""


def _view(address: int, shape: Sequence[int], kind: str) -> torch.Tensor:
    dtype = getattr(torch, kind)
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=dtype).view(shape)


@contextlib.contextmanager
def seeded(counter: torch.Tensor, place: int) -> Iterator[None]:
    """Let an operator draw the numbers of its place in this step, and the user's own draws go on as they were."""
    generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(int(counter.item()) * _PLACES + place)
    try:
        yield
    finally:
        generator.set_state(before)


ON_LEAVING.append(_give_back_threads)
tvm_ffi.register_error("BadInputError", BadInputError)
tvm_ffi.register_global_func(FRAMEWORK_CALL, _run, override=True)
