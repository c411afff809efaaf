"""PyTorch's joint graph of a step, as operators over storages."""

from autotm.api.offload.graph.calls import Slots, Values, argument_bytes, bytes_of, keep
from autotm.api.offload.graph.capture import Captured, capture, named_batch, storage_of
from autotm.api.offload.graph.storages import Operator, Step, Storage, step_of, tensors_of

__all__ = [
    "Captured",
    "Operator",
    "Slots",
    "Step",
    "Storage",
    "Values",
    "argument_bytes",
    "bytes_of",
    "capture",
    "keep",
    "named_batch",
    "step_of",
    "storage_of",
    "tensors_of",
]
