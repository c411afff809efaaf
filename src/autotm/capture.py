"""A step of a module as one graph of PyTorch's operators, forward and backward: PyTorch's own capture.

PyTorch decides what is differentiated: `detach`, `no_grad`, functions with gradients of their own and hooks on tensors
are in the graph as it computes them. Changes in place are results of the graph.
"""

from __future__ import annotations

import contextlib
import copy
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy.typing as npt
import torch
from torch import fx, nn
from torch._C import DispatchKey
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.func import functional_call
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import TorchFunctionMetadataMode, _temp_remove_metadata_torch_function_mode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from autotm.model.errors import BadInputError
from autotm.model.graph import Role

_PYTORCH = str(Path(torch.__file__).parent)
_OWN = str(Path(__file__).parent)
"""This package; a user's folder may be called `torch` as well."""
TANGENT = "tangent"
"""Name of the argument that stands for the derivative of the loss by itself."""
_TENSOR = object()
"""Stands for a tensor among outputs; the others are the same in every step."""


def is_own(file: str) -> bool:
    """Return whether a file of code is PyTorch's or autotm's, not the user's."""
    return file.startswith((f"{_PYTORCH}/", f"{_OWN}/", "<"))


def user_line(error: BaseException) -> str:
    """Return the last line of the user's own code on the way to an error."""
    trace, location = error.__traceback__, "the module"
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not is_own(name):
            location = f"{name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return location


@contextlib.contextmanager
def refusals(what: str, values: str, shapes: str, other: str) -> Iterator[None]:
    """Turn errors of a step over tensors without values into a BadInputError that names the user's line.

    Args:
        what: the function that was called, for messages.
        values: why the step may not depend on values, for messages.
        shapes: why shapes may not.
        other: what any other error means.
    """
    try:
        yield
    except BadInputError as error:
        raise BadInputError(f"{what}: {error}") from error
    except DataDependentOutputException as error:
        raise BadInputError(
            f"{what}: {user_line(error)}: the step depends on the value of a tensor ({error.func}), and {values}; "
            "compute it without .item(), bool() or if on tensors"
        ) from error
    except DynamicOutputShapeException as error:
        raise BadInputError(
            f"{what}: {user_line(error)}: the shape of what {error.func} gives depends on values, and {shapes}; use "
            "masks and torch.where instead"
        ) from error
    except Exception as error:
        raise BadInputError(f"{what}: {user_line(error)}: {other} {type(error).__name__}: {error}") from error


