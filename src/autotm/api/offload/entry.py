"""`autotm.offload(module, ...)` and `autotm.judge`: arguments are checked before any work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

from autotm.model.config import SolveConfig
from autotm.model.errors import AutotmError, BadInputError, validated
from autotm.model.limit import Limit

if TYPE_CHECKING:
    from autotm.api.offload.judging import Judgement
    from autotm.api.offload.step import OffloadedStep


def offload(
    module: Any,
    inputs: Any,
    loss: Callable[..., Any] | None = None,
    budget: str | float = "0.5x",
    *,
    targets: Sequence[Any] = (),
    optimizer: Any = None,
    host_budget: str | float | None = None,
    slow: str | None = None,
    move: bool = True,
    recompute: bool = True,
    kernel_s: float = 0.01,
    **solver: Any,
) -> OffloadedStep:
    """Make a step, forward and backward, that keeps a budget of device memory.

    PyTorch captures the joint graph of forward and backward and computes its operators; every operand is in device
    memory while an operator uses it. In between, tensors are copied to pinned host memory and back where the plan says,
    on streams of their own, or given up and computed again. Calling the step leaves gradients in `.grad` as `backward`
    does; or, with an optimizer, updates the parameters, each as soon as its gradient is complete, which is then freed.

    The budget covers all that the step has on the device: parameters, buffers, the batch, gradients made by this step,
    what is kept for the backward pass, memory that operators take while they run, and the state of the optimizer if it
    is given. It does not cover gradients that were there before. What PyTorch's allocator loses to fragmentation comes
    on top.

    Args:
        module: in the mode, training or evaluation, in which it is to run.
        inputs: a tensor, or a tuple of tensors: an example of what the module is called with.
        loss: gives a scalar from the module's output and the targets; without it the module returns its loss.
        budget: bytes, as `8GB`, `4GiB` or a number; or a part of what the plain step needs, as `0.5x` or,
            the same, `1:1`.
        targets: what the loss takes behind the module's output.
        optimizer: of PyTorch, made of the module's parameters: the step includes its update. Its learning rates may
            change between steps. Without it call the optimizer's `step()` after the step.
        host_budget: bytes of pinned host memory that tensors may be copied to; by default what is available, within
            the limit of a container.
        slow: of a module on a CPU, a memory node, as `node:2`, in the place of the host's memory: CXL memory, or
            that of another socket.
        move: whether tensors may be copied to the host and back.
        recompute: whether operators of the forward pass may run again in the backward pass, where that costs less.
        kernel_s: seconds for which each distinct operator is timed.
        solver: `gap`, `time_limit_s`, as under `solve` in the config. Where there are several mixes of moves and
            repeats, the search for each beyond its relaxation has a twelfth of the time limit, and after a third of it
            no other is tried.

    Returns:
        The step, to be called with a batch like `(*inputs, *targets)`.

    Raises:
        BadInputError: an argument is at fault, or the module cannot be captured.
        InfeasibleLimitError: no plan keeps the budget, or that of the host; names the least that one can keep.
        AutotmError: PyTorch is missing or too old, or the memory is not to be had.
    """
    share, size_bytes = _budget(budget)
    if not (move or recompute):
        raise BadInputError("offload: move and recompute are both False, so no plan saves memory; allow one of them")
    if not kernel_s > 0:
        raise BadInputError(f"offload: kernel_s is {kernel_s}; give a positive number of seconds")
    host_bytes = None if host_budget is None else _host_budget(host_budget)
    node = None if slow is None else _node(slow)
    config = validated(SolveConfig, dict(solver), "solver option")
    require_torch()
    from autotm.api.offload.build import build  # noqa: PLC0415 - imports PyTorch

    inputs = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    allowed = move, recompute, host_bytes
    return build(module, inputs, loss, tuple(targets), optimizer, (share, size_bytes), node, allowed, kernel_s, config)


def judge(
    module: Any,
    way: Callable[[Any], Callable[..., Any]],
    inputs: Any,
    loss: Callable[..., Any] | None = None,
    *,
    targets: Sequence[Any] = (),
    rounds: int = 5,
    **options: Any,
) -> Judgement:
    """Measure a way to save memory in a training step, and say how far from optimal it is.

    Three steps take turns: a plain one; one with the way; and one that `autotm.offload` plans, whose budget is the peak
    that was measured of the second. Each is forward and backward, without an update. The module is copied twice.

    Args:
        module: in the mode, training or evaluation, in which it is to run.
        way: gets a copy of the module, and returns it, or what is called in its place: with checkpoints, compiled,
            within hooks for saved tensors.
        inputs: a tensor, or a tuple of tensors: what the module is called with.
        loss: gives a scalar from the module's output and the targets; without it the module returns its loss.
        targets: what the loss takes behind the module's output.
        rounds: in which the steps take turns; times are medians.
        options: of `autotm.offload`, such as `move=False` for a way that only computes again.

    Returns:
        Peaks and times, and what every plan with that peak adds at least. Printed it is a table.

    Raises:
        BadInputError: an argument is at fault, or the way gives another loss.
        AutotmError: PyTorch is missing or too old.
    """
    require_torch("judge")
    from torch import nn  # noqa: PLC0415 - takes seconds

    from autotm.api.offload.judging import judge_way  # noqa: PLC0415 - imports PyTorch

    if not isinstance(module, nn.Module):
        raise BadInputError(f"judge: the module is a {type(module).__name__}; give a torch.nn.Module")
    if not isinstance(rounds, int) or rounds < 1:
        raise BadInputError(f"judge: rounds is {rounds}; give a positive number")
    if "optimizer" in options or "budget" in options:
        raise BadInputError(
            "judge: steps are forward and backward, without an update, and their budget is the peak of the way that is "
            "judged; leave optimizer and budget out"
        )
    known = signature(offload).parameters
    validated(SolveConfig, {name: value for name, value in options.items() if name not in known}, "solver option")
    inputs = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)

    def planned(own: nn.Module, budget_bytes: int) -> OffloadedStep:
        return offload(own, inputs, loss, budget_bytes, targets=targets, **options)

    return judge_way(module, way, (inputs, tuple(targets)), loss, planned, rounds)


def require_torch(what: str = "offload") -> None:
    """Raise AutotmError where PyTorch is missing, or has not what `what` needs."""
    try:
        import torch  # noqa: PLC0415
    except ImportError:
        raise AutotmError(f"{what}: PyTorch is not installed; pip install 'autotm[torch]'") from None
    try:
        from torch._functorch.aot_autograd import (  # noqa: PLC0415 - the one way to a joint graph with names
            aot_export_joint_with_descriptors,
        )
    except ImportError:
        raise AutotmError(
            f"{what}: PyTorch {torch.__version__} has no aot_export_joint_with_descriptors; it was tried with 2.13: "
            "pip install 'torch>=2.13'"
        ) from None
    del aot_export_joint_with_descriptors


def _budget(budget: str | float) -> tuple[float | None, int]:
    """Return a share of the plain step's memory and 0, or None and bytes."""
    wanted = "give bytes, as 8GB, or a share of what the step needs with nothing moved, at most 1x, as 0.5x (or 1:1)"
    try:
        limit = Limit.parse(budget)
    except BadInputError:
        raise BadInputError(f"offload: '{budget}' is no budget; {wanted}") from None
    if limit.slow is not None and limit.fast:
        return limit.fast / (limit.slow + limit.fast), 0
    if limit.less_io or not limit.size_bytes:
        raise BadInputError(f"offload: '{budget}' is no budget; {wanted}")
    return None, limit.size_bytes


def _host_budget(budget: str | float) -> int:
    """Return the bytes of a budget for the host."""
    try:
        limit = Limit.parse(budget)
    except BadInputError:
        limit = None
    if limit is None or limit.size_bytes is None:
        raise BadInputError(f"offload: '{budget}' is no budget of host memory; give bytes, as 64GB")
    return limit.size_bytes


def _node(slow: str) -> int:
    """Return the number of a memory node."""
    kind, _, number = str(slow).partition(":")
    if kind != "node" or not (number.isascii() and number.isdigit()):
        raise BadInputError(f"offload: slow is '{slow}'; give a memory node, as node:2 (numactl --hardware lists them)")
    return int(number)
