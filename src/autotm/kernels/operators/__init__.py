"""What is computed: operators of a training step as TIR, without a schedule."""

from autotm.kernels.operators import (
    batch_norm,
    conv,
    data_movement,
    depthwise,
    embedding,
    layer_norm,
    matmul,
    pooling,
    softmax,
)
from autotm.kernels.operators.batched_matmul import Subscripts, batched_matmul
from autotm.kernels.operators.conv import conv2d
from autotm.kernels.operators.embedding import (
    Lookup,
    call_embedding_concat,
    call_embedding_update,
    schedule_embedding_update,
)

__all__ = [
    "Lookup",
    "Subscripts",
    "batch_norm",
    "batched_matmul",
    "call_embedding_concat",
    "call_embedding_update",
    "conv",
    "conv2d",
    "data_movement",
    "depthwise",
    "embedding",
    "layer_norm",
    "matmul",
    "pooling",
    "schedule_embedding_update",
    "softmax",
]