def checked_loss(loss: Any) -> torch.Tensor:
    """Return a loss; BadInputError if it is not one number that depends on a parameter."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        described = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise BadInputError(f"the loss is {described}; it must be one floating-point number")
    if not loss.requires_grad:
        raise BadInputError("the loss does not depend on a parameter that requires a gradient")
    return loss


class _Lines(TorchFunctionMetadataMode):
    """Notes the line of the user's code that each call of PyTorch comes from; the backward pass inherits it.

    Some functions are replaced by others. What `torch.cond` and other operators on functions are given is traced
    without modes of this base class: they could not be traced themselves.
    """

    def __init__(self, replaced: Mapping[Any, Callable[..., Any]]) -> None:
        self._replaced = replaced

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        frame = sys._getframe(1)  # noqa: SLF001 - as `inspect` does, without reading sources
        while frame is not None and frame.f_code is not Step.forward.__code__ and is_own(frame.f_code.co_filename):
            frame = frame.f_back
        before = fx_traceback.get_current_meta().get("stack_trace")
        if frame is not None and frame.f_code is not Step.forward.__code__:
            file, number, name = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
            code = linecache.getline(file, number).strip()
            fx_traceback.set_stack_trace([f'File "{file}", line {number}, in {name}\n{code}'])
        try:
            return self._replaced.get(function, function)(*args, **(kwargs or {}))
        finally:
            # What is traced next without this mode, the body of a loop say, has lines of its own.
            fx_traceback.set_stack_trace([before] if before else [])


def _weight_norm(direction: torch.Tensor, length: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """Write out the norm of a weight, of whose gradient PyTorch has no decomposition."""
    return direction * (length / torch.norm_except_dim(direction, 2, dim))


@dataclass(frozen=True)
class Captured:
    """A functional graph, and what its arguments and results are.

    Attributes:
        graph: `meta["val"]` of each node has its shape and type, `meta["stack_trace"]` the user's line.
        arguments: of each placeholder, role and name.
        values: of arguments by name.
        outputs: the module's tensors, in order; in a step that trains, the loss alone.
        nested: called with as many values, returns them nested as the module nests its outputs.
        gradients: of parameters, by name; those that the loss does not depend on are left out.
        updates: the new values of states, by name.
        eager: calls the module itself, as `eager_step`.
    """

    graph: fx.Graph
    arguments: Mapping[fx.Node, tuple[Role, str]]
    values: Mapping[str, torch.Tensor]
    outputs: Sequence[fx.Node]
    nested: Callable[[Sequence[Any]], Any]
    gradients: Mapping[str, fx.Node] = field(default_factory=dict)
    updates: Mapping[str, fx.Node] = field(default_factory=dict)
    eager: Callable[[], dict[str, Any]] | None = None


class Step(nn.Module):
    """A module and what is computed with it, as PyTorch captures both: each parameter and buffer once.

    Attributes:
        weights, states: parameters and buffers, however many names each has.
        names: the first name of each, by its `id`.
        spec: how the step nests its outputs, once it was called.
        assigned: names of buffers that forward replaced by other tensors, once the step was called.
        copied: names of buffers that forward reads as copies, so that the step keeps both values.
    """

    def __init__(self, module: nn.Module, call: Callable[..., Any]) -> None:
        """Take `call`, which computes the step from a function that applies the module and the flat inputs."""
        super().__init__()
        named = list(module.named_parameters(remove_duplicate=False))
        buffers = list(module.named_buffers(remove_duplicate=False))
        self.names = {id(tensor): name for name, tensor in reversed([*named, *buffers])}
        self.weights = nn.ParameterList(dict.fromkeys(weight for _, weight in named))
        self.states = list(dict.fromkeys(buffer for _, buffer in buffers))
        for place, buffer in enumerate(self.states):
            self.register_buffer(f"state{place}", buffer)
        places = {id(weight): place for place, weight in enumerate(self.weights)}
        self._weight_places = {name: places[id(weight)] for name, weight in named}
        places = {id(buffer): place for place, buffer in enumerate(self.states)}
        self._state_places = {name: places[id(buffer)] for name, buffer in buffers}
        object.__setattr__(self, "_module", module)  # Not as a submodule: its parameters would appear twice.
        self._call = call
        self.spec: TreeSpec | None = None
        self.assigned: set[str] = set()
        self.copied: frozenset[str] = frozenset()

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Compute the step's outputs, flat."""
        tensors = {name: self.weights[place] for name, place in self._weight_places.items()}
        tensors |= {name: self._state(name) for name in self._state_places}

        def module(*positional: Any, **named: Any) -> Any:
            before = dict(tensors)
            output = functional_call(self._module, tensors, positional, named)
            # A buffer that was given another tensor keeps its value as one that was written in place does.
            for name, place in self._state_places.items():
                state = getattr(self, f"state{place}")
                if tensors[name] is not before[name]:
                    self.assigned.add(name)
                if tensors[name] is not state:
                    state.copy_(tensors[name].detach())
                    tensors[name] = state
            return output

        leaves, self.spec = tree_flatten(self._call(module, inputs))
        return tuple(leaves)

    def _state(self, name: str) -> torch.Tensor:
        """Return a buffer's value, or a copy of it."""
        state: torch.Tensor = getattr(self, f"state{self._state_places[name]}")
        return state.clone() if name in self.copied else state


def capture(
    module: nn.Module,
    call: Callable[..., Any],
    inputs: Mapping[str, torch.Tensor],
    *,
    trains: bool,
    table: Mapping[Any, Callable[..., Any]] | None = None,
    replaced: Mapping[Any, Callable[..., Any]] | None = None,
) -> Captured:
    """Trace a step.

    Args:
        module: in the mode that the step is in.
        call: computes a step from a function that applies the module and the inputs' values in order.
        inputs: by name.
        trains: whether to differentiate by parameters that want a gradient.
        table: decompositions by operator; all others are as PyTorch calls them. None: operators that have no kernels
            here are decomposed.
        replaced: functions of PyTorch, and what the module calls in place of each. Where they are given, shapes that
            depend on values are traced, too: `torch.while_loop` cannot do without.
    """
    instead = {torch._weight_norm: _weight_norm, **(replaced or {})}  # noqa: SLF001 - the name it has

    def with_lines(applied: Callable[..., Any], flat: Sequence[torch.Tensor]) -> Any:
        # Of PyTorch's own mode of this kind, which only names functions, `torch.cond` would leave one in place.
        with _temp_remove_metadata_torch_function_mode(), _Lines(instead):
            return call(applied, flat)

    step, decompose = Step(module, with_lines), decompositions() if table is None else dict(table)
    is_told = False
    while True:
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(_attributes_kept(module))
                if is_told:
                    stack.enter_context(patch.object(torch.compiler, "_is_compiling_flag", True))
                if table is None:
                    stack.enter_context(sdpa_kernel(SDPBackend.MATH))
                    stack.enter_context(_resizing_whole())
                stack.enter_context(_without_onednn())
                stack.enter_context(fx_traceback.preserve_node_meta())
                stack.enter_context(torch.set_grad_enabled(trains))
                # Tensors that the module holds as plain attributes are constants of the step.
                environment = None if replaced is None else ShapeEnv()
                given = detect_fake_mode([*module.parameters(), *inputs.values()])  # Of tensors without memory.
                fake = given or FakeTensorMode(allow_non_fake_inputs=True, shape_env=environment)
                stack.enter_context(tracing(TracingContext(fake)))
                joint = aot_export_joint_with_descriptors(
                    stack, step, tuple(inputs.values()), decompositions=decompose, ignore_shape_env=True
                )
            return _captured(joint, step, inputs)
        except DataDependentOutputException:
            # Libraries look at values to take a shorter way, unless they are told that they are traced.
            if is_told:
                raise
            is_told = True
        except RuntimeError:
            # The backward pass may need the old value of a buffer that the forward pass has overwritten.
            if step.copied or not step.assigned:
                raise
            step.copied = frozenset(step.assigned)


