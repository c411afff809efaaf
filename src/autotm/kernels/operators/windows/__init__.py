"""What slides over an image, channel by channel: pools, depthwise convolutions, resizing."""

from autotm.kernels.operators.windows import depthwise, pooling, resize

__all__ = ["depthwise", "pooling", "resize"]
