"""Networks from elsewhere: PyTorch modules, as networks of ours."""
