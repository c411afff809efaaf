"""Large steps: a relaxation over the few tensors whose residency is in doubt, and the few rows that matter.

Simplex takes quadratically long, but at nearly right prices most residencies are clear, and most rows cost nothing. So
prices come from a sample of the tensors first. Those for which staying and moving cost nearly the same there, often
thousands, draw lots for the free bytes; only those whose lot is close go to HiGHS. Tensors for which its prices make
another residency cheaper join them, until that saves nothing. Every price path proves a bound, so nothing here needs to
be exact (`docs/formulation.md` §5).
"""

from __future__ import annotations

import gc
import logging
import math
import random
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autotm.solve.choices import Choices
from autotm.solve.formulation import Formulation, build
from autotm.solve.highs import Outcome, Session, Solved
from autotm.solve.problem import Floats, Ints, Problem
from autotm.solve.reductions import Reduced, undominated
from autotm.solve.relaxation import prices_of, used_bytes
from autotm.solve.residencies import CheapestResidencies, PricedResidencies, occupy

log = logging.getLogger(__name__)

Flags = npt.NDArray[np.bool_]

_LARGE = 12_000
"""Free flows from which on sifting is faster: about 7 500 kernels."""
_LARGEST = 60_000
"""Free flows up to which the whole program may follow: about 40 000 kernels."""
_SAMPLE = 2000
"""Tensors whose relaxation gives the first prices."""
_FACTORS = (0.97, 1.03)
"""A residency is clear if it is the cheapest at prices this much lower and higher."""
_CLOSE = 0.1
"""Lots, evenly from 0 to 1, that are this close to the last one that still fits leave a tensor in doubt."""
_HALVINGS = 12
"""Steps of finding that last lot."""
_ROUNDS = 40
_REGRET_SHARE = 0.2
"""Part of the asked gap that decided residencies may cost, and that rows may be broken by."""
_KEPT = 0.5
"""Part of that which the tensors that stay decided may cost when others join those in doubt."""
_NEW_ROWS = 128
"""Rows added in one round at most, some kernels apart."""
_NEARLY = 0.05
"""Share of the limit that a row may have left at the first prices, and still is taken in."""
_CROWDED = 5e-4
"""Share of the limit by which a row that was left out may be broken; `PlanBuilder` keeps the limit."""


def is_large(reduced: Reduced) -> bool:
    """Return whether a relaxation of everything takes longer than sifting first; the one place that decides it.

    Flows that may move while kernels run or must be fast, and those tied to tables, are never sifted.
    """
    if reduced.choices.has_async_moves or any(any(flow.must) for flow in reduced.choices.flows):
        return False
    return _free(reduced) > _LARGE


def can_be_whole(reduced: Reduced) -> bool:
    """Return whether the whole program is worth its memory and time, should sifting alone not be enough."""
    return _free(reduced) <= _LARGEST


def _free(reduced: Reduced) -> int:
    ties = reduced.choices.ties
    return sum(1 for index in range(len(reduced.choices.flows)) if index not in reduced.decided and not ties[index])


class Relaxed(NamedTuple):
    """A model and the result of solving it without integrality."""

    ilp: Formulation
    session: Session
    solved: Solved


