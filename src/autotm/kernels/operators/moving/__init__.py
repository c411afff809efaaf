"""What only moves values: concatenation, rows of tables, places named by indices, orders."""

from autotm.kernels.operators.moving import data_movement, embedding, running
from autotm.kernels.operators.moving.embedding import (
    Lookup,
    UpdateLoops,
    call_embedding_concat,
    call_embedding_update,
    schedule_embedding_update,
)
from autotm.kernels.operators.moving.scatter import Scatter, ScatterLoops, scatter_sum, schedule_scatter_sum

__all__ = [
    "Lookup",
    "Scatter",
    "ScatterLoops",
    "UpdateLoops",
    "call_embedding_concat",
    "call_embedding_update",
    "data_movement",
    "embedding",
    "running",
    "scatter_sum",
    "schedule_embedding_update",
    "schedule_scatter_sum",
]
