"""All that an optimizer may choose from: the tensors' flows, the kernels' tables, and how they hang together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from autotm.solve.problem.flow import Flow
from autotm.solve.problem.table import Table


@dataclass(frozen=True, slots=True)
class Tie:
    """A flow's tier at one of its gadgets is the tier of an operand of a table."""

    gadget: int
    table: int
    operand: int


@dataclass(frozen=True)
class Choices:
    """The choices of one problem.

    Attributes:
        flows: one per tensor that is placed by itself; `slow_us` leaves out what tables price.
        tables: kernels that have entries to choose from.
        kernel_ns: how long copying engines can work beside each kernel; empty where all moves are blocking.
    """

    flows: tuple[Flow, ...]
    tables: tuple[Table, ...] = ()
    kernel_ns: tuple[int, ...] = ()

    @property
    def has_async_moves(self) -> bool:
        """Whether any move may be asynchronous."""
        return any(any(flow.out + flow.back) for flow in self.flows)

    @cached_property
    def ties(self) -> tuple[tuple[Tie, ...], ...]:
        """Per flow, its ties to tables."""
        by_name = {flow.tensor: index for index, flow in enumerate(self.flows)}
        found: dict[int, list[Tie]] = defaultdict(list)
        for number, table in enumerate(self.tables):
            for operand, name in enumerate(table.operands):
                flow = self.flows[by_name[name]]
                found[by_name[name]].append(Tie(flow.gadget_at(table.kernel), number, operand))
        return tuple(tuple(found[index]) for index in range(len(self.flows)))

    @cached_property
    def operands(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Per table and operand, (flow, gadget)."""
        found: list[list[tuple[int, int]]] = [[(-1, -1)] * len(table.operands) for table in self.tables]
        for index, ties in enumerate(self.ties):
            for tie in ties:
                found[tie.table][tie.operand] = (index, tie.gadget)
        return tuple(map(tuple, found))

    @cached_property
    def most_us(self) -> tuple[tuple[float, ...], ...]:
        """Per flow and gadget, the most that being slow there can add, all else being equal."""
        return self._with_tables([table.most_us for table in self.tables])

    @cached_property
    def least_us(self) -> tuple[tuple[float, ...], ...]:
        """Per flow and gadget, the least that being slow there can add, all else being equal."""
        return self._with_tables([table.least_us for table in self.tables])

    def _with_tables(self, shares: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
        return tuple(
            priced(flow, ties, shares) if ties else flow.slow_us
            for flow, ties in zip(self.flows, self.ties, strict=True)
        )


def priced(flow: Flow, ties: Sequence[Tie], shares: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """What slow memory costs at each gadget when operand o of table j has the share `shares[j][o]` of it."""
    slow_us = list(flow.slow_us)
    for tie in ties:
        slow_us[tie.gadget] += shares[tie.table][tie.operand]
    return tuple(slow_us)
