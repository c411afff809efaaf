"""What a step needs to know of a kernel besides its code: small, and kept where the code is."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import tvm

from autotm.kernels.code import Workspace
from autotm.kernels.making.build import identity
from autotm.kernels.making.objects import code_key
from autotm.kernels.schedules import ScheduledKernel
from autotm.model.step import OpClass, ScheduleKind


@dataclass(frozen=True)
class KernelFacts:
    """A scheduled kernel without its code.

    Attributes:
        symbol: name of its function in a library.
        identity: hash of its code.
        op, op_class, flops, workspaces, others, kind: as in `ScheduledKernel`.
    """

    symbol: str
    identity: str
    op: str
    op_class: OpClass
    flops: int
    workspaces: tuple[Workspace, ...]
    others: tuple[str, ...]
    kind: ScheduleKind

    @classmethod
    def of(cls, kernel: ScheduledKernel, target: tvm.target.Target) -> KernelFacts:
        """Of a kernel, named after its operation and its code."""
        digest = identity(kernel.func, target)
        return cls(
            symbol=f"{kernel.op}_{digest[:12]}",
            identity=digest,
            op=kernel.op,
            op_class=kernel.op_class,
            flops=kernel.flops,
            workspaces=kernel.workspaces,
            others=kernel.others,
            kind=kernel.kind,
        )

    @property
    def code_key(self) -> str:
        """The name of its machine code in a folder of objects."""
        return code_key(self.symbol, self.identity)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of all its workspaces."""
        return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in self.workspaces)

    def to_json(self) -> dict[str, Any]:
        """As what JSON can say."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> KernelFacts:
        """What `to_json` said."""
        read = {
            "op_class": OpClass(found["op_class"]),
            "workspaces": tuple((tuple(shape), dtype) for shape, dtype in found["workspaces"]),
            "others": tuple(found["others"]),
            "kind": ScheduleKind(found["kind"]),
        }
        return cls(**{**found, **read})
