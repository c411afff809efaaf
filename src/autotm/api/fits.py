"""`autotm.fits(module, ...)`: what memory a training step of PyTorch needs, without allocating any of it.

Modules come from Python, or from a function in a file.
"""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotm.api.offload.entry import require_torch
from autotm.model.errors import AutotmError, BadInputError, unknown_name
from autotm.model.files import config_folder
from autotm.model.machine import load_gpu
from autotm.model.step_memory import StepMemory, budget_of

_ARGUMENTS = ("module", "inputs", "loss", "optimizer", "targets")


def fits(
    module: Any,
    inputs: Any,
    loss: Callable[..., Any] | None = None,
    optimizer: Any = None,
    budget: str | float | None = None,
    *,
    targets: Sequence[Any] = (),
    device: str | None = None,
    page: str | Path | None = None,
) -> StepMemory:
    """Predict what memory a training step needs, by cause, by module, and when it is most.

    Two steps run over tensors without memory, so that a module of billions of parameters takes a laptop seconds, and no
    GPU is needed. Forward, backward and the optimizer's update are PyTorch's own, in its order.

    Args:
        module: in the mode, training or evaluation, in which it is to run; or a function that makes it, which is
            called so that its parameters take no memory either.
        inputs: a tensor, or a tuple of tensors: an example of what the module is called with.
        loss: gives a scalar from the module's output and the targets; without it the module returns its loss.
        optimizer: of the module's parameters; or a function that makes one of parameters, such as `torch.optim.AdamW`;
            without one a step ends with the gradients.
        budget: bytes, as `8GB`, `4GiB` or a number: whether the step fits; by default what the device has.
        targets: what the loss takes behind the module's output.
        device: a file in config/devices/gpu without .yaml, as `h200`: times of the step on that GPU are modelled, with
            all kept and within budgets.
        page: an .html file that shows where each tensor is when, in the plan of `autotm.offload` within the budget; it
            needs a device.

    Returns:
        The memory of the first step and of later ones. Printed it is a table.

    Raises:
        BadInputError: an argument is at fault, or the step depends on the values of tensors; a page is asked for, and
            there is no plan.
        AutotmError: PyTorch is missing or too old.
    """
    if page is not None and device is None:
        raise BadInputError("fits: a page shows times, which are modelled of a device; give one, such as h200")
    gpu = None if device is None else load_gpu(config_folder() / "devices", device)
    budget_bytes = None if budget is None else budget_of(budget)
    require_torch("fits")
    from autotm.memory.torch_step import step_memory  # noqa: PLC0415 - imports PyTorch

    inputs = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    if gpu is not None and budget_bytes is None:
        budget_bytes = int(gpu.memory.size_bytes - gpu.overhead.size_bytes)
    given = module, inputs, loss, optimizer, tuple(targets), budget_bytes
    found, step = step_memory(*given, on_gpu=gpu is not None)
    if gpu is None:
        return found
    from autotm.api.offload.modelling import modelled_times  # noqa: PLC0415 - as above

    if step is None:
        if page is not None:
            raise BadInputError(f"fits: no page: autotm.offload cannot plan this step: {found.least.failure}")
        return replace(found, device=gpu.description)
    times = modelled_times(step, gpu, found, asked=budget is not None, page=None if page is None else Path(page))
    return replace(found, device=gpu.description, times=tuple(times))


def fits_of_file(file: Path, name: str, budget: str | None, device: str | None, page: Path | None) -> StepMemory:
    """Answer as `fits` for a function in a file; nothing that it makes is allocated.

    Args:
        file: a Python file.
        name: of a function in it that returns the arguments of `autotm.fits`, as a dict.
        budget: as there.
        device: as there.
        page: as there.

    Raises:
        BadInputError: there is no such file or function, it raises, or returns something else; or as `autotm.fits`.
        AutotmError: PyTorch is not installed.
    """
    require_torch("fits")
    from autotm.memory.torch_step import without_memory  # noqa: PLC0415 - imports PyTorch

    if not file.is_file():
        raise BadInputError(f"{file}: no such file; give FILE:FUNCTION")
    with without_memory():
        return fits(**_arguments(file, name), budget=budget, device=device, page=page)


def _arguments(file: Path, name: str) -> Mapping[str, Any]:
    """Run a file, and return what the function returns."""
    doing = "running it"
    try:
        functions = {key: value for key, value in runpy.run_path(str(file)).items() if inspect.isfunction(value)}
        doing = name
        found = functions[name]() if name in functions else None
    except AutotmError:
        raise
    except Exception as error:
        raise BadInputError(f"{file}: {doing} raised {type(error).__name__}: {error}") from error
    if name not in functions:
        raise BadInputError(f"{file}: {unknown_name('function', name, functions)}")
    if not isinstance(found, Mapping) or not {"module", "inputs"} <= found.keys() <= {*_ARGUMENTS}:
        what = f"a dict of {', '.join(map(str, found))}" if isinstance(found, Mapping) else f"a {type(found).__name__}"
        raise BadInputError(
            f"{file}: {name} returned {what}; it has to return a dict of module, inputs, and where there are any loss, "
            "optimizer and targets: the arguments of autotm.fits"
        )
    return found
