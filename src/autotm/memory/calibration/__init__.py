"""What copies take on this machine: alone, by threads and stores, and beside kernels."""

from autotm.memory.calibration.copy_curves import copy_curves
from autotm.memory.calibration.copy_rate import copy_bytes_per_s
from autotm.memory.calibration.links import calibrate_links
from autotm.memory.calibration.sampling import Effort

__all__ = ["Effort", "calibrate_links", "copy_bytes_per_s", "copy_curves"]
