"""A tensor's way through the step, and what it means in stays, moves, bytes and microseconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotm.model.plan import Move, Stay
from autotm.model.tier import Tier
from autotm.solve.flow import Flow


@dataclass(frozen=True, slots=True)
class Journey:
    """Whether the tensor is fast at each of m gadgets, and stays fast over each of the m - 1 gaps between."""

    fast: tuple[bool, ...]
    between: tuple[bool, ...]

    @property
    def first_leave(self) -> int:
        """Gadgets of the fast run that starts at birth; m when it never leaves, 0 when born slow."""
        if not self.fast[0]:
            return 0
        count = 1
        while count < len(self.fast) and self.between[count - 1]:
            count += 1
        return count

    def reads(self) -> list[int]:
        """Gadgets just before which the tensor is read back to fast memory."""
        return [k for k in range(1, len(self.fast)) if self.fast[k] and not self.between[k - 1]]


def all_slow(flow: Flow) -> Journey:
    """Never fast."""
    return Journey((False,) * len(flow), (False,) * (len(flow) - 1))


def cost_us(flow: Flow, journey: Journey) -> float:
    """What the journey adds to the all-fast step: slow operands, one write at most, and read-backs."""
    slow = sum(cost for cost, fast in zip(flow.slow_us, journey.fast, strict=True) if not fast)
    write = flow.write_us if 0 < journey.first_leave < len(flow) else 0.0
    return slow + write + flow.read_us * len(journey.reads())


def fast_spans(flow: Flow, journey: Journey) -> list[tuple[int, int]]:
    """Kernel spans [start, end) during which the tensor holds fast memory, ascending, one for each stay."""
    spans: list[tuple[int, int]] = []
    for k, fast in enumerate(journey.fast):
        if not fast:
            continue
        if k and journey.between[k - 1]:
            spans[-1] = (spans[-1][0], flow.stops[k])
        else:
            spans.append((flow.starts[k], flow.stops[k]))
    return spans


def occupy(used: npt.NDArray[np.int64], flow: Flow, journey: Journey, sign: int = 1) -> None:
    """Add (or with `sign` -1 remove) the journey's bytes to the fast bytes in use during each kernel."""
    for start, end in fast_spans(flow, journey):
        used[start:end] += sign * flow.size_bytes


def stays_and_moves(flow: Flow, journey: Journey) -> tuple[list[Stay], list[Move]]:
    """The journey as a plan states it.

    The write comes just before the kernel after the last gadget of the first fast run; a read just before its gadget.
    The slow copy is held until the last gadget that needs it, as operand or as the source of a read.
    """
    stays = [Stay(flow.tensor, Tier.DRAM, start, end) for start, end in fast_spans(flow, journey)]
    moves = [Move(flow.tensor, Tier.DRAM, flow.starts[k]) for k in journey.reads()]
    needs = [k for k in range(len(flow)) if not journey.fast[k] or k in journey.reads()]
    if needs:
        left = journey.first_leave
        start = flow.starts[0] if left == 0 else flow.stops[left - 1]
        last = needs[-1]
        end = flow.stops[last] if not journey.fast[last] else flow.starts[last] + 1
        stays.append(Stay(flow.tensor, Tier.PMEM, start, end))
        if left:
            moves.append(Move(flow.tensor, Tier.PMEM, start))
    return stays, moves


def stay_order(stay: Stay) -> tuple[int, str, Tier]:
    """Sort key of a plan's stays."""
    return stay.start, stay.tensor, stay.tier


def move_order(move: Move) -> tuple[int, bool, str]:
    """Sort key of a plan's moves: before one kernel, to slow memory first."""
    return move.before, move.destination is Tier.DRAM, move.tensor
