"""Running a step: the copies before each operator, in the order that `Move` states, and the operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from autotm.api.offload.joint_graph import Operator, Slots, Step, Values, keep
from autotm.memory.torch_device import Copies
from autotm.model.graph import Tier
from autotm.model.plan import Move, Plan
from autotm.model.program import Layout


@dataclass
class Before:
    """Before one operator, in this order.

    Attributes:
        waits: numbers of copies that must be complete.
        emptied: (storage, offset) on the host that are read no more.
        written: (copy, storage, offset on the host) to the host, which the step waits for.
        freed: storages whose device memory is given back.
        read: (copy, storage, offset) from the host, which the step waits for.
        starts_out, starts_in: (copy, storage, offset), to run beside operators.
    """

    waits: list[int] = field(default_factory=list)
    emptied: list[tuple[int, int]] = field(default_factory=list)
    written: list[tuple[int, int, int]] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    read: list[tuple[int, int, int]] = field(default_factory=list)
    starts_out: list[tuple[int, int, int]] = field(default_factory=list)
    starts_in: list[tuple[int, int, int]] = field(default_factory=list)


def schedule(plan: Plan, layout: Layout, places: dict[str, int], kernels: int) -> list[Before]:
    """What is done before each kernel, and at the end.

    Args:
        plan: with every operand in fast memory.
        layout: of it.
        places: the storage of each tensor that moves or is freed; workspaces and arguments have none.
        kernels: of the plan's graph.
    """
    found = [Before() for _ in range(kernels + 1)]
    slow: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for stay, offset in zip(layout.stays, layout.offsets, strict=True):
        if stay.tensor not in places:
            continue
        if stay.tier is Tier.FAST:
            found[stay.end].freed.append(places[stay.tensor])
        else:
            slow[stay.tensor].append((stay.start, stay.end, offset))
            found[stay.end].emptied.append((places[stay.tensor], offset))
    for number, move in enumerate(plan.moves):
        copy = number, places[move.tensor], _offset(slow[move.tensor], move)
        is_out = move.destination is Tier.SLOW
        if move.since is None:
            (found[move.before].written if is_out else found[move.before].read).append(copy)
            continue
        found[move.before].waits.append(number)
        (found[move.since].starts_out if is_out else found[move.since].starts_in).append(copy)
    return found


def _offset(stays: list[tuple[int, int, int]], move: Move) -> int:
    """Where on the host the copy goes to, or comes from."""
    (offset,) = [offset for start, end, offset in stays if start <= move.start < end]
    return offset


_POISON_BYTE = 0xFF
"""Of a NaN, in every floating-point type."""


@dataclass
class Executor:
    """A planned step, bound to PyTorch's operators and a pool of host memory.

    Attributes:
        step: what runs.
        slots: places of its nodes.
        before: what is done before each operator, before the results are taken, and at the end.
        pool: bytes of host memory.
        copies: the streams.
        sizes: of each storage in bytes, as measured.
        poison: on a CPU, for tests: overwrite memory when it is given back and when it is taken, on both sides;
            who reads too early or too late reads NaN.
    """

    step: Step
    slots: Slots
    before: list[Before]
    pool: torch.Tensor
    copies: Copies
    sizes: tuple[int, ...]
    poison: bool = False

    def __post_init__(self) -> None:
        self._calls = [self.slots.call(operator.node) for operator in self.step.operators]

    def run(self, values: Values) -> None:
        """Run the step on values that hold its arguments; results are in the values then, all else is given up.

        Raises:
            AutotmError: a copy failed.
        """
        run = _Run(self, values)
        for view in self.step.argument_views:
            values[self.slots[view]] = self.slots.call(view)(values)
        try:
            for before, operator, call in zip(self.before, self.step.operators, self._calls, strict=False):
                run.prepare(before)
                run.call(operator, call)
            run.prepare(self.before[len(self.step.operators)])
        except BaseException:
            self.copies.drain()  # Memory of a copy that is under way must not go.
            raise


class _Run:
    """One step under way."""

    def __init__(self, executor: Executor, values: Values) -> None:
        self._executor, self._values = executor, values
        self._bytes: dict[int, torch.Tensor] = {}
        self._flying: dict[int, object] = {}

    def prepare(self, before: Before) -> None:
        copies = self._executor.copies
        for number in before.waits:
            copies.wait(self._flying.pop(number))
        if self._executor.poison:
            for place, offset in before.emptied:
                self._host(place, offset).fill_(_POISON_BYTE)
        for number, place, offset in before.written:
            self._out(number, place, offset)
            copies.wait(self._flying.pop(number))
        for place in before.freed:
            self._free(place)
        for number, place, offset in before.read:
            self._in(number, place, offset)
            copies.wait(self._flying.pop(number))
        for number, place, offset in before.starts_out:
            self._out(number, place, offset)
        for number, place, offset in before.starts_in:
            self._in(number, place, offset)

    def call(self, operator: Operator, call: Callable[[Values], object]) -> None:
        executor = self._executor
        self._bytes.update(keep(executor.step, executor.slots, self._values, operator, call(self._values)))

    def _out(self, number: int, place: int, offset: int) -> None:
        self._flying[number] = self._executor.copies.start(Tier.SLOW, self._host(place, offset), self._bytes[place])

    def _in(self, number: int, place: int, offset: int) -> None:
        self._bytes[place].untyped_storage().resize_(self._executor.sizes[place])
        if self._executor.poison:
            self._bytes[place].fill_(_POISON_BYTE)
        self._flying[number] = self._executor.copies.start(Tier.FAST, self._bytes[place], self._host(place, offset))

    def _host(self, place: int, offset: int) -> torch.Tensor:
        return self._executor.pool[offset : offset + self._executor.sizes[place]]

    def _free(self, place: int) -> None:
        if self._executor.poison:
            self._bytes[place].fill_(_POISON_BYTE)
        self._bytes[place].untyped_storage().resize_(0)
