"""How much slow memory a machine file lets runs take."""

from __future__ import annotations

from autotm.model.files import AutotmError, BadInputError
from autotm.model.machine import DaxTier, NumaTier


def check_capacity(file: str, tier: NumaTier | DaxTier, there_bytes: int, slow_bytes: int) -> None:
    """Refuse what is not there.

    Args:
        file: the machine file, for messages.
        tier: of that file.
        there_bytes: slow memory that the machine has, in use or not.
        slow_bytes: what a run needs of it.

    Raises:
        BadInputError: the file allows more than there is.
        AutotmError: the run needs more than the file allows.
    """
    allowed_bytes = tier.capacity_bytes
    if allowed_bytes is None:
        return
    if allowed_bytes > there_bytes:
        raise BadInputError(
            f"{file}: slow_tier.capacity: {tier.capacity} is more than there is, {there_bytes / 1e9:.3f} GB"
        )
    if slow_bytes > allowed_bytes:
        raise AutotmError(
            f"{slow_bytes / 1e9:.3f} GB of slow memory are needed, {file} allows {tier.capacity} (slow_tier.capacity); "
            "take a smaller scale or batch, or raise it"
        )
