"""Two training steps over tensors without memory, with what PyTorch would have allocated at each operator."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.fx.node import map_arg
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from autotm.capture import checked_loss, refusals
from autotm.joint_graph import Step, capture
from autotm.model.errors import BadInputError
from autotm.model.step_memory import Cause, LeastMemory, ModuleMemory, Peak, Phase, StepMemory
from autotm.optimizer_updates import Update, require_known, with_updates

_CAUSES = {
    "Parameter": Cause.PARAMETERS,
    "Buffer": Cause.BUFFERS,
    "Gradient": Cause.GRADIENTS,
    "Activation": Cause.ACTIVATIONS,
    "Temp": Cause.TEMPORARIES,
    "Optstate": Cause.OPTIMIZER,
    "Other": Cause.BATCH,
}
"""What memory is for, by PyTorch's names."""
_TOTAL = "Total"
aten = torch.ops.aten
Snapshot = dict[torch.device, dict[Any, int]]


def step_memory(
    module: nn.Module | Callable[[], nn.Module],
    inputs: tuple[Any, ...],
    loss: Callable[..., Any] | None,
    optimizer: Any,
    targets: tuple[Any, ...],
    budget_bytes: int | None,
    *,
    on_gpu: bool = False,
) -> tuple[StepMemory, Step | None]:
    """Return the memory of two steps, and the step as `autotm.offload` captures it, or None if it does not.

    The arguments are those of `fits`, but for `on_gpu`: whether attention is that of a GPU, and what operators of a CPU
    take while they run does not count.
    """
    given = detect_fake_mode(
        [*_tensors((inputs, targets)), *(module.parameters() if isinstance(module, nn.Module) else ())]
    )
    with given or without_memory() as fake, _GpuAttention() if on_gpu else contextlib.nullcontext():
        own, counterparts = _counterpart(module, fake)
        batch = tree_map_only(torch.Tensor, lambda tensor: _fake(tensor, fake), (*inputs, *targets))
        tensors = _tensors(batch)
        updates = _optimizer(optimizer, own, counterparts)

        def step() -> torch.Tensor:
            output = own(*batch[: len(inputs)])
            value = checked_loss(output if loss is None else loss(output, *batch[len(inputs) :]))
            value.backward()
            if updates is not None:
                updates.step()
            return value

        def track() -> _Tracker:
            tracker = _Tracker(counts_workspaces=not on_gpu)
            tracker.track_external(own, tensors, updates)
            own.zero_grad(set_to_none=True)
            with tracker:
                step()
            return tracker

        none = "tensors have none here"
        with refusals("fits", none, none, "the step ends with"), _unlogged(), contextlib.ExitStack() as stack:
            try:
                first = track()
            except Exception as error:  # noqa: BLE001 - raised again below
                # Libraries may compute otherwise where they are told that they are traced: what PyTorch traces.
                stack.enter_context(patch.object(torch.compiler, "_is_compiling_flag", True))
                try:
                    first = track()
                except Exception:  # noqa: BLE001 - the first error is the step's own
                    raise error from None
            steady = track()
        update_bytes = steady.peak_bytes[Phase.OPTIMIZER]
        modules = steady.modules(own)
        resting_bytes = _total(steady.get_tracker_snapshot("current"))
        arguments = batch[: len(inputs)], loss, batch[len(inputs) :]
        least, captured = _least(own, arguments, updates, update_bytes, counts_workspaces=not on_gpu)
    memory = StepMemory(
        type(own).__name__,
        sum(parameter.numel() for parameter in own.parameters()),
        "" if updates is None else type(updates).__name__,
        first.peak,
        steady.peak,
        resting_bytes,
        least,
        modules,
        tuple(name or type(one).__name__ for name, one in own.named_modules() if isinstance(one, nn.RNNBase)),
        budget_bytes,
    )
    return memory, captured


