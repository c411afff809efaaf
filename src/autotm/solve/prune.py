"""Exact reductions: what is decided without a solver, and which capacity rows can bind at all.

None of them changes the optimum; `docs/formulation.md` §4 gives the arguments, numbered (P1) to (P5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from autotm.solve.feasible import required_bytes
from autotm.solve.flow import Flow
from autotm.solve.journey import Journey, all_slow, occupy
from autotm.solve.shortest_path import best_journey


@dataclass(frozen=True)
class Reduced:
    """What is left to decide.

    Attributes:
        flows: every tensor's flow with its choices narrowed, in the order given.
        decided: journeys that some optimum contains, by index into `flows`.
        rows: kernels whose capacity can bind, ascending.
        room: bytes of fast memory per row for the undecided flows.
    """

    flows: tuple[Flow, ...]
    decided: dict[int, Journey]
    rows: tuple[int, ...]
    room: tuple[int, ...]


def reduce(flows: Sequence[Flow], limit_bytes: int, kernels: int) -> Reduced:
    """Apply (P1) to (P5)."""
    narrowed = narrow(flows, limit_bytes, kernels)
    decided = {index: all_slow(flow) for index, flow in enumerate(narrowed) if _is_free_in_slow(flow)}
    tight = _potential(narrowed, decided, kernels) > limit_bytes
    for index, flow in enumerate(narrowed):
        if index not in decided and not _touches(flow, tight):
            decided[index] = best_journey(flow, [0.0] * len(flow), [0.0] * len(flow))
    used = np.zeros(kernels, np.int64)
    for index, journey in decided.items():
        occupy(used, narrowed[index], journey)
    undecided = [flow for index, flow in enumerate(narrowed) if index not in decided]
    rows = _undominated(undecided, tight, limit_bytes - used)
    return Reduced(narrowed, decided, tuple(rows), tuple(int(limit_bytes - used[row]) for row in rows))


def narrow(flows: Sequence[Flow], limit_bytes: int, kernels: int) -> tuple[Flow, ...]:
    """(P1) No fast memory where the tensor cannot fit; (P2) no read-back that cannot pay for itself."""
    room = limit_bytes - required_bytes(flows, kernels)
    return tuple(_narrow(flow, room) for flow in flows)


def _narrow(flow: Flow, room: npt.NDArray[np.int64]) -> Flow:
    last = len(flow) - 1
    may = tuple(
        flow.must[k] or (flow.may[k] and flow.size_bytes <= room[flow.starts[k] : flow.stops[k]].min())
        for k in range(last + 1)
    )
    may_between = tuple(
        flow.may_between[k] and may[k] and may[k + 1] and _fits(flow.size_bytes, room, *flow.gap(k))
        for k in range(last)
    )
    may_read = tuple(
        k > 0 and may[k] and (sum(flow.slow_us[k:]) > flow.read_us or any(flow.must[k:])) for k in range(last + 1)
    )
    return replace(flow, may=may, may_between=may_between, may_read=may_read)


def _fits(size_bytes: int, room: npt.NDArray[np.int64], start: int, end: int) -> bool:
    return start >= end or bool(size_bytes <= room[start:end].min())


def _is_free_in_slow(flow: Flow) -> bool:
    """(P3) Slow memory costs it nothing (or it cannot be fast): slow for life is optimal."""
    return not any(flow.must) and (flow.total_slow_us == 0 or not any(flow.may))


def spans(flow: Flow) -> list[tuple[int, int]]:
    """Kernel spans in which the flow can be fast."""
    possible = [(flow.starts[k], flow.stops[k]) for k in range(len(flow)) if flow.may[k]]
    return possible + [flow.gap(k) for k in range(len(flow) - 1) if flow.may_between[k]]


def _potential(flows: Sequence[Flow], decided: dict[int, Journey], kernels: int) -> npt.NDArray[np.int64]:
    """(P4) Bytes that could be fast during each kernel at most; rows with no more than the limit are slack."""
    total = np.zeros(kernels, np.int64)
    for index, flow in enumerate(flows):
        if index not in decided:
            for start, end in spans(flow):
                total[start:end] += flow.size_bytes
    return total


def _touches(flow: Flow, tight: npt.NDArray[np.bool_]) -> bool:
    return any(bool(tight[start:end].any()) for start, end in spans(flow))


def _undominated(flows: Sequence[Flow], tight: npt.NDArray[np.bool_], room: npt.NDArray[np.int64]) -> list[int]:
    """(P5) Of neighbouring rows, drop the one whose fast set is contained in the other's and whose room is no less."""
    enters = np.zeros(len(tight) + 1, bool)
    leaves = np.zeros(len(tight) + 1, bool)
    for flow in flows:
        enters[flow.starts[0]] = True
        enters[[flow.starts[k] for k in range(1, len(flow)) if flow.may_read[k]]] = True
        leaves[list(flow.stops)] = True
    rows: list[int] = []
    covered_to = -2
    for row in np.flatnonzero(tight).tolist():
        adjacent = covered_to == row - 1
        covered_to = row
        if adjacent and not enters[row] and room[row] >= room[rows[-1]]:
            continue
        if adjacent and not leaves[row] and rows[-1] == row - 1 and room[row - 1] >= room[row]:
            rows[-1] = row
            continue
        rows.append(row)
    return rows
