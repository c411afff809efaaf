"""Network -> training step -> fused kernels -> graph and library."""
