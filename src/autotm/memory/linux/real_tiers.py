"""Tiers that really are two memories, or stand in for two: nothing is waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from autotm.memory.pool import Pool
from autotm.memory.tiers import Tiers
from autotm.model.files import BadInputError
from autotm.model.machine import Machine
from autotm.model.step import OpClass, Tier


class RealTiers(Tiers):
    """Two pools in memories of their own: kernels and copies take what they take.

    `more_fast` makes fast memory of a size, as the fast pool was made.
    """

    def __init__(self, more_fast: Callable[[int], Pool], fast: Pool, slow: Pool, machine: Machine) -> None:
        super().__init__(fast, slow, machine)
        self._made = more_fast
        self._kind = machine.slow_tier.kind

    def _more_fast(self, size_bytes: int) -> Pool:
        return self._made(size_bytes)

    def copy(self, destination_view: npt.NDArray[Any], source_view: npt.NDArray[Any], destination: Tier) -> None:
        """Copy with all threads."""
        self._copied(destination_view, source_view, destination)

    def kernel_delay_ns(
        self, op_class: OpClass, slow_read_bytes: tuple[int, ...], slow_write_bytes: tuple[int, ...]
    ) -> int:
        """Nothing: slow operands are slow."""
        del op_class, slow_read_bytes, slow_write_bytes
        return 0

    def cache_delay_ns(self, op_class: OpClass, fetched_bytes: int, written_bytes: int, own_bytes: int) -> int:
        """There is no cache before real slow memory.

        Raises:
            BadInputError: always.
        """
        del op_class, fetched_bytes, written_bytes, own_bytes
        raise BadInputError(
            f"memory-mode: fast memory as a cache cannot be run on slow memory of kind {self._kind}, which has none; "
            "choose another optimizer, or a machine whose slow memory is emulated"
        )
