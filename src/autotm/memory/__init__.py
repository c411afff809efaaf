"""Tiers made real: pools, the copies between them, and the delays that play slow memory where there is none."""

from autotm.memory.async_copy import AsyncCopy
from autotm.memory.calibration import calibrate_links, copy_bytes_per_s
from autotm.memory.clock import quiet_interpreter, wait_until
from autotm.memory.linux import PolicyTiers
from autotm.memory.pool import POISON_BYTE, Pool, require_available
from autotm.memory.tiers import Tiers, open_for, open_tiers

__all__ = [
    "POISON_BYTE",
    "AsyncCopy",
    "PolicyTiers",
    "Pool",
    "Tiers",
    "calibrate_links",
    "copy_bytes_per_s",
    "open_for",
    "open_tiers",
    "quiet_interpreter",
    "require_available",
    "wait_until",
]