def _least(
    module: nn.Module,
    arguments: tuple[tuple[Any, ...], Any, tuple[Any, ...]],
    optimizer: torch.optim.Optimizer | None,
    update_bytes: int,
    *,
    counts_workspaces: bool,
) -> tuple[LeastMemory, Step | None]:
    """Return the least memory of a step whose tensors are on the device while an operator uses them, and the step.

    Args:
        module: without memory.
        arguments: inputs, loss and targets.
        optimizer: whose updates are operators of the step if it is one that is known. The state of any other is never
            moved.
        update_bytes: the most while such an optimizer updates all parameters, when nothing can be moved.
        counts_workspaces: whether what operators of a CPU take while they run counts.
    """
    inputs, loss, targets = arguments
    is_known = False
    if optimizer is not None:
        with contextlib.suppress(BadInputError):
            require_known(optimizer, module)
            is_known = True
    if not all(isinstance(own, torch.Tensor) for own in (*inputs, *targets)):
        return LeastMemory(None, "", "its inputs are not all tensors"), None
    try:
        device = (*module.parameters(), *inputs)[0].device
        captured = capture(module, inputs, loss, targets, device)
        step = Step(with_updates(captured, optimizer) if is_known else captured)
    except BadInputError as error:
        return LeastMemory(None, "", str(error).removeprefix("offload: ").partition("\n")[0]), None
    held = step.held
    always = sum(step.storages[place].size_bytes for place in held)
    most: dict[str, int] = {}
    for operator in step.operators:
        used = {*operator.inputs, *operator.outputs} - held
        # What the optimizer keeps waits on the host but for the updates.
        state_bytes = operator.node.target.state_bytes if isinstance(operator.node.target, Update) else 0
        needed = always + state_bytes + sum(step.storages[place].size_bytes for place in used)
        if counts_workspaces:
            given = map_arg(operator.node.args, lambda node: node.meta["val"])
            needed += workspace_bytes(operator.node.target, given)
        most[f"operator '{operator.node.name}' ({operator.name})"] = needed
    results = {*step.results} - held
    most["the gradients and the loss"] = always + sum(step.storages[place].size_bytes for place in results)
    if optimizer is not None and not is_known:
        state = sum(tensor.untyped_storage().nbytes() for tensor in _tensors(optimizer.state))
        most = {where: needed + state for where, needed in most.items()}
        most["the update by the optimizer"] = update_bytes
    where = max(most, key=most.__getitem__)
    return LeastMemory(most[where], where), step


