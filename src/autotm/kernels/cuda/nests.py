"""The blocks of a fused function as stages: elementwise ones together, reductions by how their threads can read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from autotm.kernels.code import Access, Nest, read_nest, tir, top_blocks
from autotm.kernels.cuda.stage import Stage, each, elements, substituted

_THREADS = 256


@dataclass(frozen=True)
class Loops:
    """A block with its loops: what is stored at each index, and for a reduction what is there before the first term."""

    nest: Nest
    store: tirx.BufferStore
    init: tirx.BufferStore | None

    @property
    def spatial_extents(self) -> list[int]:
        """Extents of the data-parallel axes."""
        return [self.nest.extents[axis] for axis in self.nest.spatial]

    @property
    def reduced_extents(self) -> list[int]:
        """Extents of the reduced axes."""
        return [self.nest.extents[axis] for axis in self.nest.reduction]

    @property
    def result(self) -> tirx.Buffer:
        """What is written."""
        return self.store.buffer

    def at(self, spatial: tir.Index, reduced: tir.Index = 0) -> dict[tirx.Var, tirx.Expr]:
        """Values of the block's variables at row-major positions among its data-parallel and its reduced axes."""
        return {
            **self._values(self.nest.spatial, spatial),
            **self._values(self.nest.reduction, reduced),
        }

    def in_row(self, axes: int, row: tir.Index, inner: tir.Index, reduced: tir.Index = 0) -> dict[tirx.Var, tirx.Expr]:
        """As `at`, with the first data-parallel axes at `row` and the others at `inner`."""
        spatial = self.nest.spatial
        return {
            **self._values(spatial[:axes], row),
            **self._values(spatial[axes:], inner),
            **self._values(self.nest.reduction, reduced),
        }

    def _values(self, axes: Sequence[int], position: tir.Index) -> dict[tirx.Var, tirx.Expr]:
        index = tir.unravel(position, [self.nest.extents[axis] for axis in axes])
        return {self.nest.variables[axis]: tir.number(at) for axis, at in zip(axes, index, strict=True)}


def read_loops(sch: Schedule, block: SBlockRV) -> Loops | None:
    """A block as loops; None if it is not a plain nest of constant extents."""
    nest = read_nest(sch, block)
    statement = sch.get(block)
    if nest is None or (statement.init is not None and not isinstance(statement.init, tirx.BufferStore)):
        return None
    if nest.reduction and statement.init is None:
        return None
    return Loops(nest, statement.body, statement.init)


def all_loops(sch: Schedule) -> list[Loops] | None:
    """Every block of the function in order; None if one is not a plain nest."""
    found = [read_loops(sch, block) for block in top_blocks(sch)]
    return None if not found or any(item is None for item in found) else [item for item in found if item is not None]


def groups_of(blocks: Sequence[Loops]) -> list[list[Loops]]:
    """Neighbouring elementwise blocks of equal extents that one thread can compute at its own element only."""
    groups: list[list[Loops]] = []
    for block in blocks:
        if groups and _joins(groups[-1], block):
            groups[-1].append(block)
        else:
            groups.append([block])
    return groups


def _joins(group: Sequence[Loops], block: Loops) -> bool:
    together = [*group, block]
    if any(item.nest.reduction or item.nest.extents != block.nest.extents for item in together):
        return False
    written = {item.result for item in together}
    least = min(elements(item.result) for item in together)
    # A result may lie in an operand's memory: then each thread must be alone with its element. An operand that is
    # smaller than every result cannot be such memory.
    return all(
        _is_own(access, item.nest) or (access.buffer not in written and elements(access.buffer) < least)
        for item in together
        for access in (*item.nest.loads, *item.nest.stores)
    )


def _is_own(access: Access, nest: Nest) -> bool:
    return len(access.indices) == len(nest.variables) and all(
        index.same_as(variable) for index, variable in zip(access.indices, nest.variables, strict=True)
    )


def elementwise(group: Sequence[Loops]) -> Stage:
    """A thread for each element."""

    def element(index: tirx.Expr) -> tirx.Stmt:
        return tir.sequence([substituted(block.store, block.at(index)) for block in group])

    return each(group[0].nest.iterations, _THREADS, element)
