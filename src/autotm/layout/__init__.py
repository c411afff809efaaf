"""Addresses: a byte offset for every stay of a plan, and the program that runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotm.layout.compile import compile_program
from autotm.layout.pack import pack

if TYPE_CHECKING:
    from autotm.layout.fit import fits, solve_and_pack, sweep_and_pack

__all__ = ["compile_program", "fits", "pack", "solve_and_pack", "sweep_and_pack"]


def __getattr__(name: str) -> Any:
    """What solves as well as packs is imported at its first use: whoever only packs need not wait for the solver."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from autotm.layout import fit  # noqa: PLC0415 - as said

    return getattr(fit, name)