def workspace_bytes(function: Any, args: Sequence[Any]) -> int:
    """Return what an operator takes on a CPU while it runs, besides its results: 0 where that is not known.

    Convolutions of oneDNN take most. They copy operands into other layouts, and the gradient of a weight is in blocks
    of as many channels as a vector register holds, so that groups of one channel take up to 256 times its size. The
    copies are those that PyTorch 2.13 was seen to make with AVX-512. With AVX2 it makes a few more of smaller operands,
    which are missing here.
    """
    is_backward = function is aten.convolution_backward.default
    if not is_backward and function is not aten.convolution.default:
        return 0
    own, images, weight = args[:3] if is_backward else (args[0], *args[:2])
    if images.device.type != "cpu" or images.dtype is not torch.float32:
        return 0
    groups = args[-2] if is_backward else args[8]
    image_bytes, weight_bytes, own_bytes = (value.numel() * value.element_size() for value in (images, weight, own))
    if not images.is_contiguous(memory_format=torch.channels_last):
        return image_bytes + (own_bytes if is_backward else weight_bytes)
    if not is_backward:
        return (1 if weight.shape[1] == 1 else 2) * weight_bytes
    copied_bytes = 0 if own.is_contiguous(memory_format=torch.channels_last) else own_bytes
    written, read, *window = weight.shape
    is_depthwise = read == 1 and written == groups
    if is_depthwise and max(window) <= _SMALL_WINDOW:
        return copied_bytes + 2 * weight_bytes
    channels = _CHANNELS.get(torch.backends.cpu.get_cpu_capability(), 1)
    written, read = (math.ceil(each / channels) * channels for each in (written // groups, read))
    blocked_bytes = groups * written * read * math.prod(window) * weight.element_size()
    return copied_bytes + blocked_bytes + (1 if is_depthwise else 2) * weight_bytes


_CHANNELS = {"AVX512": 16, "AVX2": 8}
"""Numbers of float32 in a register."""
_SMALL_WINDOW = 3
"""Up to this side oneDNN has a kernel of its own for groups of one channel."""


class _GpuAttention(TorchFunctionMode):
    """Computes attention by the operators of an NVIDIA GPU, whose shapes PyTorch knows without one.

    A CPU's own keeps the products of all pairs of words for the backward pass where there is dropout.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `_gpu_attention` in the place of PyTorch's, and what else is called as it is."""
        del types
        call = _gpu_attention if function is torch.nn.functional.scaled_dot_product_attention else function
        return call(*args, **(kwargs or {}))


def _gpu_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Compute attention by the operator that PyTorch takes on a GPU, which may differ from the one for a mask.

    The arguments are those of `scaled_dot_product_attention`; the rules for shapes and types those of PyTorch's
    `sdp_utils.cpp` for GPUs since the A100. cuDNN's operator, which Hopper's GPUs may prefer to flash attention, is
    left out, and so are copies of what is padded.
    """
    operands = query, key, value
    widths = {each.shape[-1] for each in operands}
    alike = 1 if enable_gqa else 2  # No such operator broadcasts: texts are as many, and so are heads.
    is_whole = all(
        each.dim() == 4 and each.stride(-1) == 1 and each.numel() and each.shape[:alike] == query.shape[:alike]  # noqa: PLR2004
        for each in operands
    )
    is_square = not is_causal or query.shape[2] == key.shape[2]
    is_flash = query.dtype in HALVES and len(widths) == 1 and max(widths) <= _WIDEST
    if is_whole and is_square and is_flash and attn_mask is None:
        return aten._scaled_dot_product_flash_attention(*operands, dropout_p, is_causal, scale=scale)[0]  # noqa: SLF001
    if is_whole and not enable_gqa and not any(width * query.element_size() % _VECTOR_BYTES for width in widths):
        if attn_mask is not None:
            if attn_mask.dtype is torch.bool:
                attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, -math.inf)
            attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
        keeps = any(each.requires_grad for each in operands)
        return aten._scaled_dot_product_efficient_attention(  # noqa: SLF001
            *operands, attn_mask, keeps, dropout_p, is_causal, scale=scale
        )[0]
    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(
            *operands, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )


HALVES = {torch.float16, torch.bfloat16}
_WIDEST = 256
"""Numbers for each word and head that flash attention takes."""
_VECTOR_BYTES = 16
"""To multiples of which the rows of memory-efficient attention are."""


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Keep PyTorch from logging what it raises as well."""
    log = logging.getLogger(torch._subclasses.fake_tensor.__name__)  # noqa: SLF001 - it has no public name
    was = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = was


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


@contextlib.contextmanager
def without_memory() -> Iterator[FakeTensorMode]:
    """Let tensors take no memory; modules may be converted, as by `.to(torch.bfloat16)`."""
    replaced: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}

    def apply(module: nn.Module, convert: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        """Convert a module by new parameters; PyTorch would change its own, which it cannot without memory."""
        for child in module.children() if recurse else ():
            child._apply(convert)  # noqa: SLF001 - some modules have their own
        for name, own in module._parameters.items():  # noqa: SLF001
            if own is None:
                continue
            with torch.no_grad():
                converted = convert(own)
            if converted is not own:  # What several modules share they share afterwards.
                _, other = replaced.setdefault(id(own), (own, nn.Parameter(converted, own.requires_grad)))
                module._parameters[name] = other  # noqa: SLF001
        for name, buffer in module._buffers.items():  # noqa: SLF001
            module._buffers[name] = None if buffer is None else convert(buffer)  # noqa: SLF001
        return module

    with patch.object(nn.Module, "_apply", apply), FakeTensorMode(allow_non_fake_inputs=True) as fake:
        yield fake


def _fake(tensor: torch.Tensor, fake: FakeTensorMode) -> torch.Tensor:
    return tensor if isinstance(tensor, torch._subclasses.FakeTensor) else fake.from_tensor(tensor)  # noqa: SLF001


def _counterpart(
    module: nn.Module | Callable[[], nn.Module], fake: FakeTensorMode
) -> tuple[nn.Module, dict[int, nn.Parameter]]:
    """Return a copy of a module whose tensors have no memory, and its parameters by the ids of the originals."""
    if not isinstance(module, nn.Module):
        try:
            made = module()
        except Exception as error:
            raise BadInputError(
                f"fits: the function of the module raised {type(error).__name__}: {error}; tensors have no memory in it"
            ) from error
        if not isinstance(made, nn.Module):
            raise BadInputError(f"fits: the function of the module returned a {type(made).__name__}, not a module")
        return made, {id(parameter): parameter for parameter in made.parameters()}
    parameters = {id(own): nn.Parameter(_fake(own.detach(), fake), own.requires_grad) for own in module.parameters()}
    buffers = {id(own): _fake(own, fake) for own in module.buffers()}
    return copy.deepcopy(module, {**parameters, **buffers}), parameters


def _optimizer(given: Any, module: nn.Module, counterparts: dict[int, nn.Parameter]) -> torch.optim.Optimizer | None:
    """Return an optimizer of the module without memory: made by a function, or as the one that is given, without state.

    Raises:
        BadInputError: it is no optimizer, or calls the step itself, or has other parameters.
    """
    if given is None:
        return None
    if isinstance(given, torch.optim.Optimizer):
        missing = [own for group in given.param_groups for own in group["params"] if id(own) not in counterparts]
        if missing:
            raise BadInputError(
                f"fits: the optimizer has a parameter of shape {tuple(missing[0].shape)} that the module has not; make "
                "it of the module's parameters"
            )
        made = copy.copy(given)
        made.state = defaultdict(dict)
        made.param_groups = [
            {**group, "params": [counterparts[id(own)] for own in group["params"]]} for group in given.param_groups
        ]
    else:
        made = given(module.parameters())
    if not isinstance(made, torch.optim.Optimizer):
        raise BadInputError(f"fits: the function of the optimizer returned a {type(made).__name__}, not an optimizer")
    if isinstance(made, torch.optim.LBFGS):
        raise BadInputError("fits: LBFGS calls the step as often as it likes, so its memory is not known beforehand")
    return made


class _Tracker(MemTracker):
    """PyTorch's tracker, with when memory is most; what it says of modules while they run is left out.

    Attributes:
        peak: of all that ran.
        peak_bytes: of each phase.
    """

    def __init__(self, *, counts_workspaces: bool) -> None:
        super().__init__()
        self._counts_workspaces = counts_workspaces
        self.peak = Peak(-1, {}, Phase.FORWARD, "", "")
        self.peak_bytes = dict.fromkeys(Phase, 0)
        self._operator, self._workspace_bytes = "", 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the operator, and call it."""
        self._operator = str(func)
        self._workspace_bytes = workspace_bytes(func, args) if self._counts_workspaces else 0
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self._workspace_bytes = 0

    def _update_peak_stats(self, peak_state: Any) -> None:
        del peak_state
        snapshot = self._curr_mem_snap
        size_bytes = _total(snapshot) + self._workspace_bytes
        is_backward = self._mod_tracker.is_bw
        phase = Phase.OPTIMIZER if self._in_opt else Phase.BACKWARD if is_backward else Phase.FORWARD
        self.peak_bytes[phase] = max(self.peak_bytes[phase], size_bytes)
        if size_bytes <= self.peak.size_bytes:
            return
        by_cause = dict.fromkeys(Cause, 0) | {Cause.WORKSPACES: self._workspace_bytes}
        for of_device in snapshot.values():
            for kind, used_bytes in of_device.items():
                if kind != _TOTAL:
                    by_cause[_CAUSES[kind.value]] += used_bytes
        inside = "" if self._in_opt else max(self._mod_tracker.parents - {"Global"}, key=len, default="")
        self.peak = Peak(size_bytes, by_cause, phase, inside.partition(".")[2], self._operator)

    def modules(self, whole: nn.Module) -> tuple[ModuleMemory, ...]:
        """Return what each module takes that was called."""
        names = {own: name for name, own in whole.named_modules()}
        found = []
        for own, stats in self.memory_tracking.items():
            by_state = {state.name: snapshots for state, snapshots in stats.snapshots.items()}
            kept = sum(
                _activations(after) - _activations(before)
                for before, after in zip(by_state["PRE_FW"], by_state["POST_FW"], strict=True)
            )
            found.append(ModuleMemory(names[own], type(own).__name__, stats.parameter_mem, kept))
        return tuple(found)


def _total(snapshot: Snapshot) -> int:
    return sum(of_device[_TOTAL] for of_device in snapshot.values())


def _activations(snapshot: Snapshot) -> int:
    return sum(
        size for of_device in snapshot.values() for kind, size in of_device.items()
        if kind != _TOTAL and _CAUSES[kind.value] is Cause.ACTIVATIONS
    )  # fmt: skip
