"""Settings of training: the rule that updates each parameter, and how gradients are clipped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from autotm.model.errors import BadInputError

STEP = "step"
"""Name of the state that counts steps, where a rule depends on their number."""

RATE_SCALE = "rate_scale"
"""Name of the input that learning rates are multiplied by where they are scheduled."""


@dataclass(frozen=True, slots=True)
class Sgd:
    """Gradient descent as `torch.optim.SGD`: w -= learning_rate * d, where d is the gradient g + weight_decay * w.

    With momentum, a state b = momentum * b + (1 - dampening) * d, which is d itself in the first step, takes the place
    of d; with `nesterov`, d + momentum * b does.

    Attributes:
        learning_rate: at least 0.
        momentum: share of the state that is kept; at least 0. With 0 there is no state.
        dampening: share of d that the state leaves out.
        weight_decay: at least 0.
        nesterov: needs momentum, and no dampening.

    Raises:
        BadInputError: a number out of its range.
    """

    learning_rate: float
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        _require_numbers(self, "learning_rate", "momentum", "weight_decay")
        _require_numbers(self, "dampening", lowest=-math.inf)
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise BadInputError(
                f"Sgd: nesterov: True with momentum {self.momentum} and dampening {self.dampening}; it needs momentum "
                "above 0 and dampening 0"
            )

    @property
    def is_plain(self) -> bool:
        """Whether it only takes learning_rate times the gradient off: no state, nothing else read."""
        return self.momentum == 0 and self.weight_decay == 0


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam as `torch.optim.Adam` (arXiv:1412.6980): w -= learning_rate * mean / (sqrt(variance) + eps).

    Two states hold running averages of the gradient g + weight_decay * w and of its square, with shares `betas` of the
    past; both are divided by 1 - beta^t in step t.

    Attributes:
        learning_rate: at least 0.
        betas: of the gradient and of its square, each in [0, 1).
        eps: keeps the division from 0; at least 0.
        weight_decay: at least 0.

    Raises:
        BadInputError: a number out of its range.
    """

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _require_numbers(self, "learning_rate", "eps", "weight_decay")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):  # noqa: PLR2004  (mean and variance)
            raise BadInputError(f"{type(self).__name__}: betas: {self.betas} are not two numbers in [0, 1)")


@dataclass(frozen=True, slots=True)
class AdamW(Adam):
    """As `Adam`, but the weight decay shrinks w by itself, as `torch.optim.AdamW` (arXiv:1711.05101).

    w is multiplied by 1 - learning_rate * weight_decay before the step; the gradient stays as it is. Attributes
    and errors are those of `Adam`; `weight_decay` is 0.01 by default.
    """

    weight_decay: float = 0.01


UpdateRule = Sgd | Adam


@dataclass(frozen=True)
class Training:
    """The update rule of every parameter.

    Attributes:
        rule: of each parameter that has none of its own.
        rules: by parameter name, where it is another: norms without weight decay, say.
        clip_norm: the most that the 2-norm over all gradients may be; larger ones are scaled down together, as
            `torch.nn.utils.clip_grad_norm_` does, by clip_norm / (norm + 1e-6). None: they are left as they are.
        scheduled: whether a step has an input `RATE_SCALE`, 1 unless it is given, that all learning rates are
            multiplied by; else they are compiled in, which lets plain descent update looked-up rows only.

    Raises:
        BadInputError: `clip_norm` is not a positive number.
    """

    rule: UpdateRule
    rules: Mapping[str, UpdateRule] = field(default_factory=dict)
    clip_norm: float | None = None
    scheduled: bool = False

    def __post_init__(self) -> None:
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise BadInputError(f"Training: clip_norm: {self.clip_norm} is not a positive number; None does not clip")

    def rule_of(self, parameter: str) -> UpdateRule:
        """Return the rule that updates a parameter."""
        return self.rules.get(parameter, self.rule)


def _require_numbers(rule: UpdateRule, *names: str, lowest: float = 0.0) -> None:
    for name in names:
        if not lowest <= (value := getattr(rule, name)) < math.inf:
            least = "" if lowest == -math.inf else f" of at least {lowest:g}"
            raise BadInputError(f"{type(rule).__name__}: {name}: {value} is not a number{least}")
