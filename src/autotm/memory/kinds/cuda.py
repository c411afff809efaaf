"""A GPU: its memory is fast, pinned memory of its host slow. Programs run on its streams, not on cores."""

from __future__ import annotations

from typing import NoReturn

from autotm.model.errors import BadInputError
from autotm.model.machine import Machine


def open_kind(machine: Machine, *_: object, **__: object) -> NoReturn:
    """Refuse: kernels on the processor's cores cannot use device memory.

    Raises:
        BadInputError: always.
    """
    raise BadInputError(
        f"config/machines/{machine.name}.yaml: a machine of kind cuda has no memory for kernels of the processor; its "
        "programs run on the GPU's streams"
    )
