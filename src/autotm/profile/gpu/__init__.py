"""Times of kernels and copies on a GPU that is not here, from its published facts: modelled, never measured."""

from autotm.profile.gpu.links import modelled_links
from autotm.profile.gpu.roofline import roofline_profile, with_winograd

__all__ = ["modelled_links", "roofline_profile", "with_winograd"]
