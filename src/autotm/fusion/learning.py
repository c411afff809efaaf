"""What scikit-learn fits: what decisions are worth, and policies from that, by settings, labels and models."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso, LassoCV, LogisticRegression, Ridge
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.neural_network import MLPClassifier
from sklearn.tree import DecisionTreeClassifier
from threadpoolctl import threadpool_limits

from autotm.fusion.policy import DONT_CARE, Answers
from autotm.fusion.rewards import HAND, SETTINGS, benefits, design, most_worth
from autotm.model.errors import BadInputError
from autotm.model.fusion import Decision
from autotm.model.fusion_policy import (
    FEATURE_VERSION,
    Branch,
    Expert,
    FusionPolicies,
    FusionProblem,
    FusionPromises,
    FusionRewards,
    FusionSelection,
    Layer,
    Policy,
    Rewards,
    Setting,
)

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.bool_]
Classifier = LogisticRegression | MLPClassifier | DecisionTreeClassifier

MODELS = ("ridge", "lasso")
TAUS = (5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2)
"""Differences of rewards below which a decision makes none; those of "Inlining ML with ML"."""
_KNOWN = 1e-8
"""A weight of lasso regression below this was left out of the model."""
_NOISE = 0.02
"""Copies of the same code differ by so much: what cannot be gained beyond it counts no more than it."""
_SURELY = 0.5
"""What a mixture acts on; a single model acts on what it holds likeliest."""
_KINDS = ("general", "hand", "best")
_READABLE_LEAVES = 16
_CONSTANT = 1e-8
"""A feature that varies less says nothing."""
_STEPS = 100
"""Iterations of the fit of neurons: a second for some thousand decisions."""
_SEED = 0

# What decisions are worth.

_FOLDS = 5
_STRENGTHS = [0.5**power for power in range(1, 20)]
"""Of lasso's regularization: down to a millionth."""
_CHOICE_ITERATIONS = 200
"""By which cross-validation chooses among these: of 1400 decisions a quarter of the time that
scikit-learn's 1000 take, and mostly the same choice (all but 19 of 216, for nine steps)."""


# Threads of a library would wait for one another more than they compute. Lasso's fits with weak regularization do not
# converge: cross-validation judges them as they are, and may choose one.
@threadpool_limits.wrap(limits=1)
def fitted(problem: FusionProblem) -> FusionRewards:
    """Fit the rewards of a step's decisions by every setting, without an intercept.

    Raises:
        BadInputError: there are fewer executions than cross-validation needs.
    """
    executions = problem.executions
    if len(executions) < _FOLDS:
        raise BadInputError(
            f"network {problem.network}: {len(executions)} groupings were measured, and rewards need {_FOLDS}; raise "
            "fusion.best or fusion.random in the config"
        )
    ratios = np.array([one.ratio for one in executions])
    rows = {decay: design([one.executed for one in executions], decay) for decay in {one.decay for one in SETTINGS}}
    fits = tuple(
        _fit(setting, *rows[setting.decay], benefits(ratios, setting.target, setting.reference)) for setting in SETTINGS
    )
    return FusionRewards(problem.network, problem.scale, problem.is_training, problem.identity, len(executions), fits)


