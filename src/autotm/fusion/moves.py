"""Groupings of a step's operators as states of a search: the moves between them, and what each takes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cached_property

from autotm.fusion.dataflow import Grouping
from autotm.fusion.decisions import TreePath, executed, path_of, path_text
from autotm.fusion.variants import Workbench
from autotm.model.fusion import Decision, State

_FLIPPED = 3
"""Leaves that a move flips; that of "Inlining ML with ML"."""


class GroupingSpace:
    """Every grouping that decisions can ask for."""

    def __init__(self, bench: Workbench, energy: Callable[[State], float]) -> None:
        """Keep the step, and what tells the energy of a state."""
        self._bench, self._energy = bench, energy
        self._known: dict[State, Grouping] = {}

    @cached_property
    def initial(self) -> State:
        """TVM's fusion."""
        return self._state(self._bench.dataflow.default)

    def neighbour(self, state: State, draw: random.Random) -> State:
        """Return what one move makes of a state.

        Half of the moves flip three leaves of the trees: what is applied is inlined or recomputed, what is not is
        applied. The others apply the nearest ancestor of a leaf that is not, with all below it.
        """
        tree = executed(self._bench.dataflow, self.grouping(state))
        inner = {path[:length] for path in tree for length in range(2, len(path))}
        leaves = sorted(path for path in tree if path not in inner)
        if not leaves:
            return state
        asked = {path: own for path, own in tree.items() if own is not Decision.APPLY}
        if draw.random() < 0.5:  # noqa: PLR2004 - half of the moves
            for leaf in draw.sample(leaves, min(_FLIPPED, len(leaves))):
                if asked.pop(leaf, None) is None:
                    asked[leaf] = draw.choice([Decision.INLINE, Decision.RECOMPUTE])
        else:
            leaf = draw.choice(leaves)
            above = next((leaf[:length] for length in range(len(leaf), 1, -1) if leaf[:length] in asked), None)
            if above is not None:
                asked = {path: own for path, own in asked.items() if path[: len(above)] != above}
        return self._state(self._bench.resolved(asked).grouping)

    def drawn(self, draw: random.Random) -> State:
        """Return the grouping that a random share of all decisions to inline asks for."""
        return self._state(random_grouping(self._bench, draw))

    def chosen(self, choose: Callable[[str, Sequence[Decision]], Decision]) -> State:
        """Return the grouping that choices ask for, each of some decisions on a path."""
        flow = self._bench.dataflow
        return self._state(self._bench.resolved(lambda path, _: choose(path_text(flow, path), [*Decision])).grouping)

    def energy(self, state: State) -> float:
        """Return the time of a grouping over that of TVM's fusion; infinite where there is none."""
        return self._energy(state)

    def grouping(self, state: State) -> Grouping:
        """Return the groups of a state."""
        if state not in self._known:
            flow = self._bench.dataflow
            asked: dict[TreePath, Decision] = {path_of(flow, text): own for text, own in state}
            self._known[state] = self._bench.resolved(asked).grouping
        return self._known[state]

    def _state(self, grouping: Grouping) -> State:
        flow = self._bench.dataflow
        state = tuple(
            sorted(
                (path_text(flow, path), own)
                for path, own in executed(flow, grouping).items()
                if own is not Decision.APPLY
            )
        )
        self._known.setdefault(state, grouping)
        return state


def random_grouping(bench: Workbench, draw: random.Random) -> Grouping:
    """Return the grouping that a random share of all decisions to inline asks for, as far as it can be executed."""
    share = draw.random()
    return bench.resolved(lambda *_: Decision.INLINE if draw.random() < share else Decision.APPLY).grouping
