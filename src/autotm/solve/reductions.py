"""Exact reductions: what is decided without a solver, and which capacity rows can bind at all.

None of them changes the optimum; `docs/formulation.md` §4 gives the arguments, numbered (P1) to (P6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from autotm.solve.choices import Choices, TensorChoices, Window, flags, required_bytes
from autotm.solve.problem import Ints, Table
from autotm.solve.residencies import Charges, Residency, all_slow, best_residency, by_blocking_moves, occupy


@dataclass(frozen=True)
class Reduced:
    """The part of a problem that the reductions leave to decide.

    Attributes:
        choices: those of the problem, narrowed for flows; tables keep all entries.
        decided: residencies that some optimum contains, by index into the flows.
        rows: kernels whose capacity can bind, ascending.
        residual_bytes: fast memory per row for the undecided flows and the tables, within `limit_bytes`.
        limit_bytes: the limit, or the most of several.
        is_partial: whether some residencies were decided without proof, and rows left out; a solution of the rest then
            need be neither optimal nor legal.
    """

    choices: Choices
    decided: dict[int, Residency]
    rows: tuple[int, ...]
    residual_bytes: tuple[int, ...]
    limit_bytes: int
    is_partial: bool = False

    def undecided_entries(self, number: int) -> Table:
        """Return the entries of a table that agree with the decided flows."""
        operands = self.choices.operands[number]
        known = {
            operand: not self.decided[index].fast[gadget]
            for operand, (index, gadget) in enumerate(operands)
            if index in self.decided
        }
        table = self.choices.tables[number]
        return table.restricted(known) if known else table


def reduce(choices: Choices, limit_bytes: int, kernels: int, least_bytes: int | None = None) -> Reduced:
    """Apply (P1) to (P5), so that they hold for every limit from `least_bytes` (or `limit_bytes`) to `limit_bytes`."""
    narrowed = narrow(choices, limit_bytes, kernels)
    flows = narrowed.flows
    # (P3) Where slow memory costs a tensor nothing, or it cannot be fast, slow for life is optimal.
    decided = {
        index: all_slow(flow)
        for index, (flow, most_us) in enumerate(zip(flows, narrowed.most_us, strict=True))
        if not any(flow.must) and (max(most_us) <= 0 or not any(flow.may))
    }
    tight = _potential(narrowed, decided, kernels) > (limit_bytes if least_bytes is None else least_bytes)
    tight_until = [0, *tight.cumsum().tolist()]
    for index, flow in enumerate(flows):
        touches = index not in decided and any(tight_until[end] > tight_until[start] for start, end in spans(flow))
        if index not in decided and not touches:
            residency = _by_itself(narrowed, index)
            if residency is not None:
                decided[index] = residency
    used = np.zeros(kernels, np.int64)
    for index, residency in decided.items():
        occupy(used, flows[index], residency)
    undecided = [flow for index, flow in enumerate(flows) if index not in decided]
    rows = undominated(undecided, narrowed.tables, tight, limit_bytes - used)
    residual_bytes = tuple(int(limit_bytes - used[row]) for row in rows)
    return Reduced(narrowed, decided, tuple(rows), residual_bytes, limit_bytes)


def narrow(choices: Choices, limit_bytes: int, kernels: int) -> Choices:
    """Forbid fast memory where the tensor cannot fit (P1), and read-backs that cannot pay for themselves (P2)."""
    free_bytes = limit_bytes - required_bytes(choices, kernels)
    min_free_bytes = int(free_bytes.min(initial=limit_bytes))
    flows = zip(choices.flows, choices.most_us, strict=True)
    return replace(choices, flows=tuple(_narrow(flow, us, free_bytes, min_free_bytes) for flow, us in flows))


def _narrow(flow: TensorChoices, most_us: Sequence[float], free_bytes: Ints, min_free_bytes: int) -> TensorChoices:
    last = len(flow) - 1
    saved_us = list(accumulate(max(0.0, us) for us in reversed(most_us)))[::-1]
    if flow.size_bytes <= min_free_bytes and not any(flow.out + flow.back):
        still = flags(
            tuple(flow.may_read[k] and (saved_us[k] > flow.read_us or any(flow.must[k:])) for k in range(last + 1))
        )
        return flow if still == flow.may_read else replace(flow, may_read=still)
    may = tuple(
        flow.must[k] or (flow.may[k] and flow.size_bytes <= free_bytes[flow.starts[k] : flow.stops[k]].min())
        for k in range(last + 1)
    )
    may_between = tuple(
        flow.may_between[k] and may[k] and may[k + 1] and _fits(flow.size_bytes, free_bytes, *flow.gap(k))
        for k in range(last)
    )
    born_fast = [may[0], *(next_ and stays for next_, stays in zip(may[1:], may_between, strict=True))]
    reached: list[bool] = list(accumulate(born_fast, lambda before, here: before and here))
    read_us = min([flow.read_us, *(window.added_us for windows in flow.back for window in windows)])
    may_read = tuple(k > 0 and may[k] and (saved_us[k] > read_us or any(flow.must[k:])) for k in range(last + 1))
    return replace(
        flow,
        may=flags(may),
        may_between=flags(may_between),
        may_read=flags(may_read),
        out=tuple(_fitting(flow, windows, free_bytes) if reached[k] else () for k, windows in enumerate(flow.out)),
        back=tuple(
            _fitting(flow, windows, free_bytes) if may_read[k + 1] else () for k, windows in enumerate(flow.back)
        ),
    )


def _fitting(flow: TensorChoices, windows: tuple[Window, ...], free_bytes: Ints) -> tuple[Window, ...]:
    return tuple(window for window in windows if _fits(flow.size_bytes, free_bytes, window.start, window.end))


def _fits(size_bytes: int, free_bytes: Ints, start: int, end: int) -> bool:
    return start >= end or bool(size_bytes <= free_bytes[start:end].min())


def _by_itself(choices: Choices, index: int) -> Residency | None:
    """Return the cheapest residency if memory is free; None where the flow shares more than memory (P4)."""
    flow = choices.flows[index]
    if not choices.ties[index] and not any(flow.out + flow.back):
        free, gaps = [0.0] * len(flow), len(flow) - 1
        blocking = [(flow.write_us, None)] * gaps, [(flow.read_us, None)] * gaps
        return best_residency(flow, Charges(flow.slow_us, free, free, *blocking))
    always = all(flow.may) and all(flow.may_between) and min(choices.least_us[index]) >= 0
    return by_blocking_moves((True,) * len(flow), (True,) * (len(flow) - 1)) if always else None


def spans(flow: TensorChoices) -> list[tuple[int, int]]:
    """Return the kernel spans in which the flow can be fast, ascending and disjoint."""
    if all(flow.may) and all(flow.may_between):
        return [(flow.starts[0], flow.stops[-1])]
    possible = [(flow.starts[k], flow.stops[k]) for k in range(len(flow)) if flow.may[k]]
    possible += [flow.gap(k) for k in range(len(flow) - 1) if flow.may_between[k]]
    possible += [(window.start, window.end) for windows in flow.out + flow.back for window in windows]
    merged: list[tuple[int, int]] = []
    for start, end in sorted(possible):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _potential(choices: Choices, decided: dict[int, Residency], kernels: int) -> Ints:
    """Return the most bytes that could be fast in each kernel; rows with no more than the limit are slack (P4)."""
    change = np.zeros(kernels + 1, np.int64)
    for index, flow in enumerate(choices.flows):
        if index not in decided:
            for start, end in spans(flow):
                change[start] += flow.size_bytes
                change[end] -= flow.size_bytes
    total = change[:-1].cumsum()
    for table in choices.tables:
        total[table.kernel] += table.most_bytes
    return total


def undominated(
    flows: Sequence[TensorChoices], tables: Sequence[Table], tight: npt.NDArray[np.bool_], residual_bytes: Ints
) -> list[int]:
    """Drop, of two rows, the one whose fast set lies in the other's and whose residual capacity is no less (P5)."""
    enters = np.zeros(len(tight) + 1, bool)
    leaves = np.zeros(len(tight) + 1, bool)
    for table in tables:
        if table.most_bytes:
            enters[table.kernel] = leaves[table.kernel + 1] = True
    for flow in flows:
        enters[flow.starts[0]] = True
        enters[[flow.starts[k] for k in range(1, len(flow)) if flow.may_read[k]]] = True
        enters[[window.start for windows in flow.back for window in windows]] = True
        leaves[list(flow.stops)] = True
        leaves[[window.end for windows in flow.out for window in windows]] = True
    entered, left = np.cumsum(enters), np.cumsum(leaves)
    rows: list[int] = []
    for row in np.flatnonzero(tight).tolist():
        while rows and left[row] == left[rows[-1]] and residual_bytes[rows[-1]] >= residual_bytes[row]:
            rows.pop()
        if not rows or entered[row] > entered[rows[-1]] or residual_bytes[row] < residual_bytes[rows[-1]]:
            rows.append(row)
    return rows