def _fit(setting: Setting, matrix: Array, pairs: Sequence[tuple[str, Decision]], benefit: Array) -> Rewards:
    folds = KFold(_FOLDS, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if setting.strength is not None:
            model = Ridge(alpha=setting.strength, fit_intercept=False)
        else:
            choice = LassoCV(alphas=_STRENGTHS, fit_intercept=False, cv=folds, max_iter=_CHOICE_ITERATIONS)
            model = Lasso(alpha=choice.fit(matrix, benefit).alpha_, fit_intercept=False)
        unseen = cross_val_predict(model, matrix, benefit, cv=folds)
        model.fit(matrix, benefit)
    weights: dict[str, dict[Decision, float]] = defaultdict(dict)
    for (path, decision), weight in zip(pairs, model.coef_, strict=True):
        weights[path][decision] = float(weight)
    return Rewards(
        setting, float(r2_score(benefit, unseen)), float(r2_score(benefit, model.predict(matrix))), dict(weights)
    )


# Which settings policies are learned from.


def selected(promises: Sequence[FusionPromises]) -> FusionSelection:
    """Return by model the best setting of each step, and the one that misses the best least over all steps.

    A miss is how much longer what a setting asks for takes than the best that was seen, over what there is to gain.
    """
    misses: dict[str, float] = defaultdict(float)
    best: dict[str, dict[str, str]] = {}
    for own in promises:
        ratios = {one.setting: own.ratio(one) for one in own.promises}
        least = min([own.best_seen, *ratios.values()])
        for name, ratio in ratios.items():
            misses[name] += (ratio - least) / max(1 - least, _NOISE)
        best[step_name(own)] = {model: _least(ratios, model) for model in MODELS}
    general = {model: _least(misses, model) for model in MODELS}
    return FusionSelection(best, general, {model: setting.name for model, setting in HAND.items()}, dict(misses))


def _least(values: Mapping[str, float], model: str) -> str:
    return min((name for name in values if name.startswith(model)), key=values.__getitem__)


def step_name(own: FusionProblem | FusionPromises | FusionRewards) -> str:
    """Return the name of a step of a network."""
    return f"{own.network}/{'training' if own.is_training else 'inference'}"


# What they are learned from.


@dataclass(frozen=True)
class _Observations:
    """Decisions with a reward for being inlined and one for being applied.

    Attributes:
        features: a row for each.
        labels: by row.
        networks: by row.
    """

    features: Array
    labels: npt.NDArray[np.str_]
    networks: npt.NDArray[np.str_]


def label(fit: Rewards, worth: Mapping[Decision, float], tau: float) -> str:
    """Return what rewards say of a decision: inline, apply, or that it makes no difference."""
    inline, applied = worth[Decision.INLINE], worth[Decision.APPLY]
    if fit.setting.model == "ridge":
        is_none = abs(inline - applied) < tau
    else:  # A reward that was left out of the model is unknown: the sign of the other decides.
        inline, applied = (0.0 if abs(value) < _KNOWN else value for value in (inline, applied))
        is_none = inline == applied
    if is_none:
        return DONT_CARE
    return str(Decision.INLINE if inline > applied else Decision.APPLY)


def _observations(
    problems: Sequence[FusionProblem],
    rewards: Mapping[str, Mapping[str, Rewards]],
    settings: Mapping[str, str],
    tau: float,
) -> _Observations:
    """Return what the rewards of one setting for each step say."""
    rows, labels, networks = [], [], []
    for problem in problems:
        name = step_name(problem)
        fit = rewards[name][settings[name]]
        _, worth = most_worth(fit.weights, fit.setting.decay)
        for path, of_path in worth.items():
            if {Decision.INLINE, Decision.APPLY} <= of_path.keys():
                rows.append(problem.features[path])
                labels.append(label(fit, of_path, tau))
                networks.append(problem.network)
    return _Observations(np.array(rows), np.array(labels), np.array(networks))


# Models.

_MODELS: Mapping[str, Callable[[], Classifier]] = {
    "mlp": lambda: MLPClassifier((32,), solver="lbfgs", alpha=1e-5, random_state=_SEED, max_iter=_STEPS),
    "logistic": lambda: LogisticRegression(max_iter=1000),
    "tree": lambda: DecisionTreeClassifier(max_leaf_nodes=_READABLE_LEAVES, random_state=_SEED),
}


def _expert(model: str, inputs: Array, labels: npt.NDArray[np.str_]) -> Expert:
    """Fit a model; labels that are all the same need none."""
    classes = tuple(map(str, np.unique(labels)))
    if len(classes) == 1:
        return Expert(classes, (Layer(((0.0,),) * inputs.shape[1], (0.0,)),))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # The number of steps is a choice.
        classifier = _MODELS[model]().fit(inputs, labels)
    if isinstance(classifier, DecisionTreeClassifier):
        tree = classifier.tree_
        return Expert(
            classes,
            tree=tuple(
                Branch(
                    int(tree.feature[at]) if tree.children_left[at] >= 0 else -1,
                    float(tree.threshold[at]),
                    int(tree.children_left[at]),
                    int(tree.children_right[at]),
                    tuple(map(float, tree.value[at][0] / tree.value[at][0].sum())),
                )
                for at in range(tree.node_count)
            ),
        )
    if isinstance(classifier, LogisticRegression):
        pairs = [(classifier.coef_.T, classifier.intercept_)]
    else:
        pairs = list(zip(classifier.coefs_, classifier.intercepts_, strict=True))
    weights, biases = pairs[-1]
    if len(biases) == 1:  # Of two classes only the second has an output: that of the first is 0.
        pairs[-1] = np.hstack([np.zeros_like(weights), weights]), np.array([0.0, *biases])
    return Expert(classes, tuple(Layer(tuple(map(tuple, own.tolist())), tuple(bias.tolist())) for own, bias in pairs))


@dataclass(frozen=True)
class _Recipe:
    """What a policy is made of.

    Attributes:
        name: of the policy.
        experts: of each the model, and the labelling that it learns.
        surely: as in `Policy`.
    """

    name: str
    experts: tuple[tuple[str, str], ...]
    surely: float = 0.0


class _Fits:
    """Models that were fitted to some of the decisions."""

    def __init__(
        self, data: Mapping[str, _Observations], recipes: Sequence[_Recipe], names: Sequence[str], rows: Rows
    ) -> None:
        """Fit all models that recipes need, each once."""
        features = next(iter(data.values())).features
        self._kept = np.flatnonzero(features[rows].std(axis=0) > _CONSTANT)
        self._names = tuple(names[place] for place in self._kept)
        own = features[rows][:, self._kept]
        self._means, self._scales = own.mean(axis=0), own.std(axis=0)
        inputs = (own - self._means) / self._scales
        self._experts = {
            (model, labelling): _expert(model, inputs, data[labelling].labels[rows])
            for model, labelling in dict.fromkeys(expert for recipe in recipes for expert in recipe.experts)
        }

    def policy(self, recipe: _Recipe) -> Policy:
        """Return the policy of a recipe, with nothing said of how good it is."""
        return Policy(
            recipe.name,
            FEATURE_VERSION,
            self._names,
            tuple(self._means.tolist()),
            tuple(self._scales.tolist()),
            tuple(self._experts[expert] for expert in recipe.experts),
            recipe.surely,
            {},
            0.0,
            None,
            {},
        )

    def right(self, recipe: _Recipe, data: Mapping[str, _Observations], rows: Rows) -> int:
        """Return of how many rows a policy tells the label; that of a mixture is its first expert's."""
        return self._right(recipe, data, data[recipe.experts[0][1]].features[rows], rows)

    def importance(self, recipe: _Recipe, data: Mapping[str, _Observations]) -> dict[str, float]:
        """Return by feature which share of labels a policy no longer tells when the feature is shuffled."""
        features = data[recipe.experts[0][1]].features
        every = np.ones(len(features), bool)
        right, draw, lost = self._right(recipe, data, features, every), np.random.default_rng(_SEED), {}
        for name, place in zip(self._names, self._kept, strict=True):
            shuffled = features.copy()
            shuffled[:, place] = draw.permutation(shuffled[:, place])
            lost[name] = (right - self._right(recipe, data, shuffled, every)) / len(features)
        return lost

    def _right(self, recipe: _Recipe, data: Mapping[str, _Observations], features: Array, rows: Rows) -> int:
        told = Answers(self.policy(recipe))(features[:, self._kept])
        return int(np.sum(np.array(told) == data[recipe.experts[0][1]].labels[rows]))


@threadpool_limits.wrap(limits=1)  # Threads of a library would wait for one another more than they compute.
def learned(
    problems: Sequence[FusionProblem], rewards: Sequence[FusionRewards], selection: FusionSelection
) -> FusionPolicies:
    """Return policies that are learned from steps of networks, two that are simple enough to be read included.

    Raises:
        BadInputError: no step has a decision that was both inlined and applied.
    """
    steps = [step_name(problem) for problem in problems]
    fits = {step_name(own): {fit.setting.name: fit for fit in own.fits} for own in rewards}

    def labelled(model: str, kind: str, tau: float = 0.0) -> _Observations:
        by_kind = {"general": selection.general, "hand": selection.hand}
        settings = {step: by_kind.get(kind, selection.best[step])[model] for step in steps}
        return _observations(problems, fits, settings, tau)

    ridge = {f"ridge-{kind}-{tau:g}": labelled("ridge", kind, tau) for kind in _KINDS for tau in TAUS}
    lasso = {f"lasso-{kind}": labelled("lasso", kind) for kind in _KINDS}
    data = ridge | lasso
    first = next(iter(data))
    if not len(data[first].labels):
        raise BadInputError(
            "no decision was inlined by one grouping and applied by another; raise fusion.random in the config"
        )
    recipes = [
        *(_Recipe(name, (("mlp", name),)) for name in data),
        *(
            _Recipe(f"mixture-{model}", tuple(("mlp", name) for name in several), _SURELY)
            for model, several in (("ridge", ridge), ("lasso", lasso))
        ),
        *(_Recipe(model, ((model, first),)) for model in ("logistic", "tree")),
    ]
    names, networks = problems[0].feature_names, data[first].networks
    whole = _Fits(data, recipes, names, np.ones(len(networks), bool))
    unseen = Counter[str]()
    for network in np.unique(networks) if len(np.unique(networks)) > 1 else ():
        is_out = networks == network
        without = _Fits(data, recipes, names, ~is_out)
        unseen.update({recipe.name: without.right(recipe, data, is_out) for recipe in recipes})
    total = len(networks)
    return FusionPolicies(
        tuple(steps),
        total,
        tuple(
            replace(
                whole.policy(recipe),
                labels={
                    name: count / total
                    for name, count in sorted(Counter(data[recipe.experts[0][1]].labels.tolist()).items())
                },
                accuracy=whole.right(recipe, data, np.ones(total, bool)) / total,
                accuracy_unseen=unseen[recipe.name] / total if unseen else None,
                importance=whole.importance(recipe, data),
            )
            for recipe in recipes
        ),
    )
