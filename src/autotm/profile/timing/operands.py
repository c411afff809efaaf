"""Memory for the operands of one kernel at a time: several copies in each tier, filled with ordinary numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from autotm.memory import Tiers
from autotm.model.step import ALIGNMENT_BYTES, Configuration, Graph, Initial, Kernel, Operand, storage_of

Array = npt.NDArray[Any]

MAX_COPIES = 64
"""More copies of a small kernel's operands than this only cost set-up time: they overflow any core's own cache."""

_TEMPLATE_ITEMS = 1 << 20


@dataclass(frozen=True)
class OperandPlan:
    """Addresses of `copies` copies of a kernel's operands, the same in the fast and in the slow pool.

    Attributes:
        offsets: byte offset within a copy, per slot; slots that share memory in the step share it here.
        copy_bytes: size of one copy.
    """

    kernel: Kernel
    offsets: tuple[int, ...]
    copy_bytes: int
    copies: int

    @property
    def pool_bytes(self) -> int:
        """Bytes that the plan needs in each pool."""
        return self.copy_bytes * self.copies

    def views(self, tiers: Tiers, config: Configuration, copy: int) -> list[Array]:
        """One view per slot of copy number `copy`, each in the tier that `config` says."""
        return [
            (tiers.fast if letter == "D" else tiers.slow).view(
                copy * self.copy_bytes + offset, operand.shape, operand.dtype
            )
            for letter, offset, operand in zip(config, self.offsets, self.kernel.operands, strict=True)
        ]


def plan_operands(graph: Graph, kernel: Kernel, rotation_bytes: int) -> OperandPlan:
    """Lay out the operands of `kernel`, in as many copies as fill `rotation_bytes`, at least two."""
    sizes: dict[str, int] = {}
    storages = [storage_of(graph, operand.tensor) for operand in kernel.operands]
    for storage, operand in zip(storages, kernel.operands, strict=True):
        sizes[storage] = max(sizes.get(storage, 0), _padded(operand))
    starts: dict[str, int] = {}
    total = 0
    for storage, size in sizes.items():
        starts[storage] = total
        total += size
    copies = min(max(2, -(-rotation_bytes // total)), MAX_COPIES)
    return OperandPlan(kernel, tuple(starts[storage] for storage in storages), total, copies)


def in_turn(plans: Sequence[OperandPlan]) -> tuple[OperandPlan, ...]:
    """The same layouts with copies of one size and number, so that each finds in any copy what all were given.

    Slots that the kernels share come first in each layout: only what follows them, workspaces, differs.
    """
    copy_bytes, copies = max(plan.copy_bytes for plan in plans), max(plan.copies for plan in plans)
    return tuple(replace(plan, copy_bytes=copy_bytes, copies=copies) for plan in plans)


class Filler:
    """Puts random numbers into operands: floats in [0.5, 1.5), integers 0 or 1, indices from their whole range.

    Such floats neither overflow, nor give NaN under roots, logarithms and quotients, nor become subnormal, which
    would slow kernels down as training data does not.
    """

    def __init__(self, seed: int) -> None:
        self._random = np.random.Generator(np.random.Philox(seed))
        self._draws = self._random.random(_TEMPLATE_ITEMS)
        self._templates: dict[str, Array] = {}

    def fill(self, view: Array, initial: Initial | None = None) -> None:
        """Overwrite all of `view`.

        Args:
            view: memory of an operand.
            initial: how the step fills the operand; new integers of that range each time, so that lookups go
                everywhere in a table.
        """
        if initial is not None and initial.kind == "integers":
            view[...] = self._random.integers(int(initial.scale), size=view.shape)
            return
        template = self._template(str(view.dtype))
        flat = view.reshape(-1)
        for start in range(0, flat.size, template.size):
            part = flat[start : start + template.size]
            part[:] = template[: part.size]

    def _template(self, dtype: str) -> Array:
        if dtype not in self._templates:
            kind = np.dtype(dtype)
            values = self._draws + 0.5
            self._templates[dtype] = values.astype(kind) if kind.kind == "f" else (values >= 1.0).astype(kind)
        return self._templates[dtype]


def _padded(operand: Operand) -> int:
    size = int(np.prod(operand.shape, dtype=np.int64)) * np.dtype(operand.dtype).itemsize
    return max(1, -(-size // ALIGNMENT_BYTES)) * ALIGNMENT_BYTES
