"""What only moves values: concatenation, and rows of tables."""

from autotm.kernels.operators.moving import data_movement, embedding
from autotm.kernels.operators.moving.embedding import (
    Lookup,
    call_embedding_concat,
    call_embedding_update,
    schedule_embedding_update,
)

__all__ = [
    "Lookup",
    "call_embedding_concat",
    "call_embedding_update",
    "data_movement",
    "embedding",
    "schedule_embedding_update",
]
