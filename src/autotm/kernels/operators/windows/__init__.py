"""What slides over an image, channel by channel: pools and depthwise convolutions."""

from autotm.kernels.operators.windows import depthwise, pooling

__all__ = ["depthwise", "pooling"]
