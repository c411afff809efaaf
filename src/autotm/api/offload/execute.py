"""Runs a step: PyTorch's operators, with copies, waits and memory given back between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from autotm.api.offload.graph import Operator, Slots, Step, Values, keep
from autotm.api.offload.schedule import Before
from autotm.memory.torch import Copies

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
        self._flying[number] = self._executor.copies.start_outward(self._host(place, offset), self._bytes[place])

    def _in(self, number: int, place: int, offset: int) -> None:
        self._bytes[place].untyped_storage().resize_(self._executor.sizes[place])
        if self._executor.poison:
            self._bytes[place].fill_(_POISON_BYTE)
        self._flying[number] = self._executor.copies.start_inward(self._bytes[place], self._host(place, offset))

    def _host(self, place: int, offset: int) -> torch.Tensor:
        return self._executor.pool[offset : offset + self._executor.sizes[place]]

    def _free(self, place: int) -> None:
        if self._executor.poison:
            self._bytes[place].fill_(_POISON_BYTE)
        self._bytes[place].untyped_storage().resize_(0)
