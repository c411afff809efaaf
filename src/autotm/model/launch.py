"""A kernel on a GPU as data: functions launched with threads and operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

Extents = tuple[int, int, int]
"""(x, y, z)."""


@dataclass(frozen=True)
class Launch:
    """One launch of a device function. Shapes are known, so grids are numbers.

    Attributes:
        function: its name in the fatbin (`extern "C"`); its parameters are pointers to device memory.
        arguments: which operand each parameter is: positions among the kernel's inputs, outputs, then workspaces.
        grid: thread blocks.
        block: threads of a block.
    """

    function: str
    arguments: tuple[int, ...]
    grid: Extents
    block: Extents

    def to_json(self) -> dict[str, Any]:
        """As what JSON can say."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Launch:
        """What `to_json` said."""
        arguments, grid, block = (tuple(found[key]) for key in ("arguments", "grid", "block"))
        return cls(found["function"], arguments, grid, block)
