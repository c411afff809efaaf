"""Contractions on a GPU: as products of matrices whose operands are read where they lie, or are laid out before."""

from autotm.kernels.cuda.contraction.choice import contraction_stages, implementations
from autotm.kernels.cuda.contraction.instructions import functions_in

__all__ = ["contraction_stages", "functions_in", "implementations"]
