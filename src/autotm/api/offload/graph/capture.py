"""A module and its loss as PyTorch's joint graph of forward and backward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from autotm.model.files import BadInputError
from autotm.model.step import Role
from autotm.zoo.frontend.torch import Step, argument_of

aten = torch.ops.aten


@dataclass(frozen=True)
class Captured:
    """A joint graph, functional but for views, and what its arguments and results are.

    Attributes:
        graph: of PyTorch's operators; `meta["val"]` of each node has shape, strides and storage.
        arguments: of each placeholder, its role, and the place of its tensor among those of that role: parameters,
            states (buffers), inputs; the gradient of the loss by itself is a constant.
        loss: the node with the loss.
        gradients: the node with the gradient of a parameter, by its place; parameters without are left out.
        updates: (place of a state, node with its new value).
        parameters, states: of the module, each once.
    """

    graph: torch.fx.GraphModule
    arguments: dict[torch.fx.Node, tuple[Role, int]]
    loss: torch.fx.Node
    gradients: dict[int, torch.fx.Node]
    updates: list[tuple[int, torch.fx.Node]]
    parameters: tuple[nn.Parameter, ...]
    states: tuple[torch.Tensor, ...]

    @property
    def results(self) -> tuple[torch.fx.Node, ...]:
        """Nodes that outlive the step's operators."""
        return (self.loss, *self.gradients.values(), *(node for _, node in self.updates))


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

    step = Step(module, call)
    decompositions = _EAGER_DROPOUT if device.type == "cpu" else {}
    with contextlib.ExitStack() as stack:
        try:
            joint = aot_export_joint_with_descriptors(
                stack, step, (*inputs, *targets), decompositions=decompositions, ignore_shape_env=True
            )
        except BadInputError:
            raise
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
        return _captured(joint, step)


def _checked(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise BadInputError(f"offload: the loss is {what}; it must be one floating-point number")
    if not loss.requires_grad:
        raise BadInputError("offload: the loss does not depend on a parameter that requires a gradient")
    return loss


def _captured(joint: Any, step: Step) -> Captured:
    """What descriptors say of arguments and results."""
    graph: torch.fx.Graph = joint.graph_module.graph
    arguments: dict[torch.fx.Node, tuple[Role, int]] = {}
    for node in graph.find_nodes(op="placeholder"):
        arguments[node] = argument_of(node.meta["desc"])
    (output,) = graph.find_nodes(op="output")
    loss, gradients, updates = None, {}, []
    for node, what in zip(output.args[0], output.meta["desc"], strict=True):
        if node is None:
            continue
        kind = type(what).__name__
        if kind == "InputMutationAOTOutput":
            role, place = argument_of(what.mutated_input)
            if role is not Role.STATE:
                raise BadInputError(f"offload: the step overwrites its {role} {place}; give a module that does not")
            updates.append((place, node))
        elif kind == "GradAOTOutput":
            gradients[argument_of(what.grad_of)[1]] = node
        elif kind == "PlainAOTOutput":
            loss = node
        else:
            raise BadInputError(f"offload: PyTorch's graph returns a {kind}, which is not known here")
    assert loss is not None, "the step returns its loss"
    own = _Own(graph, output, joint.fake_mode, set(arguments))
    loss = own(loss)
    gradients = {place: own(node) for place, node in gradients.items()}
    return Captured(joint.graph_module, arguments, loss, gradients, updates, tuple(step.weights), tuple(step.states))


@dataclass
class _Own:
    """Gives a result memory of its own where it shares some, as autograd does."""

    graph: torch.fx.Graph
    output: torch.fx.Node
    fake_mode: Any
    arguments: set[torch.fx.Node]

    def __post_init__(self) -> None:
        self.taken = {storage_of(node.meta["val"]) for node in self.arguments}

    def __call__(self, node: torch.fx.Node) -> torch.fx.Node:
        value = node.meta["val"]
        storage = storage_of(value)
        whole = value.untyped_storage().nbytes() == value.numel() * value.element_size()
        if storage not in self.taken and whole:
            self.taken.add(storage)
            return node
        with self.graph.inserting_before(self.output), self.fake_mode:
            copied = self.graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
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
        if "/torch/" not in name and "autotm/api/" not in name and not name.startswith("<"):
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
