"""A GPU: its memory is fast, pinned memory of its host slow. Programs run on its streams, not on cores."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from autotm.model.errors import BadInputError
from autotm.model.links import Links
from autotm.model.machine import Machine


def open_kind(
    machine: Machine,
    links: Links | None,
    fast_bytes: int,
    slow_bytes: int,
    devices_dir: Path,
    *,
    stretch: float | None,
) -> NoReturn:
    """Refuse: kernels on the processor's cores cannot use device memory.

    Raises:
        BadInputError: always.
    """
    del links, fast_bytes, slow_bytes, devices_dir, stretch
    raise BadInputError(
        f"config/machines/{machine.name}.yaml: a machine of kind cuda has no memory for kernels of the processor; its "
        "programs run on the GPU's streams"
    )
