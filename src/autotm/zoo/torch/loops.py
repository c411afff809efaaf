"""Loops and branches of a captured step as kernels of it: each is one operator for placement."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
import tvm
from torch import fx
from tvm import relax

from autotm.kernels.library import LOOP_CALL
from autotm.kernels.schedules.dispatch import framework_kernel
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.graph import OpClass, ScheduleKind
from autotm.zoo.torch.control_flow import written_alone
from autotm.zoo.torch.importer import Translation
from autotm.zoo.torch.program import where

_CONTROL = "autotm.control.calls"
"""What compiles and runs such kernels, imported by its name: control flow is compiled from what networks are lowered
to, so that it lies above them."""


class StepTranslation(Translation):
    """Operators of a step, those on functions as one kernel each."""

    def _converted(self, node: fx.Node) -> Any:
        is_control = isinstance(node.target, torch._ops.HigherOrderOperator)  # noqa: SLF001 - no other name
        return _loop_kernel(self, node) if is_control else super()._converted(node)


def _loop_kernel(translation: Translation, node: fx.Node) -> tuple[Any, ...]:
    """Emit the kernel of `cond`, `while_loop` or `scan`; return its results, with None for those that nothing reads.

    Raises:
        BadInputError: it has no kernel, with the line of the user's code.
    """
    module, operands, read = written_alone(node)
    text = tvm.ir.save_json(module)
    try:
        flops, workspace_bytes = import_module(_CONTROL).costs(text)
    except AutotmError as error:
        raise BadInputError(f"{where(node)}: {error}") from error
    examples = [node.meta["val"][number] for number in read]
    kinds = [(tuple(map(int, value.shape)), str(value.dtype).removeprefix("torch.")) for value in examples]
    importer = translation.importer
    values = [_value(importer, operand) for operand in operands]
    emitted = framework_kernel(
        translation.builder, values, kinds, f"loop_{node.target.name()}", text, OpClass.MATMUL, flops,
        workspace_bytes, LOOP_CALL, ScheduleKind.LOOP,
    )  # fmt: skip
    by_number = dict(zip(read, emitted, strict=True))
    return tuple(by_number.get(number) for number in range(len(node.meta["val"])))


def _value(importer: Any, node: fx.Node) -> relax.Expr:
    return importer.constant(importer.known[node]) if node in importer.known else importer.env[node]
