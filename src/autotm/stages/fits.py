"""What memory the step takes that a function in a person's own file describes."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotm.model.errors import AutotmError, BadInputError, unknown_name
from autotm.model.step_memory import StepMemory

_ARGUMENTS = ("module", "inputs", "loss", "optimizer", "targets")


def fits_stage(file: Path, name: str, budget_bytes: int | None) -> StepMemory:
    """Return the memory of a step; nothing that the function makes is allocated.

    Args:
        file: a Python file.
        name: of a function in it that returns the arguments of `autotm.fits`, as a dict.
        budget_bytes: whether it fits.

    Raises:
        BadInputError: there is no such file or function, it raises, or returns something else; or as `autotm.fits`.
        AutotmError: PyTorch is not installed.
    """
    try:
        from autotm.memory.torch_step import step_memory, without_memory
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise AutotmError("fits: PyTorch is not installed; pip install 'autotm[torch]'") from None
    if not file.is_file():
        raise BadInputError(f"{file}: no such file; give FILE:FUNCTION")
    with without_memory():
        arguments = _arguments(file, name)
        inputs = arguments["inputs"]
        return step_memory(
            arguments["module"],
            tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,),
            arguments.get("loss"),
            arguments.get("optimizer"),
            tuple(arguments.get("targets", ())),
            budget_bytes,
        )


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
