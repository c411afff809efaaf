"""What decisions are worth, as rewards say, and policies that are learned from them, as files have them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from autotm.model.fusion import Decision, FusionTimes
from autotm.model.limit import Limit

FEATURE_VERSION = 1
"""Raised when features change their meaning, so that an older policy no longer fits."""


@dataclass(frozen=True)
class Execution:
    """A grouping that was measured.

    Attributes:
        source: the rule's file that has it, such as `optimum` or `annealing-1`.
        executed: the decisions that ask for it, those of operators that are applied included.
        ratio: its time over that of TVM's fusion.
        ratio_error: standard error, as a share of it.
    """

    source: str
    executed: Mapping[str, Decision]
    ratio: float
    ratio_error: float


@dataclass(frozen=True)
class FusionProblem:
    """What is known of a step's fusion decisions: their features, and groupings that were measured.

    Attributes:
        network, scale, is_training, identity: as in `FusionDecisions`.
        feature_version: of the features' meaning.
        feature_names: of each feature.
        features: of the decision at each path that some grouping has.
        default: the decision of TVM's fusion there, where there is one.
        executions: that were measured.
    """

    network: str
    scale: str
    is_training: bool
    identity: str
    feature_version: int
    feature_names: tuple[str, ...]
    features: Mapping[str, tuple[float, ...]]
    default: Mapping[str, Decision]
    executions: tuple[Execution, ...]


class Target(StrEnum):
    """What of a time is fitted, where t is its ratio and r the reference."""

    LINEAR = "linear"
    LOG = "log"
    TANH = "tanh"
    SIGMOID = "sigmoid"


Reference = Literal["mean", "baseline"]
"""The mean of all executions, or TVM's fusion."""


@dataclass(frozen=True)
class Setting:
    """How rewards are fitted.

    Attributes:
        model: ridge or lasso regression.
        decay: weight of a decision by each level that it lies deeper.
        strength: of ridge's regularization; that of lasso is chosen by cross-validation, and is None.
        target: what is fitted.
        reference: what times are compared with.
    """

    model: Literal["ridge", "lasso"]
    decay: float
    strength: float | None
    target: Target
    reference: Reference

    @property
    def name(self) -> str:
        """A name for tables."""
        strength = "" if self.strength is None else f"-{self.strength:g}"
        return f"{self.model}-{self.decay:g}{strength}-{self.target}-{self.reference}"


@dataclass(frozen=True)
class Rewards:
    """What each decision of a step is worth, by one setting.

    Attributes:
        setting: of the fit.
        r2: coefficient of determination of executions that were left out, in five-fold cross-validation.
        r2_fitted: of the executions themselves.
        weights: by path, that of each decision that some execution has; 0 where it is left out.
    """

    setting: Setting
    r2: float
    r2_fitted: float
    weights: Mapping[str, Mapping[Decision, float]]


@dataclass(frozen=True)
class FusionRewards:
    """Rewards of a step's decisions by every setting.

    Attributes:
        network, scale, is_training, identity: as in `FusionDecisions`.
        executions: that were fitted.
        fits: by setting.
    """

    network: str
    scale: str
    is_training: bool
    identity: str
    executions: int
    fits: tuple[Rewards, ...]


@dataclass(frozen=True)
class MeasuredGrouping:
    """A grouping of a step's operators, measured in turn with TVM's fusion.

    Attributes:
        executed: the decisions that ask for it, those of operators that are applied included.
        kernels: of the step.
        peak_bytes: of tensors and workspaces, when nothing is slow.
        times: measured; None if it could not be compiled, or results were wrong.
        failure: why.
    """

    executed: Mapping[str, Decision]
    kernels: int | None
    peak_bytes: int | None
    times: FusionTimes | None
    failure: str = ""


@dataclass(frozen=True)
class Promise:
    """What a setting's rewards ask for, and promise of it.

    Attributes:
        setting: of the rewards.
        benefit: sum of the rewards of what is executed, as the setting's target has it.
        changed: decisions that could not be executed as asked for.
        grouping: place of what is executed in the groupings that were measured.
    """

    setting: str
    benefit: float
    changed: int
    grouping: int


@dataclass(frozen=True)
class FusionPromises:
    """The groupings that rewards ask for, measured.

    Attributes:
        network, scale, is_training, identity: as in `FusionDecisions`.
        best_seen: least ratio of all executions that rewards were fitted to, TVM's fusion included.
        promises: by setting.
        groupings: what is executed, each once.
    """

    network: str
    scale: str
    is_training: bool
    identity: str
    best_seen: float
    promises: tuple[Promise, ...]
    groupings: tuple[MeasuredGrouping, ...]

    def ratio(self, promise: Promise) -> float:
        """Return the time of what a setting asks for over that of TVM's fusion; infinite if that failed."""
        times = self.groupings[promise.grouping].times
        return math.inf if times is None else times.ratio


