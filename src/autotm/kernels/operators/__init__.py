"""What is computed: operators of a training step as TIR, without a schedule."""

from autotm.kernels.operators import batch_norm, conv, layer_norm, matmul, rearrange, softmax
from autotm.kernels.operators.batched_matmul import Subscripts, batched_matmul
from autotm.kernels.operators.conv import conv2d
from autotm.kernels.operators.moving import (
    Lookup,
    Scatter,
    ScatterLoops,
    UpdateLoops,
    call_embedding_concat,
    call_embedding_update,
    data_movement,
    embedding,
    running,
    scatter_sum,
    schedule_embedding_update,
    schedule_scatter_sum,
)
from autotm.kernels.operators.windows import depthwise, pooling, resize

__all__ = [
    "Lookup",
    "Scatter",
    "ScatterLoops",
    "Subscripts",
    "UpdateLoops",
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
    "rearrange",
    "resize",
    "running",
    "scatter_sum",
    "schedule_embedding_update",
    "schedule_scatter_sum",
    "softmax",
]
