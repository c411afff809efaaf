"""What copies between a machine's memories take, alone and beside kernels."""

from autotm.profile.copies.gpu_links import measure_gpu_links
from autotm.profile.copies.links import Beside, measure_links

__all__ = ["Beside", "measure_gpu_links", "measure_links"]