@dataclass(frozen=True)
class FusionSelection:
    """The settings that policies are learned from.

    Attributes:
        best: by step of a network, such as `mlp/training`, then by model, the setting with the least time there.
        general: by model, the setting that comes nearest to the best of all steps.
        hand: by model, the setting that "Inlining ML with ML" chose by hand.
        misses: by setting, how far it stays behind the best, summed over steps.
    """

    best: Mapping[str, Mapping[str, str]]
    general: Mapping[str, str]
    hand: Mapping[str, str]
    misses: Mapping[str, float]


@dataclass(frozen=True)
class Layer:
    """A layer of a network of neurons.

    Attributes:
        weights: by input, then by output.
        biases: by output.
    """

    weights: tuple[tuple[float, ...], ...]
    biases: tuple[float, ...]


@dataclass(frozen=True)
class Branch:
    """A node of a decision tree.

    Attributes:
        feature: that is looked at; -1 at a leaf.
        threshold: up to which `below` comes next, else `above`.
        below, above: places of the next nodes.
        shares: of the classes at a leaf.
    """

    feature: int
    threshold: float
    below: int
    above: int
    shares: tuple[float, ...]


@dataclass(frozen=True)
class Expert:
    """What tells the probability of each class from a decision's features.

    Attributes:
        classes: of labels, in the order of the outputs.
        layers: of neurons, of which all but the last are rectified; empty for a tree.
        tree: of decisions, the root first; empty for neurons.
    """

    classes: tuple[str, ...]
    layers: tuple[Layer, ...] = ()
    tree: tuple[Branch, ...] = ()


@dataclass(frozen=True)
class Policy:
    """A rule for fusion decisions, learned from rewards.

    Attributes:
        name: such as `ridge-general-0.001`.
        feature_version: of the features that it reads.
        feature_names: that it reads, of all.
        means, scales: features are taken from, and divided by, these.
        experts: whose probabilities are averaged.
        surely: least probability of a class that is acted on; below it TVM's fusion decides.
        labels: share of each class among what it learned from.
        accuracy: share of what it learned from that it tells right.
        accuracy_unseen: the same where each network in turn was left out; None where there is one network.
        importance: by feature, how much less it tells right where that feature is shuffled.
    """

    name: str
    feature_version: int
    feature_names: tuple[str, ...]
    means: tuple[float, ...]
    scales: tuple[float, ...]
    experts: tuple[Expert, ...]
    surely: float
    labels: Mapping[str, float]
    accuracy: float
    accuracy_unseen: float | None
    importance: Mapping[str, float]


@dataclass(frozen=True)
class FusionPolicies:
    """Policies, all learned from the same steps.

    Attributes:
        steps: of networks that they are learned from, such as `mlp/training`.
        decisions: that have a reward for being inlined and one for being applied.
        policies: by no order.
    """

    steps: tuple[str, ...]
    decisions: int
    policies: tuple[Policy, ...]


@dataclass(frozen=True)
class FusionBench:
    """Steps as policies fuse them.

    Attributes:
        network, scale, is_training, identity: as in `FusionDecisions`.
        is_held_out: whether no policy has learned from the network.
        choices: by policy, the place of its grouping in `groupings`.
        groupings: each once, measured in turn.
    """

    network: str
    scale: str
    is_training: bool
    identity: str
    is_held_out: bool
    choices: Mapping[str, int]
    groupings: tuple[MeasuredGrouping, ...]


@dataclass(frozen=True)
class PlacementCurve:
    """What a search for a placement of tensors had found after how many evaluations.

    Attributes:
        algorithm: `annealing`, `random_walk`, `independent` draws, or `rewards` that are fitted to such draws.
        search_seed: of the search.
        evaluations: of the search.
        improved: evaluations after which something better was found, and its time over that of the plan.
    """

    algorithm: str
    search_seed: int
    evaluations: int
    improved: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class PlacementSearch:
    """How near searches come to the placement of least time; each tensor stays in one memory. Times are predicted.

    Attributes:
        network, scale: whose step it is.
        limit: of fast memory.
        tensors: that are placed.
        kernels: of the step.
        plan_us: time of the plan that the solver found.
        bound_us: no placement takes less.
        all_slow: time with all tensors in slow memory, over the plan's.
        first_touch: time where what is there first is in fast memory, over the plan's.
        curves: of searches.
    """

    network: str
    scale: str
    limit: Limit
    tensors: int
    kernels: int
    plan_us: float
    bound_us: float
    all_slow: float
    first_touch: float
    curves: tuple[PlacementCurve, ...]
