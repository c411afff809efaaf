"""A tensor's way through the step, and what it means in stays, moves, bytes and microseconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from autotm.model.plan import Move, Stay
from autotm.model.step import Tier
from autotm.solve.problem.flow import Flow
from autotm.solve.problem.window import Window


@dataclass(frozen=True, slots=True)
class Residency:
    """One way of a tensor.

    Attributes:
        fast: whether it is fast at each of m gadgets.
        between: whether it stays fast over each of the m - 1 gaps between.
        out: the window of its copy to slow memory; None where that is blocking, or there is none.
        back: (gadget, window) of its asynchronous read-backs, ascending.
    """

    fast: tuple[bool, ...]
    between: tuple[bool, ...]
    out: Window | None = None
    back: tuple[tuple[int, Window], ...] = ()

    @property
    def first_leave(self) -> int:
        """Gadgets of the fast run that starts at birth; m when it never leaves, 0 when born slow."""
        if not self.fast[0]:
            return 0
        count = 1
        while count < len(self.fast) and self.between[count - 1]:
            count += 1
        return count

    def beside(self, out: Window | None, back: tuple[tuple[int, Window], ...]) -> Residency:
        """The same with these windows."""
        return self if (self.out, self.back) == (out, back) else replace(self, out=out, back=back)

    def reads(self) -> list[int]:
        """Gadgets just before which the tensor is read back to fast memory."""
        return [k for k in range(1, len(self.fast)) if self.fast[k] and not self.between[k - 1]]


@lru_cache(1 << 16)
def by_blocking_moves(fast: tuple[bool, ...], between: tuple[bool, ...]) -> Residency:
    """A residency without windows; one object for equal ones, of which a large step has many."""
    return Residency(fast, between)


def all_slow(flow: Flow) -> Residency:
    """Never fast."""
    return by_blocking_moves((False,) * len(flow), (False,) * (len(flow) - 1))


def cost_us(flow: Flow, residency: Residency) -> float:
    """What the residency adds to the all-fast step: slow operands, one write at most, and read-backs."""
    slow = sum(cost for cost, fast in zip(flow.slow_us, residency.fast, strict=True) if not fast)
    write = 0.0
    if 0 < residency.first_leave < len(flow):
        write = flow.write_us if residency.out is None else residency.out.added_us
    back = dict(residency.back)
    return slow + write + sum(back[k].added_us if k in back else flow.read_us for k in residency.reads())


def fast_spans(flow: Flow, residency: Residency) -> list[tuple[int, int]]:
    """Kernel spans [start, end) during which the tensor holds fast memory, ascending, one for each stay."""
    spans: list[tuple[int, int]] = []
    back = dict(residency.back)
    for k, fast in enumerate(residency.fast):
        if not fast:
            continue
        if k and residency.between[k - 1]:
            spans[-1] = (spans[-1][0], flow.stops[k])
        else:
            spans.append((back[k].start if k in back else flow.starts[k], flow.stops[k]))
    if residency.out is not None:
        spans[0] = (spans[0][0], residency.out.end)
    return spans


def occupy(used: npt.NDArray[np.int64], flow: Flow, residency: Residency, sign: int = 1) -> None:
    """Add (or with `sign` -1 remove) the residency's bytes to the fast bytes in use during each kernel."""
    for start, end in fast_spans(flow, residency):
        used[start:end] += sign * flow.size_bytes


def stays_and_moves(flow: Flow, residency: Residency) -> tuple[list[Stay], list[Move]]:
    """The residency as a plan states it.

    The write begins just before the kernel after the last gadget of the first fast run; a read ends just before its
    gadget. The slow copy is held until the last gadget that needs it, as operand or as the source of a read.
    """
    back = dict(residency.back)
    stays = [Stay(flow.tensor, Tier.DRAM, start, end) for start, end in fast_spans(flow, residency)]
    moves = [
        Move(flow.tensor, Tier.DRAM, flow.starts[k], back[k].start if k in back else None) for k in residency.reads()
    ]
    needs = [k for k in range(len(flow)) if not residency.fast[k] or k in residency.reads()]
    if needs:
        left = residency.first_leave
        start = flow.starts[0] if left == 0 else flow.stops[left - 1]
        last = needs[-1]
        source_end = flow.starts[last] + (last not in back)
        end = flow.stops[last] if not residency.fast[last] else source_end
        stays.append(Stay(flow.tensor, Tier.PMEM, start, end))
        if left:
            before, since = (start, None) if residency.out is None else (residency.out.end, residency.out.start)
            moves.append(Move(flow.tensor, Tier.PMEM, before, since))
    return stays, moves