class Sifting:
    """The flows of one problem that have no decided residency and no tie to a table.

    Args:
        problem: the problem to solve.
        reduced: that problem after the exact reductions; moves are blocking.
        deadline: the reading of `time.perf_counter` at which sifting ends early, with prices that prove less.
    """

    def __init__(self, problem: Problem, reduced: Reduced, deadline: float) -> None:
        self._problem = problem
        self._reduced = reduced
        self._kernels = len(problem.graph.kernels)
        flows, ties = reduced.choices.flows, reduced.choices.ties
        self._open = [index for index in range(len(flows)) if index not in reduced.decided and not ties[index]]
        self._flows = [flows[index] for index in self._open]
        self._priced_residencies = PricedResidencies(self._flows, reduced.limit_bytes, self._kernels)
        self._deadline = deadline
        self._residual_bytes: Ints = np.full(self._kernels, reduced.limit_bytes, np.int64)
        for index, residency in reduced.decided.items():
            occupy(self._residual_bytes, flows[index], residency, -1)

    def __len__(self) -> int:
        return len(self._open)

    def sift(self) -> Relaxed | None:
        """Solve the relaxation over the flows in doubt; None where HiGHS did not solve one."""
        # Objects alive now outlive the models: the garbage collector need not visit them for each model.
        gc.freeze()
        try:
            return self._sift()
        finally:
            gc.unfreeze()

    def _sift(self) -> Relaxed | None:
        prices = self._sampled_prices()
        if prices is None:
            return None
        fixed, own_us, doubtful = self._drawn(prices)
        residencies = self._priced_residencies.residencies(fixed, range(len(self)))
        nearly = fixed.used_bytes - self._residual_bytes + _NEARLY * self._reduced.limit_bytes
        rows = set(np.flatnonzero(prices).tolist() + self._crowded(nearly))
        allowed_us = _REGRET_SHARE * self._problem.options.gap * self._problem.base_us
        for _ in range(_ROUNDS):
            left = self._left(fixed, doubtful)
            relaxed = None  # before the next one takes memory
            # All flows, the clear ones decided.
            clear = {self._open[number]: residencies[number] for number in np.flatnonzero(~doubtful).tolist()}
            ordered, decided = sorted(rows), {**self._reduced.decided, **clear}
            free = tuple(left[ordered].tolist())
            part = replace(self._reduced, decided=decided, rows=tuple(ordered), residual_bytes=free, is_partial=True)
            relaxed = self._relaxed(part, self._problem.base_us)
            if relaxed is None:
                return None
            prices = self._prices(relaxed)
            regret_us = (
                own_us
                + self._priced_residencies.holding_us(fixed, prices)
                - self._priced_residencies.cheapest(prices).cost_us
            )
            regret_us[doubtful] = 0.0
            crowded = self._crowded(used_bytes(relaxed.ilp, self._kernels) - left)
            total_us = float(regret_us.sum())
            text = "sifted: %d of %d tensors in doubt, %d rows; the others' regret %.3g us, %d more rows broken"
            log.info(text, doubtful.sum(), len(self), len(rows), total_us, len(crowded))
            if (total_us <= allowed_us and not crowded) or time.perf_counter() >= self._deadline:
                break
            if total_us > _KEPT * allowed_us:
                dearest = np.argsort(-regret_us)
                left_us = total_us - np.cumsum(regret_us[dearest])
                doubtful[dearest[: np.count_nonzero(left_us > _KEPT * allowed_us) + 1]] = True
            rows |= set(crowded)
        return relaxed

    def _sampled_prices(self) -> Floats | None:
        """Return the prices of bytes, by a relaxation over some tensors and their share of the residual capacity."""
        draw = random.Random(self._problem.options.seed)  # noqa: S311 - no secret
        chosen = sorted(draw.sample(range(len(self)), min(_SAMPLE, len(self))))
        weight = np.array([flow.size_bytes * float(flow.stops[-1] - flow.starts[0]) for flow in self._flows])
        sample_bytes = (self._residual_bytes * float(weight[chosen].sum() / weight.sum())).astype(np.int64)
        tight = np.zeros(self._kernels, bool)
        tight[list(self._reduced.rows)] = True
        flows = tuple(self._flows[number] for number in chosen)
        rows = undominated(flows, (), tight, sample_bytes)
        part = Reduced(Choices(flows), {}, tuple(rows), tuple(sample_bytes[rows].tolist()), int(sample_bytes.max()))
        relaxed = self._relaxed(part, 0.0)
        return None if relaxed is None else self._prices(relaxed)

    def _drawn(self, prices: Floats) -> tuple[CheapestResidencies, Floats, Flags]:
        """Return a residency for each tensor, its cost without holding cost, and whether it is in doubt."""
        priced_residencies, (low, high) = self._priced_residencies, (factor * prices for factor in _FACTORS)
        greedy, frugal = priced_residencies.cheapest(low), priced_residencies.cheapest(high)
        lots = np.random.default_rng(self._problem.options.seed).random(len(self))
        lots[~priced_residencies.differ(greedy, frugal)] = -math.inf
        last, step = 0.0, 0.5
        for _ in range(_HALVINGS):
            holds = lots < last + step
            used = priced_residencies.used_bytes(greedy, holds) + priced_residencies.used_bytes(frugal, ~holds)
            last += step if np.all(used <= self._residual_bytes) else 0.0
            step /= 2
        holds = lots < last
        own_us = np.where(
            holds,
            greedy.cost_us - priced_residencies.holding_us(greedy, low),
            frugal.cost_us - priced_residencies.holding_us(frugal, high),
        )
        return priced_residencies.mixed(greedy, frugal, holds), own_us, np.abs(lots - last) < _CLOSE

    def _left(self, fixed: CheapestResidencies, doubtful: Flags) -> Ints:
        """Return the bytes that clear residencies leave; where negative, the least valuable become doubtful."""
        left = self._residual_bytes - self._priced_residencies.used_bytes(fixed, ~doubtful)
        while int(left.min()) < 0:
            row = int(left.argmin())
            holders = np.flatnonzero(self._priced_residencies.holders(fixed, row) & ~doubtful)
            worth = [sum(self._flows[number].slow_us) / self._flows[number].size_bytes for number in holders]
            sizes = np.array([self._flows[number].size_bytes for number in holders])[np.argsort(worth)]
            count = int(np.searchsorted(np.cumsum(sizes), -left[row])) + 1
            doubtful[holders[np.argsort(worth)][:count]] = True
            left = self._residual_bytes - self._priced_residencies.used_bytes(fixed, ~doubtful)
        return left

    def _crowded(self, over: npt.NDArray[np.floating]) -> list[int]:
        """Return the worst of the broken rows, some kernels apart."""
        worst: list[int] = []
        apart = self._kernels // (4 * _NEW_ROWS)
        over = over.copy()
        while len(worst) < _NEW_ROWS and over.max() > _CROWDED * self._reduced.limit_bytes:
            row = int(over.argmax())
            worst.append(row)
            over[max(0, row - apart) : row + apart + 1] = 0.0
        return worst

    def _relaxed(self, reduced: Reduced, base_us: float) -> Relaxed | None:
        # Pyomo's models are cycles, and several of them at a time would take more memory than the step itself.
        gc.collect()
        ilp = build(reduced, base_us)
        session = Session(ilp.model, self._problem.options.seed)
        solved = session.relax(self._deadline - time.perf_counter())
        return Relaxed(ilp, session, solved) if solved.outcome is Outcome.CONVERGED else None

    def _prices(self, relaxed: Relaxed) -> Floats:
        """Return the price of a byte during each kernel (kernels,)."""
        return prices_of(relaxed.session, relaxed.ilp, None, self._kernels).byte_us
