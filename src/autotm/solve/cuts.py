"""Knapsack rows (F10): which inequalities a fractional solution breaks, and their rows in the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Self

import highspy
import numpy as np
import pyomo.core as pyo

from autotm.solve.choices import TensorChoices
from autotm.solve.formulation import Formulation, OpenTable, Terms, Variable, holdings, linear, value_of
from autotm.solve.highs import Session, set_option
from autotm.solve.prices import Cut, Fitting
from autotm.solve.problem import Floats, Ints, bits
from autotm.solve.residencies import fast_spans

# Knapsack inequalities that a fractional solution breaks: weights of items of which only so much fits.
#
# Items that are whole in the solution are held at first, those that are not in it left out. Of the others, one that
# does not fit the residual capacity gives a cover. On those that fit, the inequality that is broken most is found
# exactly, by a linear program over weights whose rows, the sets that fit, are generated where they are broken
# (Kaparis and Letchford, Mathematical Programming B 124, 2010). Then every item gets the weight that the others leave
# to it, one after the other (sequential lifting: Padberg, Operations Research 23, 1975).

WHOLE = 1e-6
"""Nearer than this to 0 or 1, a value counts as that."""
BROKEN = 1e-4
"""Part of what fits by which an inequality has to be broken to be worth a row."""
_MOST_ITEMS = 14
"""Fractional items over which inequalities are found exactly; further ones are lifted."""
_DENOMINATORS = 60
_FINEST = 240
"""Weights are multiples of 1/n for the least such n; else rounded down to multiples of the finest part."""


Unbroken = dict[tuple[tuple[int, float], ...], int]
"""Least residual capacity in which parts of items, each a size and a value, were found to break nothing."""


def broken(values: Floats, sizes_bytes: Ints, limit_bytes: int, unbroken: Unbroken) -> Iterator[dict[int, int]]:
    """Yield, for each inequality that these values (0 to 1) of the items break, its weights by item.

    `unbroken` remembers what was searched in vain for these values; give a new dict with other values.
    """
    values_of, sizes = values.tolist(), sizes_bytes.tolist()
    by_size = np.argsort(-sizes_bytes, kind="stable").tolist()
    whole = [item for item in by_size if values_of[item] >= 1 - WHOLE]
    absent = [item for item in by_size if values_of[item] <= WHOLE]
    parts = [item for item in by_size if WHOLE < values_of[item] < 1 - WHOLE]
    residual_bytes = limit_bytes - sum(sizes[item] for item in whole)
    if residual_bytes < 0 or sum(sizes[item] for item in parts) <= residual_bytes:
        return
    large = [item for item in parts if sizes[item] > residual_bytes]
    small = [item for item in parts if sizes[item] <= residual_bytes]
    seeds: list[tuple[dict[int, int], list[int]]] = []
    for item in large:
        others = sorted((other for other in parts if other != item), key=lambda other: -values_of[other])
        seeds.append(({item: 1}, others + absent))
    chosen = small[:_MOST_ITEMS]
    key = tuple((sizes[item], values_of[item]) for item in chosen)
    if sum(size for size, _ in key) > residual_bytes and unbroken.get(key, residual_bytes + 1) > residual_bytes:
        weights = _most_broken(values[chosen], sizes_bytes[chosen], residual_bytes)
        if weights is None:
            unbroken[key] = residual_bytes
        else:
            first = {item: weight for item, weight in zip(chosen, weights, strict=True) if weight}
            seeds.append((first, large + small[_MOST_ITEMS:] + absent))
    for first, order in seeds:
        lifted, most = _lifted(first, sizes, limit_bytes, whole, order)
        excess = sum(weight * values_of[item] for item, weight in lifted.items()) - most
        if most > 0 and excess > BROKEN * most:
            yield lifted


def _lifted(
    first: dict[int, int], sizes: Sequence[int], limit_bytes: int, whole: Sequence[int], absent: Sequence[int]
) -> tuple[dict[int, int], int]:
    """Return the weights for all items, and the most that fits of them.

    Weights in `first` hold while the `whole` items are there and the `absent` ones are not; those get theirs in order.
    """
    residual_bytes = limit_bytes - sum(sizes[item] for item in whole)
    weights, fitting = dict(first), Fitting(limit_bytes)
    for item, weight in first.items():
        fitting.add(weight, sizes[item])
    most = fitting.most(residual_bytes)

    def give(item: int, weight: int) -> None:
        if weight:
            weights[item] = weight
            fitting.add(weight, sizes[item])

    for item in whole:
        residual_bytes += sizes[item]
        weight = fitting.most(residual_bytes) - most
        most += weight
        give(item, weight)
    for item in absent:
        give(item, most - (fitting.most(residual_bytes - sizes[item]) if sizes[item] <= residual_bytes else 0))
    return weights, most


def _most_broken(values: Floats, sizes_bytes: Ints, residual_bytes: int) -> list[int] | None:
    """Return the weights of the inequality over items, each of which fits, that is broken most; None where none is."""
    count = len(values)
    sets = bits(count)
    sets = sets[sets @ sizes_bytes <= residual_bytes]
    solver = highspy.Highs()
    set_option(solver, "output_flag", False)
    set_option(solver, "presolve", "off")
    solver.addVars(count, np.zeros(count), np.ones(count))
    solver.changeColsCost(count, np.arange(count, dtype=np.int32), -values)
    known: set[int] = set()
    while True:
        solver.run()
        weights = np.array(solver.getSolution().col_value)
        if weights @ values <= 1 + BROKEN:
            return None
        weighed = sets @ weights
        heaviest = int(weighed.argmax())
        if weighed[heaviest] <= 1 + WHOLE or heaviest in known:
            break
        known.add(heaviest)
        inside = np.flatnonzero(sets[heaviest]).astype(np.int32)
        solver.addRow(-highspy.kHighsInf, 1.0, len(inside), inside, np.ones(len(inside)))
    for denominator in range(1, _DENOMINATORS + 1):
        scaled = weights * denominator
        if np.abs(scaled - np.rint(scaled)).max() < WHOLE * _DENOMINATORS:
            return [round(weight) for weight in scaled.tolist()]
    return [int(weight) for weight in np.floor(weights * _FINEST + WHOLE).tolist()]


# Knapsack rows (F10): where few tensors fill the limit, what cannot be fast together says more than their bytes.
#
# Weights of tensors whose bytes exceed the limit where the relaxation has parts of them become a row at each kernel
# where they are broken. Proofs: `docs/formulation.md` §5.


class Cuts:
    """The knapsack rows that a model has got at one limit."""

    def __init__(self, ilp: Formulation, limit_bytes: int, kernels: int) -> None:
        self._ilp = ilp
        self._limit_bytes = limit_bytes
        held = [one for one in holdings(ilp) if one.flow is not None and one.span[0] < one.span[1]]
        self._variables = [one.variable for one in held]
        self._spans = np.array([one.span for one in held], np.int64).reshape(-1, 2)
        self._owners = np.array([one.flow for one in held], np.int64)
        flows = ilp.reduced.choices.flows
        decided = [(s, index) for index, one in ilp.reduced.decided.items() for s in fast_spans(flows[index], one)]
        self._decided_spans = np.array([span for span, _ in decided], np.int64).reshape(-1, 2)
        self._decided_owners = np.array([owner for _, owner in decided], np.int64)
        self._tables = {item.table.kernel: item for item in ilp.tables}
        self._places = {flow.tensor: index for index, flow in enumerate(flows)}
        self._kernels = kernels
        self._rows: list[tuple[Cut, int, pyo.Constraint]] = []
        self._blocks: list[pyo.Block] = []
        self._cuts: list[Cut] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Take the rows out of the model."""
        for block in self._blocks:
            self._ilp.model.del_component(block)

    @property
    def count(self) -> int:
        """Rows added."""
        return len(self._rows)

    def add_broken(self) -> pyo.Block | None:
        """Give the model rows that its variables' values break; None where none was found."""
        values = np.array([value_of(variable) for variable in self._variables])
        have = {(cut, row) for cut, row, _ in self._rows}
        pairs = [(cut, row) for cut in self._cuts for row in self._where_broken(cut, values)]
        covered = {row for _, row in pairs}
        unbroken: Unbroken = {}
        for row in self._fractional(values):
            if row in covered:
                continue
            for cut in self._cuts_at(row, values, unbroken):
                rows = self._where_broken(cut, values)
                pairs += [(cut, one) for one in rows]
                covered.update(rows)
        new = [(cut, row) for cut, row in pairs if (cut, row) not in have]
        return self._add(new) if new else None

    def prices_us(self, session: Session) -> dict[Cut, Floats]:
        """Return, by cut, the price of a unit of weight during each kernel: minus the duals of its rows."""
        prices_us: dict[Cut, Floats] = defaultdict(lambda: np.zeros(self._kernels))
        duals = session.duals([row for _, _, row in self._rows]) if self._rows else []
        for (cut, kernel, _), dual in zip(self._rows, duals, strict=True):
            if dual < 0:
                prices_us[cut][kernel] -= dual * self._ilp.us_per_unit / cut.most
        return dict(prices_us)

    def _fractional(self, values: Floats) -> list[int]:
        """List rows where the solution has a tensor or entry in part, and exceeds the limit once parts are whole."""
        parts = (values > WHOLE) & (values < 1 - WHOLE)
        crowded = self._during_each((self._spans[parts], np.ones(parts.sum())))
        sizes = np.array([flow.size_bytes for flow in self._ilp.reduced.choices.flows], np.float64)
        used, decided = values > WHOLE, (self._decided_spans, sizes[self._decided_owners])
        whole = self._during_each((self._spans[used], sizes[self._owners[used]]), decided)
        for kernel, item in self._tables.items():
            in_use = self._sizes_in_use(item)
            crowded[kernel] += len(in_use) > 1
            whole[kernel] += max(in_use, default=0)
        doubtful = (crowded > 0) & (whole > self._limit_bytes)
        return [row for row in self._ilp.reduced.rows if doubtful[row]]

    def _during_each(self, *held: tuple[Ints, Floats]) -> Floats:
        """Return, by kernel, the sum of the amounts held during it (kernels,); each amount is held over a span."""
        change = np.zeros(self._kernels + 1)
        for spans, amounts in held:
            change += np.bincount(spans[:, 0], amounts, self._kernels + 1)
            change -= np.bincount(spans[:, 1], amounts, self._kernels + 1)
        return np.cumsum(change)[:-1]

    def _sizes_in_use(self, item: OpenTable) -> list[int]:
        """List the distinct workspace bytes of the table's entries that the solution gives a share, ascending."""
        c, sizes = self._ilp.model.c, item.table.fast_bytes.tolist()
        return sorted({size for entry, size in enumerate(sizes) if value_of(c[item.number, entry]) > WHOLE})

    def _cuts_at(self, row: int, values: Floats, unbroken: Unbroken) -> Iterator[Cut]:
        flows: Sequence[TensorChoices] = self._ilp.reduced.choices.flows
        here = _during(self._spans, row)
        owners, places = np.unique(self._owners[here], return_inverse=True)
        used = np.bincount(places, values[here], len(owners)).astype(np.float64)
        decided = self._decided_owners[_during(self._decided_spans, row)].tolist()
        indices = [*owners.tolist(), *decided]
        shares = np.concatenate((used, np.ones(len(decided))))
        sizes = np.array([flows[index].size_bytes for index in indices], np.int64)
        item = self._tables.get(row)
        for size_bytes in self._sizes_in_use(item) if item else [0]:
            for weights in broken(shares, sizes, self._limit_bytes - size_bytes, unbroken):
                sizes_bytes = {flows[indices[place]].tensor: int(sizes[place]) for place in weights}
                named = {flows[indices[place]].tensor: weight for place, weight in weights.items()}
                self._cuts.append(Cut.of(named, sizes_bytes, self._limit_bytes))
                yield self._cuts[-1]

    def _where_broken(self, cut: Cut, values: Floats) -> list[int]:
        weights = self._weights(cut)
        decided = self._decided_spans, weights[self._decided_owners]
        used = self._during_each((self._spans, weights[self._owners] * values), decided)
        for kernel, item in self._tables.items():
            used[kernel] += sum(weight * value_of(entry) for entry, weight in self._entries(cut, item))
        limit = cut.most * (1 + BROKEN)
        return [row for row in self._ilp.reduced.rows if used[row] > limit]

    def _entries(self, cut: Cut, item: OpenTable) -> Iterator[tuple[Variable, int]]:
        """Yield the entries of a table whose workspaces weigh anything."""
        for entry, weight in enumerate(cut.of_workspaces(item.table.fast_bytes).tolist()):
            if weight:
                yield self._ilp.model.c[item.number, entry], weight

    def _weights(self, cut: Cut) -> Floats:
        """Return the weights of the flows in a cut (flows,)."""
        weights = np.zeros(len(self._places))
        weights[[self._places[tensor] for tensor in cut.weights]] = list(cut.weights.values())
        return weights

    def _add(self, new: Sequence[tuple[Cut, int]]) -> pyo.Block:
        model = self._ilp.model
        block = pyo.Block(concrete=True)
        model.add_component(f"knapsacks_{len(self._blocks)}", block)
        self._blocks.append(block)
        # Weight in use at a row, and what the decided tensors leave, as parts of what fits.
        body = [self._terms(cut, row) for cut, row in new]
        block.knapsack = pyo.Constraint(range(len(new)), rule=lambda _, n: (None, linear(body[n][0]), body[n][1]))
        self._rows += [(cut, row, block.knapsack[n]) for n, (cut, row) in enumerate(new)]
        return block

    def _terms(self, cut: Cut, row: int) -> tuple[list[tuple[Variable, float]], float]:
        most, terms = cut.most, Terms()
        weights = self._weights(cut)
        for n in _during(self._spans, row).tolist():
            terms.add(self._variables[n], weights[self._owners[n]] / most)
        if row in self._tables:
            for entry, weight in self._entries(cut, self._tables[row]):
                terms.add(entry, weight / most)
        taken = weights[self._decided_owners[_during(self._decided_spans, row)]].sum()
        return terms.pairs(), 1 - float(taken) / most


def _during(spans: Ints, row: int) -> Ints:
    """Return the indices of the spans that a kernel is in."""
    return np.flatnonzero((spans[:, 0] <= row) & (row < spans[:, 1]))
