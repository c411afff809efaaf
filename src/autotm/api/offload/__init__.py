"""Training steps of PyTorch in less device memory: its kernels, with the plan's copies to host memory and back."""
