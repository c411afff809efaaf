"""Whether a limit can be kept at all, told before any solver starts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autotm.model.files import InfeasibleLimitError
from autotm.solve.problem.choices import Choices
from autotm.solve.problem.problem import Problem


def required_bytes(choices: Choices, kernels: int) -> npt.NDArray[np.int64]:
    """Bytes that have to be fast during each kernel, whatever is decided."""
    required = np.zeros(kernels, np.int64)
    for table in choices.tables:
        required[table.kernel] += table.least_bytes
    for flow in choices.flows:
        for start, stop, must in zip(flow.starts, flow.stops, flow.must, strict=True):
            if must:
                required[start:stop] += flow.size_bytes
    return required


def require_feasible(problem: Problem, choices: Choices, optimizer: str) -> None:
    """Refuse a limit that what has to be fast does not fit.

    Raises:
        InfeasibleLimitError: names the worst kernel, the bytes short and the smallest feasible limit.
    """
    required = required_bytes(choices, len(problem.graph.kernels))
    if not len(required):
        return
    worst = int(required.argmax())
    smallest = int(required[worst])
    if smallest > problem.limit_bytes:
        raise InfeasibleLimitError(
            f"limit {problem.limit} ({problem.limit_bytes} bytes of fast memory) is infeasible for '{optimizer}': "
            f"kernel {worst} '{problem.graph.kernels[worst].name}' needs {smallest} bytes in fast memory, "
            f"{smallest - problem.limit_bytes} bytes short; the smallest feasible limit is {smallest} bytes",
            smallest,
        )
