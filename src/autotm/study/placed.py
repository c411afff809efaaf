"""A plan with addresses: where each stay is, and what a byte of fast memory is worth during each kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from autotm.check.plan import kernel_times_us
from autotm.model.errors import BadInputError
from autotm.model.files import hash_of
from autotm.model.graph import Graph, Tier
from autotm.model.links import Links, OverlapCosts
from autotm.model.plan import KernelPrices, Plan
from autotm.model.profile import Profile
from autotm.model.program import Program
from autotm.model.record import Record
from autotm.study.tables import write_table


def stay_offsets(plan: Plan, program: Program) -> tuple[int, ...]:
    """Return the offset of each stay of the plan in its tier's pool, in bytes.

    Raises:
        BadInputError: the program, which runs at these addresses, was made from another plan.
    """
    if program.plan_hash != hash_of(plan):
        raise BadInputError(
            f"the program of {program.optimizer}, limit {program.limit}, was made from another plan; make it again: "
            "autotm compile NETWORK OPTIMIZER LIMIT"
        )
    return plan.one_pool.offsets if plan.one_pool else plan.offsets


BYTES_PER_MB = 1e6


class MemoryPrices:
    """Lagrange multipliers of the limit, from the certificate of a plan (docs/formulation.md, section 5).

    Without a certificate nothing has a price. `kernels` is how many kernels the plan's step has.
    """

    def __init__(self, plan: Plan, kernels: int) -> None:
        self.are_known = plan.certificate is not None
        fast = plan.certificate.fast if plan.certificate else KernelPrices()
        price_us = dict(zip(fast.kernels, fast.prices_us, strict=True))
        self.us_per_mb = [price_us.get(kernel, 0.0) * BYTES_PER_MB for kernel in range(kernels)]
        self._until = [0.0, *accumulate(self.us_per_mb)]

    def held_us(self, size_bytes: int, start: int, end: int) -> float:
        """Return the holding cost in microseconds of `size_bytes` of fast memory during kernels [start, end)."""
        return size_bytes / BYTES_PER_MB * (self._until[end] - self._until[start])

    @property
    def total_us_per_mb(self) -> float:
        """Microseconds that 1 MB more would save of the best step, as far as prices hold."""
        return self._until[-1]


@dataclass(frozen=True)
class Placed:
    """A plan with addresses, what it was made from and, where it ran, what that measured.

    Attributes:
        graph: the step as limits see it, with all implementations.
        profile: times of its kernels.
        links: copy times.
        plan: the plan of that step.
        program: the program made from the plan.
        source: provenance of the plan: machine, threads, versions, seed.
        record: record of a run of the program; None where there was no run.
        again_us: predicted microseconds of kernels of the graph that compute again what others did.
    """

    graph: Graph
    profile: Profile
    links: Links
    plan: Plan
    program: Program
    source: Mapping[str, Any]
    record: Record | None = None
    again_us: float = 0.0

    @cached_property
    def step(self) -> Graph:
        """The step with the plan's implementations, as it is called."""
        return self.plan.step_of(self.graph)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Of each stay, bytes from the start of its tier's pool.

        Raises:
            BadInputError: the program was made from another plan.
        """
        return stay_offsets(self.plan, self.program)

    @cached_property
    def kernels_us(self) -> list[float]:
        """Predicted microseconds of each kernel."""
        return list(kernel_times_us(self.graph, self.profile, self.plan, self.links))

    @cached_property
    def moves_us(self) -> list[float]:
        """Predicted microseconds that each move adds to the step."""
        sizes = self.step.by_name
        overlapped = OverlapCosts(self.graph, self.profile, self.links)
        return [overlapped.move_us(move, sizes[move.tensor].size_bytes) for move in self.plan.moves]

    @cached_property
    def all_fast_us(self) -> float:
        """Predicted microseconds of the step with everything in fast memory, and computed once."""
        return sum(map(self.profile.base_us, self.graph.computed_by(()).kernels)) - self.again_us

    @property
    def tier_reality(self) -> str:
        """Whether slow memory was `real`, `emulated`, `modelled` or a `stand-in` where kernels were timed."""
        return str(self.profile.provenance.get("tier_reality", self.source.get("tier_reality")))


_UNQUOTED = "/:.@#+=()[]|!*'<>{}$&;?^`~ "
"""Characters of an id, besides letters, digits and `_.-~`, that are not escaped. A comma must be: MiniMalloc knows no
quotes around it."""


def write_stays(placed: Placed, files: dict[Tier, Path]) -> None:
    """Write the stays of each pool to its file, for other packers to read.

    A line is `id,lower,upper,size,offset`: the buffer takes `size` bytes at `offset` during kernels [lower, upper); its
    id is the tensor's name and its first kernel, with `%2C` for a comma and so on. Lines end with a line feed: with a
    carriage return before it, MiniMalloc would not know the last column.

    Raises:
        BadInputError: the program was made from another plan.
    """
    sizes = placed.step.by_name
    for tier, path in files.items():
        rows = []
        for stay, offset in zip(placed.plan.stays, placed.offsets, strict=True):
            if stay.tier is tier:
                name = f"{quote(stay.tensor, _UNQUOTED)}@{stay.start}"
                rows.append((name, stay.start, stay.end, sizes[stay.tensor].allocated_bytes, offset))
        write_table(pd.DataFrame(rows, columns=["id", "lower", "upper", "size", "offset"]), path)
