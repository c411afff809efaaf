"""PyTorch modules, as networks of ours."""
