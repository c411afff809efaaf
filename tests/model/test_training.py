"""Update rules refuse numbers that they are not defined for, and name the field."""

from __future__ import annotations

import math

import pytest

from autotm.model.errors import BadInputError
from autotm.model.training import Adam, AdamW, Sgd, Training


@pytest.mark.parametrize(
    ("rule", "fields", "message"),
    [
        (Sgd, {"learning_rate": -0.1}, "Sgd: learning_rate: -0.1 is not a number of at least 0"),
        (Sgd, {"learning_rate": math.nan}, "Sgd: learning_rate: nan"),
        (Sgd, {"learning_rate": 0.1, "momentum": -1}, "Sgd: momentum: -1"),
        (Sgd, {"learning_rate": 0.1, "dampening": math.inf}, "Sgd: dampening: inf is not a number$"),
        (Sgd, {"learning_rate": 0.1, "weight_decay": -1}, "Sgd: weight_decay: -1"),
        (Sgd, {"learning_rate": 0.1, "nesterov": True}, "needs momentum above 0 and dampening 0"),
        (Adam, {"learning_rate": 0.1, "eps": -1}, "Adam: eps: -1"),
        (
            Adam,
            {"learning_rate": 0.1, "betas": (0.9, 1.0)},
            r"Adam: betas: \(0.9, 1.0\) are not two numbers in \[0, 1\)",
        ),
        (AdamW, {"learning_rate": 0.1, "weight_decay": math.inf}, "AdamW: weight_decay: inf"),
        (Training, {"rule": Sgd(0.1), "clip_norm": 0.0}, "Training: clip_norm: 0.0 is not a positive number"),
    ],
)
def test_out_of_range(rule: type, fields: dict[str, object], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        rule(**fields)


def test_a_parameter_has_its_own_rule_or_the_common_one() -> None:
    training = Training(AdamW(1e-3), {"bias": AdamW(1e-3, weight_decay=0)})
    assert training.rule_of("weight") == training.rule
    assert training.rule_of("bias").weight_decay == 0


def test_plain_is_without_momentum_and_decay() -> None:
    assert Sgd(0.1).is_plain
    assert not Sgd(0.1, momentum=0.9).is_plain
    assert not Sgd(0.1, weight_decay=0.1).is_plain
