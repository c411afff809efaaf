"""A module and its loss as PyTorch's joint graph of forward and backward, with operators as PyTorch calls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from autotm.capture import capture as captured_by_pytorch
from autotm.capture import is_own
from autotm.model.files import BadInputError
from autotm.model.step import Role

aten = torch.ops.aten


@dataclass(frozen=True)
class Captured:
    """A joint graph, functional but for views, and what its arguments and results are.

    Attributes:
        graph: of PyTorch's operators; `meta["val"]` of each node has shape, strides and storage.
        arguments: of each placeholder, its role and name; the gradient of the loss by itself is a constant.
        loss: the node with the loss.
        gradients: the node with the gradient of a parameter, by its name; parameters without are left out.
        updates: the node with the new value of a state, likewise.
        tensors: the module's parameters and states by name, each once.
    """

    graph: fx.GraphModule
    arguments: Mapping[fx.Node, tuple[Role, str]]
    loss: fx.Node
    gradients: Mapping[str, fx.Node]
    updates: Mapping[str, fx.Node]
    tensors: dict[str, torch.Tensor]

    @property
    def results(self) -> tuple[fx.Node, ...]:
        """Nodes that outlive the step's operators."""
        return (self.loss, *self.gradients.values(), *self.updates.values())


def named_batch(batch: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Inputs and targets by the names of their arguments, which no parameter has."""
    return {f"batch {number}": tensor for number, tensor in enumerate(batch)}


def capture(
    module: nn.Module,
    inputs: Sequence[torch.Tensor],
    loss: Callable[..., Any] | None,
    targets: Sequence[torch.Tensor],
    device: torch.device,
) -> Captured:
    """Trace the step.

    Raises:
        BadInputError: it depends on the values of tensors, or PyTorch cannot trace it.
    """

    def call(applied: Callable[..., Any], given: Sequence[torch.Tensor]) -> torch.Tensor:
        output = applied(*given[: len(inputs)])
        return _checked(output if loss is None else loss(output, *given[len(inputs) :]))

    batch = named_batch((*inputs, *targets))
    try:
        found = captured_by_pytorch(
            module, call, batch, trains=True, table=_EAGER_DROPOUT if device.type == "cpu" else {}
        )
    except BadInputError as error:
        raise BadInputError(f"offload: {error}") from error
    except DataDependentOutputException as error:
        raise BadInputError(
            f"offload: {_where(error)}: the step depends on the value of a tensor ({error.func}), and a plan is "
            "made for one order of operators; compute it without .item(), bool() or if on tensors"
        ) from error
    except DynamicOutputShapeException as error:
        raise BadInputError(
            f"offload: {_where(error)}: the shape of what {error.func} gives depends on values, and a plan is made "
            "for fixed shapes; use masks and torch.where instead"
        ) from error
    except Exception as error:
        raise BadInputError(
            f"offload: {_where(error)}: PyTorch cannot capture the step: {type(error).__name__}: {error}"
        ) from error
    own = _Own(found.graph, set(found.arguments))
    (loss_node,) = found.outputs
    return Captured(
        found.graph.owning_module,
        found.arguments,
        own(loss_node),
        {name: own(node) for name, node in found.gradients.items()},
        found.updates,
        {name: tensor for name, tensor in found.values.items() if name not in batch},
    )


def _checked(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise BadInputError(f"the loss is {what}; it must be one floating-point number")
    if not loss.requires_grad:
        raise BadInputError("the loss does not depend on a parameter that requires a gradient")
    return loss


class _Own:
    """Gives a result memory of its own where it shares some, as autograd does."""

    def __init__(self, graph: fx.Graph, arguments: set[fx.Node]) -> None:
        self._graph = graph
        (self._output,) = graph.find_nodes(op="output")
        self._taken = {storage_of(node.meta["val"]) for node in arguments}

    def __call__(self, node: fx.Node) -> fx.Node:
        value = node.meta["val"]
        storage = storage_of(value)
        whole = value.untyped_storage().nbytes() == value.numel() * value.element_size()
        if storage not in self._taken and whole:
            self._taken.add(storage)
            return node
        with self._graph.inserting_before(self._output), value.fake_mode:
            copied = self._graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
            copied.meta["val"] = value.clone(memory_format=torch.contiguous_format)
        return copied


def storage_of(value: torch.Tensor) -> int:
    """What tensors that share memory share; valid as long as one of them lives."""
    return value.untyped_storage()._cdata  # noqa: SLF001 - as PyTorch's partitioners tell storages apart


def _where(error: BaseException) -> str:
    """The last line of the user's own code on the way to an error."""
    trace, found = error.__traceback__, "the module"
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not is_own(name):
            found = f"{name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


@torch.library.custom_op("autotm::bernoulli_like", mutates_args=())
def _bernoulli_like(like: torch.Tensor, keep: float) -> torch.Tensor:
    """Ones with probability `keep`, else zeros, drawn in the order of the memory of `like`.

    PyTorch's own functional operator draws in the order of the axes, which is another one where axes are transposed.
    """
    return torch.empty_like(like).bernoulli_(keep)


@_bernoulli_like.register_fake
def _(like: torch.Tensor, keep: float) -> torch.Tensor:
    del keep
    return torch.empty_like(like)


def _dropout(value: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Dropout as the CPU computes it outside of graphs: the mask is scaled before it is kept."""
    if train is False or p == 0:
        return value.clone(), torch.ones_like(value)
    keep = 1 - p
    noise = torch.ops.autotm.bernoulli_like(value, keep)
    noise = noise / keep if keep else noise.zero_()
    return value * noise, noise


def _dropout_backward(gradient: torch.Tensor, noise: torch.Tensor, scale: float) -> torch.Tensor:
    """Of `_dropout`; `noise` has the scale in it."""
    del scale
    return gradient * noise


_EAGER_DROPOUT = {aten.native_dropout.default: _dropout, aten.native_dropout_backward.default: _dropout_backward}
"""While tracing, PyTorch takes the fused operator of GPUs for dropout everywhere; the CPU's rounds differently."""
