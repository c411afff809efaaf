"""Why a plan is as it is: what binds its limit, why a tensor lives where it does, how two plans or runs differ."""

from autotm.study.explain.compare import Comparison, compare
from autotm.study.explain.limit import LimitExplanation, explain_limit
from autotm.study.explain.tensor import TensorExplanation, explain_tensor
from autotm.study.explain.tensor_text import tensor_text

__all__ = [
    "Comparison",
    "LimitExplanation",
    "TensorExplanation",
    "compare",
    "explain_limit",
    "explain_tensor",
    "tensor_text",
]
