"""A second implementation of 3 x 3 convolutions on a modelled GPU: fewer multiplications for a workspace.

Winograd's algorithm F(2 x 2, 3 x 3) (Lavin and Gray, 2016), as libraries compute it, in several passes: a batch of N
images of H x W results, with C channels read and K written, has T = N ceil(H / 2) ceil(W / 2) squares of 4 x 4.
Transformed weights, data and products take 16 (C K + T C + T K) values of workspace; 16 multiplications do the work of
36. Only convolutions of stride 1 and their data gradients have it.
"""

from __future__ import annotations

from autotm.model.files import content_hash
from autotm.model.step import Implementation, Kernel, OpClass, Operand

WINOGRAD = "winograd"
_CLASSES = {OpClass.CONV_FORWARD, OpClass.CONV_DATA_GRADIENT}
_FILTER, _SQUARE, _RESULTS = 3, 4, 2
_IMAGE_AXES = 4


def multiplications_saved() -> float:
    """How many times fewer multiplications there are: 36 / 16."""
    return (_FILTER * _RESULTS) ** 2 / _SQUARE**2


def workspace_values(kernel: Kernel) -> int:
    """Values of the workspace; 0 where the kernel is no 3 x 3 convolution of stride 1 over images in channels last."""
    result = kernel.outputs[0].shape if kernel.outputs else ()
    if kernel.op_class not in _CLASSES or len(result) != _IMAGE_AXES:
        return 0
    batch, height, width, written = result
    images = [operand.shape for operand in kernel.inputs if len(operand.shape) == _IMAGE_AXES]
    for weight in images:
        read = kernel.flops // (2 * _FILTER**2 * batch * height * width * written)
        if sorted(weight) != sorted((_FILTER, _FILTER, read, written)):
            continue
        # What is fused in may have as many channels; only a convolution reads images that are larger than its results.
        given = [image[1:3] for image in images if image[0] == batch and image[3] == read and image != weight]
        least = _FILTER - 1
        if given and all(abs(a - b) <= least for a, b in zip(max(given), (height, width), strict=True)):
            squares = batch * -(-height // _RESULTS) * -(-width // _RESULTS)
            return _SQUARE**2 * (read * written + squares * (read + written))
    return 0


def winograd(kernel: Kernel) -> Implementation | None:
    """The implementation, if there is one."""
    values = workspace_values(kernel)
    if not values:
        return None
    workspace = Operand(f"{kernel.name}.{WINOGRAD}.workspace0", (values,), kernel.outputs[0].dtype)
    identity = content_hash([kernel.identity, WINOGRAD])
    return Implementation(WINOGRAD, f"{kernel.function}_{WINOGRAD}", identity, (workspace,))
