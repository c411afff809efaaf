"""Links of this machine in a second: measured as ever, but each time once, and copies of two sizes."""

from __future__ import annotations

from functools import partial

import pytest

from autotm.memory.calibration import Effort, calibrate_links


def calibrate_quickly(patch: pytest.MonkeyPatch) -> None:
    """From now on, in this process."""
    once = partial(calibrate_links, sizes_bytes=(4096, 65536), effort=Effort(1, 1))
    patch.setattr("autotm.profile.copies.calibrate_links", once)
    patch.setattr("autotm.kernels.compute_rates._SECONDS_EACH", 0.01)
