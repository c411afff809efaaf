"""A network's update rules as an optimizer of PyTorch."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import torch

from autotm.model.files import BadInputError
from autotm.model.step import Adam, AdamW, Sgd, UpdateRule
from autotm.zoo.network import Network
from autotm.zoo.twin.module import TorchNetwork, plan_of

_KINDS = {Sgd: torch.optim.SGD, Adam: torch.optim.Adam, AdamW: torch.optim.AdamW}


def has_sparse_gradients(network: Network) -> bool:
    """Whether the update takes gradients that name rows of tables: it reads nothing but them, and clips nothing."""
    training = network.training
    return training is not None and training.clip_norm is None and not training.rules and _is_plain(training.rule)


def require_twin(network: Network) -> None:
    """Refuse a network whose step PyTorch cannot make here.

    Raises:
        BadInputError: as `plan_of`; or the network is not trained, or by rules of several kinds.
    """
    plan_of(network, sparse=False)
    _rules(network)


def optimizer_of(network: Network, module: TorchNetwork) -> torch.optim.Optimizer:
    """The optimizer that updates the module's weights as the network's rules say, a group a rule.

    Raises:
        BadInputError: the network is not trained, or by rules of several kinds.
    """
    groups = _rules(network)
    kind = _KINDS[type(next(iter(groups)))]
    return kind(
        [{"params": [module.weights[name] for name in names], **_options(rule)} for rule, names in groups.items()]
    )


def _rules(network: Network) -> dict[UpdateRule, list[str]]:
    """Parameters by rule."""
    if network.training is None:
        raise BadInputError(f"network {network.name}: it is not trained, so there is nothing to update")
    if network.gradients is not None:
        raise BadInputError(f"network {network.name}: it comes from PyTorch with its gradients; run the module itself")
    groups: dict[UpdateRule, list[str]] = defaultdict(list)
    for name in network.parameters:
        groups[network.training.rule_of(name)].append(name)
    kinds = sorted({type(rule).__name__ for rule in groups})
    if len(kinds) > 1:
        raise BadInputError(f"network {network.name}: rules of several kinds ({', '.join(kinds)}); give one kind")
    return groups


def _is_plain(rule: UpdateRule) -> bool:
    return isinstance(rule, Sgd) and rule.is_plain


def _options(rule: UpdateRule) -> dict[str, object]:
    found = dataclasses.asdict(rule)
    return {"lr": found.pop("learning_rate"), **found}
