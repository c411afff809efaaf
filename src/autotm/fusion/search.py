"""Searches for decisions that take less time: annealing, a random walk, independent draws, and a tuner.

What a search does next depends on its seed and on the energies that it was told, and on nothing else: so one that was
killed goes on where it stopped when it is told the same energies again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from autotm.model.errors import AutotmError

State = TypeVar("State")

T_MAX, T_MIN = 0.04, 0.001
"""Temperatures at the first and the last step, as shares of the default's time; those of "Inlining ML with ML"."""


class Space(Protocol[State]):
    """States, their neighbours, and the energy of each: its time over the default's."""

    @property
    def initial(self) -> State:
        """The state that searches begin from."""

    def neighbour(self, state: State, draw: random.Random) -> State:
        """Return a state that differs by one move, or the same where the move changes nothing."""

    def drawn(self, draw: random.Random) -> State:
        """Return a state that does not depend on others."""

    def chosen(self, choose: Callable[[str, Sequence[Any]], Any]) -> State:
        """Return the state that choices make, each of a name and of some options."""

    def energy(self, state: State) -> float:
        """Return the energy of a state; infinite where it cannot be had."""


@dataclass(frozen=True)
class Taken(Generic[State]):
    """One step of a search.

    Attributes:
        step: its number, from 0.
        proposal: the state that was tried.
        energy: of the proposal.
        temperature: at the step; infinite where every proposal is accepted, 0 where none is gone on from.
        is_accepted: whether the search goes on from the proposal.
    """

    step: int
    proposal: State
    energy: float
    temperature: float
    is_accepted: bool


def temperature(step: int, steps: int) -> float:
    """Return the temperature of a step: T_max (T_min / T_max)^(step / steps)."""
    return T_MAX * (T_MIN / T_MAX) ** (step / steps)


def annealing(space: Space[State], steps: int, seed: int) -> Iterator[Taken[State]]:
    """Yield the steps of simulated annealing.

    A proposal is accepted if it is no worse, else with probability exp(-difference / temperature).
    """
    return _walk(space, steps, seed, lambda step: temperature(step, steps))


def random_walk(space: Space[State], steps: int, seed: int) -> Iterator[Taken[State]]:
    """Yield the steps of a walk that accepts every proposal whose energy can be had."""
    return _walk(space, steps, seed, lambda _: math.inf)


def independent(space: Space[State], steps: int, seed: int) -> Iterator[Taken[State]]:
    """Yield states that are drawn each for itself."""
    for step in range(steps):
        proposal = space.drawn(_draw(seed, step))
        yield Taken(step, proposal, space.energy(proposal), 0.0, is_accepted=False)


def tree_parzen(space: Space[State], steps: int, seed: int) -> Iterator[Taken[State]]:
    """Yield states that Optuna's tree-structured Parzen estimator proposes, from what earlier ones took."""
    try:
        import optuna  # noqa: PLC0415 - installed beside PyTorch only
    except ModuleNotFoundError:
        raise AutotmError(
            "Optuna, which tree_parzen is, is not installed here; `make figures/fusion` runs where it is, pip install "
            "optuna installs it"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    for step in range(steps):
        trial = study.ask()
        proposal = space.chosen(trial.suggest_categorical)
        energy = space.energy(proposal)
        if math.isfinite(energy):
            study.tell(trial, energy)
        else:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        yield Taken(step, proposal, energy, 0.0, is_accepted=False)


def _walk(space: Space[State], steps: int, seed: int, hot: Callable[[int], float]) -> Iterator[Taken[State]]:
    state = space.initial
    energy = space.energy(state)
    for step in range(steps):
        draw = _draw(seed, step)
        proposal = space.neighbour(state, draw)
        found = space.energy(proposal)
        taken = Taken(step, proposal, found, hot(step), draw.random() < _chance(found - energy, hot(step)))
        if taken.is_accepted:
            state, energy = proposal, found
        yield taken


def _chance(difference: float, hot: float) -> float:
    if difference <= 0:
        return 1.0
    return math.exp(-difference / hot) if math.isfinite(difference) else 0.0


def _draw(seed: int, step: int) -> random.Random:
    return random.Random(f"{seed} {step}")  # noqa: S311 - no secret


SEARCHES = {"annealing": annealing, "random_walk": random_walk, "independent": independent, "tree_parzen": tree_parzen}
"""Searches by their names."""