@contextlib.contextmanager
def _attributes_kept(module: nn.Module) -> Iterator[None]:
    """Give a module's attributes back that its forward pass assigns; BadInputError if one is a tensor: it is lost."""
    before = {part: dict(vars(part)) for part in module.modules()}
    try:
        yield
        for name, part in module.named_modules():
            for attribute, value in vars(part).items():
                if isinstance(value, torch.Tensor) and value is not before.get(part, {}).get(attribute):
                    where = f"{name}.{attribute}" if name else attribute
                    raise BadInputError(
                        f"{type(module).__name__}: forward assigns the tensor {where}, which a step would lose; make "
                        "it a buffer with register_buffer"
                    )
    finally:
        for part, attributes in before.items():
            vars(part).update(attributes)
            for added in vars(part).keys() - attributes.keys():
                del vars(part)[added]


@contextlib.contextmanager
def _resizing_whole() -> Iterator[None]:
    """Keep PyTorch from taking resizing apart before any table of decompositions is asked."""
    overloads = [
        getattr(packet, name)
        for packet in (torch.ops.aten.upsample_nearest2d, torch.ops.aten.upsample_bilinear2d)
        for name in ("default", "vec")
    ]
    kept = [dict(overload.py_kernels) for overload in overloads]
    for overload in overloads:
        for key in (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd):
            overload.py_kernels.pop(key, None)
        overload._dispatch_cache.clear()  # noqa: SLF001 - as torch.export does where it keeps operators
    try:
        yield
    finally:
        for overload, kernels in zip(overloads, kept, strict=True):
            overload.py_kernels.update(kernels)
            overload._dispatch_cache.clear()  # noqa: SLF001


@contextlib.contextmanager
def _without_onednn() -> Iterator[None]:
    """Capture recurrent layers as operators that every kernel library has, not as one of oneDNN's."""
    was_enabled = torch._C._get_mkldnn_enabled()  # noqa: SLF001 - torch.backends.mkldnn.flags sets more, and warns
    torch._C._set_mkldnn_enabled(False)  # noqa: SLF001
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(was_enabled)  # noqa: SLF001


def argument_of(description: Any) -> tuple[Role, int]:
    """Return the role of an argument of a joint graph, and the place of its tensor among those of that role.

    Raises:
        BadInputError: no step here has such an argument.
    """
    kind = type(description).__name__
    if kind == "ParamAOTInput":
        return Role.PARAMETER, int(description.target.removeprefix("weights."))
    if kind == "BufferAOTInput":
        return Role.STATE, int(description.target.removeprefix("state"))
    if kind == "PlainAOTInput":
        return Role.INPUT, description.idx
    if kind in {"TangentAOTInput", "ForwardTokenAOTInput", "BackwardTokenAOTInput"}:
        return Role.CONSTANT, 0
    raise BadInputError(f"PyTorch's graph takes a {kind}, which is not known here")


