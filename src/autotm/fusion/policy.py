"""Policies in use: what the experts of one say of a decision's features, and the pass that fuses a step by one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import tvm

from autotm.fusion.dataflow import Dataflow, Grouping
from autotm.fusion.decisions import HasSchedule, TreePath, decision_at, resolve
from autotm.fusion.features import Features
from autotm.fusion.variants import Schedules
from autotm.model.errors import BadInputError
from autotm.model.fusion import Decision
from autotm.model.fusion_policy import FEATURE_VERSION, Expert, Policy

Array = npt.NDArray[np.float64]
DONT_CARE = "dont_care"
"""The label of decisions that make no difference."""
_DEEPEST = 30
"""Levels of decisions below which nothing is inlined, as in "Inlining ML with ML"."""


class _Model:
    """An expert, ready to tell probabilities."""

    def __init__(self, expert: Expert) -> None:
        self._tree = expert.tree
        self._layers = [(np.array(layer.weights), np.array(layer.biases)) for layer in expert.layers]

    def probabilities(self, inputs: Array) -> Array:
        """Return the probability of each class, a row for each row of inputs that were brought to a common scale."""
        if self._tree:
            return np.array([self._at_leaf(row) for row in inputs])
        values = inputs
        for place, (weights, biases) in enumerate(self._layers):
            values = (np.maximum(values, 0.0) if place else values) @ weights + biases
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def _at_leaf(self, row: Array) -> tuple[float, ...]:
        node = self._tree[0]
        while node.feature >= 0:
            node = self._tree[node.below if row[node.feature] <= node.threshold else node.above]
        return node.shares


class Answers:
    """The labels that a policy gives: of its experts' mean probabilities the largest.

    Where none is as probable as the policy asks for, it does not care.
    """

    def __init__(self, policy: Policy) -> None:
        """Make the experts of a policy ready."""
        self._means, self._scales, self._surely = np.array(policy.means), np.array(policy.scales), policy.surely
        self._classes = sorted({name for expert in policy.experts for name in expert.classes})
        self._experts = [
            (_Model(expert), [self._classes.index(name) for name in expert.classes]) for expert in policy.experts
        ]

    def __call__(self, features: Array) -> list[str]:
        """Return the label of each row of the policy's features."""
        inputs = (features - self._means) / self._scales
        mean = np.zeros((len(inputs), len(self._classes)))
        for model, places in self._experts:
            mean[:, places] += model.probabilities(inputs) / len(self._experts)
        likeliest, is_sure = mean.argmax(axis=1), mean.max(axis=1) >= self._surely
        return [self._classes[at] if sure else DONT_CARE for at, sure in zip(likeliest, is_sure, strict=True)]


class LearnedFuseOps:
    """A pass in place of `FuseOps` and `FuseTIR`: it fuses a step's operators as a policy decides.

    Where the policy does not care TVM's fusion decides; what cannot be executed is changed as `resolve` says.
    """

    def __init__(self, policy: Policy, target: tvm.target.Target, threads: int) -> None:
        """Take a policy, for kernels of a target that run on some threads."""
        self._policy, self._target, self._threads = policy, target, threads

    def __call__(self, step: tvm.IRModule) -> tvm.IRModule:
        """Return a step as calls of one unscheduled TIR function for each group, and views.

        Raises:
            BadInputError: as `grouping`.
            NotImplementedError: an operator has no kernel.
        """
        flow = Dataflow(step, self._target)
        has_schedule = Schedules(flow, self._target, self._threads)
        return flow.fused(grouping(self._policy, flow, Features(flow, self._threads), has_schedule))


def grouping(policy: Policy, flow: Dataflow, features: Features, has_schedule: HasSchedule) -> Grouping:
    """Return the groups that a policy makes of a step's operators, by the features of their decisions.

    Raises:
        BadInputError: the policy was learned from other features than there are now.
    """
    if policy.feature_version != FEATURE_VERSION or not {*policy.feature_names} <= {*features.names}:
        raise BadInputError(
            f"policy {policy.name} was learned from features of version {policy.feature_version}, and this autotm has "
            f"version {FEATURE_VERSION}; learn it anew: make figures/fusion"
        )
    places = [features.names.index(name) for name in policy.feature_names]
    answers = Answers(policy)

    def choose(path: TreePath, _: object) -> Decision:
        row = features.of(path)
        (answer,) = answers(np.array([[row[place] for place in places]]))
        if answer == DONT_CARE:
            return decision_at(flow.default, path)
        return Decision.APPLY if len(path) > _DEEPEST else Decision(answer)

    return resolve(flow, choose, has_schedule).grouping
