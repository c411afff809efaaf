"""Memory of results: that of the arguments they replace, if no kernel reads these later; updates run early."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import tvm
import tvm_ffi
from tvm import s_tir, te, tirx, topi
from tvm.s_tir import Schedule

from autotm.kernels.schedules.dispatch import FRAMEWORK
from autotm.kernels.tir import loads_of, top_blocks
from autotm.lower.calls import Call
from autotm.lower.step import Result
from autotm.model.graph import Operand

# Execution order: an update runs as soon as nobody needs the old value.


def early_updates(calls: list[Call], aliases: Mapping[str, str]) -> list[Call]:
    """Reorder `calls` so that each update follows its inputs and the last other reader of what it replaces.

    Autodiff leaves every update at the end, which would keep all gradients and the activations that they are made of
    alive at once. The update writes over the old value, so other readers of that must come before it. Calls that would
    have to come before one another (two updates, each of which reads what the other replaces) are left out. `aliases`
    are the arguments whose memory new values take.
    """
    producer = {output.tensor: index for index, call in enumerate(calls) for output in call.outputs}
    readers: dict[str, set[int]] = defaultdict(set)
    for index, call in enumerate(calls):
        for operand in call.inputs:
            readers[operand.tensor].add(index)
    after: dict[int, list[int]] = defaultdict(list)
    waits = []
    for index, call in enumerate(calls):
        before = {producer[operand.tensor] for operand in call.inputs if operand.tensor in producer}
        replaced = (aliases[output.tensor] for output in call.outputs if output.tensor in aliases)
        before = before.union(*(readers[old] for old in replaced)) - {index}
        waits.append(len(before))
        for other in before:
            after[other].append(index)
    is_update = [any(output.tensor in aliases for output in call.outputs) for call in calls]
    ready = [(not is_update[index], index) for index, count in enumerate(waits) if count == 0]
    heapq.heapify(ready)
    ordered = []
    while ready:
        _, index = heapq.heappop(ready)
        ordered.append(calls[index])
        for later in after[index]:
            waits[later] -= 1
            if waits[later] == 0:
                heapq.heappush(ready, (not is_update[later], later))
    return ordered


Functions = Mapping[str, tirx.PrimFunc]
_PARALLEL = 0
"""TVM's number for the kind of a data-parallel axis."""


@dataclass(frozen=True)
class Placed:
    """The calls of a step in the order of execution.

    Attributes:
        calls: the given ones, and copies of results that their own call cannot write over the argument they replace.
        functions: of every call, by name.
        results: each as an operand of the call that writes it.
    """

    calls: list[Call]
    functions: Functions
    results: list[Operand]


def place_results(
    calls: list[Call], returned: Sequence[Operand], results: Sequence[Result], functions: Functions
) -> Placed:
    """Give each result memory of its own, or that of the argument which it replaces.

    A result is copied there if it is an argument itself, or another result; if the kernel that makes it may still read
    elements of the replaced argument where it has written already; or if no order of the calls lets all others read the
    old values first. Arguments that replace one another in a ring are copied twice, first aside. `returned` are the
    operands that hold the results, `functions` are unscheduled, by name.
    """
    makers = {output.tensor: call for call in calls for output in call.outputs}
    taken: set[str] = set()
    copies = []
    for operand, result in zip(returned, results, strict=True):
        maker = makers.get(operand.tensor)
        is_own = maker is not None and operand.tensor not in taken
        copies.append(int(not is_own or not _may_replace(functions, maker, operand, result)))
        taken.add(operand.tensor)
    while True:
        placed = _with_copies(calls, returned, results, functions, copies)
        pairs = zip(placed.results, results, strict=True)
        aliases = {operand.tensor: result.replaces for operand, result in pairs if result.replaces is not None}
        ordered = early_updates(placed.calls, aliases)
        if len(ordered) == len(placed.calls):
            return replace(placed, calls=ordered)
        done = {output.tensor for call in ordered for output in call.outputs}
        stuck = (n for n, operand in enumerate(placed.results) if operand.tensor in aliases.keys() - done)
        copies[min(stuck, key=copies.__getitem__)] += 1


def _with_copies(
    calls: list[Call],
    returned: Sequence[Operand],
    results: Sequence[Result],
    functions: Functions,
    copies: Sequence[int],
) -> Placed:
    more, all_functions, placed = [], dict(functions), []
    for operand, result, count in zip(returned, results, copies, strict=True):
        target = operand
        for number in range(count):
            source, target = target, replace(operand, tensor=f"{result.name}#copy{number}")
            name = f"copy_{operand.dtype}_{'x'.join(map(str, operand.shape))}"
            buffer = te.placeholder(operand.shape, operand.dtype, name="source")
            all_functions.setdefault(name, te.create_prim_func([buffer, topi.identity(buffer)]))
            more.append(Call(name, (source,), (target,)))
        placed.append(target)
    return Placed([*calls, *more], all_functions, placed)


def _may_replace(functions: Functions, call: Call, operand: Operand, result: Result) -> bool:
    """Return whether the kernel may write the result over the argument that it replaces, as far as its own reads go."""
    slots = [slot for slot, item in enumerate(call.inputs) if item.tensor == result.replaces]
    if not slots:
        return True
    func = functions[call.function]
    if FRAMEWORK in func.attrs:
        return False
    output = next(slot for slot, item in enumerate(call.outputs) if item.tensor == operand.tensor)
    return all(_is_known_in_place(func, slot, len(call.inputs) + output) for slot in slots)


_IN_PLACE: dict[tuple[int, int, int], bool] = {}
"""What `_is_in_place` told of a function's structure and two of its operands: steps have many updates of one kind."""


def _is_known_in_place(func: tirx.PrimFunc, old: int, new: int) -> bool:
    """Return `_is_in_place` of two operands; of functions of one structure the first is looked at."""
    key = tvm_ffi.structural_hash(func, map_free_vars=True), old, new
    if key not in _IN_PLACE:
        _IN_PLACE[key] = _is_in_place(func, func.params[old], func.params[new])
    return _IN_PLACE[key]


def _is_in_place(func: tirx.PrimFunc, old: tirx.Buffer, new: tirx.Buffer) -> bool:
    """Return whether an element of `old` is read for the same element of `new` only, and no later than that is written.

    What is computed from `old` counts as `old`: it may be inlined wherever it is read.
    """
    schedule = Schedule(tvm.IRModule({"main": func}))
    derived, is_written = [old], False
    for block in map(schedule.get, top_blocks(schedule)):
        if not block.writes:
            return False  # Code that TVM does not look into.
        target = block.writes[0].source
        if any(_is_among(load.source, derived) for load in loads_of(block.body)):
            if is_written or not _is_elementwise(block, derived):
                return False
            derived += [] if target.same_as(new) else [target]
        is_written |= target.same_as(new)
    return True


def _is_elementwise(block: s_tir.SBlock, buffers: list[tirx.Buffer]) -> bool:
    """Return whether a block reads `buffers` nowhere but at the element that it writes."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or any(int(axis.iter_type) != _PARALLEL for axis in block.iter_vars):
        return False
    axes = [axis.var for axis in block.iter_vars if int(axis.dom.extent) > 1]
    is_once = all(any(index.same_as(axis) for index in store.indices) for axis in axes)
    return is_once and all(
        index is not None and index.same_as(stored)
        for load in loads_of(block.body)
        if _is_among(load.source, buffers)
        for index, stored in itertools.zip_longest(load.indices, store.indices)
    )


def _is_among(buffer: tirx.Buffer, buffers: list[tirx.Buffer]) -> bool:
    return any(buffer.same_as(other) for other in buffers)