def _captured(joint: Any, step: Step, inputs: Mapping[str, torch.Tensor]) -> Captured:
    """Sort arguments and results by PyTorch's descriptions of them."""
    graph: fx.Graph = joint.graph_module.graph
    weights, states = (
        [(step.names[id(tensor)], tensor) for tensor in tensors] for tensors in (step.weights, step.states)
    )
    placeholders = graph.find_nodes(op="placeholder")
    tangents = [node.meta["val"] for node in placeholders if type(node.meta["desc"]).__name__ == "TangentAOTInput"]
    # The loss's derivative by itself is on the loss's device. A step that does not train has none.
    like = tangents[0] if tangents else torch.empty(())
    tensors = {
        Role.PARAMETER: weights, Role.STATE: states, Role.INPUT: list(inputs.items()),
        Role.CONSTANT: [(TANGENT, torch.ones(like.shape, dtype=like.dtype, device=like.device))],
    }  # fmt: skip

    def named(description: Any) -> tuple[Role, str]:
        role, place = argument_of(description)
        return role, tensors[role][place][0]

    arguments = {node: named(node.meta["desc"]) for node in placeholders}
    (output,) = graph.find_nodes(op="output")
    leaves, gradients, updates = [], {}, {}
    for node, descriptor in zip(output.args[0], output.meta["desc"], strict=True):
        kind = type(descriptor).__name__
        if kind == "PlainAOTOutput":
            value = node.meta["val"] if isinstance(node, fx.Node) else None
            leaves.append(torch.empty(value.shape, dtype=value.dtype) if is_empty(node) else node)
        elif not isinstance(node, fx.Node) or is_empty(node) or kind.endswith("TokenAOTOutput"):
            continue  # A missing gradient, one without elements, or a token that orders checks.
        elif kind == "InputMutationAOTOutput":
            role, name = named(descriptor.mutated_input)
            if role is Role.INPUT or (role is Role.PARAMETER and dict(weights)[name].requires_grad):
                raise BadInputError(f"the step overwrites its {role} {name}; give a module that does not")
            updates[name] = node
        elif kind == "GradAOTOutput":
            gradients[named(descriptor.grad_of)[1]] = node
        else:
            raise BadInputError(f"PyTorch's graph returns a {kind}, which is not known here")
    # Parameters that are not trained but written are states, a teacher's running averages say.
    arguments = {node: (Role.STATE if name in updates else role, name) for node, (role, name) in arguments.items()}
    values = {name: tensor for several in tensors.values() for name, tensor in several}
    outputs = [leaf for leaf in leaves if isinstance(leaf, fx.Node)]
    return Captured(graph, arguments, values, outputs, _nested(leaves, step.spec), gradients, updates)


def _nested(leaves: Sequence[Any], spec: TreeSpec | None) -> Callable[[Sequence[Any]], Any]:
    """Return a function that puts values in the place of the nodes among some leaves, and nests these."""
    fixed = [_TENSOR if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
    assert spec is not None, "the step was called"

    def nested(values: Sequence[Any]) -> Any:
        following = iter(values)
        return tree_unflatten([next(following) if leaf is _TENSOR else leaf for leaf in fixed], spec)

    return nested


def eager_step(
    module: torch.nn.Module, call: Callable[..., Any], tensors: Sequence[torch.Tensor], *, trains: bool
) -> dict[str, Any]:
    """Call a copy of a module once; return its outputs, or its loss and the gradients of its parameters.

    `call` computes a step from a function that applies the module and the values of the inputs, `tensors`.
    """
    own = copy.deepcopy(module)
    with torch.set_grad_enabled(trains):
        result = call(own, [tensor.clone() for tensor in tensors])
        leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if trains:
            leaves[0].backward()
    leaves = [leaf for leaf in leaves if leaf.numel()]
    names = ["output"] if len(leaves) == 1 else [f"output.{number}" for number in range(len(leaves))]
    gradients = {
        f"{name}.gradient": parameter.grad.numpy()
        for name, parameter in own.named_parameters()
        if parameter.grad is not None
    }
    outputs = {name: array_of(leaf) for name, leaf in zip(names, leaves, strict=True)}
    return {name: array for name, array in outputs.items() if array is not None} | gradients


def array_of(value: torch.Tensor) -> npt.NDArray[Any] | None:
    """Return a tensor's numbers as NumPy has them, complex ones as pairs; None of a type that NumPy lacks."""
    value = value.detach().resolve_conj().resolve_neg()
    if value.dtype in {torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2}:
        return None
    array: npt.NDArray[Any] = (torch.view_as_real(value) if value.is_complex() else value).numpy()
    return array


def is_empty(node: Any) -> bool:
    """Return whether a value is a node whose result is one tensor without elements."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.numel() == 0


_WHOLE = (
    "_safe_softmax", "gelu", "native_layer_norm", "native_layer_norm_backward", "native_batch_norm_backward",
    "native_group_norm", "native_group_norm_backward", "native_dropout", "native_dropout_backward", "silu", "softplus",
    "upsample_bilinear2d", "upsample_nearest2d", "_softmax_backward_data", "_log_softmax_backward_data", "prelu",
    "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d_backward", "embedding_dense_backward",
)  # fmt: skip
"""Operators of PyTorch that stay whole: what they are made of would compile to slower kernels."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return PyTorch's own decompositions, but for operators that stay whole."""
    table = dict(torch.export.default_decompositions())
    for name in _WHOLE:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            table.pop(getattr(packet, overload), None)
    return table
