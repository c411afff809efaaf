"""What each fusion decision is worth: a linear model of measured groupings, and the decisions of most worth by it.

The models, their settings and the dynamic programme are those of "Inlining ML with ML"; here an operator may also be
recomputed, so a path has three decisions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

from autotm.model.fusion import Decision
from autotm.model.fusion_policy import Reference, Setting, Target

Array = npt.NDArray[np.float64]
Weights = Mapping[str, Mapping[Decision, float]]

_TARGETS: list[tuple[Target, Reference]] = [
    *product((Target.LINEAR, Target.LOG, Target.TANH), ("mean", "baseline")),
]
SETTINGS = (
    *(
        Setting("ridge", decay, strength, *target)
        for decay, strength, target in product((0.4, 0.9, 1.0), (0.005, 0.05, 0.5), _TARGETS)
    ),
    *(Setting("ridge", 1.0, 2.0, *target) for target in _TARGETS),
    *(Setting("ridge", 1.0, strength, Target.SIGMOID, "mean") for strength in (0.005, 0.05, 0.5)),
    *(Setting("lasso", decay, None, *target) for decay, target in product((0.4, 0.9, 0.99, 1.0), _TARGETS)),
)
"""63 of ridge and 24 of lasso regression."""
HAND = {
    "lasso": Setting("lasso", 1.0, None, Target.TANH, "baseline"),
    "ridge": Setting("ridge", 0.4, 0.05, Target.LOG, "mean"),
}
"""Those that "Inlining ML with ML" chose by hand."""
_TANH, _SIGMOID = 10.0, 20.0
"""How sharply a relative change of time saturates."""


def benefits(ratios: Array, target: Target, reference: Reference) -> Array:
    """Return what is fitted of times, which are given over that of TVM's fusion: more is better."""
    level = float(np.mean(ratios)) if reference == "mean" else 1.0
    change = ratios / level - 1
    match target:
        case Target.LINEAR:
            return -change
        case Target.LOG:
            return -np.log(ratios / level)
        case Target.TANH:
            return np.tanh(-_TANH * change)
    return 1 / (1 + np.exp(_SIGMOID * change))


def level(path: str) -> int:
    """Return how many decisions lie above that at a path."""
    return path.count("/") - 1


def design(executions: Sequence[Mapping[str, Decision]], decay: float) -> tuple[Array, list[tuple[str, Decision]]]:
    """Return a row by execution and a column by decision that some have: decay^level where it is executed."""
    pairs = list(dict.fromkeys(pair for executed in executions for pair in executed.items()))
    columns = {pair: place for place, pair in enumerate(pairs)}
    matrix = np.zeros((len(executions), len(pairs)))
    for row, executed in enumerate(executions):
        for pair in executed.items():
            matrix[row, columns[pair]] = decay ** level(pair[0])
    return matrix, pairs


def most_worth(weights: Weights, decay: float) -> tuple[dict[str, Decision], dict[str, dict[Decision, float]]]:
    """Return the decisions of most worth along the trees, and what each decision is worth with the best below it.

    A decision that no execution has is worth less than any; of equals, the operator is applied. A path that only occurs
    below another counts as much as the decay says.
    """
    below: dict[str, list[str]] = defaultdict(list)
    for path in weights:
        below[path.rpartition("/")[0]].append(path)
    worth: dict[str, dict[Decision, float]] = {}
    chosen: dict[str, Decision] = {}
    for path in sorted(weights, key=level, reverse=True):
        further = decay * sum(max(worth[one].values()) for one in below[path])
        worth[path] = {
            own: weight + (0.0 if own is Decision.APPLY else further) for own, weight in weights[path].items()
        }
        order = sorted(worth[path], key=lambda own: (own is not Decision.APPLY, own))
        chosen[path] = max(order, key=worth[path].__getitem__)
    return chosen, worth


def promised(weights: Weights, decay: float, executed: Mapping[str, Decision]) -> float:
    """Return the benefit that rewards promise of a grouping; decisions that no execution had count as nothing."""
    return math.fsum(decay ** level(path) * weights.get(path, {}).get(own, 0.0) for path, own in executed.items())


def requested(chosen: Mapping[str, Decision]) -> dict[str, Decision]:
    """Return of chosen decisions those that are not applied, along paths that occur."""
    kept: dict[str, Decision] = {}
    for path in sorted(chosen, key=level):
        parent = path.rpartition("/")[0]
        if chosen[path] is not Decision.APPLY and (level(path) == 0 or parent in kept):
            kept[path] = chosen[path]
    return kept
